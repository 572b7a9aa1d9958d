"""Trajectories to packed rows. A group's shared prompt is stored, and computed, once.

A document is one prompt followed by its completions as branches (see
`kernels.attention`): 8 completions of 16 tokens to a prompt of 64 cost 192 tokens of
compute instead of 640. A row holds as many documents as fit.

The losses do not read rows but action slots: slot a of row b names the state that
predicted an action (`predictor_BA`, an index into the row) and the action
(`target_BA`). Logits are computed at those states only.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np


@dataclasses.dataclass(frozen=True)
class PackConfig:
  """Shape of the rows.

  Attributes:
    length: tokens of a row.
    actions: action slots of a row.
    rows: rows of one micro-batch.
  """

  length: int = 512
  actions: int = 256
  rows: int = 4

  def __post_init__(self):
    for field in dataclasses.fields(self):
      if getattr(self, field.name) < 1:
        raise ValueError(f"pack.{field.name} {getattr(self, field.name)} must be >= 1")


class Rows(NamedTuple):
  """Packed rows; a row index range is a micro-batch.

  Attributes:
    tokens_BT, positions_BT, segment_ids_BT, branch_ids_BT: i32, see `kernels.attention`.
    predictor_BA: i32, where in the row the state before the action is.
    target_BA: i32, the action.
    mask_BA: bool, false for unused slots.
    sequence_BA: i32, which trajectory of its row a slot belongs to.
    routes_BTLX: recorded experts to replay, see `Trajectory`; None where nothing is replayed.
  """

  tokens_BT: np.ndarray
  positions_BT: np.ndarray
  segment_ids_BT: np.ndarray
  branch_ids_BT: np.ndarray
  predictor_BA: np.ndarray
  target_BA: np.ndarray
  mask_BA: np.ndarray
  sequence_BA: np.ndarray
  routes_BTLX: np.ndarray | None = None


class Packable(Protocol):
  """What can be packed: a `Trajectory`, or an example of supervised training.

  `tokens` i32[T] and `action_mask` bool[T] mark what is trained on; members of a `group` share
  the tokens before their first action.
  """

  @property
  def tokens(self) -> np.ndarray: ...

  @property
  def action_mask(self) -> np.ndarray: ...

  @property
  def group(self) -> int: ...

  @property
  def num_actions(self) -> int: ...


class Place(NamedTuple):
  """Where the actions of one trajectory went: slots [start, stop) of a row."""

  row: int
  start: int
  stop: int


@dataclasses.dataclass(frozen=True)
class Packed:
  """Rows, and where each trajectory is in them."""

  rows: Rows
  places: tuple[Place, ...]

  def spread(self, values: Sequence[float] | Sequence[np.ndarray]) -> np.ndarray:
    """f32[B, A] from one number, or one array over its actions, for each trajectory."""
    out_BA = np.zeros(self.rows.mask_BA.shape, np.float32)
    for place, value in zip(self.places, values, strict=True):
      out_BA[place.row, place.start : place.stop] = value
    return out_BA

  def gather(self, values_BA: np.ndarray) -> list[np.ndarray]:
    """The inverse of `spread`: for each trajectory an array over its actions."""
    return [values_BA[p.row, p.start : p.stop] for p in self.places]


class _Row:
  """A row being filled."""

  def __init__(self, config: PackConfig):
    self.config = config
    self.columns: dict[str, list[int]] = {
      name: [] for name in ("tokens", "positions", "segments", "branches")
    }
    self.slots: dict[str, list[int]] = {name: [] for name in ("predictor", "target", "sequence")}
    self.num_documents = 0
    self.num_sequences = 0

    self.routes: list[tuple[int, np.ndarray]] = []

  def fits(self, tokens: int, actions: int) -> bool:
    return (
      len(self.columns["tokens"]) + tokens <= self.config.length
      and len(self.slots["target"]) + actions <= self.config.actions
    )

  def append(self, tokens: np.ndarray, first_position: int, segment: int, branch: int) -> int:
    """Adds a run of tokens of one branch; returns where in the row it begins."""
    start = len(self.columns["tokens"])
    self.columns["tokens"].extend(tokens.tolist())
    self.columns["positions"].extend(range(first_position, first_position + len(tokens)))
    self.columns["segments"].extend([segment] * len(tokens))
    self.columns["branches"].extend([branch] * len(tokens))
    return start


def pack(
  trajectories: Sequence[Packable],
  config: PackConfig,
  prompt_lengths: Sequence[int] | None = None,
  routes: Sequence[np.ndarray] | None = None,
) -> Packed:
  """Packs trajectories into rows, first fit, large groups first.

  Trajectories of one `group` share the tokens before their first action, or, where
  `prompt_lengths` are given, that many tokens (not more than those). `routes` are the recorded
  experts of each trajectory; those of a shared prompt are its first member's.

  Returns:
    Rows padded to a multiple of `config.rows` (at least one micro-batch), and the place
    of each trajectory, in the order given.

  Raises:
    ValueError: a trajectory has no action or no prompt, is longer than a row, or a
      group's prompts differ.
  """
  groups: dict[int, list[int]] = {}
  prompts = prompt_lengths or [int(np.argmax(t.action_mask)) for t in trajectories]
  for index, trajectory in enumerate(trajectories):
    _check(trajectory, config)
    groups.setdefault(trajectory.group, []).append(index)
  sizes = {g: sum(len(trajectories[i].tokens) for i in m) for g, m in groups.items()}
  rows: list[_Row] = []
  places: dict[int, Place] = {}
  for group in sorted(groups, key=lambda g: (-sizes[g], g)):
    members = [(i, trajectories[i], prompts[i]) for i in groups[group]]
    _place_group(members, rows, places, config, routes)
  while not rows or len(rows) % config.rows:
    rows.append(_Row(config))
  return Packed(_to_arrays(rows, config), tuple(places[i] for i in range(len(trajectories))))


def _check(trajectory: Packable, config: PackConfig) -> None:
  tokens, actions = len(trajectory.tokens), trajectory.num_actions
  if actions == 0 or trajectory.action_mask[0]:
    raise ValueError(
      f"trajectory of group {trajectory.group} needs a prompt and at least one action, has "
      f"{tokens} tokens and {actions} actions"
    )
  if tokens > config.length or actions > config.actions:
    raise ValueError(
      f"a trajectory of {tokens} tokens and {actions} actions does not fit a row of "
      f"{config.length} tokens and {config.actions} action slots; raise pack.length and "
      f"pack.actions or lower rl.max_new_tokens"
    )


class _Home(NamedTuple):
  """A row that holds the prompt of a group: where, and the branches that it has got."""

  row: _Row
  prompt_start: int
  segment: int
  branches: list[int]


def _place_group(
  members, rows: list[_Row], places: dict[int, Place], config: PackConfig, routes
) -> None:
  """Puts each branch beside a prompt of its group where it fits; else stores the prompt anew."""
  prompt = members[0][1].tokens[: members[0][2]]
  homes: list[_Home] = []
  for index, trajectory, prompt_length in members:
    if not np.array_equal(trajectory.tokens[:prompt_length], prompt):
      raise ValueError(f"trajectories of group {trajectory.group} have different prompts")
    need = len(trajectory.tokens) - prompt_length, trajectory.num_actions
    home = next((h for h in homes if h.row.fits(*need)), None)
    if home is None:
      home = _settle(prompt, need, rows, config)
      homes.append(home)
      if routes is not None:
        home.row.routes.append((home.prompt_start, routes[members[0][0]][:prompt_length]))
    if routes is not None:
      start = len(home.row.columns["tokens"])
      home.row.routes.append((start, routes[index][prompt_length:]))
    places[index] = _place_branch(trajectory, prompt_length, home, rows.index(home.row))


def _settle(prompt: np.ndarray, need: tuple[int, int], rows: list[_Row], config: PackConfig):
  """Stores a prompt in the first row that has room for it and one branch."""
  row = next((r for r in rows if r.fits(len(prompt) + need[0], need[1])), None)
  if row is None:
    rows.append(row := _Row(config))
  row.num_documents += 1
  return _Home(row, row.append(prompt, 0, row.num_documents, 0), row.num_documents, [])


def _place_branch(trajectory: Packable, prompt_length: int, home: _Home, row_index: int) -> Place:
  row = home.row
  home.branches.append(len(home.branches) + 1)
  start = row.append(
    trajectory.tokens[prompt_length:], prompt_length, home.segment, home.branches[-1]
  )
  slot = len(row.slots["target"])
  for position in np.flatnonzero(trajectory.action_mask).tolist():
    before = position - 1
    in_prompt = before < prompt_length
    row.slots["predictor"].append(
      home.prompt_start + before if in_prompt else start + before - prompt_length
    )
    row.slots["target"].append(int(trajectory.tokens[position]))
    row.slots["sequence"].append(row.num_sequences)
  row.num_sequences += 1
  return Place(row_index, slot, len(row.slots["target"]))


def _to_arrays(rows: list[_Row], config: PackConfig) -> Rows:
  def table(lists: list[list[int]], width: int) -> np.ndarray:
    out = np.zeros((len(lists), width), np.int32)
    for i, values in enumerate(lists):
      out[i, : len(values)] = values
    return out

  columns = {
    name: table([row.columns[name] for row in rows], config.length) for name in rows[0].columns
  }
  slots = {name: table([row.slots[name] for row in rows], config.actions) for name in rows[0].slots}
  used = np.asarray([len(row.slots["target"]) for row in rows])
  recorded = [x for row in rows for _, x in row.routes]
  routes_BTLX = None
  if recorded:
    shape = (len(rows), config.length, *recorded[0].shape[1:])
    routes_BTLX = np.full(shape, -1, recorded[0].dtype)
    for i, row in enumerate(rows):
      for start, x in row.routes:
        routes_BTLX[i, start : start + len(x)] = x
  return Rows(
    tokens_BT=columns["tokens"],
    positions_BT=columns["positions"],
    segment_ids_BT=columns["segments"],
    branch_ids_BT=columns["branches"],
    predictor_BA=slots["predictor"],
    target_BA=slots["target"],
    mask_BA=np.arange(config.actions) < used[:, None],
    sequence_BA=slots["sequence"],
    routes_BTLX=routes_BTLX,
  )
