"""First-fit packing: nothing lost, positions restarted, documents that never see each other."""

import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

from ptjax.data.assistant_mask import Example
from ptjax.data.packing import DocumentRow, RowConfig, pack_rows, stack_rows
from ptjax.models import decoder, heads
from ptjax.models.importer import load_pretrained


def documents(lengths, seed=0) -> list[Example]:
  rng = np.random.default_rng(seed)
  return [Example(rng.integers(1, 256, n).astype(np.int32), np.arange(n) % 2 == 1) for n in lengths]


def packed(examples, **config) -> list[DocumentRow]:
  dataset = grain.MapDataset.source(examples).to_iter_dataset()
  return list(pack_rows(dataset, RowConfig(**config)))


def unpacked(rows) -> list[tuple[list[int], list[bool]]]:
  return [
    (row.tokens_T[here].tolist(), row.action_mask_T[here].tolist())
    for row in rows
    for s in range(1, row.segment_ids_T.max() + 1)
    for here in [row.segment_ids_T == s]
  ]


def test_first_fit_by_hand():
  rows = packed(documents([5, 4, 3, 2, 6]), length=8, window=2)
  # 5 opens row 0; 4 row 1; 3 fits row 0; 2 fits row 1; 6 fits neither and opens a new window.
  assert [row.segment_ids_T.tolist() for row in rows] == [
    [1, 1, 1, 1, 1, 2, 2, 2],
    [1, 1, 1, 1, 2, 2, 0, 0],
    [1, 1, 1, 1, 1, 1, 0, 0],
  ]
  assert rows[1].positions_T.tolist() == [0, 1, 2, 3, 0, 1, 0, 0]
  assert not rows[1].action_mask_T[rows[1].segment_ids_T == 0].any()
  batch = stack_rows(rows)
  assert batch.tokens_T.shape == (3, 8)
  assert (batch.tokens_T.dtype, batch.action_mask_T.dtype) == (np.int32, bool)


@settings(max_examples=30, deadline=None)
@given(lengths=st.lists(st.integers(1, 8), min_size=1, max_size=20), window=st.integers(1, 4))
def test_every_document_once_and_whole(lengths, window):
  examples = documents(lengths)
  rows = packed(examples, length=8, window=window)
  found = sorted(unpacked(rows))
  assert found == sorted((e.tokens.tolist(), e.action_mask.tolist()) for e in examples)
  assert all(row.segment_ids_T.any() for row in rows)


def test_long_documents():
  examples = documents([3, 9, 2])
  with pytest.raises(ValueError, match=r"9 tokens does not fit a row of 8"):
    packed(examples, length=8)
  assert len(unpacked(packed(examples, length=8, too_long="drop"))) == 2
  with pytest.raises(ValueError, match="window 0"):
    RowConfig(window=0)


def test_documents_do_not_see_each_other(tmp_path):
  model = load_pretrained(str(tiny_model.write_tiny_model(tmp_path / "model")))
  params = jax.tree.map(jnp.asarray, model.params)
  examples = documents([5, 7, 4], seed=1)
  (row,) = packed(examples, length=20)

  @jax.jit
  def logits(tokens_BT, positions_BT, segments_BT):
    branches_BT = jnp.zeros_like(tokens_BT)
    ids = decoder.Packed(tokens_BT, positions_BT, segments_BT, branches_BT)
    hidden_BTD = decoder.bind(model.config, params)(ids)
    return heads.logits(params, hidden_BTD.reshape(-1, model.config.d_model), model.config)

  def of(r: DocumentRow):
    return logits(r.tokens_T[None], r.positions_T[None], r.segment_ids_T[None])

  together = of(row)
  for i, example in enumerate(examples):
    (alone,) = packed([example], length=20)
    n = len(example.tokens)
    np.testing.assert_allclose(
      together[row.segment_ids_T == i + 1], of(alone)[:n], rtol=0, atol=1e-5
    )
  # Another first document changes none of the bits of the second.
  changed = row.tokens_T.copy()
  changed[0] += 1
  other = of(row._replace(tokens_T=changed))
  second = row.segment_ids_T == 2
  np.testing.assert_array_equal(together[second], other[second])
  assert not np.array_equal(together[~second], other[~second])
