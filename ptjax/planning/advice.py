"""What would make an experiment fit that does not."""

from collections.abc import Mapping

from ptjax.planning import programs as names
from ptjax.planning.setup import Setup

GIB = 2**30


def hints(setup: Setup, residents: Mapping[str, int]) -> tuple[str, ...]:
  """Changes of the configuration that free memory, each with what it frees where that is known;
  the largest first where they can be compared."""
  e, c = setup.experiment, setup.model
  found: list[tuple[float, str]] = []
  cache, rows, actions = residents[names.CACHE], e.pack.rows, e.pack.actions
  shards = setup.mesh.shape
  if e.engine.num_slots > 1:
    half = e.engine.num_slots // 2
    found.append((cache / 2, f"engine.num_slots={half} halves the KV cache: {gib(cache / 2)} less"))
  if c.remat != "full":
    found.append((0, "model.remat=full keeps one array a layer for the backward pass"))
  batch = shards["replica"] * shards["data"] * shards["fsdp"]
  if rows > batch:
    found.append((0, f"pack.rows={batch} makes the smallest micro-batch of this mesh"))
  chunk = e.rl.objective.logit_chunk
  if min(chunk, actions) > 128:
    wide = rows // min(batch, rows) * 4 * c.vocab_size // shards["tensor"]
    found.append(
      (
        3.0 * wide * (min(chunk, actions) - 128),
        f"rl.objective.logit_chunk=128: logits of a chunk take {gib(wide * 128)} instead of "
        f"{gib(wide * min(chunk, actions))}",
      )
    )
  if "bfloat16" not in (c.activation_dtype,):
    found.append((0, "model.activation_dtype=bfloat16 halves activations and KV cache"))
  if shards["data"] > 1:
    held = sum(n for name, n in residents.items() if name != names.CACHE)
    freed = held - held / shards["data"]
    found.append((freed, f"mesh.fsdp instead of mesh.data splits parameters: {gib(freed)} less"))
  copied = sum(n for name, n in residents.items() if name != names.CACHE)
  found.append(
    (0, f"a slice of twice the chips halves {gib(copied)} of parameters and optimizer states")
  )
  return tuple(text for _, text in sorted(found, key=lambda pair: -pair[0]))


def gib(nbytes: float) -> str:
  return f"{nbytes / GIB:.2f} GiB"
