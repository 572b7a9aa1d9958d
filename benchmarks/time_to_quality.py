"""Wall time until GRPO has taught SmolLM2-135M to add two digits, for each seed.

chain_sum of 2 terms with 1 digit; 4 prompts x 8 samples of up to 24 tokens a step, temperature
1, no KL, learning rate 2e-5 after 2 steps of warm-up; reward 0.3 for a bare number + 0.7 for
the right one. Two choices keep all seeds from learning to guess bare numbers, which earns 0.3 at
once and is seldom right. Groups without a right answer, or with no other, do not train (DAPO's
filter on raw accuracy; no new prompts are drawn for them): in the former the form alone would be
rewarded. And advantages are not divided by the standard deviation of their group (Dr. GRPO), which
makes as much of a bare guess as of a right answer elsewhere. `--keep-all` and `--advantages grpo`
take them back. Reached is the mean accuracy of all sampled answers over the last 3 steps >= 80%.
The clock starts when the weights are loaded. Each seed compiles everything anew; the time is given
with and without that.

    python -m benchmarks.time_to_quality [--seeds 0,1,2] [--steps 40] [--json FILE]
"""

import argparse
import dataclasses
import gc

import jax
import numpy as np

from benchmarks import common
from benchmarks.common import Clock
from ptjax.domains import arithmetic
from ptjax.experience.collect import PolicyConfig
from ptjax.experience.groups import DynamicSampling
from ptjax.experience.mixture import Mixture
from ptjax.experience.packing import PackConfig
from ptjax.rollout.engine import EngineConfig
from ptjax.train.experiment import Experiment, RLConfig
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.rl import RLState, train

