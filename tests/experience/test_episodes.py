"""Episodes of several turns through a real engine: overlap, cancellation, records, counts."""

import asyncio
import dataclasses

import jax
import numpy as np
import pytest

from ptjax.core.types import Outcome
from ptjax.data.chat_template import ChatTemplate
from ptjax.data.tokenizer import byte_tokenizer
from ptjax.domains import addends
from ptjax.envs.context import Episodic, Turn
from ptjax.envs.environment import Budget, Ending, Services
from ptjax.experience.collect import EpisodeSpec, PolicyConfig, collect
from ptjax.models.config import DecoderConfig
from ptjax.models.decoder import init_params
from ptjax.rewards import tree
from ptjax.rollout.engine import Engine, EngineConfig
from ptjax.train.telemetry import Stopwatch, rollout_metrics
from sandbox_runner import Pool, PoolConfig

MODEL = DecoderConfig(
  vocab_size=260, d_model=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, d_ff=24
)
ENGINE = EngineConfig(num_slots=2, max_length=128, decode_chunk=4, min_prefill=64)
TEMPLATE = ChatTemplate(byte_tokenizer())
CONFIG = PolicyConfig(max_new_tokens=40, stop_strings=tuple(map(chr, range(32, 127))))
"""Stops at the first printable character: an untrained model hardly ever writes an end token."""


@pytest.fixture(scope="module")
def weights():
  return init_params(MODEL, jax.random.key(0))


@pytest.fixture
def engine(weights):
  made = Engine(ENGINE, MODEL, TEMPLATE.tokenizer)
  made.set_weights(weights, 3)
  return made


def specs(count):
  tasks = [addends.make_task(i, "train") for i in range(count)]
  return [EpisodeSpec(task, i, i) for i, task in enumerate(tasks)]


def play(engine, episode, count, config=CONFIG, **more):
  domain = dataclasses.replace(addends.build(), play=Episodic(episode, **more))
  coroutine = collect(
    engine, TEMPLATE, {"addends": domain}, specs(count), Services(), config, seed=5
  )
  return asyncio.run(coroutine)


async def two_turns(task, ctx):
  await ctx.generate()
  ctx.observe({"role": "user", "content": f"Not {task.data['sum']}?"})
  await ctx.generate()


def test_the_record_is_what_was_sampled(engine):
  played = play(engine, two_turns, 6)
  for one in played:
    record, e = one.trajectory(seed=5), one.episode
    assert len(e.responses) == 2
    (wanted,) = e.observations
    start, end = record.turn_starts[2:4]
    text = TEMPLATE.tokenizer.decode(record.tokens[start:end])
    # A turn that a text has ended gets the end token, which is not the policy's.
    assert text == f"<|im_end|>\n<|im_start|>user\n{wanted}<|im_end|>\n<|im_start|>assistant\n"
    assert not record.action_mask[start:end].any()
    assert (record.policy_versions == np.where(record.action_mask, 3, -1)).all()
    assert ((record.behavior_logprobs < 0) == record.action_mask).all()
    first = record.tokens[record.turn_starts[1] : start]
    assert TEMPLATE.tokenizer.decode(first) == e.responses[0]  # its stop string included
  again = play(engine, two_turns, 6)
  for one, other in zip(played, again, strict=True):
    np.testing.assert_array_equal(one.episode.tokens, other.episode.tokens)
  metrics = {name: getattr(value, "compute", lambda v=value: v)()
             for name, value in rollout_metrics(played).items()}  # fmt: skip
  assert metrics["turns/mean"] == 2
  assert metrics["turns/ended_done"] == 6


def test_graders_see_all_turns_and_a_lost_sandbox_is_no_number(engine):
  """Episodes of even number lose their sandbox after both turns."""

  async def some_are_lost(task, ctx):
    await two_turns(task, ctx)
    ctx.artifacts["sum"] = task.data["sum"]
    if task.seed % 2 == 0:
      await (await ctx.sandbox.session()).close()
      await ctx.sandbox.exec(("true",))

  def grader(task, episode, services):
    assert episode.observations == (f"Not {task.data['sum']}?",)
    assert episode.artifacts == {"sum": task.data["sum"]}
    return len(episode.responses) / 2

  domain = dataclasses.replace(
    addends.build(),
    play=Episodic(some_are_lost),
    rewards=tree.RewardTree(
      tree.Node("reward", (tree.Child(1.0, tree.EpisodeLeaf("turns", grader)),))
    ),
    passed=lambda rewards: rewards["turns"] == 1.0,
    sandboxed=True,
  )

  async def main():
    async with Pool(PoolConfig(backend="bwrap", size=1)) as pool:
      domains = {"addends": domain}
      return await collect(engine, TEMPLATE, domains, specs(4), Services(pool), CONFIG, seed=5)

  played = asyncio.run(main())
  for one in played:
    lost = one.spec.task.seed % 2 == 0
    wanted = (Outcome.INFRA_FAILED, {}) if lost else (Outcome.SCORED, {"turns": 1.0, "": 1.0})
    assert (one.grade.outcome, one.grade.rewards) == wanted
    assert (one.trainable, one.grade.passed) == (not lost, not lost)


