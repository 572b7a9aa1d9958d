"""Seconds and tokens per second of one PPO-clip update, full fine-tuning: 32 x (64+64) tokens.

Two shapes of the same work: 8 prompts with 4 samples each, as an RL step has them (a shared
prompt is computed once), and 32 different prompts (nothing is shared). `of peak` counts
6 x parameters x 32 x 128 for both; `computed` counts what was computed.

    python -m benchmarks.train [--requests 32] [--repeats 3] [--json FILE]
"""

import argparse
import dataclasses

import numpy as np

from benchmarks import common
from benchmarks.common import GROUP, NEW, PROMPT, Row
from ptjax.core.types import FinishReason, Outcome, Trajectory
from ptjax.experience.mixture import Mixture
from ptjax.experience.packing import PackConfig
from ptjax.rollout.engine import EngineConfig
from ptjax.train.batch import Batch, policy_batches
from ptjax.train.experiment import Experiment, RLConfig
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.rl import RLState, update
from ptjax.train.session import Session


def experiment_of(arguments: argparse.Namespace, group: int) -> Experiment:
  """A row holds one prompt and its 4 samples, or two pairs of a prompt and its sample."""
  length, actions = (PROMPT + group * NEW, group * NEW) if group > 1 else (256, 128)
  return Experiment(
    model=common.model_config(arguments),
    engine=EngineConfig(num_slots=1, max_length=PROMPT + NEW),
    pack=PackConfig(length=length, actions=actions, rows=arguments.rows),
    rl=RLConfig(prompts_per_step=arguments.requests // group, group_size=max(2, group)),
    optimizer=OptimizerConfig(learning_rate=1e-6),
  )


def random_batch(session: Session, requests: int, group: int) -> Batch:
  """`requests` answers of NEW random tokens, `group` to a prompt, with random advantages."""
  rng = np.random.default_rng(0)
  vocab = session.model.vocab_size
  mask = np.arange(PROMPT + NEW) >= PROMPT
  trajectories = [
    Trajectory(
      tokens=np.concatenate(
        [common.prompt_tokens(session.template, i // group), rng.integers(vocab, size=NEW)]
      ).astype(np.int32),
      action_mask=mask,
      behavior_logprobs=np.where(mask, -np.log(vocab), 0).astype(np.float32),
      policy_versions=np.where(mask, 0, -1).astype(np.int32),
      turn_starts=(0, PROMPT),
      domain="random",
      group=i // group,
      seed=0,
      rewards={"": 0.0},
      outcome=Outcome.SCORED,
      finish_reason=FinishReason.LENGTH,
    )
    for i in range(requests)
  ]
  return Batch(trajectories, [np.full(NEW, a, np.float32) for a in rng.normal(size=requests)])


def measure(session: Session, state: RLState, arguments: argparse.Namespace, group: int):
  """(row, state after the updates)."""
  e = experiment_of(arguments, group)
  session = dataclasses.replace(session, experiment=e)
  batch = random_batch(session, arguments.requests, group)

  def step():
    nonlocal state
    policy, _, metrics = update(session, state, batch)
    state = dataclasses.replace(state, policy=policy)
    return policy.params, metrics["optim/loss"]

  samples = common.repeat(step, arguments.repeats)
  rows = e.pack.rows * len(policy_batches(batch, e.rl, e.pack, NEW))
  tokens = arguments.requests * (PROMPT + NEW)
  row = Row(
    f"update, {arguments.requests // group} prompts x {group}",
    samples,
    tokens,
    common.training_flops(session.model, tokens),
    common.computed_training_flops(e, session.model, rows),
  )
  return row, state


def main(arguments: argparse.Namespace) -> None:
  peak = common.matmul_peak()
  e = experiment_of(arguments, GROUP)
  rows = []
  with common.session_of(e) as session:
    state = RLState(0, session.init_policy(), None, Mixture(e.domains))
    for group in (GROUP, 1):
      row, state = measure(session, state, arguments, group)
      rows.append(row)
  common.report(arguments, "train", max(peak, common.matmul_peak()), rows)


if __name__ == "__main__":
  options = common.parser(__doc__)
  options.add_argument("--requests", type=int, default=common.REQUESTS, help="[%(default)s]")
  options.add_argument("--repeats", type=int, default=3, help="timed updates [%(default)s]")
  options.add_argument("--rows", type=int, default=4, help="of a micro-batch [%(default)s]")
  main(options.parse_args())
