"""A domain whose answers a reward model judges, its own verdict kept beside it."""

import dataclasses
from collections.abc import Mapping

from ptjax.domains.domain import Domain
from ptjax.rewards.reward_model import RewardModel, reward_model_leaf
from ptjax.rewards.tree import Child, Node, RewardTree

GOLD = "gold"


def judged_by(domain: Domain, model: RewardModel) -> Domain:
  """The domain with the reward model's score, in [0, 1], as its reward.

  The domain's own tree is evaluated too and recorded under `gold`, with weight 0; the verdict
  `passed` goes on to be its. How far the two part is what over-optimisation means (Gao et al.
  2022, Scaling laws for reward model overoptimization).
  """
  own = dataclasses.replace(domain.rewards.root, name=GOLD)
  root = Node("reward", (Child(1.0, reward_model_leaf(model)), Child(0.0, own)))

  def passed(rewards: Mapping[str, float]) -> bool:
    return domain.passed(own_rewards(rewards))

  return dataclasses.replace(
    domain, rewards=RewardTree(root, domain.rewards.version), passed=passed
  )


def own_rewards(rewards: Mapping[str, float]) -> dict[str, float]:
  """The values of the domain's own tree, by its own paths."""
  return {
    path.removeprefix(GOLD).removeprefix("/"): value
    for path, value in rewards.items()
    if path == GOLD or path.startswith(f"{GOLD}/")
  }
