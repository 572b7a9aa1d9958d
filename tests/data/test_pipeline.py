"""Streams: exact shares, every example once an epoch, and the same order after any kill."""

import collections
import json
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptjax.data.assistant_mask import Example
from ptjax.data.packing import RowConfig
from ptjax.data.pipeline import EndOfDataError, Host, Interleave, Part, RowStream, Stream, mix

ALONE = Host(0, 1)


def part(name: str, size: int, weight: float | None = None) -> Part:
  return Part(name, [{"id": f"{name}{i}"} for i in range(size)], weight)


def ident(record):
  return record["id"]


def but_every_third(record):
  return None if int(record["id"][1:]) % 3 == 0 else record["id"]


def everything(stream, count=7) -> list:
  out = []
  while not stream.finished:
    out += stream.take(count)
  return out


WEIGHTS = st.lists(st.floats(0.01, 100), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(weights=WEIGHTS, k=st.integers(0, 10**12))
def test_shares_are_exact(weights, k):
  order = Interleave(weights)
  for n, weight in zip(order.drawn(k), weights, strict=True):
    assert abs(n - k * weight / sum(weights)) < len(weights) + k * 1e-4
  source, number = order[k]
  after = order.drawn(k + 1)
  assert (after[source], sum(after)) == (number + 1, k + 1)


def test_interleave_by_hand():
  order = Interleave([2, 1])
  assert [order[k] for k in range(6)] == [(0, 0), (0, 1), (1, 0), (0, 2), (0, 3), (1, 1)]
  assert len(order) == sys.maxsize
  # Two thirds come from the source of 4: it is used up after 6 draws, of which 2 are the other's.
  assert len(Interleave([2, 1], [4, 100])) == 6
  with pytest.raises(ValueError, match="below a millionth"):
    Interleave([1, 1e-9])


@settings(max_examples=20, deadline=None)
@given(
  sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3),
  epochs=st.integers(1, 3),
  hosts=st.integers(1, 3),
)
def test_every_example_once_an_epoch_over_all_hosts(sizes, epochs, hosts):
  parts = [part("abc"[i], n) for i, n in enumerate(sizes)]
  records = mix(parts, seed=3, epochs=epochs)
  streams = [Stream(records, ident, data="d", host=Host(h, hosts)) for h in range(hosts)]
  counts = collections.Counter(x for stream in streams for x in everything(stream))
  assert counts == {r["id"]: epochs for p in parts for r in p.records}


def test_epochs_differ_and_sources_do_not_disturb_each_other():
  a = everything(Stream(mix([part("a", 20)], seed=1, epochs=2), ident, data="d"))
  assert set(a[:20]) == set(a[20:])
  assert a[:20] != a[20:]
  b = everything(Stream(mix([part("b", 20)], seed=1, epochs=1), ident, data="d"))
  assert [x[1:] for x in b] != [x[1:] for x in a[:20]]
  two = mix([part("a", 20, 1), part("b", 5, 2)], seed=1)
  mixed = Stream(two, ident, data="d", host=ALONE).take(60)
  assert [x for x in mixed if x[0] == "a"] == a[:20]
  assert sum(x[0] == "b" for x in mixed) == 40  # 8 passes of 5
  assert everything(Stream(mix([part("a", 3)], seed=1, epochs=1, shuffle=False), ident, data="d")) \
    == ["a0", "a1", "a2"]  # fmt: skip


STEPS = st.lists(st.integers(1, 5), min_size=1, max_size=8)


@settings(max_examples=25, deadline=None)
@given(
  sizes=st.lists(st.integers(1, 7), min_size=1, max_size=3),
  weighted=st.booleans(),
  epochs=st.sampled_from([None, 1, 3]),
  steps=STEPS,
  kills=st.sets(st.integers(0, 8), max_size=4),
  hosts=st.sampled_from([1, 2]),
)
def test_kill_and_resume_at_any_step(sizes, weighted, epochs, steps, kills, hosts):
  """A step is done, then its state saved; a kill loses the process and nothing else."""

  def build(h):
    parts = [part("abc"[i], n, i + 1.5 if weighted else None) for i, n in enumerate(sizes)]
    return Stream(mix(parts, seed=5, epochs=epochs), but_every_third, data="d", host=Host(h, hosts))

  for h in range(hosts):
    whole, killed = build(h), build(h)
    expected, found, saved = [], [], json.dumps(killed.state())
    for i, count in enumerate(steps):
      if i in kills:
        if not killed.finished:
          killed.take(3)  # lost with the process
        killed = build(h)
        killed.restore(json.loads(saved))
      if whole.finished:
        assert killed.finished
        with pytest.raises(EndOfDataError, match="used up"):
          killed.take(count)
        break
      expected.append(whole.take(count))
      found.append(killed.take(count))
      saved = json.dumps(killed.state())
    assert found == expected
    assert killed.state() == whole.state()


