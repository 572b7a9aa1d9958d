"""Configuration of the RL algorithm: estimators, critic, sampling of groups, shaping."""

import dataclasses
from typing import Literal

from ptjax.algos.advantages import ADVANTAGES
from ptjax.algos.aggregate import AGGREGATIONS
from ptjax.evals.guard import GuardSchedule
from ptjax.evals.hacking import HackingConfig
from ptjax.experience.balance import BalanceConfig
from ptjax.experience.groups import DynamicSampling
from ptjax.models.lora import LoraConfig
from ptjax.rewards.shaping import ShapingConfig
from ptjax.sharding.rules import Rules
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.policy_objective import PolicyObjective

GAE, REINFORCE_PP, GDPO = "gae", "reinforce_pp", "gdpo"
ESTIMATORS = (GAE, REINFORCE_PP, GDPO, *ADVANTAGES)
# Their advantages differ from token to token.
PER_TOKEN = (GAE, REINFORCE_PP)


@dataclasses.dataclass(frozen=True)
class CriticConfig:
  """A value network of its own, trained with the policy.

  Attributes:
    num_layers: its trunk is the policy's first layers; None takes all.
    reward_model: workdir of a finished `reward` run whose trunk and head it starts from instead;
      num_layers must then be those of that model. None starts from the policy.
    lora: train adapters on its trunk, and the head; None trains all of it.
    clip: half-width of the value clipping; None for none.
    warmup_steps: steps at the start in which only the critic learns.
    gamma: discount.
    lam: lambda of GAE, for the critic's targets and, unless one of the next two is set, for the
      policy's advantages.
    lam_policy: lambda of the advantages (VC-PPO: 0.95, with lam 1).
    lam_alpha: or 1 - 1 / (lam_alpha n) for an answer of n tokens (VAPO: 0.05).
    turn_level: a step of GAE is a turn instead of a token; for episodes of several turns.
    bootstrap_truncated: an answer cut by the length limit, in a domain that does not score it,
      trains with the critic's value of its last state instead of being dropped.
    optimizer: its AdamW.
    rules: its sharding rules.
  """

  num_layers: int | None = None
  reward_model: str | None = None
  lora: LoraConfig | None = None
  clip: float | None = 0.2
  warmup_steps: int = 0
  gamma: float = 1.0
  lam: float = 1.0
  lam_policy: float | None = None
  lam_alpha: float | None = None
  turn_level: bool = False
  bootstrap_truncated: bool = False
  optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1e-5)
  rules: Rules = Rules()

  def __post_init__(self):
    if self.num_layers is not None and self.num_layers < 1:
      raise ValueError(f"critic.num_layers {self.num_layers} must be >= 1, or None for all")
    for name in ("gamma", "lam", "lam_policy"):
      value = getattr(self, name)
      if value is not None and not 0 <= value <= 1:
        raise ValueError(f"critic.{name} {value} must be in [0, 1]")
    if self.lam_alpha is not None and not self.lam_alpha > 0:
      raise ValueError(f"critic.lam_alpha {self.lam_alpha} must be > 0, or None")
    if self.lam_alpha is not None and self.lam_policy is not None:
      raise ValueError(
        f"critic.lam_policy {self.lam_policy} and lam_alpha {self.lam_alpha} both set the lambda "
        f"of the advantages; set one of them to None"
      )
    if self.turn_level and self.lam_alpha is not None:
      raise ValueError(
        f"critic.lam_alpha {self.lam_alpha} counts tokens, the steps of turn_level are turns; set "
        f"lam_policy instead"
      )


@dataclasses.dataclass(frozen=True)
class EntropyControl:
  """Adaptive weight of the entropy bonus, see `algos.entropy`.

  `objective.entropy_coef` is the first weight.

  Attributes:
    target: entropy that the policy should not fall under, nats.
    step: change of the coefficient after a step.
    limit: largest coefficient.
  """

  target: float
  step: float = 0.005
  limit: float = 0.05

  def __post_init__(self):
    if not self.target > 0 or not 0 < self.step <= self.limit:
      raise ValueError(
        f"entropy.target {self.target} must be > 0, and step {self.step} in (0, limit {self.limit}]"
      )


