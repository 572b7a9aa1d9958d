"""Preferences through the trainer: the losses of packed pairs, gradients, learning."""

import dataclasses

import jax
import numpy as np
import pytest
from fit_toys import annotated, load_toy, write_jsonl
from train_toys import assert_trees_close, gradient

from ptjax.core.metrics import read_jsonl
from ptjax.experience.packing import PackConfig
from ptjax.train import supervised
from ptjax.train.examples import Shuffled
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.pairs import PairsConfig, read_split, whole_parts
from ptjax.train.preference import (
  PairBatch,
  PreferenceExperiment,
  PreferenceObjective,
  loss_of_scores,
  preference_problem,
  to_comparisons,
)
from ptjax.train.supervised import FitConfig, FitObserver

PACK = PackConfig(length=96, actions=48, rows=8)
OBJECTIVES = {
  "dpo": PreferenceObjective("dpo", beta=0.3, label_smoothing=0.1),
  "ipo": PreferenceObjective("ipo", beta=0.2),
  "kto": PreferenceObjective("kto", beta=0.3, desirable_weight=1.3, undesirable_weight=0.8),
  "simpo": PreferenceObjective("simpo", beta=2.0, gamma=0.5),
  "orpo": PreferenceObjective("orpo", lam=0.7),
}


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
  path = write_jsonl(tmp_path_factory.mktemp("data") / "pairs.jsonl", annotated(40))
  return PreferenceExperiment(
    data=PairsConfig(str(path), heldout=0.3),
    pack=PACK,
    fit=FitConfig(num_steps=10, batch_size=12, logit_chunk=48),
    optimizer=OptimizerConfig(learning_rate=3e-2, eps=1e-2, max_grad_norm=1e9),
  )


@pytest.fixture(scope="module")
def loaded(tiny_source):
  return load_toy(tiny_source)


@pytest.fixture(scope="module")
def problems(loaded, experiment):
  """Problems by loss; each compiles its programs when first used."""
  made = {}

  def problem(loss):
    if loss not in made:
      e = dataclasses.replace(experiment, objective=OBJECTIVES[loss])
      made[loss] = preference_problem(loaded, *read_split(e.data), e)
    return made[loss]

  return problem


def log_sigmoid(x):
  return -np.logaddexp(0, -x)


def numpy_losses(loss, c, r, c_ref, r_ref, kl):
  """Losses of pairs (KTO: of the answers) in float64, by the papers' equations."""
  h = (c - c_ref) - (r - r_ref)
  match loss:
    case "dpo":
      return -0.9 * log_sigmoid(0.3 * h) - 0.1 * log_sigmoid(-0.3 * h)
    case "ipo":
      return (h - 1 / (2 * 0.2)) ** 2
    case "simpo":
      return -log_sigmoid(2.0 * (c - r) - 0.5)
    case "orpo":
      odds = (c - np.log(1 - np.exp(c))) - (r - np.log(1 - np.exp(r)))
      return -c - 0.7 * log_sigmoid(odds)
    case "kto":
      good = 1.3 * (1 - np.exp(log_sigmoid(0.3 * (c - c_ref - kl))))
      bad = 0.8 * (1 - np.exp(log_sigmoid(0.3 * (kl - r + r_ref))))
      return np.concatenate([good, bad])


@pytest.mark.parametrize("loss", OBJECTIVES)
def test_value_and_gradient_at_the_scores(loss):
  """Against NumPy, the gradient by central differences; padded pairs add nothing."""
  rng = np.random.default_rng(1)
  c, r, c_ref, r_ref = -rng.uniform(0.2, 4, (4, 5))
  count, share = 5, 1 / (10 if loss == "kto" else 5)
  pad = lambda x: np.concatenate([x, [np.nan, np.nan]])  # noqa: E731
  weights = np.concatenate([np.full(count, share), [0, 0]])
  refs = [np.concatenate([x, [0, 0]]) for x in (c_ref, r_ref)]
  with jax.enable_x64(True):
    batch = PairBatch(None, None, None, *refs, weights, weights, np.float64(0.4))

    def of(c, r):
      return loss_of_scores(c, r, batch, OBJECTIVES[loss])[0]

    value, grads = jax.value_and_grad(of, argnums=(0, 1))(pad(c), pad(r))
  assert value == pytest.approx(np.mean(numpy_losses(loss, c, r, c_ref, r_ref, 0.4)), rel=1e-9)
  for side in (0, 1):
    np.testing.assert_array_equal(grads[side][count:], 0)
    for i in range(count):
      moved = []
      for step in (1e-6, -1e-6):
        args = [c.copy(), r.copy()]
        args[side][i] += step
        moved.append(np.mean(numpy_losses(loss, *args, c_ref, r_ref, 0.4)))
      assert grads[side][i] == pytest.approx((moved[0] - moved[1]) / 2e-6, rel=1e-5, abs=1e-9)


