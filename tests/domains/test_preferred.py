"""A domain under a reward model: the model's score is the reward, the domain's own is recorded."""

import asyncio

import pytest

from ptjax.domains import addends, arithmetic, preferred
from ptjax.domains.domain import grade_response
from ptjax.envs.environment import Services
from ptjax.rewards.tree import Leaf


@pytest.mark.parametrize("domain", [addends.build(), arithmetic.build()], ids=lambda d: d.name)
@pytest.mark.parametrize("right", [True, False])
def test_reward_is_the_models_and_the_verdict_the_domains(domain, right, monkeypatch):
  # A judge that is always wrong: it likes what the domain refuses.
  task = domain.make_task(0, "train")
  best = domain.oracle(task)
  judge = Leaf("preference", lambda task, response, services: 0.1 if response == best else 0.9)
  monkeypatch.setattr(preferred, "reward_model_leaf", lambda model: judge)
  judged = preferred.judged_by(domain, model=None)
  response = best if right else "?"
  own, grade = (
    asyncio.run(grade_response(d, task, response, Services())) for d in (domain, judged)
  )
  assert grade.rewards[""] == grade.rewards["preference"] == (0.1 if right else 0.9)
  assert grade.passed == own.passed == right
  assert preferred.own_rewards(grade.rewards) == own.rewards
  assert grade.rewards["gold"] == float(right)
