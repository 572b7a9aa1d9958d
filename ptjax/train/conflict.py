"""How far the domains of a step pull the policy apart: cosines of their gradients, on a sketch.

Keeping a gradient of the policy's size for each domain would take as many times its memory. A
sketch of SKETCH numbers keeps inner products up to an error of about |a| |b| / sqrt(SKETCH).
"""

import functools
import itertools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from ptjax.models.decoder import Params
from ptjax.train import batch as batches
from ptjax.train.batch import Batch
from ptjax.train.networks import TrainState
from ptjax.train.session import Session

SKETCH = 4096
MOST_DOMAINS = 8
"""Domains of a step that are measured: those with the most trajectories that move the policy."""

Cosines = Mapping[tuple[str, str], float]


@functools.partial(jax.jit, static_argnames="size")
def sketch(tree: Params, size: int = SKETCH) -> jax.Array:
  """A random projection of all leaves together, f32[size]; the same for trees of one shape.

  s_k = sum over i with i mod size = k of e_i x_i, the signs e_i independent: inner products are
  right in the mean.

  Source: M. Charikar, K. Chen, M. Farach-Colton, "Finding frequent items in data streams", 2002.
  """
  total = jnp.zeros(size, jnp.float32)
  for number, leaf in enumerate(jax.tree.leaves(tree)):
    flat = leaf.astype(jnp.float32).reshape(-1)
    signs = jax.random.rademacher(jax.random.key(number), flat.shape, jnp.int8)
    signed = jnp.pad(flat * signs, (0, -flat.size % size))
    total += signed.reshape(-1, size).sum(0)
  return total


def cosines(sketches: Mapping[str, np.ndarray]) -> dict[tuple[str, str], float]:
  """Of each pair of domains; those whose gradient is 0 are left out."""
  units = {}
  for name, values in sketches.items():
    norm = float(np.linalg.norm(values))
    if norm > 0:
      units[name] = np.asarray(values, np.float64) / norm
  return {(a, b): float(units[a] @ units[b]) for a, b in itertools.combinations(units, 2)}


def measure(session: Session, policy: TrainState, batch: Batch) -> dict[tuple[str, str], float]:
  """Cosines of the gradients of a step's batch by domain, at the weights before its update."""
  e = session.experiment
  by_domain: dict[str, list[int]] = {}
  for i in batches.computed(batch, e.rl):
    by_domain.setdefault(batch.trajectories[i].domain, []).append(i)
  chosen = sorted(by_domain, key=lambda name: -len(by_domain[name]))[:MOST_DOMAINS]
  sketches = {}
  for name in chosen:
    part = batch.take(by_domain[name])
    rows = batches.policy_batches(part, e.rl, e.pack, e.policy.max_new_tokens)
    placed = (session.policy_layout.place_rows(r) for r in rows)
    grads, _, _ = session.policy.gradient(policy.params, placed)
    if grads is not None:
      sketches[name] = np.asarray(sketch(grads))
  return cosines(sketches)


def metrics(found: Cosines) -> dict[str, float]:
  """The least and the mean cosine, and the share of pairs that pull apart."""
  values = np.asarray(list(found.values()))
  if not len(values):
    return {}
  return {
    "conflict/cos_min": float(values.min()),
    "conflict/cos_mean": float(values.mean()),
    "conflict/apart_frac": float((values < 0).mean()),
  }
