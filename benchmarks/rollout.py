"""Tokens per second of the rollout engine: 32 requests of 64 prompt tokens, no early stop.

Once with 64 new tokens each, once with mixed lengths, where a static batch would run to the
longest. Only the tokens asked for are counted; `computed` counts every slot of every decode
step, and prefill.

    python -m benchmarks.rollout [--requests 32] [--repeats 3] [--slots 32] [--json FILE]
"""

import argparse
import itertools
import random
from collections.abc import Sequence

from benchmarks import common
from benchmarks.common import NEW, PROMPT, Row
from ptjax.experience.packing import PackConfig
from ptjax.rollout.engine import Engine, EngineConfig, generate
from ptjax.rollout.scheduler import Request
from ptjax.train.experiment import Experiment
from ptjax.train.session import Session

_random = random.Random(0)
MIXED = tuple(_random.choice((8, 16, 32, 64, 128)) for _ in range(common.REQUESTS))
MAX_LENGTH = PROMPT + max(MIXED)


def experiment_of(arguments: argparse.Namespace) -> Experiment:
  return Experiment(
    model=common.model_config(arguments),
    engine=EngineConfig(
      num_slots=arguments.slots,
      max_length=MAX_LENGTH,
      decode_chunk=arguments.decode_chunk,
      adaptive=True,
    ),
    pack=PackConfig(length=320, actions=256, rows=4),
  )


def measure(session: Session, work: str, lengths: Sequence[int], repeats: int) -> Row:
  engine: Engine = session.engine
  prompts = [common.prompt_tokens(session.template, i) for i in range(len(lengths))]
  seeds = itertools.count()

  def run() -> None:
    seed = next(seeds)
    requests = [
      Request(id=i, prompt=prompt, max_new_tokens=length, seed=seed)
      for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]
    done = generate(engine, requests)
    got = [len(done[i].tokens) for i in range(len(lengths))]
    if got != list(lengths):
      raise RuntimeError(f"asked for {list(lengths)} tokens, got {got}")

  steps, prefilled = engine.stats.slot_steps, engine.stats.prefill_tokens
  samples = common.repeat(run, repeats)
  calls = repeats + 1
  computed = common.computed_generation_flops(
    session.model,
    (engine.stats.slot_steps - steps) // calls,
    (engine.stats.prefill_tokens - prefilled) // calls,
  )
  tokens = sum(lengths)
  return Row(work, samples, tokens, common.generation_flops(session.model, tokens), computed)


def main(arguments: argparse.Namespace) -> None:
  peak = common.matmul_peak()
  mixed = list(itertools.islice(itertools.cycle(MIXED), arguments.requests))
  with common.session_of(experiment_of(arguments)) as session:
    session.engine.set_weights(session.start, version=0)
    rows = [
      measure(session, f"{len(mixed)} requests, {name}", lengths, arguments.repeats)
      for name, lengths in ((f"{NEW} new each", [NEW] * len(mixed)), ("mixed lengths", mixed))
    ]
  common.report(arguments, "rollout", max(peak, common.matmul_peak()), rows)


if __name__ == "__main__":
  options = common.parser(__doc__)
  options.add_argument("--requests", type=int, default=common.REQUESTS, help="[%(default)s]")
  options.add_argument("--repeats", type=int, default=3, help="timed runs [%(default)s]")
  options.add_argument("--slots", type=int, default=32, help="of the engine [%(default)s]")
  options.add_argument(
    "--decode-chunk", type=int, default=EngineConfig.decode_chunk, help="[%(default)s]"
  )
  main(options.parse_args())
