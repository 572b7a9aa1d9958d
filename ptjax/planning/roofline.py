"""The least time that a program can take: the slowest of compute, memory and networks.

Nothing overlaps better than this, and nothing here says that the compiled program reaches it: the
compiler proves what fits, it measures no speed.
"""

import dataclasses
import math

from ptjax.planning import flops
from ptjax.planning.collectives import total_sent
from ptjax.planning.compiler import Compiled
from ptjax.planning.setup import Setup
from ptjax.planning.topology import Chip
from ptjax.rollout.engine import prefill_length


@dataclasses.dataclass(frozen=True)
class Roofline:
  """Of one execution of a program.

  Attributes:
    name: of the program.
    count: executions in a step.
    flops: operations of all devices together, by formula.
    times: seconds by bound: compute, hbm, ici, dcn.
  """

  name: str
  count: int
  flops: float
  times: dict[str, float]

  @property
  def bound(self) -> str:
    """Which of them is the slowest."""
    return max(self.times, key=lambda name: self.times[name])

  @property
  def seconds(self) -> float:
    """Of all executions in a step."""
    return self.count * self.times[self.bound]


def counts(setup: Setup) -> dict[str, int]:
  """Executions of each program in a step whose answers all have the greatest length."""
  e = setup.experiment
  episodes = e.rl.prompts_per_step * e.rl.group_size
  prompt = max(1, e.engine.max_length - e.policy.max_new_tokens)
  tokens = e.rl.prompts_per_step * prompt + episodes * e.policy.max_new_tokens
  rows = max(tokens / e.pack.length, episodes * e.policy.max_new_tokens / e.pack.actions)
  micro = math.ceil(rows / e.pack.rows)
  passes = e.rl.epochs
  updates = e.rl.epochs * e.rl.minibatches
  waves = math.ceil(episodes / e.engine.num_slots)
  # With one update from a fresh batch the trainer's own scores are not needed.
  own, reference = int(not e.rl.single_update), int(e.rl.reference)
  # The reference is scored by the policy's program where it is the same kind of network.
  apart = setup.reference is not setup.start or setup.trainer.frozen is not None
  router = e.model.router
  return {
    "prefill": math.ceil(e.rl.prompts_per_step / e.engine.prefill_batch(e.engine.num_slots)),
    "decode": waves * math.ceil(e.policy.max_new_tokens / e.engine.decode_chunk),
    "policy scores": micro * (own if apart else own + reference),
    "reference scores": micro * reference,
    "router load": micro * passes * bool(router and router.balance_coef),
    "policy gradient": micro * passes,
    "policy update": updates,
    "critic scores": micro,
    "critic gradient": micro * passes,
    "critic update": updates,
  }


def operations(setup: Setup) -> dict[str, float]:
  """Of one execution of each program."""
  e, c = setup.experiment, setup.model
  length = prefill_length(max(1, e.engine.max_length - e.policy.max_new_tokens), e.engine)
  found = {
    "prefill": flops.prefill(c, e.engine.prefill_batch(e.engine.num_slots), length),
    "decode": flops.decode(c, e),
    "policy scores": flops.scores(c, e),
    "reference scores": flops.scores(c, e),
    "router load": flops.forward(c, e.pack.rows, e.pack.length),
    "policy gradient": flops.gradient(c, e),
    "policy update": 12.0 * c.num_params,
  }
  if setup.critic is not None:
    trunk = setup.critic.model
    found["critic scores"] = flops.forward(trunk, e.pack.rows, e.pack.length)
    found["critic gradient"] = flops.gradient(trunk, e, with_logits=False)
    found["critic update"] = 12.0 * trunk.num_params
  return found


def roofline(setup: Setup, chip: Chip, programs: list[Compiled]) -> list[Roofline]:
  """Of every program that compiled and runs in a step."""
  often, work = counts(setup), operations(setup)
  rate = {"bfloat16": 1.0, "float32": 1 / 6}[setup.model.matmul_dtype]  # f32: six bf16 passes
  found = []
  for p in programs:
    if p.error is not None or not often[p.name]:
      continue
    times = {
      "compute": work[p.name] / setup.mesh.size / (chip.flops * rate),
      "hbm": _moved(setup, p) / chip.hbm_bandwidth,
      # A ring sends in both directions at once.
      "ici": total_sent(list(p.traffic), dcn=False) / (2 * chip.link_bandwidth),
      "dcn": total_sent(list(p.traffic), dcn=True) / chip.dcn_bandwidth,
    }
    found.append(Roofline(p.name, often[p.name], work[p.name], times))
  return found


def _moved(setup: Setup, p: Compiled) -> float:
  """Bytes to and from HBM at least: arguments once, results once, what is kept twice; in decoding
  weights and cache at every token."""
  if p.name == "decode":
    return float(setup.experiment.engine.decode_chunk * p.arguments)
  return float(p.arguments + p.outputs + 2 * p.temporaries)


__all__ = ["Roofline", "counts", "operations", "roofline"]
