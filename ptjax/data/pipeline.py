"""Records to an endless or counted stream: mixed by weight, shuffled, sharded, resumable.

Everything is a function of the position in one global order: which source the k-th example
comes from, and which of its records that is. A host reads the positions that are its own, and
the state of the stream is the next position, a number that is the same on all hosts and means
the same under any number of them. So an example is read exactly once an epoch, whenever a run
is killed.
"""

import dataclasses
import fractions
import itertools
import math
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

import grain
import jax
import numpy as np

from ptjax.data.packing import DocumentRow, RowConfig, pack_rows
from ptjax.data.sources import RandomAccess, Record

T = TypeVar("T")

# Python code runs in one thread at a time; a few threads hide the waiting for files.
_READ = grain.ReadOptions(num_threads=4, prefetch_buffer_size=64)


@dataclasses.dataclass(frozen=True)
class Part:
  """A source in a mixture.

  Attributes:
    name: tells sources apart; it decides the source's order, with the seed.
    records: the source.
    weight: its share of the examples, relative to the others; None takes its size, so that
      the mixture ends where all sources do.
  """

  name: str
  records: RandomAccess
  weight: float | None = None

  def __post_init__(self):
    if len(self.records) == 0:
      raise ValueError(f"source {self.name!r} has no records; leave it out")
    if self.weight is not None and not 0 < self.weight < math.inf:
      raise ValueError(f"weight {self.weight} of source {self.name!r} must be positive and finite")


class Interleave:
  """Which source, and which of its records, stands at each position of a mixture.

  After k positions source i has been drawn k * share to within less than the number of
  sources, in closed form: the first source takes its share of the positions, evenly spread, and
  the others share the rest in the same way. It is Grain's mixing with exact weights.

  Args:
    weights: of the sources, positive.
    limits: of each source how many draws there may be; None for no end. The mixture ends with
      the first source that would be drawn too often.
  """

  def __init__(self, weights: Sequence[float], limits: Sequence[int] | None = None):
    exact = [fractions.Fraction(w).limit_denominator(10**6) for w in weights]
    if not all(exact):
      raise ValueError(f"weights {list(weights)}: the smallest is below a millionth; scale them up")
    scale = math.lcm(*(w.denominator for w in exact))
    self._parts = [int(w * scale) for w in exact]
    self._length = sys.maxsize if limits is None else self._last(limits)

  def drawn(self, k: int) -> list[int]:
    """How often each source is drawn before position `k`."""
    counts, rest = [], sum(self._parts)
    for part in self._parts:
      others = k * (rest - part) // rest
      counts.append(k - others)
      k, rest = others, rest - part
    return counts

  def _last(self, limits: Sequence[int]) -> int:
    low, high = 0, sum(limits)
    while low < high:
      middle = (low + high + 1) // 2
      fits = all(n <= limit for n, limit in zip(self.drawn(middle), limits, strict=True))
      low, high = (middle, high) if fits else (low, middle - 1)
    return low

  def __len__(self) -> int:
    return self._length

  def __getitem__(self, position: int) -> tuple[int, int]:
    """(source, number of the draw from it)."""
    before, after = self.drawn(position), self.drawn(position + 1)
    source = next(i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b)
    return source, before[source]


def mix(
  parts: Sequence[Part], *, seed: int, epochs: int | None = None, shuffle: bool = True
) -> grain.MapDataset:
  """Records of a mixture in their global order.

  Every source is read to its end before any of its records comes again, in another order each
  time. Its order depends on the seed and its name, not on the other sources.

  Args:
    parts: the sources.
    seed: of the orders.
    epochs: the mixture ends before a source would begin its `epochs`+1st pass; None for never.
    shuffle: false keeps the order of the files.

  Raises:
    ValueError: no parts, two of one name, weights for some only, or epochs below 1.
  """
  names, weights = [p.name for p in parts], [p.weight for p in parts]
  if not parts or len(set(names)) != len(names):
    raise ValueError(f"sources {names} must have distinct names, and be at least one")
  if None in weights and set(weights) != {None}:
    raise ValueError(f"weights {dict(zip(names, weights, strict=True))}: give all of them or none")
  if epochs is not None and epochs < 1:
    raise ValueError(f"epochs {epochs} must be >= 1, or None for no end")
  sizes = [len(p.records) for p in parts]
  limits = None if epochs is None else [epochs * n for n in sizes]
  order = Interleave([w or n for w, n in zip(weights, sizes, strict=True)], limits)
  passes = [_passes(p, seed, shuffle) for p in parts]
  # Any, since Grain does not export the type that `order` would have to derive from.
  return grain.MapDataset.select_from_datasets(passes, cast(Any, order))


def _passes(part: Part, seed: int, shuffle: bool) -> grain.MapDataset:
  """A source without end, in a new order each pass."""
  records = grain.MapDataset.source(part.records)
  if shuffle:
    words = np.random.SeedSequence([seed, zlib.crc32(part.name.encode())])
    records = records.shuffle(int(words.generate_state(1)[0]))
  return records.repeat()


