"""A reward model as a child of a domain's reward tree, by configuration."""

import dataclasses
import functools
import hashlib
import json
import pathlib

from ptjax.data.provenance import sha256_of
from ptjax.rewards.process import Aggregate, process_leaf
from ptjax.rewards.reward_model import DIRECTORY, Combine, RewardModel, reward_model_leaf
from ptjax.rewards.tree import RewardTree, with_child


@dataclasses.dataclass(frozen=True)
class JudgeConfig:
  """A reward model that judges the answers of a domain beside its own graders.

  Attributes:
    workdir: of a finished `reward` run.
    weight: its share of the reward; what the domain has keeps 1 - weight.
    head: the head of the reward model that judges; None takes that of the domain's name.
    how: the score from those of the members: mean, min or mean_minus_std.
    coefficient: of the standard deviation in mean_minus_std.
    steps: judge the steps of an answer (lines) and take the min, the mean or the last; None judges
      the answer as a whole.
  """

  workdir: str
  weight: float = 0.3
  head: str | None = None
  how: Combine = "mean"
  coefficient: float = 1.0
  steps: Aggregate | None = None

  def __post_init__(self):
    if not 0 < self.weight <= 1:
      raise ValueError(f"judge.weight {self.weight} must be in (0, 1]")
    if self.steps is not None and self.coefficient != 1.0:
      raise ValueError(
        f"judge.coefficient {self.coefficient} is not read where steps are judged; leave it out"
      )


def weights_hash(config: JudgeConfig) -> str:
  """sha256 of the reward model's weights. Raises OSError where there are none."""
  path = pathlib.Path(config.workdir) / DIRECTORY / "model.safetensors"
  status = path.stat()
  return _hash_of(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=64)
def _hash_of(path: pathlib.Path, mtime_ns: int, size: int) -> str:
  del mtime_ns, size  # of another file under the same name
  return sha256_of(path)


def version_of(config: JudgeConfig) -> str:
  """Twelve digits that are others for other weights or settings, wherever the workdir lies."""
  settings = dataclasses.asdict(config) | {"workdir": weights_hash(config)}
  return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def with_judge(
  tree: RewardTree, domain: str, model: RewardModel, config: JudgeConfig
) -> RewardTree:
  """The tree with the judge as another child of its root, named `preference` or `process`.

  Raises:
    ValueError: the model has no such head, or the root of the tree is a leaf.
  """
  head = config.head or domain
  model.head_of(head)
  if config.steps is None:
    leaf = reward_model_leaf(model, how=config.how, coefficient=config.coefficient, head=head)
  else:
    leaf = process_leaf(model, how=config.steps, members=config.how, head=head)
  return with_child(tree, leaf, config.weight)
