"""Supervised fine-tuning: masks, the normaliser, gradients, sharding, learning, resume."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from fit_toys import conversations, load_toy, source_config, write_jsonl
from train_toys import assert_trees_close, assert_trees_equal, gradient

from ptjax.checkpoint.manager import CheckpointConfig
from ptjax.core.metrics import read_jsonl, without_perf
from ptjax.data.annotated_pairs import jsonl_records
from ptjax.data.assistant_mask import Example
from ptjax.data.config import encoder, open_data
from ptjax.experience.packing import PackConfig
from ptjax.models import decoder
from ptjax.train import supervised
from ptjax.train.examples import Shuffled, is_heldout
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.sft import (
  HeldoutConfig,
  OneSide,
  SFTExperiment,
  read_heldout,
  sft_batches,
  sft_problem,
)
from ptjax.train.supervised import FitConfig, FitObserver

SILENT = FitObserver()
# The first moment then tells the gradient: nothing is clipped.
OPTIMIZER = OptimizerConfig(learning_rate=3e-2, eps=1e-2, max_grad_norm=1e9)
PACK = PackConfig(length=96, actions=48, rows=8)


@pytest.fixture(scope="module")
def loaded(tiny_source):
  return load_toy(tiny_source)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
  path = write_jsonl(tmp_path_factory.mktemp("data") / "toy.jsonl", conversations())
  return SFTExperiment(
    data=source_config(path),
    heldout=HeldoutConfig(0.3),
    pack=PACK,
    fit=FitConfig(num_steps=12, batch_size=10, logit_chunk=24),
    optimizer=OPTIMIZER,
    checkpoint=CheckpointConfig(every=4),
  )


@pytest.fixture(scope="module")
def data(loaded, experiment, tmp_path_factory):
  """(a function that opens the training examples, held-out ones)."""
  encode = encoder(experiment.data, loaded.template)
  opened = open_data(experiment.data, tmp_path_factory.mktemp("open"), experiment.seed)
  heldout = read_heldout(experiment.data, OneSide(encode, 0.3, heldout=True), 100)
  return lambda: opened.stream(OneSide(encode, 0.3, heldout=False)), heldout


@pytest.fixture(scope="module")
def problem(loaded, data, experiment):
  return sft_problem(loaded, data[0](), data[1], experiment)


def test_a_bad_record_is_named(loaded, experiment, tmp_path):
  bad = write_jsonl(tmp_path / "bad.jsonl", [{"messages": [{"role": "user", "content": "a"}]}])
  e = dataclasses.replace(experiment, data=source_config(bad))
  with pytest.raises(ValueError, match="no assistant text to train on"):
    read_heldout(e.data, OneSide(encoder(e.data, loaded.template), 0.0, heldout=False), 8)


def test_training_and_heldout_prompts_are_apart(data, loaded):
  train, heldout = data
  decode = loaded.template.tokenizer.decode
  first = lambda e: decode(e.tokens[: int(np.argmax(e.action_mask))])  # noqa: E731
  some = [e for _ in range(10) for e in train().take(10)]
  assert heldout
  assert not {first(e) for e in some} & {first(e) for e in heldout}
  trained = decode(some[0].tokens[some[0].action_mask])
  assert trained.count("<|im_end|>") == 2
  assert "user" not in trained


def test_jsonl_lines_end_in_newlines_only(tmp_path):
  path = tmp_path / "a.jsonl"
  path.write_text('{"a": "x\u2028y"}\n\n{"a": "z"}\n', encoding="utf-8")
  assert list(jsonl_records(path)) == [(1, {"a": "x\u2028y"}), (3, {"a": "z"})]


def test_every_pass_has_each_item_once_and_goes_on_after_a_restore():
  source = Shuffled(list(range(7)), seed=3)
  taken = [source.take(5) for _ in range(7)]
  flat = np.concatenate(taken)
  for epoch in flat.reshape(5, 7):
    assert sorted(epoch) == list(range(7))
  assert not np.array_equal(flat[:7], flat[7:14])
  for stop in range(7):
    first = Shuffled(list(range(7)), seed=3)
    for _ in range(stop):
      first.take(5)
    second = Shuffled(list(range(7)), seed=3)
    second.restore(json.loads(json.dumps(first.state())))
    assert [second.take(5) for _ in range(stop, 7)] == taken[stop:]
  with pytest.raises(ValueError, match="made with 7 training examples, now there are 8"):
    Shuffled(list(range(8)), seed=3).restore(source.state())
  with pytest.raises(ValueError, match="no training examples"):
    Shuffled([], seed=0)


def test_the_heldout_share_is_a_property_of_the_prompt():
  held = [is_heldout(str(i), 0.2) for i in range(2000)]
  assert abs(np.mean(held) - 0.2) < 0.03
  assert not any(is_heldout(str(i), 0.0) for i in range(50))
  assert all(is_heldout(str(i), 0.3) for i in range(2000) if held[i])


def random_examples(seed: int = 0, count: int = 12) -> list[Example]:
  rng = np.random.default_rng(seed)
  examples = []
  for _ in range(count):
    tokens = rng.integers(0, 256, rng.integers(6, 40)).astype(np.int32)
    mask = rng.random(len(tokens)) < 0.4
    mask[0], mask[-1] = False, True
    examples.append(Example(tokens, mask))
  return examples


def reference_nll(loaded, examples) -> np.ndarray:
  """(sum, count) of -log p by a float64 softmax; every example has a row of its own."""
  lengths = np.asarray([len(e.tokens) for e in examples])
  real_BT = (np.arange(40) < lengths[:, None]).astype(np.int32)
  tokens_BT = np.zeros_like(real_BT)
  tokens_BT[real_BT > 0] = np.concatenate([e.tokens for e in examples])
  positions_BT = np.broadcast_to(np.arange(40, dtype=np.int32), real_BT.shape)
  packed = decoder.Packed(tokens_BT, positions_BT, real_BT, 0 * real_BT)
  hidden_BTD = decoder.bind(loaded.model, loaded.start)(packed)
  sums = []
  for e, hidden_TD in zip(examples, np.asarray(hidden_BTD, np.float64), strict=True):
    logits = hidden_TD[: len(e.tokens)] @ np.asarray(loaded.start["lm_head"]["w"], np.float64)
    top = logits.max(-1, keepdims=True)
    logp = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    picked = logp[np.arange(len(e.tokens) - 1), e.tokens[1:]]
    sums.append([-picked[e.action_mask[1:]].sum(), e.num_actions])
  return np.asarray(sums)


def one_update(problem, batches):
  """(loss, mean per token, gradient)."""
  state, metrics = problem.trainer.update(problem.init(), map(problem.place, batches))
  return float(metrics["loss"]), float(metrics["sft/nll"].compute()), gradient(state)


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean"])
def test_loss_is_that_of_numpy(loaded, problem, aggregation):
  examples = random_examples()
  sums = reference_nll(loaded, examples)
  wanted = {
    "token_mean": sums[:, 0].sum() / sums[:, 1].sum(),
    "seq_mean_token_mean": np.mean(sums[:, 0] / sums[:, 1]),
  }
  loss, nll, _ = one_update(problem, sft_batches(examples, aggregation, PACK))
  assert loss == pytest.approx(wanted[aggregation], rel=2e-5)
  assert nll == pytest.approx(wanted["token_mean"], rel=2e-5)


def test_neither_packing_nor_micro_batches_nor_devices_move_the_gradient(
  tiny_source, experiment, problem
):
  examples = random_examples()
  loss, _, grads = one_update(problem, sft_batches(examples, "token_mean", PACK))
  assert max(np.abs(g).max() for g in jax.tree.leaves(grads)) > 1e-2
  sharded = sft_problem(
    load_toy(tiny_source, 8, data=2, fsdp=2, tensor=2), examples, [], experiment
  )
  cut = sft_batches(examples[::-1], "token_mean", PackConfig(length=48, actions=32, rows=4))
  assert len(cut) > 1
  loss2, _, grads2 = one_update(sharded, cut)
  assert loss2 == pytest.approx(loss, abs=1e-5)
  assert_trees_close(grads2, grads, 1e-5)


def run_all(problem, e, data, workdir, observer=SILENT):
  """A run from the start of the data; compiled programs are shared."""
  problem = dataclasses.replace(problem, source=data[0]())
  return supervised.run(problem, e.fit, e.checkpoint, workdir, observer)


@pytest.fixture(scope="module")
def whole(problem, experiment, data, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("whole")
  return run_all(problem, experiment, data, workdir), workdir


def test_heldout_loss_falls(whole):
  before, after = read_jsonl(whole[1] / supervised.HELDOUT_FILE)
  assert (before["when"], after["when"]) == ("before", "after")
  assert before["sft/nll"] > 2
  assert after["sft/nll"] < 0.6 * before["sft/nll"]


def test_stopped_between_checkpoints_it_ends_in_the_same_bits(
  whole, problem, experiment, data, tmp_path
):
  class Killed(Exception):
    pass

  def kill(step, record):
    if step == 9:
      raise Killed  # after the checkpoint of step 8, before that of step 12

  with pytest.raises(Killed):
    run_all(problem, experiment, data, tmp_path, FitObserver(on_step=kill))
  state = run_all(problem, experiment, data, tmp_path)
  assert_trees_equal(state, whole[0])
  for name in ("metrics.jsonl", supervised.HELDOUT_FILE):
    records = [[without_perf(r) for r in read_jsonl(d / name)] for d in (tmp_path, whole[1])]
    assert records[0] == records[1]
    assert records[0]


def test_a_checkpoint_of_other_weights_is_refused(whole, problem, experiment, data):
  other = dataclasses.replace(problem, identity=problem.identity | {"start": "0" * 64})
  with pytest.raises(ValueError, match="of another model"):
    run_all(other, experiment, data, whole[1])
