"""Writes docs/capacity.md: the smallest slices on which a step fits, by formula.

python -m benchmarks.capacity
"""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

from ptjax.experience.collect import PolicyConfig
from ptjax.experience.packing import PackConfig
from ptjax.models.config import DecoderConfig
from ptjax.models.presets import preset
from ptjax.rollout.engine import EngineConfig
from ptjax.sharding.mesh import MeshConfig
from ptjax.train.experiment import CriticConfig, Experiment, ModelConfig, RLConfig

PAGE = Path(__file__).parents[1] / "docs" / "capacity.md"
MODELS = (
  "SmolLM2-135M", "Qwen3-4B", "Llama-3.1-8B", "Qwen3-30B-A3B", "Llama-3.1-70B", "DeepSeek-V3",
)  # fmt: skip
FLAT = ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16")
SLICES = {"v5e": FLAT, "v5p": CUBES, "v6e": FLAT, "tpu7x": CUBES}
CONTEXT = 8192


def experiment(model: str, batch: int, tensor: int, *, ppo: bool) -> Experiment:
  """The smallest step: a row and a slot for each place of the batch axes, full remat."""
  base = Experiment(
    model=ModelConfig(model, "bfloat16", "bfloat16", "full"),
    mesh=MeshConfig(tensor=tensor),
    policy=PolicyConfig(max_new_tokens=CONTEXT // 2),
    engine=EngineConfig(num_slots=batch, max_length=CONTEXT),
    pack=PackConfig(length=CONTEXT, actions=CONTEXT // 2, rows=batch),
  )
  if not ppo:
    return base
  return dataclasses.replace(base, rl=RLConfig(advantages="gae"), critic=CriticConfig())


def smallest(model: str, kind: str, *, ppo: bool) -> str:
  """The first slice that fits, with its tensor parallelism and how full it is."""
  from ptjax.planning.estimate import estimate_on
  from ptjax.planning.topology import GIB, parse_topology

  shape = preset(model)
  for slice_ in SLICES[kind]:
    topology = parse_topology(f"{kind}:{slice_}")
    devices, hbm = topology.num_devices, topology.chip.hbm
    # Weights, their two moments, reference, engine's copy and gradients, all float32.
    if shape.num_params * 4 * 6 > devices * hbm:
      continue
    for tensor in widths(shape, devices):
      step = experiment(model, devices // tensor, tensor, ppo=ppo)
      try:
        live = estimate_on(step, shape, topology)
      except ValueError as error:
        if "divisible" not in str(error):
          raise
        continue  # the shape does not divide over so many devices
      if live.total <= hbm:
        return f"{slice_}, tensor {tensor}, {live.total / GIB:.1f}"
  return f"none to {SLICES[kind][-1]}"


def widths(shape: DecoderConfig, devices: int) -> Iterator[int]:
  return (t for t in (1, 2, 4, 8) if devices % t == 0 and shape.num_kv_heads % t == 0)


def page() -> str:
  lines = [INTRODUCTION, f"| model | step | {' | '.join(SLICES)} |", "|---" * 6 + "|"]
  for model in MODELS:
    for name, ppo in (("GRPO", False), ("PPO", True)):
      cells = [smallest(model, kind, ppo=ppo) for kind in SLICES]
      lines.append(f"| {model} | {name} | {' | '.join(cells)} |")
      print(lines[-1], flush=True)
  return "\n".join([*lines, CLOSING])


INTRODUCTION = """\
# Capacity

The smallest slice on which a step fits at 8k tokens of context: its shape, the tensor parallelism
(all other devices are fsdp), and GiB used of a device (v5e has 15.75, v5p 95.74, v6e 31.25, tpu7x
94.75). A step is the least one: one row and one slot for each place of the batch axes, bfloat16
products and activations, float32 weights and moments, full remat, the reference kept. PPO has a
critic as large as the policy. Written by `python -m benchmarks.capacity`.

**These are formulas** (`plan --estimate`), not compilations; ask `plan` before you rent a slice.
What the formulas leave out: how far the compiler's figure for mixtures of experts and latent
attention lies from them has not been measured.
"""
CLOSING = """
## 128k and 1M tokens

No slice holds them yet. Attention keeps a mask of every query and key of a row on one device (16
GiB at 128k, 1 TiB at 1M), and the weights of one layer's scores beside it; the longest context
grows with the number of heads on a device, not with the slice. `plan --max-context` says what an
experiment reaches.
"""


if __name__ == "__main__":
  os.environ["JAX_PLATFORMS"] = "cpu"
  PAGE.write_text(page())
