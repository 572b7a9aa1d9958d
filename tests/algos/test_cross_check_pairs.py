"""Our losses of pairs and answers against TRL, on logits: log-probs, scores, loss and gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cross_check_cases import DATA, IN, arrays, check, same

from ptjax.algos import preference
from ptjax.algos.logprobs import next_token_logprobs_and_entropy
from ptjax.core.masked import masked_mean

PAIRS = IN["pairs"]


def scores(logits, mean):
  """Of the six answers, chosen ones first."""
  tokens, mask = PAIRS["tokens"].astype(np.int32), PAIRS["completion_mask"]
  logps, _, pred_mask = next_token_logprobs_and_entropy(logits, tokens, mask)
  return preference.sequence_score(logps, pred_mask, mean=mean)


def pair_loss(name, theirs, mean, with_reference, **settings):
  def loss(logits):
    score, ref = scores(logits, mean), scores(PAIRS["ref_logits"], mean)
    sides = [(score[i : i + 3], ref[i : i + 3]) for i in (0, 3)]
    args = [x for side in sides for x in side[: 1 + with_reference]]
    return preference.PREFERENCE_LOSSES[name](*args, **settings)[0].mean()

  same(theirs, jax.value_and_grad(loss)(jnp.asarray(PAIRS["logits"])))


def trl_kto(theirs):
  """The first values of KTO that are not ours; the answers of other prompts make z."""

  def loss(logits):
    score, ref = scores(logits, False), scores(PAIRS["ref_logits"], False)
    z = preference.kto_reference_point(score, ref, np.ones(6, bool))
    weights = {"beta": 0.3, "desirable_weight": 1.2, "undesirable_weight": 0.7}
    return preference.kto(score, ref, PAIRS["desirable"] != 0, z, **weights)[0].mean()

  same(theirs, jax.value_and_grad(loss)(jnp.asarray(PAIRS["logits"])))


def trl_orpo(theirs):
  """TRL's first term is the log-loss of prompt and answer by token; the paper's of the answer."""

  def loss(logits):
    mean = scores(logits, True)
    ours = preference.orpo(mean[:3], mean[3:], lam=0.2)[0].mean()
    tokens = PAIRS["tokens"].astype(np.int32)
    attended = next_token_logprobs_and_entropy(logits[:3], tokens[:3], PAIRS["attention_mask"][:3])
    return ours + mean[:3].mean() - masked_mean(attended[0], attended[2])

  same(theirs, jax.value_and_grad(loss)(jnp.asarray(PAIRS["logits"])))


def trl_bradley_terry(theirs):
  def loss(logits):
    reward = logits[:, 0, 0]
    return preference.bradley_terry(reward[:3], reward[3:], PAIRS["margin"])[0].mean()

  same(theirs, jax.value_and_grad(loss)(jnp.asarray(PAIRS["logits"])))


CHECKS = {
  "dpo": check(pair_loss, "dpo", mean=False, with_reference=True, beta=0.3),
  "ipo": check(pair_loss, "ipo", mean=True, with_reference=True, beta=0.3),
  "kto": trl_kto,
  "orpo": trl_orpo,
  "simpo": check(pair_loss, "simpo", mean=True, with_reference=False, beta=2.0, gamma=0.5),
  "bradley_terry": trl_bradley_terry,
}


@pytest.mark.parametrize("case", CHECKS)
def test_cross_check(case):
  with jax.enable_x64(True):
    CHECKS[case](arrays(DATA["trl"][case]))
