"""Memory of one long row on this machine: forward and backward of a small model, by length.

    python -m benchmarks.long_rows [--lengths 16384 32768 65536 131072] [--json FILE]

The gradient of a GRPO loss whose answer is the last 256 tokens of the row, in float32, for a
decoder of one layer of 2 heads, width 64 and vocabulary 256. Every length runs in a process of its
own, whose greatest resident memory is printed: it grows by a constant number of bytes a token.
"""

import argparse
import functools
import json
import pathlib
import resource
import subprocess
import sys
import time

import jax
import numpy as np

from ptjax.experience.packing import Rows
from ptjax.models import decoder
from ptjax.models.config import DecoderConfig
from ptjax.models.decoder import unconstrained
from ptjax.rollout.sampling import SamplingConfig
from ptjax.train.objectives import PolicyBatch, policy_loss
from ptjax.train.policy_objective import PolicyObjective

ANSWER = 256
SMALL = DecoderConfig(
  vocab_size=256,
  d_model=64,
  num_layers=1,
  num_heads=2,
  num_kv_heads=1,
  head_dim=16,
  d_ff=128,
  max_position=2**20,
  remat="attention",
  merge_rows=True,
  attention="flash",
)


def batch_of(length: int) -> PolicyBatch:
  """One row, one document, its last tokens the actions."""
  rng = np.random.default_rng(0)
  tokens = rng.integers(0, 256, (1, length)).astype(np.int32)
  row, slots = np.arange(length, dtype=np.int32)[None], np.arange(ANSWER, dtype=np.int32)[None]
  predictor = length - ANSWER - 1 + slots
  ones = np.ones((1, ANSWER), np.float32)
  rows = Rows(
    tokens_BT=tokens,
    positions_BT=row,
    segment_ids_BT=np.ones_like(row),
    branch_ids_BT=np.zeros_like(row),
    predictor_BA=predictor,
    target_BA=tokens[:, predictor[0] + 1],
    mask_BA=np.ones((1, ANSWER), bool),
    sequence_BA=np.zeros_like(slots),
  )
  return PolicyBatch(rows, ones / ANSWER, ones, -5.5 * ones, None, None)


def measure(length: int) -> dict[str, float]:
  """Seconds, resident memory before and at its greatest, in MiB, and the gradient's norm."""
  params = decoder.init_params(SMALL, jax.random.key(0))
  batch = batch_of(length)
  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
  loss = functools.partial(
    policy_loss,
    model=SMALL,
    objective=PolicyObjective(),
    sampling=SamplingConfig(),
    constrain=unconstrained,
  )
  gradient = jax.jit(jax.grad(loss, has_aux=True)).lower(params, batch).compile()
  start = time.perf_counter()
  grads, _ = jax.block_until_ready(gradient(params, batch))
  norm = float(np.sqrt(sum(float((g**2).sum()) for g in jax.tree.leaves(grads))))
  after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
  seconds = time.perf_counter() - start
  return {"length": length, "s": seconds, "before": before, "rss": after, "grad_norm": norm}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--lengths", nargs="+", type=int, default=[16_384, 32_768, 65_536, 131_072])
  parser.add_argument("--json", type=pathlib.Path)
  parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
  a = parser.parse_args()
  if a.one:
    print(json.dumps(measure(a.one)))
    return
  print("  tokens        s   RSS MiB   before  bytes a token", flush=True)
  for length in a.lengths:
    command = [sys.executable, "-m", "benchmarks.long_rows", "--one", str(length)]
    one = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    a_token = (one["rss"] - one["before"]) * 2**20 / length
    print(
      f"{length:>8}  {one['s']:>7.1f}  {one['rss']:>8.0f}  {one['before']:>7.0f}  {a_token:>13.0f}",
      flush=True,
    )
    if a.json:
      with a.json.open("a") as out:
        out.write(json.dumps(one) + "\n")


if __name__ == "__main__":
  main()