TASKS = arithmetic.Config(
  parameters={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
  instruction="Answer with the result only.",
  form="bare",
)
NEW, TARGET, WINDOW = 24, 0.8, 3
COLUMNS = (
  "seed", "steps", "to 80%: s", "compiling", "s without", "s/step", "last acc.", "tokens/s",
  "of peak", "cpu s", "others", "RSS GB",
)  # fmt: skip


class Reached(Exception):
  """The target is reached: the run may end."""


class CompileTime:
  """Wall time in which JAX traced, lowered or compiled; nested spans count once."""

  def __init__(self):
    self._spans: list[tuple[float, float]] = []

  def __enter__(self) -> "CompileTime":
    jax.monitoring.register_event_time_span_listener(self._add)
    return self

  def __exit__(self, *_) -> None:
    jax.monitoring.unregister_event_time_span_listener(self._add)

  def _add(self, event: str, start: float, end: float, **_) -> None:
    if event.startswith("/jax/core/compile/"):
      self._spans.append((start, end))

  @property
  def seconds(self) -> float:
    """Length of the union of the spans."""
    total, covered = 0.0, float("-inf")
    for start, end in sorted(self._spans):
      total += max(0.0, end - max(start, covered))
      covered = max(covered, end)
    return total


@dataclasses.dataclass(frozen=True)
class Step:
  """One step of a run, and the run's time at its end.

  Attributes:
    reward: mean over the sampled answers.
    accuracy: share of right answers among them.
    sampled: tokens of the answers.
    tokens: tokens of prompts and answers.
    compiling: seconds of `seconds` since the start that went into compilation.
  """

  reward: float
  accuracy: float
  sampled: int
  tokens: int
  seconds: float
  compiling: float


@dataclasses.dataclass(frozen=True)
class Run:
  """The steps of one seed; `reached` where the last of them met the target.

  `model_flops` counts 2 x parameters a sampled token and 6 x parameters a token of training.
  """

  seed: int
  steps: tuple[Step, ...]
  reached: bool
  usage: common.Sample
  model_flops: float


def experiment_of(arguments: argparse.Namespace, seed: int) -> Experiment:
  return Experiment(
    seed=seed,
    model=common.model_config(arguments),
    policy=PolicyConfig(max_new_tokens=NEW),
    engine=EngineConfig(
      num_slots=32, max_length=96, decode_chunk=arguments.decode_chunk, adaptive=True
    ),
    pack=PackConfig(length=arguments.length, actions=192, rows=arguments.rows),
    rl=RLConfig(
      num_steps=arguments.steps,
      prompts_per_step=4,
      group_size=8,
      advantages=arguments.advantages,
      aggregation=arguments.aggregation,
      dynamic_sampling=None if arguments.keep_all else DynamicSampling(max_rounds=1),
    ),
    optimizer=OptimizerConfig(learning_rate=2e-5, warmup_steps=2),
  )


def smoothed(steps: list[Step]) -> float:
  """Mean accuracy of the last WINDOW steps; 0 before there are so many."""
  if len(steps) < WINDOW:
    return 0.0
  return float(np.mean([step.accuracy for step in steps[-WINDOW:]]))


def run_seed(arguments: argparse.Namespace, seed: int) -> Run:
  """Trains until the target or the last step; prints each step."""
  # A run of its own would have to compile everything, so this one shall too.
  gc.collect()
  jax.clear_caches()
  e, steps, reached = experiment_of(arguments, seed), [], False
  with common.session_of(e) as opened, CompileTime() as compiling:
    session = dataclasses.replace(opened, domains={TASKS.name: arithmetic.build(TASKS)})
    state = RLState(0, session.init_policy(), None, Mixture(e.domains))
    jax.block_until_ready(state.policy)
    before, clock = compiling.seconds, Clock()

    def on_step(state, metrics, played):
      del metrics
      steps.append(
        Step(
          reward=float(np.mean([p.grade.rewards[""] for p in played])),
          accuracy=float(np.mean([p.grade.passed for p in played])),
          sampled=sum(int(p.episode.action_mask.sum()) for p in played),
          tokens=sum(len(p.episode.tokens) for p in played),
          seconds=clock.stop().seconds,
          compiling=compiling.seconds - before,
        )
      )
      show(seed, len(steps), steps)
      if smoothed(steps) >= TARGET:
        raise Reached

    try:
      train(session, state, on_step)
    except Reached:
      reached = True
    flops = common.generation_flops(session.model, sum(step.sampled for step in steps))
    flops += common.training_flops(session.model, sum(step.tokens for step in steps))
    return Run(seed, tuple(steps), reached, clock.stop(), flops)


def show(seed: int, number: int, steps: list[Step]) -> None:
  now = steps[-1]
  print(
    f"seed {seed} step {number:2}: reward {now.reward:.3f}, accuracy {now.accuracy:.3f} "
    f"(of {WINDOW} steps {smoothed(steps):.3f}), {now.sampled / 32:.1f} tokens an answer, "
    f"{now.seconds:.1f} s of which compiling {now.compiling:.1f}",
    flush=True,
  )


def cells(run: Run, peak: float) -> list[str]:
  """The line of one seed; tokens/s and the share of the peak leave compilation out."""
  last = run.steps[-1]
  without = last.seconds - last.compiling
  tokens = sum(step.tokens for step in run.steps)
  return [
    str(run.seed),
    str(len(run.steps)),
    f"{last.seconds:.1f}" if run.reached else f"not in {last.seconds:.1f}",
    f"{last.compiling:.1f}",
    f"{without:.1f}" if run.reached else f"not in {without:.1f}",
    f"{without / len(run.steps):.2f}",
    f"{smoothed(list(run.steps)):.0%}",
    f"{tokens / without:.1f}",
    f"{run.model_flops / without / peak:.1%}",
    *common.usage_cells([run.usage]),
  ]


def main(arguments: argparse.Namespace) -> None:
  peak = common.matmul_peak()
  runs = [run_seed(arguments, seed) for seed in arguments.seeds]
  peak = max(peak, common.matmul_peak())
  common.print_table(peak, COLUMNS, [cells(run, peak) for run in runs])
  settings = {k: v for k, v in vars(arguments).items() if k != "json"}
  record = {"benchmark": "time_to_quality", "options": settings}
  common.append_json(arguments.json, peak, record | {"runs": list(map(dataclasses.asdict, runs))})


if __name__ == "__main__":
  options = common.parser(__doc__)
  options.add_argument(
    "--seeds",
    type=lambda text: tuple(int(seed) for seed in text.split(",")),
    default=(0, 1, 2),
    help="comma-separated [0,1,2]",
  )
  options.add_argument("--steps", type=int, default=40, help="at most [%(default)s]")
  options.add_argument("--advantages", default="dr_grpo", help="estimator [%(default)s]")
  options.add_argument("--keep-all", action="store_true", help="all groups train")
  options.add_argument("--aggregation", default="token_mean", help="of the loss [%(default)s]")
  options.add_argument("--decode-chunk", type=int, default=8, help="[%(default)s]")
  options.add_argument("--length", type=int, default=288, help="of a packed row [%(default)s]")
  options.add_argument("--rows", type=int, default=1, help="of a micro-batch [%(default)s]")
  main(options.parse_args())