def test_a_state_goes_on_under_another_number_of_hosts():
  records = mix([part("a", 11), part("b", 6)], seed=2, epochs=2)
  expected = everything(Stream(records, ident, data="d", host=ALONE))
  two = [Stream(records, ident, data="d", host=Host(h, 2)) for h in range(2)]
  first = [stream.take(9) for stream in two]
  assert sorted(first[0] + first[1]) == sorted(expected[:9])
  assert two[0].state() == two[1].state()
  three = [Stream(records, ident, data="d", host=Host(h, 3)) for h in range(3)]
  for stream in three:
    stream.restore(two[0].state())
  assert sorted(x for s in three for x in everything(s)) == sorted(expected[9:])


def document(record) -> Example:
  number = int(record["id"][1:])
  length = 1 + number * 3 % 7
  tokens = np.full(length, ord(record["id"][0]) * 100 + number, np.int32)
  return Example(tokens, np.arange(length) > 0)


@settings(max_examples=15, deadline=None)
@given(
  sizes=st.lists(st.integers(1, 7), min_size=1, max_size=2),
  epochs=st.sampled_from([None, 1, 2]),
  steps=STEPS,
  kills=st.sets(st.integers(0, 8), max_size=3),
  window=st.integers(1, 3),
)
def test_packed_rows_after_a_kill(sizes, epochs, steps, kills, window):
  def build():
    parts = [part("ab"[i], n) for i, n in enumerate(sizes)]
    rows = RowConfig(length=9, window=window)
    return RowStream(mix(parts, seed=5, epochs=epochs), document, rows, data="d", host=ALONE)

  whole, killed = build(), build()
  saved = json.dumps(killed.state())
  for i, count in enumerate(steps):
    if i in kills:
      killed = build()
      killed.restore(json.loads(saved))
    try:
      expected = whole.take(count)
    except EndOfDataError:
      with pytest.raises(EndOfDataError):
        killed.take(count)
      break
    for a, b in zip(expected, killed.take(count), strict=True):
      for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)
    saved = json.dumps(killed.state())


def test_packed_epochs_hold_every_document_once():
  rows = RowConfig(length=9, window=2)
  stream = RowStream(mix([part("a", 7)], seed=1, epochs=2), document, rows, data="d", host=ALONE)
  taken = stream.take(100)
  found = [
    int(row.tokens_T[row.segment_ids_T == s][0]) - 9700
    for row in taken
    for s in range(1, row.segment_ids_T.max() + 1)
  ]
  assert collections.Counter(found) == dict.fromkeys(range(7), 2)


def test_refusals():
  with pytest.raises(ValueError, match="no records"):
    part("a", 0)
  with pytest.raises(ValueError, match="weight -1 of source 'a'"):
    part("a", 1, -1)
  with pytest.raises(ValueError, match="distinct names"):
    mix([part("a", 1), part("a", 2)], seed=0)
  with pytest.raises(ValueError, match="all of them or none"):
    mix([part("a", 1, 1), part("b", 2)], seed=0)
  with pytest.raises(ValueError, match="epochs 0"):
    mix([part("a", 1)], seed=0, epochs=0)
  with pytest.raises(ValueError, match="host 2 of 2"):
    Host(2, 2)
  records = mix([part("a", 3)], seed=0, epochs=1)
  with pytest.raises(ValueError, match="epochs on 2 hosts"):
    RowStream(records, document, RowConfig(), data="d", host=Host(0, 2))
  stream = Stream(records, ident, data="new", host=ALONE)
  with pytest.raises(ValueError, match=r"made with data old, now it is new"):
    stream.restore({"next": 1, "dropped": 0, "data": "old"})
  endless = mix([part("a", 3)], seed=0)
  rows = RowStream(endless, document, RowConfig(), data="d", host=Host(0, 2))
  with pytest.raises(ValueError, match=r"host \[1, 2\], this is \[0, 2\]"):
    rows.restore(rows.state() | {"hosts": [1, 2]})
