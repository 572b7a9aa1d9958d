"""Pairs of answers as packed rows: both answers of a pair in one micro-batch, the prompt once.

The loss of a pair is a function of both scores, so a pair cannot be cut between micro-batches as
single answers can.

Letters: P pairs of one micro-batch, padded to the batch size.
"""

import collections
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ptjax.core.masked import fill
from ptjax.data.annotated_pairs import ORIGIN, AnnotatedPair, read_pairs
from ptjax.data.assistant_mask import Example
from ptjax.data.provenance import PERMISSIVE, sha256_of, write_manifest
from ptjax.experience.packing import PackConfig, Packed, Place, Rows, pack
from ptjax.models.config import DecoderConfig
from ptjax.models.decoder import Params
from ptjax.rollout.sampling import SamplingConfig
from ptjax.train.batch import micro_batches
from ptjax.train.examples import is_heldout, prompt_key
from ptjax.train.forward import action_logprobs
from ptjax.train.loading import Loaded
from ptjax.train.networks import Layout

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class PairsConfig:
  """Annotated comparisons to learn from.

  Attributes:
    path: JSONL in the schema of `data.annotated_pairs`.
    heldout: share of the prompts that is measured and never trained on.
    licenses: SPDX identifiers that this run may use.
  """

  path: str
  heldout: float = 0.1
  licenses: tuple[str, ...] = PERMISSIVE

  def __post_init__(self):
    if not 0 <= self.heldout < 1:
      raise ValueError(f"data.heldout {self.heldout} must be in [0, 1)")


def read_split(
  config: PairsConfig, *, unpaired: bool = False, workdir: pathlib.Path | None = None
) -> tuple[list[AnnotatedPair], list[AnnotatedPair]]:
  """(training, held-out) comparisons; their origin goes to the manifest of the workdir."""
  pairs = read_pairs(config.path, licenses=config.licenses, unpaired=unpaired)
  if workdir is not None:
    write_origins(workdir, config.path, pairs)
  held = [is_heldout(prompt_key(p.messages), config.heldout) for p in pairs]
  return (
    [p for p, h in zip(pairs, held, strict=True) if not h],
    [p for p, h in zip(pairs, held, strict=True) if h],
  )


def write_origins(workdir: pathlib.Path, path: str, items: Sequence[Any]) -> None:
  """The file's hash, and how many items are of each origin, for the manifest of the run."""
  counts = {
    name: dict(sorted(collections.Counter(getattr(i, name) for i in items).items()))
    for name in ORIGIN
  }
  record = {"files": {path: sha256_of(path)}, "items": len(items), **counts}
  write_manifest(workdir, "data", record)


def grouped(examples: Sequence[Example], group: int) -> list[Example]:
  """The same examples as members of one group: they share their prompt."""
  return [dataclasses.replace(e, group=group) for e in examples]


def whole_parts(
  items: Sequence[T],
  answers: Callable[[T], Sequence[Example]],
  packing: PackConfig,
  shared: Callable[[Sequence[Example]], int] | None = None,
) -> Iterator[tuple[list[T], Packed]]:
  """Cuts items into micro-batches of `packing.rows` rows that hold all answers of each item.

  Args:
    items: in order.
    answers: the answers of an item.
    packing: shape of the rows.
    shared: leading tokens that the answers of an item share; by default those before the
      first action.

  Returns:
    (items, their packing), the places in the order of the answers.

  Raises:
    ValueError: the answers of one item alone need more rows.
  """

  def packed(part: Sequence[T]) -> Packed:
    examples = [e for g, item in enumerate(part) for e in grouped(answers(item), g)]
    if shared is None:
      return pack(examples, packing)
    lengths = [shared(answers(item)) for item in part for _ in answers(item)]
    return pack(examples, packing, lengths)

  def fits(candidate: Packed) -> bool:
    return len(candidate.rows.tokens_BT) == packing.rows

  part: list[T] = []
  kept: Packed | None = None
  for item in items:
    candidate = packed([*part, item])
    if part and not fits(candidate):
      assert kept is not None
      yield part, kept
      part, candidate = [], packed([item])
    if not fits(candidate):
      raise ValueError(
        f"the answers to one prompt need {len(candidate.rows.tokens_BT)} rows, a micro-batch has "
        f"{packing.rows}; raise pack.length, pack.actions or pack.rows"
      )
    part, kept = [*part, item], candidate
  if kept is not None:
    yield part, kept


def common_prefix(examples: Sequence[Example]) -> int:
  """Leading tokens that the examples share, up to the first action of any of them."""
  most = min(int(np.argmax(e.action_mask)) for e in examples)
  same = np.all([e.tokens[:most] == examples[0].tokens[:most] for e in examples], axis=0)
  return most if same.all() else int(np.argmin(same))


def sequence_index(rows: Rows, place: Place) -> int:
  """Where the score of a packed answer stands in the result of `sequence_scores`."""
  return place.row * rows.mask_BA.shape[1] + int(rows.sequence_BA[place.row, place.start])


def slot_index(rows: Rows, place: Place) -> int:
  """The first slot of a packed answer, in the flattened slots [B * A]."""
  return place.row * rows.mask_BA.shape[1] + place.start


def padded(values: Sequence[Any], width: int, dtype: Any) -> np.ndarray:
  """The values and zeros up to the width."""
  out = np.zeros(width, dtype)
  out[: len(values)] = values
  return out


def sequence_scores(logp_BA: jax.Array, rows: Rows, *, mean: bool) -> jax.Array:
  """Sum, or mean, of the log-probs of each packed answer, f32[B * A]; see `sequence_index`."""
  mask_BA = jnp.asarray(rows.mask_BA)
  num = mask_BA.shape[1]
  total = jax.vmap(functools.partial(jax.ops.segment_sum, num_segments=num))
  sums_BA = total(fill(logp_BA, mask_BA), rows.sequence_BA)
  if mean:
    sums_BA /= jnp.maximum(total(mask_BA.astype(jnp.int32), rows.sequence_BA), 1)
  return sums_BA.reshape(-1)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _score(model: DecoderConfig, chunk: int, layout: Layout, params: Params, rows: Rows):
  constrain = layout.constrain
  return action_logprobs(model, params, rows, SamplingConfig(), chunk=chunk, constrain=constrain)[0]


def make_scorer(
  loaded: Loaded, packing: PackConfig, chunk: int
) -> Callable[[Params, Sequence[Example]], list[np.ndarray]]:
  """A function that gives the log-probs of each example's trained tokens, without gradient."""

  score = functools.partial(_score, loaded.model, chunk, loaded.layout)

  def scorer(params: Params, examples: Sequence[Example]) -> list[np.ndarray]:
    if not examples:
      return []
    apart = [dataclasses.replace(e, group=i) for i, e in enumerate(examples)]
    packed = pack(apart, packing)
    parts = [
      score(params, loaded.layout.place_rows(rows))
      for rows in micro_batches(packed.rows, packing.rows)
    ]
    return packed.gather(np.concatenate(jax.device_get(parts)))

  return scorer


def place_pairs(layout: Layout, batch: Any) -> Any:
  """Rows split over the batch axes; what is counted by pairs, on every device."""
  everywhere = jax.sharding.NamedSharding(layout.mesh, jax.sharding.PartitionSpec())
  rest = jax.device_put(batch._replace(rows=None), everywhere)
  return rest._replace(rows=layout.place_rows(batch.rows))
