"""Share of an RL step that is neither a matrix product nor the sandbox: losses and advantages.

The step is that of `benchmarks.rl_step`. Timed beside it, on the batch that it sampled:

  log-probs, loss   from the logits of its micro-batches to the gradient in them: softmax, entropy,
                    surrogate, KL, normaliser, forward and backward, compiled by themselves
  advantages        the group estimator
  packing           trajectories to rows

    python -m benchmarks.loss_overhead [--prompts 8] [--repeats 3] [--json FILE]
"""

import argparse
import dataclasses
import statistics
from collections.abc import Callable

import jax

from benchmarks import common
from benchmarks.common import NEW, Clock, repeat
from benchmarks.rl_step import experiment_of, without_early_stop
from ptjax.algos.logprobs import logprobs_and_entropy
from ptjax.experience.mixture import Mixture
from ptjax.train.batch import Batch, policy_batches
from ptjax.train.estimate import group_advantages
from ptjax.train.objectives import PolicyObjective, action_loss
from ptjax.train.rl import RLState, train
from ptjax.train.session import Session

KL = PolicyObjective(kl_coef=0.05, entropy_coef=0.01)
COLUMNS = ("part", "s median", "of the step")


def seconds(work: Callable, repeats: int) -> float:
  return statistics.median(s.seconds for s in repeat(work, repeats))


def loss_from_logits(objective: PolicyObjective, logits_BAV, batch):
  logp_BA, entropy_BA = logprobs_and_entropy(logits_BAV, batch.rows.target_BA, 1.0)
  return action_loss(objective, logp_BA, entropy_BA, batch)[0]


def measure(session: Session, repeats: int) -> list[tuple[str, float]]:
  """(part, seconds a step), the whole step first."""
  e, steps, clock = session.experiment, [], Clock()
  trajectories = []

  def on_step(state, metrics, played):
    steps.append(clock.stop().seconds)
    trajectories[:] = [p.trajectory(e.seed) for p in played]
    clock.start()

  train(session, RLState(0, session.init_policy(), None, Mixture(e.domains)), on_step)
  parts = [("RL step", statistics.median(steps[1:]))]

  logs = [t.behavior_logprobs[t.action_mask] for t in trajectories]
  rl = dataclasses.replace(e.rl, objective=KL, reference=True)  # so that nothing is left out
  estimate = lambda: group_advantages(trajectories, rl.advantages)  # noqa: E731
  batch = Batch(trajectories, estimate(), logs, logs)
  pack = lambda: policy_batches(batch, rl, e.pack, NEW)  # noqa: E731
  micro_batches = jax.device_put(pack())
  logits_BAV = jax.random.normal(
    jax.random.key(0), (*micro_batches[0].rows.target_BA.shape, session.model.vocab_size)
  )

  grad = jax.jit(jax.grad(lambda logits, b: loss_from_logits(rl.objective, logits, b)))
  losses = lambda: [jax.block_until_ready(grad(logits_BAV, b)) for b in micro_batches]  # noqa: E731
  parts.append(("log-probs, loss", seconds(losses, repeats)))
  parts.append(("advantages", seconds(estimate, repeats)))
  parts.append(("packing", seconds(pack, repeats)))
  return parts


def main(arguments: argparse.Namespace) -> None:
  e = experiment_of(arguments)
  with common.session_of(e) as session:
    parts = measure(without_early_stop(session), arguments.repeats)
  peak, step = common.matmul_peak(), parts[0][1]
  rows = [[name, f"{value:.4f}", f"{value / step:.2%}"] for name, value in parts]
  outside = sum(value for _, value in parts[1:])
  rows.append(["all of them", f"{outside:.4f}", f"{outside / step:.2%}"])
  common.print_table(peak, COLUMNS, rows)
  common.append_json(arguments.json, peak, {"benchmark": "loss_overhead", "parts": dict(parts)})


if __name__ == "__main__":
  options = common.parser(__doc__)
  options.add_argument("--prompts", type=int, default=8, help="of a step [%(default)s]")
  options.add_argument("--repeats", type=int, default=3, help="timed steps [%(default)s]")
  options.add_argument("--rows", type=int, default=4, help="of a micro-batch [%(default)s]")
  options.add_argument("--decode-chunk", type=int, default=16, help="[%(default)s]")
  main(options.parse_args())