def one_update(problem, items):
  batches, _ = problem.batches(problem.init().params, items)
  state, metrics = problem.trainer.update(problem.init(), map(problem.place, batches))
  return float(metrics["loss"]), gradient(state), metrics, len(batches)


def test_the_first_loss_is_that_of_equal_policy_and_reference(problems):
  """h = 0: DPO loses ln 2, KTO half of each weight, and nothing is preferred yet."""
  loss, grads, metrics, _ = one_update(problems("dpo"), problems("dpo").source.take(12))
  assert loss == pytest.approx(np.log(2), abs=1e-5)
  assert float(metrics["preference/margin"].compute()) == pytest.approx(0, abs=1e-5)
  assert max(np.abs(g).max() for g in jax.tree.leaves(grads)) > 1e-2
  loss, _, _, _ = one_update(problems("kto"), problems("kto").source.take(12))
  assert loss == pytest.approx((1.3 + 0.8) / 4, abs=1e-5)


def test_neither_packing_nor_micro_batches_nor_devices_move_the_gradient(
  problems, tiny_source, experiment
):
  pairs, _ = read_split(experiment.data)
  items = Shuffled(problems("dpo").source._items, 5).take(12)
  loss, grads, metrics, parts = one_update(problems("dpo"), items)
  assert parts == 1
  e = dataclasses.replace(
    experiment, objective=OBJECTIVES["dpo"], pack=PackConfig(length=48, actions=16, rows=4)
  )
  sharded = preference_problem(load_toy(tiny_source, 8, data=2, fsdp=2, tensor=2), pairs, [], e)
  loss2, grads2, metrics2, parts2 = one_update(sharded, items[::-1])
  assert parts2 > 1
  assert loss2 == pytest.approx(loss, abs=1e-5)
  assert_trees_close(grads2, grads, 1e-5)
  assert [int(m["preference/accuracy"].count) for m in (metrics, metrics2)] == [12, 12]


@pytest.mark.parametrize("loss", OBJECTIVES)
def test_held_out_preferences_are_learned(problems, experiment, loss, tmp_path):
  supervised.run(problems(loss), experiment.fit, experiment.checkpoint, tmp_path, FitObserver())
  before, after = read_jsonl(tmp_path / supervised.HELDOUT_FILE)
  if loss in ("dpo", "ipo", "kto"):
    # The accuracy before is that of rounding: no answer is preferred over the reference's yet.
    assert abs(before["preference/margin"]) < 1e-4
  assert after["preference/accuracy"] > 0.8
  assert after["preference/margin"] > before["preference/margin"] + 1
  assert after["preference/loss"] < before["preference/loss"]


def test_kto_learns_from_single_answers(problems, loaded, experiment):
  """Half of the answers are dropped: the loss is the mean over those that are there."""
  pairs, _ = read_split(experiment.data)
  single = [
    dataclasses.replace(p, **{"chosen" if i % 2 else "rejected": None}) for i, p in enumerate(pairs)
  ]
  items = to_comparisons(loaded.template, single[:12], OBJECTIVES["kto"])
  assert all(len(c.present) == 1 for c in items)
  loss, _, metrics, _ = one_update(problems("kto"), items)
  assert np.isfinite(loss)
  assert int(metrics["preference/chosen_score"].count) == 6
  assert int(metrics["preference/accuracy"].count) == 0


def test_an_item_that_fits_no_micro_batch_is_refused(loaded, experiment):
  pairs, _ = read_split(experiment.data)
  items = to_comparisons(loaded.template, pairs, OBJECTIVES["dpo"])
  small = PackConfig(length=34, actions=4, rows=1)
  with pytest.raises(ValueError, match=r"need 2 rows, a micro-batch has 1; raise pack\.length"):
    list(whole_parts(items, lambda c: c.present, small))


@pytest.mark.parametrize(
  ("settings", "words"),
  [
    ({"loss": "ipo", "label_smoothing": 0.1}, "label_smoothing 0.1 does not belong to ipo"),
    ({"loss": "orpo", "beta": 0.1}, "beta 0.1 does not belong to orpo, which takes lam"),
    ({"loss": "dpo", "gamma": 1.0}, "gamma 1.0 does not belong to dpo"),
    ({"loss": "dpo", "beta": 0.0}, "beta 0.0 must be positive"),
    ({"loss": "dpo", "label_smoothing": 0.5}, "label_smoothing 0.5 must be under"),
  ],
)
def test_senseless_settings_are_refused(settings, words):
  with pytest.raises(ValueError, match=words):
    PreferenceObjective(**settings)
