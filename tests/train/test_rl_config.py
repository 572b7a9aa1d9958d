"""Every estimator, objective and aggregation can be configured; what makes no sense is refused."""

import dataclasses
import itertools

import pytest

from ptjax.algos.aggregate import AGGREGATIONS
from ptjax.experience.collect import PolicyConfig
from ptjax.experience.groups import DynamicSampling
from ptjax.experience.packing import PackConfig
from ptjax.rewards.shaping import ShapingConfig
from ptjax.rollout.engine import EngineConfig
from ptjax.train.experiment import CriticConfig, EntropyControl, Experiment, RLConfig
from ptjax.train.policy_objective import CLIPS, CORRECTION_DEFAULTS, CorrectionConfig
from ptjax.train.policy_objective import PolicyObjective as Objective
from ptjax.train.rl_config import ESTIMATORS, PER_TOKEN

SEQUENCE_CLASH = {("gspo", name) for name in PER_TOKEN}


def rl(objective: Objective | None = None, **changes) -> RLConfig:
  return RLConfig(objective=objective or Objective(), **changes)


@pytest.mark.parametrize("loss", CLIPS)
def test_every_combination_that_makes_sense(loss):
  """Estimators, aggregations and corrections with every loss."""
  for estimator, aggregation in itertools.product(ESTIMATORS, AGGREGATIONS):
    if (loss, estimator) in SEQUENCE_CLASH:
      continue
    rl(Objective(loss=loss), advantages=estimator, aggregation=aggregation)
  for kind in CORRECTION_DEFAULTS:
    assert Objective(loss=loss, correction=CorrectionConfig(kind)).correction.kind == kind


@pytest.mark.parametrize("advantages", ESTIMATORS)
def test_the_kl_goes_into_the_loss_of_all_and_the_reward_of_most(advantages):
  rl(Objective(kl_coef=0.1), advantages=advantages, reference=True)
  in_reward = Objective(kl_coef=0.1, kl_place="reward")
  if advantages in ("maxrl", "gdpo"):
    with pytest.raises(ValueError, match=f"'{advantages}'.*KL in the loss"):
      rl(in_reward, advantages=advantages, reference=True)
  else:
    rl(in_reward, advantages=advantages, reference=True)


def test_the_default_kl_estimator_is_the_one_with_the_right_gradient():
  assert Objective(kl_coef=0.1).estimator == "k2"
  assert Objective(kl_coef=0.1, kl_place="reward").estimator == "k1"
  assert Objective(kl_coef=0.1, kl_estimator="k3").estimator == "k3"


def test_correction_settings_have_defaults_of_their_kind():
  assert CorrectionConfig("tis_token").settings == {"cap": 2.0}
  assert CorrectionConfig("icepop", high=3.0).settings == {"low": 0.5, "high": 3.0}
  assert CorrectionConfig().settings == {}


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"kind": "tis_token", "high": 2.0}, "correction.high 2.0: 'tis_token' does not read it"),
    ({"kind": "icepop", "cap": 2.0}, "correction.cap 2.0: 'icepop' does not read it"),
    ({"cap": 2.0}, "'none' does not read it"),
    ({"kind": "seq_tis", "cap": 0.0}, "cap 0.0 must be > 0"),
    ({"kind": "icepop", "low": 1.5, "high": 2.0}, "the band must hold 1"),
    ({"kind": "seq_mask_geo", "high": float("nan")}, "the band must hold 1"),
  ],
)
def test_senseless_corrections(changes, message):
  with pytest.raises(ValueError, match=message):
    CorrectionConfig(**changes)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"loss": "cispo", "clip_low": 0.1}, "clip_low 0.1: the loss 'cispo' does not read it"),
    ({"loss": "reinforce", "clip_high": 0.3}, "'reinforce' does not read it"),
    ({"loss": "gspo", "dual_clip": 3.0}, "dual_clip belongs to the ppo loss"),
    ({"dual_clip": 1.1}, r"dual_clip 1.1 must exceed 1 \+ clip_high"),
    ({"loss": "dppo_tv", "clip_high": 1.5}, "dppo_tv bounds a probability"),
    ({"kl_coef": -0.1}, "kl_coef -0.1 must be >= 0"),
    ({"kl_coef": 0.1, "kl_estimator": "k1"}, "gradient of 0 in expectation"),
    ({"kl_place": "reward"}, "kl_place 'reward' with kl_coef 0 does nothing"),
    ({"old_policy": "sampler", "correction": CorrectionConfig("icepop")}, "corrected twice"),
    ({"old_policy": "sampler", "loss": "reinforce"}, "has no ratio"),
    ({"positive_weight": 0.0, "negative_weight": 0.0}, "nothing would be learned"),
    ({"negative_weight": -1.0}, "negative_weight -1.0 must be >= 0"),
    ({"negative_drift": 0.0}, "negative_drift 0.0 must be > 0"),
    ({"entropy_coef": float("nan")}, "entropy_coef nan must be >= 0"),
  ],
)
def test_senseless_objectives(changes, message):
  with pytest.raises(ValueError, match=message):
    Objective(**changes)


