"""Supervised training on the policy's own answers: tasks as the examples of the loop.

The source gives tasks; making a batch of them plays episodes with the present weights. What is
sampled depends on the seed and the task's number alone, so a killed run ends in the same bits
(with `engine.adaptive` off).
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ptjax.core.metrics import Mean
from ptjax.domains.domain import Domain
from ptjax.envs.environment import Task
from ptjax.evals.heldout import EvalConfig, heldout, pass_rates
from ptjax.experience.collect import EpisodeSpec, Played, PolicyConfig, collect
from ptjax.experience.mixture import DomainConfig, Mixture, task_seed
from ptjax.experience.packing import PackConfig
from ptjax.models.decoder import Params
from ptjax.rollout.engine import EngineConfig
from ptjax.sharding.mesh import MeshConfig
from ptjax.sharding.rules import Rules
from ptjax.train.experiment import Experiment, ModelConfig, SandboxConfig
from ptjax.train.manifest import write_run_manifest
from ptjax.train.rl import sampling_seed
from ptjax.train.session import Session, open_session


@dataclasses.dataclass(frozen=True)
class RolloutConfig:
  """How answers are sampled and graded.

  Attributes:
    domains: where the tasks come from.
    group_size: answers to each task.
    policy: sampling, and the length limit.
    engine, sandbox: the machinery.
    eval: the held-out pass rates before and after.
  """

  domains: tuple[DomainConfig, ...] = (DomainConfig("arithmetic"),)
  group_size: int = 8
  policy: PolicyConfig = PolicyConfig()
  engine: EngineConfig = EngineConfig()
  sandbox: SandboxConfig = SandboxConfig()
  eval: EvalConfig = EvalConfig()

  def __post_init__(self):
    if self.group_size < 1:
      raise ValueError(f"rollout.group_size {self.group_size} must be >= 1")


class OnPolicyExperiment(Protocol):
  """What an experiment on the policy's own answers says of the session that samples them."""

  @property
  def seed(self) -> int: ...
  @property
  def rollout(self) -> RolloutConfig: ...
  @property
  def model(self) -> ModelConfig: ...
  @property
  def mesh(self) -> MeshConfig: ...
  @property
  def rules(self) -> Rules: ...
  @property
  def pack(self) -> PackConfig: ...


def session_experiment(e: OnPolicyExperiment) -> Experiment:
  """The configuration of the session in which the answers are sampled.

  Raises:
    ValueError: lengths that do not fit together, or an unknown domain.
  """
  return Experiment(
    seed=e.seed,
    domains=e.rollout.domains,
    model=e.model,
    mesh=e.mesh,
    rules=e.rules,
    policy=e.rollout.policy,
    engine=e.rollout.engine,
    pack=e.pack,
    eval=e.rollout.eval,
    sandbox=e.rollout.sandbox,
  )


@contextlib.contextmanager
def sampling_session(e: OnPolicyExperiment, workdir: pathlib.Path) -> Iterator[Session]:
  """The session in which the answers are sampled; the workdir's manifest says what it is made of.

  Raises:
    ValueError: as `session_experiment` and `open_session`.
  """
  with open_session(session_experiment(e), workdir) as session:
    write_run_manifest(session, workdir)
    yield session


@dataclasses.dataclass(frozen=True)
class NumberedTask:
  """A task and how many were set before it in the run."""

  task: Task
  number: int


class Tasks:
  """The training tasks of the domains, endless, by the mixture's quotas."""

  def __init__(self, configs: Sequence[DomainConfig], domains: dict[str, Domain], seed: int):
    self._mixture, self._domains, self._seed = Mixture(configs), domains, seed

  def take(self, count: int) -> list[NumberedTask]:
    """The next tasks."""
    first = sum(self._mixture.drawn.values())
    return [
      NumberedTask(
        self._domains[d.domain].make_task(task_seed(self._seed, d.domain, d.index), "train"),
        first + i,
      )
      for i, d in enumerate(self._mixture.draw(count))
    ]

  def state(self) -> dict[str, Any]:
    return self._mixture.state()

  def restore(self, state: Mapping[str, Any]) -> None:
    self._mixture.restore(state)


def play(
  session: Session, params: Params, tasks: Sequence[NumberedTask], group_size: int
) -> list[Played]:
  """Plays a group of episodes on each task under the given weights; groups in order."""
  e, first = session.experiment, tasks[0].number
  session.engine.set_weights(params, first)
  specs = [
    EpisodeSpec(numbered.task, group, group * group_size + member)
    for group, numbered in enumerate(tasks)
    for member in range(group_size)
  ]
  return session.runner.run(
    collect(
      session.engine,
      session.template,
      session.domains,
      specs,
      session.services,
      e.policy,
      seed=sampling_seed(e.seed, first),
    )
  )


def played_metrics(played: Sequence[Played]) -> dict[str, Mean]:
  """Reward, pass rate and length of what was sampled, and the share that has a score."""
  scored = [p for p in played if p.trainable]
  return {
    "reward/mean": Mean.of(np.asarray([p.grade.rewards[""] for p in scored], np.float64)),
    "rollout/passed": Mean.of(np.asarray([float(p.grade.passed) for p in scored])),
    "rollout/scored": Mean.of(np.asarray([float(p.trainable) for p in played])),
    "length/mean": Mean.of(np.asarray([p.episode.action_mask.sum() for p in played], np.float64)),
  }


def heldout_pass_rates(session: Session, params: Params) -> dict[str, Mean]:
  """Pass rate of each domain's held-out tasks, and of all together."""
  e = session.experiment
  if e.eval.tasks_per_domain == 0:
    return {}
  session.engine.set_weights(params, 0)
  played = session.runner.run(
    heldout(session.engine, session.template, session.domains, session.services, e.policy, e.eval)
  )
  return {f"pass/{r.domain}": Mean(r.passed, r.total) for r in pass_rates(played)}
