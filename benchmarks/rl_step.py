"""Seconds of a whole RL step: 8 prompts x 4 samples, 64-token prompts, 64 new tokens, GRPO.

The steps are those of the training loop: sample in the engine, grade, estimate advantages,
pack, update all parameters. Every answer has its 64 tokens, since no token ends it. The first
step compiles and checks the sampler against the trainer; it is not counted.

    python -m benchmarks.rl_step [--prompts 8] [--repeats 3] [--json FILE]
"""

import argparse
import dataclasses

from benchmarks import common
from benchmarks.common import GROUP, NEW, PROMPT, Clock, Row, Sample
from ptjax.data.chat_template import ChatTemplate
from ptjax.domains.domain import Domain
from ptjax.envs.environment import Services, Split, Task
from ptjax.experience.collect import PolicyConfig
from ptjax.experience.mixture import Mixture
from ptjax.experience.packing import PackConfig, pack
from ptjax.rewards import tree
from ptjax.rollout.engine import EngineConfig
from ptjax.train.experiment import Experiment, RLConfig
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.rl import RLState, train
from ptjax.train.session import Session

# The configuration knows the domains of the catalog only: ours takes the place of this one.
DOMAIN = "arithmetic"


def experiment_of(arguments: argparse.Namespace) -> Experiment:
  return Experiment(
    model=common.model_config(arguments),
    policy=PolicyConfig(max_new_tokens=NEW),
    engine=EngineConfig(
      num_slots=32,
      max_length=PROMPT + NEW,
      decode_chunk=arguments.decode_chunk,
      adaptive=True,
    ),
    pack=PackConfig(length=PROMPT + GROUP * NEW, actions=GROUP * NEW, rows=arguments.rows),
    rl=RLConfig(
      num_steps=1 + arguments.repeats, prompts_per_step=arguments.prompts, group_size=GROUP
    ),
    optimizer=OptimizerConfig(learning_rate=1e-6),
  )


def grade_distinct(task: Task, response: str, services: Services) -> float:
  """Share of characters that are distinct: differs between the samples of a group."""
  del task, services
  return len(set(response)) / max(len(response), 1)


def build_domain(template: ChatTemplate) -> Domain:
  """Questions of PROMPT tokens, and a reward that costs nothing."""

  def make_task(seed: int, split: Split) -> Task:
    return Task(DOMAIN, seed, split, common.prompt_messages(template, seed), {})

  leaf = tree.Leaf("distinct", grade_distinct)
  return Domain(
    name=DOMAIN,
    family="benchmark",
    license="Apache-2.0",
    source="benchmarks.rl_step",
    make_task=make_task,
    rewards=tree.RewardTree(tree.Node("reward", (tree.Child(1.0, leaf),))),
    passed=lambda rewards: False,
    oracle=lambda task: "0123456789",
  )


def without_early_stop(session: Session) -> Session:
  """The session with our domain, and with a tokenizer that names no end token."""
  tokenizer = dataclasses.replace(session.template.tokenizer, eos_ids=())
  template = ChatTemplate(tokenizer)
  return dataclasses.replace(session, template=template, domains={DOMAIN: build_domain(template)})


def measure(session: Session, e: Experiment) -> list[Row]:
  """Rows of the whole step, of its rollout and of its training."""
  stats, clock = session.engine.stats, Clock()
  steps: list[tuple[Sample, dict[str, Sample], float, float]] = []
  seen = (0, 0)

  def on_step(state, metrics, played):
    nonlocal seen
    sample = clock.stop()
    if any(p.episode.action_mask.sum() != NEW for p in played):
      raise RuntimeError(f"an answer does not have {NEW} tokens")
    phases = {
      "rollout": Sample(metrics["perf/time_rollout"]),
      "training": Sample(metrics["perf/time_score"] + metrics["perf/time_train"]),
    }
    rows = pack([p.trajectory(e.seed) for p in played], e.pack).rows.tokens_BT.shape[0]
    now = stats.slot_steps, stats.prefill_tokens
    sampling = common.computed_generation_flops(session.model, now[0] - seen[0], now[1] - seen[1])
    training = common.computed_training_flops(e, session.model, rows)
    seen = now
    steps.append((sample, phases, sampling, training))
    clock.start()

  train(session, RLState(0, session.init_policy(), None, Mixture(e.domains)), on_step)
  samples, phases, sampling, training = zip(*steps[1:], strict=True)
  episodes = e.rl.prompts_per_step * e.rl.group_size
  new, tokens = episodes * NEW, episodes * (PROMPT + NEW)
  flops = common.generation_flops(session.model, new), common.training_flops(session.model, tokens)
  rollouts, updates = ([p[name] for p in phases] for name in ("rollout", "training"))
  return [
    Row(
      f"RL step, {e.rl.prompts_per_step} x {GROUP}",
      samples,
      new,
      sum(flops),
      sampling[-1] + training[-1],
    ),
    Row("  rollout", rollouts, new, flops[0], sampling[-1]),
    Row("  training", updates, tokens, flops[1], training[-1]),
  ]


def main(arguments: argparse.Namespace) -> None:
  peak = common.matmul_peak()
  e = experiment_of(arguments)
  with common.session_of(e) as session:
    rows = measure(without_early_stop(session), e)
  common.report(arguments, "rl_step", max(peak, common.matmul_peak()), rows)


if __name__ == "__main__":
  options = common.parser(__doc__)
  options.add_argument("--prompts", type=int, default=8, help="of a step [%(default)s]")
  options.add_argument("--repeats", type=int, default=3, help="timed steps [%(default)s]")
  options.add_argument("--rows", type=int, default=4, help="of a micro-batch [%(default)s]")
  options.add_argument(
    "--decode-chunk", type=int, default=EngineConfig.decode_chunk, help="[%(default)s]"
  )
  main(options.parse_args())