GSPO, REINFORCE = Objective(loss="gspo"), Objective(loss="reinforce")
KL = Objective(kl_coef=0.1)
OVERLONG = ShapingConfig(overlong_buffer=4)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"advantages": "gae", "objective": GSPO}, "use 'gspo_token'"),
    ({"advantages": "reinforce_pp", "objective": GSPO}, "use 'gspo_token'"),
    ({"gamma": 0.9}, "rl.gamma 0.9 with advantages 'grpo'"),
    ({"advantages": "maxrl", "shaping": OVERLONG}, "'maxrl' divides by the mean reward"),
    ({"advantages": "gdpo", "shaping": OVERLONG}, "'gdpo' normalises every part"),
    ({"group_size": 1}, "group_size 1: grpo compares"),
    (
      {"advantages": "reinforce_pp", "group_size": 1, "dynamic_sampling": DynamicSampling()},
      "a group of one",
    ),
    (
      {"advantages": "gae", "group_size": 1, "shaping": ShapingConfig(length_bonus=0.1)},
      "compares the lengths of a group",
    ),
    ({"objective": KL}, "needs a reference; set rl.reference=True"),
    ({"objective": KL, "reference": True, "kl_episodes": 2}, "the loss needs the KL of every"),
    ({"objective": REINFORCE, "epochs": 2}, "'reinforce' has no ratio"),
    ({"objective": REINFORCE, "max_staleness": 1}, "would train uncorrected"),
    ({"max_staleness": -1}, "max_staleness -1 must be >= 0"),
    ({"aggregation": "mean"}, "aggregation 'mean' is unknown"),
    (
      {"entropy": EntropyControl(0.3), "objective": Objective(entropy_coef=1.0)},
      "starts above rl.entropy.limit",
    ),
  ],
)
def test_senseless_algorithms(changes, message):
  with pytest.raises(ValueError, match=message):
    RLConfig(**changes)


@pytest.mark.parametrize(
  ("build", "message"),
  [
    (lambda: EntropyControl(0.0), "entropy.target 0.0 must be > 0"),
    (lambda: EntropyControl(0.3, step=0.1, limit=0.05), "step 0.1 in"),
    (lambda: DynamicSampling(low=0.5, high=0.5), "0 <= low < high <= 1"),
    (lambda: DynamicSampling(max_rounds=0), "max_rounds 0 must be >= 1"),
    (lambda: ShapingConfig(overlong_buffer=0), "overlong_buffer 0 must be >= 1"),
    (lambda: ShapingConfig(overlong_length=8), "without overlong_buffer does nothing"),
    (lambda: ShapingConfig(length_bonus=-1.0), "length_bonus -1.0 must be >= 0"),
    (lambda: CriticConfig(lam_policy=0.9, lam_alpha=0.05), "both set the lambda"),
    (lambda: CriticConfig(lam_policy=1.1), "lam_policy 1.1 must be in"),
    (lambda: CriticConfig(lam_alpha=0.0), "lam_alpha 0.0 must be > 0"),
    (lambda: CriticConfig(turn_level=True, lam_alpha=0.05), "the steps of turn_level are turns"),
  ],
)
def test_senseless_parts_verl_5216(build, message):
  """Among them an overlong buffer of 0, by which other code divides."""
  with pytest.raises(ValueError, match=message):
    build()


def experiment(**changes) -> Experiment:
  base = Experiment(
    policy=PolicyConfig(max_new_tokens=16),
    engine=EngineConfig(max_length=64),
    pack=PackConfig(length=64, actions=16),
  )
  return dataclasses.replace(base, **changes)


def test_the_shaping_must_fit_the_length_limit():
  with pytest.raises(ValueError, match=r"overlong_buffer 17 exceeds the limit of 16 tokens"):
    experiment(rl=rl(shaping=ShapingConfig(overlong_buffer=17)))
  experiment(rl=rl(shaping=ShapingConfig(overlong_buffer=16)))


def test_bootstrapping_needs_a_slot_for_the_last_state():
  critic = CriticConfig(bootstrap_truncated=True)
  with pytest.raises(ValueError, match=r"pack\.length 64 must exceed engine\.max_length 64"):
    experiment(rl=rl(advantages="gae"), critic=critic)
  experiment(rl=rl(advantages="gae"), critic=critic, pack=PackConfig(length=65, actions=17))
