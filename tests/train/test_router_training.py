"""Routers in training: losses over the tokens of the global batch, the correction, metrics."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_moe import write_tiny_moe
from train_toys import SMOOTH, assert_trees_close, gradient, session_on, toy_experiment
from train_toys import toy_trajectories as trajectories_of

from ptjax.core.metrics import summarize
from ptjax.experience.packing import PackConfig
from ptjax.models import decoder
from ptjax.models.experts import Experts
from ptjax.models.lora import LoraConfig
from ptjax.train import batch as batches
from ptjax.train.batch import Batch
from ptjax.train.estimate import group_advantages
from ptjax.train.experiment import ModelConfig, RLConfig
from ptjax.train.preference import PreferenceExperiment
from ptjax.train.router import RouterConfig

ROUTER = RouterConfig(balance_coef=0.5, z_coef=0.05, bias_rate=0.25)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
  return write_tiny_moe(tmp_path_factory.mktemp("deepseek"), "deepseek")


def experiment(source, router=ROUTER, **changes):
  model = ModelConfig(str(source), remat="none", router=router)
  rl = RLConfig(num_steps=1, prompts_per_step=2, group_size=8)
  return toy_experiment(source, **{"model": model, "rl": rl, "optimizer": SMOOTH} | changes)


@pytest.fixture(scope="module")
def session(source, tmp_path_factory):
  with session_on(1, experiment(source), tmp_path_factory.mktemp("run")) as session:
    yield session


def policy_batches(packing: PackConfig):
  trajectories = trajectories_of()
  batch = Batch(trajectories, group_advantages(trajectories, "grpo"))
  return batches.policy_batches(batch, RLConfig(), packing, 8)


def one_update(session, packing: PackConfig):
  state = session.init_policy()
  parts = policy_batches(packing)
  state, metrics = session.policy.update(state, map(session.policy_layout.place_rows, parts))
  return state, summarize(metrics), parts


@pytest.fixture(scope="module")
def reference(session):
  return one_update(session, PackConfig(length=64, actions=32, rows=8))


def token_by_token(session, parts):
  """(counts_LE, balance loss, z-loss) from the router's logits of every packed token."""
  counts = np.zeros((1, 8))
  probs, z, tokens = np.zeros((1, 8)), 0.0, 0
  params = session.start
  for part in parts:
    rows = part.rows
    packed = decoder.Packed(*map(jnp.asarray, rows[:4]))
    _, routed = jax.jit(
      lambda params, packed: decoder.bind(session.model, params)(packed, keep_routing=True)
    )(params, packed)
    real_BT = np.asarray(rows.segment_ids_BT) > 0
    logits = router_logits(session.model, params, packed).reshape(*real_BT.shape, 8)[real_BT]
    scores = 1 / (1 + np.exp(-logits))
    for experts in np.asarray(routed.experts_TX[0])[real_BT]:
      counts[0, experts] += 1
    probs[0] += (scores / scores.sum(-1, keepdims=True)).sum(0)
    z += (np.log(np.exp(logits).sum(-1)) ** 2).sum()
    tokens += len(logits)
  share = counts / counts.sum()
  return counts, 8 * (share * probs).sum() / tokens, z / tokens


def router_logits(model, params, packed):
  """Of the only layer with experts, from the input that it has got and its router."""
  seen = []

  def told(self, x_TD, m):
    jax.debug.callback(seen.append, x_TD)
    return own(self, x_TD, m)

  own = Experts._router_logits
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(Experts, "_router_logits", told)
    jax.block_until_ready(jax.jit(lambda p: decoder.bind(model, p)(packed))(params))
    jax.effects_barrier()
  (x_TD,) = seen
  return np.asarray(x_TD, np.float64) @ np.asarray(params["layers"]["mlp"]["router"][0], np.float64)


def test_losses_are_those_of_each_token(session, reference, source, tmp_path):
  _, metrics, parts = reference
  counts, balance, z = token_by_token(session, parts)
  with session_on(1, experiment(source, router=None), tmp_path) as plain:
    state = plain.init_policy()
    _, without = plain.policy.update(state, map(plain.policy_layout.place_rows, parts))
  added = metrics["loss"] - float(without["loss"])
  assert added == pytest.approx(0.5 * balance + 0.05 * z, rel=1e-4)
  share = counts[0] / counts.sum()
  assert metrics["router/max_share/0"] == pytest.approx(share.max(), rel=1e-6)
  used = share[share > 0]
  assert metrics["router/entropy/0"] == pytest.approx(-(used * np.log(used)).sum(), rel=1e-5)


def test_the_correction_moves_with_the_load_and_by_nothing_else(session, reference):
  state, _, parts = reference
  counts, _, _ = token_by_token(session, parts)
  want = 0.25 * np.sign(counts.mean() - counts)
  assert np.abs(want).max() == 0.25
  np.testing.assert_allclose(state.params["layers"]["mlp"]["correction"], want, rtol=1e-6)


@pytest.mark.parametrize(
  "packing", [PackConfig(64, 32, 1), PackConfig(80, 32, 16)], ids=["micro-batches", "padding"]
)
def test_neither_padding_nor_micro_batches_move_the_update(session, reference, packing):
  want, want_metrics, want_parts = reference
  got, metrics, parts = one_update(session, packing)
  assert (len(parts), len(parts[0].rows.mask_BA)) != (len(want_parts), 8)
  assert metrics["loss"] == pytest.approx(want_metrics["loss"], rel=1e-5)
  assert metrics["router/entropy/0"] == want_metrics["router/entropy/0"]
  assert_trees_close(gradient(got), gradient(want), 2e-6)
  correction = [s.params["layers"]["mlp"]["correction"] for s in (got, want)]
  np.testing.assert_array_equal(*correction)


@pytest.mark.parametrize(
  ("router", "message"),
  [
    ({"balance_coef": -1.0}, "model.router.balance_coef -1.0 must be >= 0"),
    ({"z_coef": float("inf")}, "model.router.z_coef inf"),
  ],
)
def test_senseless_weights_are_refused(router, message):
  with pytest.raises(ValueError, match=message):
    RouterConfig(**router)


def test_what_has_no_such_router_is_refused(session, tmp_path, tiny_source):
  model = session.model
  softmax = dataclasses.replace(model, moe=dataclasses.replace(model.moe, scoring="softmax"))
  with pytest.raises(ValueError, match="softmax routing has no correction"):
    ROUTER.check(softmax, adapters=False)
  with pytest.raises(ValueError, match="belongs to the frozen base"):
    ROUTER.check(model, adapters=True)
  with (
    pytest.raises(ValueError, match="the model has no experts"),
    session_on(1, experiment(tiny_source), tmp_path),
  ):
    pass
  with pytest.raises(ValueError, match="belongs to train, sft and bestofn"):
    PreferenceExperiment(data=None, model=ModelConfig(router=ROUTER, lora=LoraConfig()))
