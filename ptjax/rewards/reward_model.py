"""A trained reward model: its file, its scores, and the leaf of a reward tree that asks it.

Bradley-Terry scores are known up to a constant. The leaf gives sigmoid(score - offset) with the
mean score of the domain's training answers as offset: the probability that the answer is preferred
to an average one, a number in [0, 1] as reward trees want.

Letters: M members of the ensemble, P texts.
"""

import asyncio
import dataclasses
import datetime
import functools
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from ptjax.core.config_build import build
from ptjax.data.assistant_mask import Example, encode_conversation
from ptjax.data.chat_template import ChatTemplate
from ptjax.data.tokenizer import load_tokenizer
from ptjax.envs.environment import Message, Services, Task
from ptjax.models import decoder, heads
from ptjax.models.config import DecoderConfig
from ptjax.models.decoder import Params
from ptjax.models.importer import content_hash, resolve_source
from ptjax.rewards.tree import Leaf

DIRECTORY = "reward_model"
SHARED = "all"
"""The one head of a model without heads by domain."""

_LARGEST = 64

Combine = Literal["mean", "min", "mean_minus_std"]


class ScoredText(NamedTuple):
  """A conversation as tokens i32[T], where in it scores are read i32[n], and its domain."""

  tokens: np.ndarray
  ends: np.ndarray
  domain: str


@dataclasses.dataclass(frozen=True)
class RewardModel:
  """A trunk with scalar heads.

  Attributes:
    model: shape of the trunk.
    params: {"trunk", "head"}, the head as of `heads.init_reward_head`.
    template: tokenizer and chat template of the model that it was trained from.
    domains: names of the heads, in order; only `SHARED` without heads by domain.
    offsets: mean training score of each head, subtracted before the sigmoid.
    source, source_hash: the model that it was trained from.
  """

  model: DecoderConfig
  params: Params
  template: ChatTemplate
  domains: tuple[str, ...]
  offsets: Mapping[str, float]
  source: str
  source_hash: str

  def head_of(self, domain: str) -> int:
    """Index of the head that judges a domain; raises ValueError where there is none."""
    name = SHARED if self.domains == (SHARED,) else domain
    if name not in self.domains:
      raise ValueError(
        f"the reward model has no head for domain {domain!r}, only {', '.join(self.domains)}; "
        f"train it on pairs of that domain, or with reward.per_domain=False"
      )
    return self.domains.index(name)

  def scores(self, texts: Sequence[ScoredText]) -> list[np.ndarray]:
    """Raw scores f32[n, M] of each text at its ends.

    Up to 64 texts are padded to one power of two and scored together.
    """
    parts = [texts[i : i + _LARGEST] for i in range(0, len(texts), _LARGEST)]
    return [scores for part in parts for scores in self._score_part(part)]

  def _score_part(self, texts: Sequence[ScoredText]) -> list[np.ndarray]:
    length = _ceil2(max(len(t.tokens) for t in texts), 32)
    rows, reads = _ceil2(len(texts), 1), _ceil2(max(len(t.ends) for t in texts), 1)
    tokens, real = np.zeros((2, rows, length), np.int32)
    ends = np.zeros((rows, reads), np.int32)
    domain = np.zeros(rows, np.int32)
    for i, text in enumerate(texts):
      tokens[i, : len(text.tokens)], real[i, : len(text.tokens)] = text.tokens, 1
      ends[i, : len(text.ends)], domain[i] = text.ends, self.head_of(text.domain)
    scores = np.asarray(_scores(self.model, self.params, tokens, real, ends, domain))
    return [scores[i, : len(text.ends)] for i, text in enumerate(texts)]

  def save(self, directory: pathlib.Path, report: Mapping[str, Any]) -> None:
    """Writes model.safetensors and reward_model.json; `report` is kept with them."""
    directory.mkdir(parents=True, exist_ok=True)
    flat = {
      "/".join(str(key.key) for key in path): np.ascontiguousarray(leaf)
      for path, leaf in jax.tree_util.tree_leaves_with_path(jax.device_get(self.params))
    }
    safetensors.numpy.save_file(flat, directory / "model.safetensors")
    record = {
      "model": dataclasses.asdict(self.model),
      "domains": self.domains,
      "offsets": dict(self.offsets),
      "today": self.template.today and self.template.today.isoformat(),
      "source": self.source,
      "source_hash": self.source_hash,
      "report": report,
    }
    (directory / "reward_model.json").write_text(json.dumps(record, indent=2) + "\n")


def load_reward_model(workdir: str | pathlib.Path) -> RewardModel:
  """The reward model that a workdir of the verb `reward` holds.

  Raises:
    ValueError: there is none, it is damaged, or the model that its tokenizer comes from has
      changed.
  """
  directory = pathlib.Path(workdir) / DIRECTORY
  if not (directory / "reward_model.json").exists():
    raise ValueError(
      f"{workdir} holds no reward model; give the workdir of a finished `reward` run"
    )
  record = json.loads((directory / "reward_model.json").read_text())
  source = resolve_source(record["source"])
  if content_hash(source) != record["source_hash"]:
    raise ValueError(
      f"{directory}: model {record['source']!r} is not the one that the reward model was trained "
      f"from; restore it, or train the reward model anew"
    )
  params: Params = {}
  for name, leaf in safetensors.numpy.load_file(directory / "model.safetensors").items():
    *parents, last = name.split("/")
    node = params
    for key in parents:
      node = node.setdefault(key, {})
    node[last] = leaf
  model = build(DecoderConfig, record["model"], "model")
  on_cpu = jax.default_backend() == "cpu"
  model = dataclasses.replace(model, remat="none", merge_rows=on_cpu)
  decoder.check_params(model, params["trunk"])
  return RewardModel(
    model,
    jax.device_put(params),
    ChatTemplate(load_tokenizer(source), _date(record.get("today"))),
    tuple(record["domains"]),
    record["offsets"],
    record["source"],
    record["source_hash"],
  )


