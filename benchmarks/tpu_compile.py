"""Programs compiled for TPUs that this machine does not have: what they take, by their compiler.

Needs libtpu (`pip install libtpu`, the version that JAX names in its extra `tpu`). Import it before
JAX is used: it sets the variables that let a machine without a TPU load libtpu.
"""

import os
import re
import time

os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ptjax.sharding.mesh import MeshConfig, make_mesh

GIB = 2**30


def mesh_of(topology: str, **sizes: int) -> Mesh:
  """A mesh over the devices of a topology such as v5p:4x4x4, `fsdp` taking none by default."""
  found = topologies.get_topology_desc(platform="tpu", topology_name=topology)
  return make_mesh(MeshConfig(**{"fsdp": 1} | sizes), list(found.devices))


def shaped(mesh: Mesh, shape: tuple[int, ...], dtype, *axes) -> jax.ShapeDtypeStruct:
  """An array that nobody allocates, cut along the named mesh axes."""
  sharding = NamedSharding(mesh, PartitionSpec(*axes))
  return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def compiled(function, *arguments) -> dict[str, object]:
  """What the compiler says of a jitted function: GiB of a device, collectives, seconds."""
  return compiled_lowering(lambda: function.lower(*arguments))


def compiled_lowering(lower) -> dict[str, object]:
  """`compiled` of a program that `lower()` lowers."""
  start = time.perf_counter()
  lowered = lower()
  traced = time.perf_counter()
  try:
    program = lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    used = re.search(r"Used ([\d.]+\w) of ([\d.]+\w) hbm", str(error))
    return {"fits": False, "used": used.group(1) if used else "?", "trace_s": traced - start}
  memory, text = program.memory_analysis(), program.as_text()
  parts = (
    memory.argument_size_in_bytes,
    memory.output_size_in_bytes - memory.alias_size_in_bytes,
    memory.temp_size_in_bytes,
  )
  # The compiler's peak is of the fuller of two memories where the host's is used as well: what is
  # allocated on the device, which its peak cannot exceed, then says more.
  return {
    "fits": True,
    "peak": min(memory.peak_memory_in_bytes, sum(parts)) / GIB,
    "arguments": parts[0] / GIB,
    "outputs": memory.output_size_in_bytes / GIB,
    "temporary": parts[2] / GIB,
    "host": memory.host_temp_size_in_bytes / GIB,
    "trace_s": traced - start,
    "compile_s": time.perf_counter() - traced,
    "text": text,
  }


def collectives(text: str) -> dict[str, int]:
  """How many of each collective the program has, asynchronous ones counted at their start."""
  kinds = "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute"
  found = {kind: len(re.findall(rf" {kind}(?:-start)?\(", text)) for kind in kinds}
  return {kind: number for kind, number in found.items() if number}


def spans(text: str) -> dict[str, list[int]]:
  """For each asynchronous collective of a scheduled program, by kind, the kernels (Pallas calls)
  that start after it starts and before it is waited for."""
  found: dict[str, list[int]] = {}
  for computation in re.split(r"\n(?=\S)", text):
    started, kernels = {}, 0
    for line in computation.splitlines():
      kernels += "tpu_custom_call" in line
      if start := re.search(r"(%\S+) = .* ([a-z-]+)-start\(", line):
        started[start.group(1)] = start.group(2), kernels
      elif (done := re.search(r"-done\(.*?(%[\w.-]+)\)", line)) and done.group(1) in started:
        kind, before = started.pop(done.group(1))
        found.setdefault(kind, []).append(kernels - before)
  wanted = "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute"
  return {kind: n for kind, n in found.items() if kind in wanted}


__all__ = [
  "GIB",
  "collectives",
  "compiled",
  "compiled_lowering",
  "mesh_of",
  "np",
  "shaped",
  "spans",
]