@dataclasses.dataclass(frozen=True)
class RLConfig:
  """One step: sample groups, score them, update.

  Attributes:
    num_steps: steps of the run.
    prompts_per_step: tasks of a step.
    group_size: episodes of a task.
    advantages: a group estimator of `algos.advantages`; gdpo, on the children of the reward tree's
      root; reinforce_pp; or gae with a critic.
    gamma: discount of reinforce_pp; that of gae belongs to the critic.
    aggregation: normaliser of the loss, see `algos.aggregate`.
    objective: what the policy minimises.
    shaping: what is added to the rewards for their length.
    dynamic_sampling: draw new tasks for groups that teach nothing; None keeps all groups.
    balance: shares of the domains that follow what is learnt; None keeps their weights.
    guard: evaluate every domain on a schedule, and act where one falls under its floor; None does
      neither.
    hacking: watch for rewards that are gamed; None does not.
    conflict_every: steps between measurements of how the gradients of a step's domains lie to each
      other, a backward pass more; None measures nothing.
    domain_norm: divide the advantages of each domain by their root mean square, so that no domain
      has the larger gradient for the scale of its rewards alone.
    entropy: adaptive weight of the entropy bonus; None keeps `objective.entropy_coef`.
    router_replay: the sampler records the experts of every token, and the policy's passes take them
      again, the weights being those of its own router: a mixture of experts then gives a token the
      log-prob that the sampler gave it. Reference and critic route by themselves.
    max_staleness: episodes with a token sampled more than this many steps ago are dropped.
    epochs: passes over the batch of a step.
    minibatches: updates of a pass.
    reference: keep the starting policy as reference, to measure the KL; needed where
      `objective.kl_coef` > 0.
    reference_weights: of the reference: the starting weights, or their blocks in 8 bits (see
      `models.quantize`); the policy then takes the starting weights over.
    kl_episodes: episodes of a group that the KL is measured on where it is not in the
      loss; None takes all. A forward pass of the reference is a quarter of a step.
    deterministic: a failure of the infrastructure stops the run (to be resumed) instead
      of dropping the episode, so that the run depends on its configuration alone.
    contract_every: steps between checks of the sampler against the trainer; step 0 is
      always checked.
    contract_tolerance: largest difference of a token's log-probs, in nats.
  """

  num_steps: int = 20
  prompts_per_step: int = 8
  group_size: int = 8
  advantages: str = "grpo"
  gamma: float = 1.0
  aggregation: str = "token_mean"
  objective: PolicyObjective = PolicyObjective()
  shaping: ShapingConfig = ShapingConfig()
  dynamic_sampling: DynamicSampling | None = None
  balance: BalanceConfig | None = None
  guard: GuardSchedule | None = None
  hacking: HackingConfig | None = None
  conflict_every: int | None = None
  domain_norm: bool = False
  entropy: EntropyControl | None = None
  router_replay: bool = False
  max_staleness: int = 0
  epochs: int = 1
  minibatches: int = 1
  reference: bool = False
  reference_weights: Literal["start", "int8", "fp8"] = "start"
  kl_episodes: int | None = None
  deterministic: bool = False
  contract_every: int = 50
  contract_tolerance: float = 0.02

  def __post_init__(self):
    for name in (
      "num_steps",
      "prompts_per_step",
      "group_size",
      "epochs",
      "minibatches",
      "contract_every",
    ):
      if getattr(self, name) < 1:
        raise ValueError(f"rl.{name} {getattr(self, name)} must be >= 1")
    if self.conflict_every is not None and self.conflict_every < 1:
      raise ValueError(f"rl.conflict_every {self.conflict_every} must be >= 1, or None")
    _check_estimator(self)
    _check_groups(self)
    _check_kl(self)
    _check_off_policy(self)
    if self.aggregation not in AGGREGATIONS:
      raise ValueError(
        f"rl.aggregation {self.aggregation!r} is unknown; use one of {', '.join(AGGREGATIONS)}"
      )
    if self.prompts_per_step % self.minibatches:
      raise ValueError(
        f"rl.prompts_per_step {self.prompts_per_step} is not divisible by rl.minibatches "
        f"{self.minibatches}; try {self.prompts_per_step // self.minibatches * self.minibatches}"
      )
    if self.entropy is not None and self.objective.entropy_coef > self.entropy.limit:
      raise ValueError(
        f"rl.objective.entropy_coef {self.objective.entropy_coef} starts above rl.entropy.limit "
        f"{self.entropy.limit}; raise the limit"
      )

  @property
  def single_update(self) -> bool:
    """Whether a batch is used for one update: the old policy then is the policy itself."""
    return self.epochs * self.minibatches == 1


