"""Gradient conflict: the sketch, and two domains that want opposite things in the real loop."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from train_toys import toy_domain, toy_experiment

from ptjax.core.metrics import read_jsonl
from ptjax.domains.catalog import DOMAINS
from ptjax.evals.heldout import EvalConfig
from ptjax.experience.mixture import DomainConfig
from ptjax.train.conflict import SKETCH, cosines, metrics, sketch
from ptjax.train.experiment import RLConfig
from ptjax.train.run import run


def trees(overlap):
  """Two trees of 60,000 numbers whose cosine is about `overlap`."""
  rng = np.random.default_rng(0)
  a, b = rng.normal(size=(2, 60_000)).astype(np.float32)
  b = overlap * a + (1 - overlap**2) ** 0.5 * b
  return [
    {"x": jnp.asarray(v[:10_001]), "y": jnp.asarray(v[10_001:]).reshape(-1, 1)} for v in (a, b)
  ]


@pytest.mark.parametrize("overlap", [-0.9, 0.0, 0.5])
def test_a_sketch_keeps_cosines(overlap):
  a, b = trees(overlap)
  (found,) = cosines({"a": np.asarray(sketch(a)), "b": np.asarray(sketch(b))}).values()
  assert found == pytest.approx(overlap, abs=4 / SKETCH**0.5)


def test_it_is_linear():
  a, b = trees(0.3)
  both = jax.tree.map(jnp.add, a, b)
  np.testing.assert_allclose(sketch(both), sketch(a) + sketch(b), atol=1e-3)


def test_metrics():
  found = cosines({"a": np.eye(3)[0], "b": -np.eye(3)[0], "c": np.eye(3)[1], "d": np.zeros(3)})
  assert found == {("a", "b"): -1.0, ("a", "c"): 0.0, ("b", "c"): 0.0}
  assert metrics(found) == {
    "conflict/cos_min": -1.0,
    "conflict/cos_mean": pytest.approx(-1 / 3),
    "conflict/apart_frac": pytest.approx(1 / 3),
  }
  assert metrics({}) == {}


def named(name, byte, sign):
  """Wants more or less of one character."""
  plain = toy_domain(byte)
  leaf = plain.rewards.root.children[0].node

  def score(task, response, services):
    share = leaf.grader(task, response, services)
    return share if sign > 0 else 1 - share

  tree = dataclasses.replace(
    plain.rewards,
    root=dataclasses.replace(
      plain.rewards.root,
      children=(
        dataclasses.replace(
          plain.rewards.root.children[0], node=dataclasses.replace(leaf, grader=score)
        ),
      ),
    ),
  )

  def make_task(seed, split):
    return dataclasses.replace(plain.make_task(0, split), domain=name)

  return lambda: dataclasses.replace(plain, name=name, make_task=make_task, rewards=tree)


def test_opposite_domains_pull_apart(tiny_source, tmp_path, monkeypatch):
  for name, sign in (("more", 1), ("less", -1), ("again", 1)):
    monkeypatch.setitem(DOMAINS, name, named(name, "7", sign))
  rl = RLConfig(num_steps=2, prompts_per_step=12, group_size=16, conflict_every=2)
  domains = tuple(DomainConfig(name) for name in ("more", "less", "again"))
  e = toy_experiment(tiny_source, rl=rl, domains=domains, eval=EvalConfig(tasks_per_domain=0))
  run(e, tmp_path)
  (record,) = read_jsonl(tmp_path / "conflict.jsonl")
  found = {frozenset(pair): value for *pair, value in record["cosines"]}
  assert found[frozenset(("more", "again"))] > 0.1
  assert found[frozenset(("more", "less"))] < -0.1
  first, second = read_jsonl(tmp_path / "metrics.jsonl")
  assert first["conflict/cos_min"] == min(found.values())
  assert "conflict/cos_min" not in second
