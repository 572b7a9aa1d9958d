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
from ptjax.sharding.rules import Rules
from ptjax.train.experiment import CriticConfig, Experiment, ModelConfig, RLConfig

PAGE = Path(__file__).parents[1] / "docs" / "capacity.md"
MODELS = (
  "SmolLM2-135M", "Qwen3-4B", "Llama-3.1-8B", "Qwen3-30B-A3B", "Llama-3.1-70B", "DeepSeek-V3",
)  # fmt: skip
FLAT = ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16")
SLICES = {"v5e": FLAT, "v5p": CUBES, "v6e": FLAT, "tpu7x": CUBES}
CONTEXTS = {"8k": 1 << 13, "128k": 1 << 17, "1M": 1 << 20}


@dataclasses.dataclass(frozen=True)
class Cut:
  """Devices along the batch axes (fsdp), the tensor and the context axis."""

  batch: int
  tensor: int
  context: int


def experiment(model: str, length: int, cut: Cut, *, ppo: bool) -> Experiment:
  """The smallest step: a row and a slot for each place of the batch axes, full remat.

  Parameters are cut over the context axis as well.
  """
  rules = Rules(embed=("fsdp", "context"))
  base = Experiment(
    model=ModelConfig(model, matmul_dtype="bfloat16", activation_dtype="bfloat16", remat="full"),
    mesh=MeshConfig(tensor=cut.tensor, context=cut.context),
    rules=rules,
    policy=PolicyConfig(max_new_tokens=length // 2),
    engine=EngineConfig(num_slots=cut.batch, max_length=length),
    pack=PackConfig(length=length, actions=length // 2, rows=cut.batch),
  )
  if not ppo:
    return base
  return dataclasses.replace(base, rl=RLConfig(advantages="gae"), critic=CriticConfig(rules=rules))


def smallest(model: str, kind: str, length: int, *, ppo: bool) -> str:
  """The first slice that fits, with its tensor and context parallelism and how full it is."""
  from ptjax.planning.estimate import estimate_on
  from ptjax.planning.topology import GIB, parse_topology

  shape = preset(model)
  for slice_ in SLICES[kind]:
    topology = parse_topology(f"{kind}:{slice_}")
    devices, hbm = topology.num_devices, topology.chip.hbm
    # Weights, their two moments, reference, engine's copy and gradients, all float32.
    if shape.num_params * 4 * 6 > devices * hbm:
      continue
    for cut in cuts(shape, devices, length):
      try:
        live = estimate_on(experiment(model, length, cut, ppo=ppo), shape, topology)
      except ValueError as error:
        if "divisible" not in str(error):
          raise
        continue  # the shape does not divide over so many devices
      if live.total <= hbm:
        return f"{slice_} t{cut.tensor} c{cut.context}: {live.total / GIB:.1f}"
  return f"none to {SLICES[kind][-1]}"


def cuts(shape: DecoderConfig, devices: int, length: int) -> Iterator[Cut]:
  """Rows are cut where they are long, in shards of at least 4,096 tokens."""
  for context in (1,) if length <= 1 << 13 else (4, 16, 64):
    for tensor in (1, 2, 4, 8):
      fits = devices % (tensor * context) == 0 and length // context >= 4096
      if fits and shape.num_kv_heads % tensor == 0:
        yield Cut(devices // tensor // context, tensor, context)


def page() -> str:
  lines = [INTRODUCTION, f"| model | context | step | {' | '.join(SLICES)} |", "|---" * 7 + "|"]
  for model in MODELS:
    for context, length in CONTEXTS.items():
      for name, ppo in (("GRPO", False), ("PPO", True)):
        cells = [smallest(model, kind, length, ppo=ppo) for kind in SLICES]
        lines.append(f"| {model} | {context} | {name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
  return "\n".join([*lines, CLOSING])


INTRODUCTION = """\
# Capacity

The smallest slice on which a step fits: its shape, tensor (t) and context (c) parallelism (all
other devices are fsdp), and GiB used of a device (v5e has 15.75, v5p 95.74, v6e 31.25, tpu7x
94.75). A step is the least one: one row and one slot for each place of the batch axes, half of the
context an answer, bfloat16 products and activations, float32 weights and moments, full remat, the
reference kept. PPO has a critic as large as the policy. Written by
`python -m benchmarks.capacity`.

**These are formulas** (`plan --estimate`), not compilations; ask `plan` before you rent a slice.
How far they lie from the compiler's figure has been measured for the gradients of thirteen
configurations (`tests/planning/estimates.json`: dense models and experts, rows of up to 32k tokens
cut over a context axis, tensor parallelism, PPO, adapters, 8-bit and bfloat16 weights, each remat
policy): at most 8% of all that is on a device. `plan --search` and `--max-context` go by the
formulas and have the compiler confirm what they find (`--confirm`).
"""
CLOSING = """
At 128k and 1M the rollout decides: a prompt is prefilled on every device as a whole, and the cache
is cut over slots and key/value heads but not along the context.
"""


if __name__ == "__main__":
  os.environ["JAX_PLATFORMS"] = "cpu"
  PAGE.write_text(page())