def test_kept_histories_save_prefill_and_are_released(weights, engine):
  want = play(engine, two_turns, 6)
  made = Engine(dataclasses.replace(ENGINE, keep_history=6), MODEL, TEMPLATE.tokenizer)
  made.set_weights(weights, 3)
  watch = Stopwatch(made.stats)
  for _ in ("rollout", "score", "train"):
    with watch.phase(_):
      pass
  for one, other in zip(play(made, two_turns, 6), want, strict=True):
    np.testing.assert_array_equal(one.episode.tokens, other.episode.tokens)
    logprobs = one.episode.behavior_logprobs, other.episode.behavior_logprobs
    np.testing.assert_allclose(*logprobs, rtol=0, atol=1e-5)
  first_turns = sum(p.episode.turn_starts[2] - 1 for p in want)
  assert made.stats.history_tokens == first_turns
  share = first_turns / (first_turns + made.stats.prefill_tokens)
  assert watch.metrics([])["perf/prefill_saved"] == pytest.approx(share)
  # An episode that ends early leaves nothing either.
  play(made, one_turn, 3, budget=Budget(turns=5))
  assert made.num_kept == 0


def test_single_turns_have_no_metrics_of_turns(engine):
  domains = {"addends": addends.build()}
  made = collect(engine, TEMPLATE, domains, specs(2), Services(), CONFIG, seed=5)
  played = asyncio.run(made)
  assert not any(name.startswith(("turns/", "tools/")) for name in rollout_metrics(played))


def test_a_tool_overlaps_with_the_decoding_of_others(engine):
  """The tool of each episode returns once another episode's second turn is sampled, of more
  episodes than slots: were the engine to wait for tools, nothing would go on."""
  sampled = [asyncio.Event() for _ in range(5)]

  async def waiting(task, ctx):
    number = next(i for i, spec in enumerate(specs(5)) if spec.task == task)
    turn = await ctx.generate()
    assert isinstance(turn, Turn)
    if number < 4:
      await asyncio.wait_for(sampled[number + 1].wait(), timeout=60)
    ctx.observe({"role": "user", "content": "again"})
    await ctx.generate()
    sampled[number].set()

  played = play(engine, waiting, 5)
  assert [p.episode.ending for p in played] == [Ending.DONE] * 5


def test_the_clock_takes_a_turn_out_of_the_engine(engine, weights):
  """The engine has two slots and a turn of 100 tokens a slot; it is free again afterwards."""
  config = PolicyConfig(max_new_tokens=60)
  play(engine, one_turn, 1, config)  # compiles
  played = play(engine, one_turn, 8, config, budget=Budget(wall_s=1e-3))
  assert {p.episode.ending for p in played} == {Ending.WALL}
  assert {p.grade.outcome for p in played} == {Outcome.CANCELLED}
  assert not any(p.trainable for p in played)
  assert engine.idle
  fresh = Engine(ENGINE, MODEL, TEMPLATE.tokenizer)
  fresh.set_weights(weights, 3)
  for one, other in zip(play(engine, two_turns, 3), play(fresh, two_turns, 3), strict=True):
    np.testing.assert_array_equal(one.episode.tokens, other.episode.tokens)


async def one_turn(task, ctx):
  del task
  await ctx.generate()


def test_a_turn_is_cut_where_the_engine_is_full(engine):
  """The prompt has some 20 tokens, the engine 128: the last turns have ever less room."""

  async def many(task, ctx):
    while True:
      await ctx.generate()
      ctx.observe({"role": "user", "content": "." * 30})

  played = play(engine, many, 3, budget=Budget(turns=100))
  for one in played:
    assert one.episode.ending in (Ending.TOKENS, Ending.LENGTH)
    assert len(one.episode.tokens) <= ENGINE.max_length
    assert one.episode.action_mask[-1]
    assert one.grade.outcome is Outcome.TRUNCATED