def _check_estimator(rl: RLConfig) -> None:
  name, o = rl.advantages, rl.objective
  if name not in ESTIMATORS:
    raise ValueError(f"rl.advantages {name!r} is unknown; use {', '.join(ESTIMATORS)}")
  if not 0 <= rl.gamma <= 1:
    raise ValueError(f"rl.gamma {rl.gamma} must be in [0, 1]")
  if rl.gamma != 1 and name != REINFORCE_PP:
    raise ValueError(
      f"rl.gamma {rl.gamma} with advantages {name!r}: only {REINFORCE_PP} discounts by it, {GAE} "
      f"by critic.gamma, and a group estimator has one reward an episode; leave it at 1"
    )
  if o.by_sequence and name in PER_TOKEN:
    raise ValueError(
      f"rl.objective.loss {o.loss!r} with advantages {name!r}: the ratio of a sequence needs one "
      f"advantage a sequence; use 'gspo_token'"
    )
  if name == "maxrl" and (o.kl_in_reward or rl.shaping.active):
    raise ValueError(
      "rl.advantages 'maxrl' divides by the mean reward, which a KL in the reward or a shaping by "
      "length may make negative; put the KL in the loss and leave the shaping out"
    )
  if name == GDPO and (o.kl_in_reward or rl.shaping.active):
    raise ValueError(
      f"rl.advantages {GDPO!r} normalises every part of the reward tree by itself; a KL or a "
      f"length term in the reward is no part of it; put the KL in the loss, the length in the tree"
    )


def _check_groups(rl: RLConfig) -> None:
  if rl.group_size >= 2:
    return
  if rl.advantages not in PER_TOKEN:
    raise ValueError(
      f"rl.group_size {rl.group_size}: {rl.advantages} compares the episodes of a group, "
      f"so it needs at least 2"
    )
  if rl.dynamic_sampling is not None:
    raise ValueError(
      f"rl.dynamic_sampling with group_size {rl.group_size}: a group of one always passes or fails "
      f"as a whole, so that all groups would be dropped; raise group_size"
    )
  if rl.shaping.length_bonus:
    raise ValueError(
      f"rl.shaping.length_bonus compares the lengths of a group, group_size is {rl.group_size}; "
      f"raise group_size"
    )


def _check_kl(rl: RLConfig) -> None:
  if rl.kl_episodes is not None and rl.kl_episodes < 1:
    raise ValueError(f"rl.kl_episodes {rl.kl_episodes} must be >= 1, or None for all")
  if rl.objective.kl_coef and rl.kl_episodes is not None:
    raise ValueError(
      f"rl.kl_episodes {rl.kl_episodes}: with kl_coef {rl.objective.kl_coef} the "
      f"{rl.objective.kl_place} needs the KL of every episode; set kl_episodes to None"
    )
  if rl.reference_weights != "start" and not rl.reference:
    raise ValueError(
      f"rl.reference_weights {rl.reference_weights!r} without a reference; set rl.reference=True"
    )
  if rl.objective.kl_coef and not rl.reference:
    raise ValueError(
      f"rl.objective.kl_coef {rl.objective.kl_coef} needs a reference; set rl.reference=True"
    )


def _check_off_policy(rl: RLConfig) -> None:
  if rl.max_staleness < 0:
    raise ValueError(f"rl.max_staleness {rl.max_staleness} must be >= 0")
  if rl.objective.loss != "reinforce":
    return
  if not rl.single_update:
    raise ValueError(
      f"rl.objective.loss 'reinforce' has no ratio, so a batch serves one update; set epochs "
      f"{rl.epochs} and minibatches {rl.minibatches} to 1, or use 'cispo' or 'ppo'"
    )
  if rl.max_staleness and rl.objective.correction.kind == "none":
    raise ValueError(
      f"rl.max_staleness {rl.max_staleness} with loss 'reinforce': stale tokens would train "
      f"uncorrected; set rl.objective.correction.kind"
    )
