"""Compiles gradients of some configurations, to hold the estimates to: writes estimates.json.

python tests/planning/make_estimates.py
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import Literal

from ptjax.experience.collect import PolicyConfig
from ptjax.experience.packing import PackConfig
from ptjax.models.lora import LoraConfig
from ptjax.models.presets import shape_of
from ptjax.rollout.engine import EngineConfig
from ptjax.sharding.mesh import MeshConfig
from ptjax.train.experiment import CriticConfig, Experiment, ModelConfig, RLConfig
from ptjax.train.optimizer import OptimizerConfig

PATH = Path(__file__).with_name("estimates.json")


@dataclasses.dataclass(frozen=True)
class Case:
  """A policy gradient: rows a device, the devices of each mesh axis beside fsdp, what differs."""

  model: str
  topology: str
  length: int = 512
  rows: int = 1
  tensor: int = 1
  context: int = 1
  remat: Literal["none", "dots", "attention", "full", "offload"] = "full"
  ppo: bool = False
  lora: LoraConfig | None = None
  reference: Literal["start", "int8", "fp8"] = "start"
  param_dtype: Literal["float32", "bfloat16"] = "float32"
  ff_chunk: int | None = None

  @property
  def name(self) -> str:
    """Its fields, but for those that are as usual."""
    rest = dataclasses.fields(self)[2:]
    different = {f.name: v for f in rest if (v := getattr(self, f.name)) != f.default}
    if self.lora is not None:
      different["lora"] = self.lora.base
    return " ".join((self.model, self.topology, *(f"{k}={v}" for k, v in different.items())))


CASES = (
  Case("SmolLM2-135M", "v5e:2x2"),
  Case("SmolLM2-135M", "v5e:2x2", rows=4, ppo=True),
  Case("SmolLM2-135M", "v6e:2x2", length=1024, rows=2),
  Case("SmolLM2-135M", "v5e:2x2", length=2048, rows=2, remat="dots"),
  Case("SmolLM2-135M", "v5e:2x2", length=2048, remat="attention", lora=LoraConfig()),
  Case("SmolLM2-135M", "v5p:2x2x1", length=8192, context=4, ff_chunk=1024),
  Case("Qwen3-4B", "v5p:2x2x1"),
  Case("Qwen3-4B", "v5p:2x2x2", rows=2, tensor=2),
  Case("Qwen3-4B", "v5p:2x2x1", lora=LoraConfig(base="int8")),
  Case("Qwen3-4B", "v6e:2x4", reference="int8", param_dtype="bfloat16"),
  Case("Llama-3.1-8B", "v5p:2x2x2"),
  Case("Llama-3.1-8B", "v5p:2x2x4", length=32768, context=16, remat="offload"),
  Case("Qwen3-30B-A3B", "v5p:2x4x4"),
)


def experiment(case: Case) -> Experiment:
  """What a case runs."""
  from ptjax.planning.topology import parse_topology

  batch = parse_topology(case.topology).num_devices // case.tensor // case.context
  length, narrow = case.length, case.param_dtype == "bfloat16"
  return Experiment(
    name=case.name,
    model=ModelConfig(
      case.model,
      matmul_dtype="bfloat16",
      activation_dtype="bfloat16",
      param_dtype=case.param_dtype,
      remat=case.remat,
      ff_chunk=case.ff_chunk,
      lora=case.lora,
    ),
    mesh=MeshConfig(tensor=case.tensor, context=case.context),
    policy=PolicyConfig(max_new_tokens=length // 2),
    engine=EngineConfig(num_slots=4 * batch, max_length=length),
    pack=PackConfig(length=length, actions=length // 2, rows=case.rows * batch),
    optimizer=OptimizerConfig(narrow="master" if narrow else "none"),
    rl=RLConfig(
      advantages="gae" if case.ppo else "grpo",
      reference=case.reference != "start",
      reference_weights=case.reference,
    ),
    critic=CriticConfig() if case.ppo else None,
  )


def main() -> None:
  os.environ["JAX_PLATFORMS"] = "cpu"
  from ptjax.planning.compiler import compile_program
  from ptjax.planning.estimate import estimate
  from ptjax.planning.memory import live
  from ptjax.planning.programs import programs, residents
  from ptjax.planning.setup import set_up
  from ptjax.planning.topology import parse_topology

  found = []
  for case in CASES:
    topology = parse_topology(case.topology)
    setup = set_up(experiment(case), shape_of(case.model), topology.devices())
    (gradient,) = (p for p in programs(setup) if p.name == "policy gradient")
    compiled = compile_program(gradient, setup.mesh)
    if compiled.error is not None:
      raise ValueError(f"{case}: {compiled.error.text}")
    total = live(setup, gradient, compiled, residents(setup)).total
    told = max(estimate(setup), key=lambda one: one.name == "policy gradient").total
    found.append({"case": case.name, "peak": compiled.peak, "live": total})
    print(f"{case.name}: {total / told - 1:+.1%}, {compiled.seconds:.0f} s", flush=True)
    PATH.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
  main()
