"""Documents to rows of one length, first fit, as a stage of a Grain pipeline.

Grain's packer does the work: it keeps a window of rows open, puts each document into the first
row that has room, and passes the window on when a document fits nowhere. Its state is the place
in the documents at which the open window began, so that a resumed run packs the same rows.

For one step's worth of examples with shared prompts see `experience.packing`.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import grain
import numpy as np

from ptjax.data.assistant_mask import Example


@dataclasses.dataclass(frozen=True)
class RowConfig:
  """Shape of packed rows.

  Attributes:
    length: tokens of a row.
    window: rows that are open at a time; more leave less padding.
    too_long: what becomes of a document longer than a row: an error, or left out.
  """

  length: int = 1024
  window: int = 16
  too_long: Literal["error", "drop"] = "error"

  def __post_init__(self):
    for name in ("length", "window"):
      if getattr(self, name) < 1:
        raise ValueError(f"{name} {getattr(self, name)} of packed rows must be >= 1")


class DocumentRow(NamedTuple):
  """One packed row, or with a leading axis several.

  Attributes:
    tokens_T: i32.
    positions_T: i32, from 0 in each document; 0 in padding.
    segment_ids_T: i32, from 1; 0 marks padding.
    action_mask_T: bool, tokens to predict, each from the one before it.
  """

  tokens_T: np.ndarray
  positions_T: np.ndarray
  segment_ids_T: np.ndarray
  action_mask_T: np.ndarray


def pack_rows(documents: grain.IterDataset, config: RowConfig) -> grain.IterDataset:
  """`Example`s to `DocumentRow`s.

  Raises (while iterating):
    ValueError: a document is longer than a row and `too_long` is "error".
  """

  def fits(example: Example) -> bool:
    if (length := len(example.tokens)) <= config.length:
      return True
    if config.too_long == "error":
      raise ValueError(
        f"a document of {length} tokens does not fit a row of {config.length}; raise the row's "
        f"length, or set too_long='drop'"
      )
    return False

  columns = {"tokens": config.length, "action_mask": config.length}
  packed = grain.experimental.FirstFitPackIterDataset(
    documents.filter(fits).map(_columns),
    length_struct=columns,
    num_packing_bins=config.window,
    shuffle_bins=False,
  )
  return packed.map(_row)


def stack_rows(rows: Iterable[DocumentRow]) -> DocumentRow:
  """Rows with a leading batch axis."""
  return DocumentRow(*map(np.stack, zip(*rows, strict=True)))


def _columns(example: Example) -> dict[str, np.ndarray]:
  return {"tokens": example.tokens, "action_mask": example.action_mask}


def _row(packed: dict[str, Any]) -> DocumentRow:
  return DocumentRow(
    tokens_T=packed["tokens"],
    positions_T=packed["tokens_positions"],
    segment_ids_T=packed["tokens_segment_ids"],
    action_mask_T=packed["action_mask"],
  )
