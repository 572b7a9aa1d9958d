"""Peak host memory of importing a Hugging Face checkpoint onto a mesh.

  python -m benchmarks.import_memory                      # Llama 2 7B in bfloat16: 13.5 GB
  python -m benchmarks.import_memory --shrink 4 --shard-mb 100 --processes 2

Makes a checkpoint of random weights in the shape of Llama 2 7B, its widths divided by --shrink,
and imports it in processes that each own --devices CPU devices, the weights split over all of
them. Prints one JSON record a process. The bound is 1.2 times the largest shard plus the process's
share of the arrays, which on a CPU lie in host memory too; the peak is the growth of resident
memory from right before the import, mapped pages of the files included. Exits with 1 where the
peak is above the bound.
"""

import argparse
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def raw_config(shrink: int) -> dict:
  """`config.json` of Llama 2 7B, narrower."""
  return {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32000 // shrink,
    "hidden_size": 4096 // shrink,
    "intermediate_size": 11008 // shrink,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128 // shrink,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
  }


def write_checkpoint(directory: pathlib.Path, shrink: int, shard_bytes: int) -> None:
  """Random bfloat16 weights in shards of at most that many bytes."""
  import safetensors.numpy

  from ptjax.models import families, weight_map

  directory.mkdir(parents=True)
  (directory / "config.json").write_text(json.dumps(raw_config(shrink)))
  block = np.random.default_rng(0).normal(0, 0.02, 2**20).astype(BFLOAT16)
  places, shard, size = {}, {}, 0

  def flush() -> None:
    file = f"model-{len(set(places.values())):05d}.safetensors"
    places.update(dict.fromkeys(shard, file))
    safetensors.numpy.save_file(shard, directory / file, metadata={"format": "pt"})
    shard.clear()

  for name, slot in weight_map.slots(families.decoder_config(directory)):
    tensor = np.resize(block, slot.stored)
    if size + tensor.nbytes > shard_bytes and shard:
      flush()
      size = 0
    shard[name] = tensor
    size += tensor.nbytes
  flush()
  (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def resident(field: str) -> int:
  """Bytes of VmRSS, or of VmHWM, its peak."""
  found = re.search(rf"{field}:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text())
  assert found is not None
  return 1024 * int(found[1])


def import_checkpoint(directory: pathlib.Path) -> dict:
  """The record of this process."""
  import jax

  from ptjax.models.importer import load_sharded
  from ptjax.sharding.mesh import MeshConfig, make_mesh
  from ptjax.sharding.rules import Rules

  mesh = make_mesh(MeshConfig())
  jax.block_until_ready(jax.numpy.zeros(8, device=jax.local_devices()[0]))
  before, start = resident("VmRSS"), time.perf_counter()
  pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
  model = load_sharded(str(directory), mesh, Rules(), BFLOAT16)
  jax.block_until_ready(model.params)
  peak, seconds = resident("VmHWM") - before, time.perf_counter() - start
  leaves = jax.tree.leaves(model.params)
  share = sum(shard.data.nbytes for leaf in leaves for shard in leaf.addressable_shards)
  shard = max(file.stat().st_size for file in directory.glob("*.safetensors"))
  return {
    "process": jax.process_index(),
    "model_bytes": sum(leaf.nbytes for leaf in leaves),
    "share_bytes": share,
    "shard_bytes": shard,
    "bound_bytes": int(1.2 * shard) + share,
    "peak_bytes": peak,
    "seconds": round(seconds, 2),
  }


def worker(arguments: argparse.Namespace) -> int:
  import jax

  if arguments.processes > 1:
    jax.distributed.initialize(arguments.coordinator, arguments.processes, arguments.worker)
  record = import_checkpoint(arguments.directory)
  print(json.dumps(record), flush=True)
  return int(record["peak_bytes"] > record["bound_bytes"])


def main() -> int:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--shrink", type=int, default=1, help="divides all widths [%(default)s]")
  parser.add_argument("--shard-mb", type=int, default=2000, help="10^6 bytes [%(default)s]")
  parser.add_argument("--processes", type=int, default=1, help="[%(default)s]")
  parser.add_argument("--devices", type=int, default=4, help="of each process [%(default)s]")
  parser.add_argument("--directory", type=pathlib.Path, help="where it is made [temporary]")
  parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
  parser.add_argument("--coordinator", help=argparse.SUPPRESS)
  arguments = parser.parse_args()
  if arguments.worker is not None:
    return worker(arguments)
  with tempfile.TemporaryDirectory(dir=arguments.directory) as parent:
    directory = pathlib.Path(parent) / "model"
    write_checkpoint(directory, arguments.shrink, arguments.shard_mb * 10**6)
    return import_in_processes(directory, arguments)


def import_in_processes(directory: pathlib.Path, arguments: argparse.Namespace) -> int:
  with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
  devices = f"--xla_force_host_platform_device_count={arguments.devices}"
  environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": devices}
  command = [sys.executable, "-m", "benchmarks.import_memory", "--directory", str(directory)]
  command += ["--processes", str(arguments.processes), "--coordinator", coordinator, "--worker"]
  processes = [
    subprocess.Popen([*command, str(number)], env=environment)
    for number in range(arguments.processes)
  ]
  try:
    while any(process.poll() is None for process in processes):
      if any(process.poll() for process in processes):  # the others would wait for it
        break
      time.sleep(0.05)
  finally:
    for process in processes:
      process.kill()
  return max(abs(process.wait()) for process in processes)


if __name__ == "__main__":
  sys.exit(main())
