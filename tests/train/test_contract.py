"""The sampler/trainer contract: silent where both agree, exact about where they do not."""

import numpy as np
import pytest

from ptjax.core.types import FinishReason, Outcome, Trajectory
from ptjax.data.tokenizer import byte_tokenizer
from ptjax.train.contract import ContractError, check_contract

TOKENIZER = byte_tokenizer()


def sampled(prompt, answer, domain="arithmetic"):
  """A trajectory whose every answer token has log-prob -1, -2, -3 and so on."""
  tokens = TOKENIZER.encode(prompt + answer)
  acted = np.arange(len(tokens)) >= len(prompt)
  return Trajectory(
    tokens=tokens,
    action_mask=acted,
    behavior_logprobs=np.where(acted, len(prompt) - 1.0 - np.arange(len(tokens)), 0).astype("f4"),
    policy_versions=np.where(acted, 0, -1).astype(np.int32),
    turn_starts=(0, len(prompt)),
    domain=domain,
    group=0,
    seed=0,
    rewards={"": 1.0},
    outcome=Outcome.SCORED,
    finish_reason=FinishReason.STOP,
  )


ITEMS = [sampled("what is 1+2? ", "three"), sampled("and 4? ", "four", "code")]


def agreed():
  return [item.behavior_logprobs[item.action_mask].copy() for item in ITEMS]


def check(logprobs, tolerance=1e-3):
  return check_contract(ITEMS, logprobs, tolerance, TOKENIZER)


def test_equal_passes():
  assert check(agreed(), tolerance=0.0) == 0.0


def test_returns_the_largest_difference():
  logprobs = agreed()
  logprobs[0][2] += 2e-4
  logprobs[1][3] -= 5e-4
  assert check(logprobs) == pytest.approx(5e-4, rel=1e-2)


def test_names_the_token_its_position_and_both_numbers():
  logprobs = agreed()
  logprobs[0][1] -= 0.01
  logprobs[1][2] += 0.25  # the worst: "u" of "four", position 9 of the second
  with pytest.raises(ContractError) as error:
    check(logprobs)
  for part in (
    "0.25 nats", "tolerance 0.001", f"token {ord('u')} 'u'", "position 9", "domain code",
    "sampler -3.00000", "trainer -2.75000", "'and 4? fo' _ 'r'", "rl.contract_tolerance",
  ):  # fmt: skip
    assert part in str(error.value)


@pytest.mark.parametrize("wrong", [np.nan, -np.inf, np.inf])
@pytest.mark.parametrize("tolerance", [1e-3, 1e6])
def test_what_is_no_number_never_passes(wrong, tolerance):
  logprobs = agreed()
  logprobs[1][0] = wrong
  with pytest.raises(ContractError, match=r"'f' at position 7 of domain code"):
    check(logprobs, tolerance)


def test_a_sampler_that_reports_nan_never_passes():
  item = sampled("a", "bc")
  item.behavior_logprobs[2] = np.nan
  with pytest.raises(ContractError, match=r"'c' at position 2"):
    check_contract([item], [np.asarray([-1.0, -2.0])], 1e-3, TOKENIZER)


def test_log_probs_of_tokens_that_are_no_actions_are_not_compared():
  item = sampled("ab", "c")
  item.behavior_logprobs[0] = 99.0
  assert check_contract([item], [np.asarray([-1.0])], 1e-6, TOKENIZER) == 0.0


def test_as_many_log_probs_as_actions():
  """One number would otherwise be compared with every action."""
  item = sampled("ab", "cc")
  item.behavior_logprobs[2:] = -1.0
  with pytest.raises(ValueError):
    check_contract([item], [np.asarray([-1.0])], 1e-6, TOKENIZER)
  with pytest.raises(ValueError):
    check_contract(ITEMS, agreed()[:1], 1e-3, TOKENIZER)
