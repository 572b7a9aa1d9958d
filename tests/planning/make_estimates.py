"""Compiles gradients of some configurations, to hold the estimates to: writes estimates.json.

python tests/planning/make_estimates.py
"""

import dataclasses
import json
import os
from pathlib import Path

from ptjax.experience.collect import PolicyConfig
from ptjax.experience.packing import PackConfig
from ptjax.models.presets import shape_of
from ptjax.rollout.engine import EngineConfig
from ptjax.sharding.mesh import MeshConfig
from ptjax.train.experiment import CriticConfig, Experiment, ModelConfig, RLConfig

PATH = Path(__file__).with_name("estimates.json")

# Model, topology, tensor parallelism, tokens of a row, rows a device, remat, PPO.
CASES = (
  ("SmolLM2-135M", "v5e:2x2", 1, 512, 1, "full", False),
  ("SmolLM2-135M", "v5e:2x2", 1, 512, 4, "full", True),
  ("SmolLM2-135M", "v6e:2x2", 1, 1024, 2, "full", False),
  ("Qwen3-4B", "v5p:2x2x1", 1, 512, 1, "full", False),
  ("Qwen3-4B", "v5p:2x2x2", 2, 512, 2, "full", False),
  ("Llama-3.1-8B", "v5p:2x2x2", 1, 512, 1, "full", False),
)


def experiment(case: tuple) -> Experiment:
  """What a case runs."""
  model, _, tensor, length, rows, remat, ppo = case
  from ptjax.planning.topology import parse_topology

  batch = parse_topology(case[1]).num_devices // tensor
  base = Experiment(
    name=model,
    model=ModelConfig(model, matmul_dtype="bfloat16", activation_dtype="bfloat16", remat=remat),
    mesh=MeshConfig(tensor=tensor),
    policy=PolicyConfig(max_new_tokens=length // 2),
    engine=EngineConfig(num_slots=4 * batch, max_length=length),
    pack=PackConfig(length=length, actions=length // 2, rows=rows * batch),
    rl=RLConfig(),
  )
  if not ppo:
    return base
  rl = RLConfig(advantages="gae")
  return dataclasses.replace(base, rl=rl, critic=CriticConfig())


def main() -> None:
  os.environ["JAX_PLATFORMS"] = "cpu"
  from ptjax.planning.compiler import compile_program
  from ptjax.planning.memory import live
  from ptjax.planning.programs import programs, residents
  from ptjax.planning.setup import set_up
  from ptjax.planning.topology import parse_topology

  found = []
  for case in CASES:
    topology = parse_topology(case[1])
    setup = set_up(experiment(case), shape_of(case[0]), topology.devices())
    (gradient,) = (p for p in programs(setup) if p.name == "policy gradient")
    compiled = compile_program(gradient, setup.mesh)
    if compiled.error is not None:
      raise ValueError(f"{case}: {compiled.error.text}")
    total = live(setup, gradient, compiled, residents(setup)).total
    found.append({"case": case, "peak": compiled.peak, "live": total})
    print(case, compiled.peak, total, f"{compiled.seconds:.0f} s", flush=True)
    PATH.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
  main()