def _date(text: str | None) -> datetime.datetime | None:
  return None if text is None else datetime.datetime.fromisoformat(text)


@functools.partial(jax.jit, static_argnums=0)
def _scores(model: DecoderConfig, params, tokens_BT, real_BT, ends_BA, domain_B):
  positions_BT = jnp.broadcast_to(jnp.arange(tokens_BT.shape[1]), tokens_BT.shape)
  packed = decoder.Packed(tokens_BT, positions_BT, real_BT, jnp.zeros_like(real_BT))
  hidden_BTD = decoder.bind(model, params["trunk"])(packed)
  hidden_BAD = jnp.take_along_axis(hidden_BTD, ends_BA[:, :, None], axis=1)
  rows, reads = ends_BA.shape
  flat = hidden_BAD.reshape(rows * reads, -1)
  scores_PM = heads.domain_scores(params["head"], flat, jnp.repeat(domain_B, reads))
  return scores_PM.reshape(rows, reads, -1)


def _ceil2(n: int, least: int) -> int:
  """The next power of two: few shapes, few compilations."""
  return max(least, 1 << (n - 1).bit_length())


def answer_text(
  template: ChatTemplate, messages: Sequence[Message], answer: str, domain: str
) -> ScoredText:
  """A conversation with its answer, scored at the answer's last token, the end token."""
  example = answer_tokens(template, messages, answer)
  return ScoredText(example.tokens, np.asarray([len(example.tokens) - 1]), domain)


def answer_tokens(template: ChatTemplate, messages: Sequence[Message], answer: str) -> Example:
  """A conversation up to the end token of its answer, whose tokens the mask marks."""
  whole = [*messages, {"role": "assistant", "content": answer}]
  example = encode_conversation(template, whole, last_turn_only=True)
  stop = int(np.flatnonzero(example.action_mask)[-1]) + 1
  return Example(example.tokens[:stop], example.action_mask[:stop])


def combine(scores_M: np.ndarray, how: Combine, coefficient: float = 1.0) -> float:
  """One score from those of the members: their mean, the least, or mean - coefficient * std.

  Being cautious where members disagree makes a policy that exploits one of them gain less.
  Source: Coste et al. 2023, section 3.
  """
  match how:
    case "mean":
      return float(scores_M.mean())
    case "min":
      return float(scores_M.min())
    case "mean_minus_std":
      return float(scores_M.mean() - coefficient * scores_M.std())
  raise ValueError(f"combine {how!r} is unknown; use mean, min or mean_minus_std")


def sigmoid(x: float) -> float:
  """1 / (1 + exp(-x)), without overflow."""
  return float(np.exp(-np.logaddexp(0.0, -x)))


class Batcher:
  """Scores what many graders ask in one turn of the event loop in one call, in a thread."""

  def __init__(self, score: Callable[[Sequence[ScoredText]], list[np.ndarray]]):
    self._score = score
    self._waiting: list[ScoredText] = []
    self._batch: asyncio.Task[list[np.ndarray]] | None = None

  async def __call__(self, text: ScoredText) -> np.ndarray:
    index = len(self._waiting)
    self._waiting.append(text)
    if self._batch is None:
      self._batch = asyncio.ensure_future(self._run())
    # Shielded: a cancelled episode leaves the others their scores.
    return (await asyncio.shield(self._batch))[index]

  async def _run(self) -> list[np.ndarray]:
    await asyncio.sleep(0)
    texts, self._waiting, self._batch = self._waiting, [], None
    return await asyncio.to_thread(self._score, texts)


def reward_model_leaf(
  model: RewardModel,
  name: str = "preference",
  how: Combine = "mean",
  coefficient: float = 1.0,
  head: str | None = None,
) -> Leaf:
  """A leaf whose score is sigmoid(combined score - offset); batches what is asked at once.

  The head is that of the task's domain, unless one is named.
  """
  ask = Batcher(model.scores)

  async def grade(task: Task, response: str, services: Services) -> float:
    del services
    domain = head or task.domain
    text = answer_text(model.template, task.messages, response, domain)
    scores_M = (await ask(text))[0]
    offset = model.offsets[model.domains[model.head_of(domain)]]
    return sigmoid(combine(scores_M, how, coefficient) - offset)

  return Leaf(name, grade)


def critic_start(model: RewardModel, trunk: DecoderConfig) -> Params:
  """Parameters of a critic: the reward model's trunk, and the mean of its heads.

  Raises:
    ValueError: the critic's trunk has another shape.
  """
  have, want = model.model.identity(), trunk.identity()
  different = sorted(k for k in have if have[k] != want[k])
  if different:
    details = ", ".join(f"{k} {have[k]} there, {want[k]} here" for k in different)
    raise ValueError(f"the reward model does not fit the critic ({details}); set critic.num_layers")
  head = model.params["head"]
  return {
    "trunk": model.params["trunk"],
    "head": {"w": head["w"].mean(axis=(0, 1)), "b": head["b"].mean()},
  }