@dataclasses.dataclass(frozen=True)
class Host:
  """This process among those that read the data."""

  index: int = dataclasses.field(default_factory=jax.process_index)
  count: int = dataclasses.field(default_factory=jax.process_count)

  def __post_init__(self):
    if not 0 <= self.index < self.count:
      raise ValueError(f"host {self.index} of {self.count}")

  def first(self, position: int) -> int:
    """This host's first position from `position` on."""
    return position + (self.index - position) % self.count


class EndOfDataError(ValueError):
  """All epochs are read."""


class Stream(Generic[T]):
  """This host's share of an example stream, with a state of one number.

  Args:
    records: in their global order, see `mix`.
    encode: makes an example of a record; None drops it. It must depend on the record alone.
    data: tells data apart, see `ptjax.data.config`; a state of other data is refused.
    host: this process.
  """

  def __init__(
    self,
    records: grain.MapDataset,
    encode: Callable[[Record], T | None],
    *,
    data: str,
    host: Host | None = None,
  ):
    self._examples = records.map(encode)
    self._length = len(records)
    self._data = data
    self._host = host or Host()
    self._next = self.dropped = 0
    self._iterator = self._from(0)

  def _from(self, position: int) -> grain.DatasetIterator:
    """This host's examples from `position` on."""
    mine = self._examples.slice(slice(self._host.first(position), None, self._host.count))
    # Dropped records come as None, so that positions can be counted.
    return iter(mine.to_iter_dataset(_READ, allow_nones=True))

  @property
  def finished(self) -> bool:
    """Whether all hosts have read everything."""
    return self._next >= self._length

  def take(self, count: int) -> list[T]:
    """This host's examples among the next `count` positions; fewer at the end.

    Raises:
      EndOfDataError: nothing is left.
    """
    if self.finished:
      raise EndOfDataError(
        f"all {self._length} examples are used up; set data.epochs higher or to None, or train "
        f"fewer steps"
      )
    end = min(self._next + count, self._length)
    mine = len(range(self._host.first(self._next), end, self._host.count))
    read = list(itertools.islice(self._iterator, mine))
    kept = [example for example in read if example is not None]
    self._next, self.dropped = end, self.dropped + len(read) - len(kept)
    return kept

  def state(self) -> dict[str, Any]:
    """A small JSON record: all that `restore` needs."""
    return {"next": self._next, "dropped": self.dropped, "data": self._data}

  def restore(self, state: Mapping[str, Any]) -> None:
    """Goes on from a state, also from one of another number of hosts.

    Raises:
      ValueError: the state is of other data.
    """
    check_data(state, self._data)
    self._iterator.close()  # ends its threads
    self._next, self.dropped = state["next"], state["dropped"]
    self._iterator = self._from(self._next)


class RowStream:
  """This host's packed rows. The rows depend on the host, so a state is of one number of hosts.

  Args: see `Stream` and `pack_rows`; `encode` gives `Example`s.

  Raises:
    ValueError: an end to the data with several hosts, which would not run out of rows together.
  """

  def __init__(
    self,
    records: grain.MapDataset,
    encode: Callable[[Record], Any],
    rows: RowConfig,
    *,
    data: str,
    host: Host | None = None,
  ):
    host = host or Host()
    if host.count > 1 and len(records) < sys.maxsize:
      raise ValueError(
        f"epochs on {host.count} hosts: their packed rows would not run out together; leave "
        f"epochs None and count steps"
      )
    examples = records.slice(slice(host.index, None, host.count)).map(encode)
    self._iterator = iter(pack_rows(examples.to_iter_dataset(_READ), rows))
    self._data, self._hosts = data, [host.index, host.count]

  def take(self, count: int) -> list[DocumentRow]:
    """The next `count` rows of this host; fewer at the end.

    Raises:
      EndOfDataError: nothing is left.
    """
    rows = list(itertools.islice(self._iterator, count))
    if not rows and count:
      raise EndOfDataError("all rows are used up; set data.epochs higher or to None")
    return rows

  def state(self) -> dict[str, Any]:
    """A small JSON record; each host has its own."""
    return {"grain": self._iterator.get_state(), "hosts": self._hosts, "data": self._data}

  def restore(self, state: Mapping[str, Any]) -> None:
    """Goes on from a state.

    Raises:
      ValueError: the state is of other data, or of another host or number of hosts.
    """
    check_data(state, self._data)
    if state["hosts"] != self._hosts:
      raise ValueError(
        f"the state of packed rows is of host {state['hosts']}, this is {self._hosts}; resume on "
        f"as many hosts, or use an unpacked stream"
      )
    self._iterator.set_state(state["grain"])


def check_data(state: Mapping[str, Any], data: str) -> None:
  """Raises ValueError where a state was saved under other data."""
  if state["data"] != data:
    raise ValueError(
      f"the checkpoint was made with data {state['data'][:12]}, now it is {data[:12]} (files, "
      f"weights, seed or epochs have changed); use the same data, or a new workdir"
    )
