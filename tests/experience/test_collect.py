"""Episodes of a real domain with a tiny model: deterministic, in order, and loud in failure."""

import asyncio
import dataclasses

import jax
import numpy as np
import pytest

from ptjax.core.types import FinishReason, Outcome
from ptjax.data.chat_template import ChatTemplate
from ptjax.data.tokenizer import byte_tokenizer
from ptjax.domains import arithmetic
from ptjax.envs.environment import Services, Transcript
from ptjax.experience.collect import EpisodeSpec, PolicyConfig, collect
from ptjax.experience.mixture import task_seed
from ptjax.models.config import DecoderConfig
from ptjax.models.decoder import init_params
from ptjax.rollout.engine import Engine, EngineConfig
from ptjax.rollout.sampling import SamplingConfig

MODEL = DecoderConfig(
  vocab_size=260, d_model=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, d_ff=24
)
ENGINE = EngineConfig(num_slots=4, max_length=192, decode_chunk=4, min_prefill=128)
TEMPLATE = ChatTemplate(byte_tokenizer())
ARITHMETIC = arithmetic.build()
CONFIG = PolicyConfig(max_new_tokens=6)
NUM_EPISODES = 10


@pytest.fixture(scope="module")
def weights():
  return init_params(MODEL, jax.random.key(0))


@pytest.fixture
def engine(weights):
  made = Engine(ENGINE, MODEL, TEMPLATE.tokenizer)
  made.set_weights(weights, 3)
  return made


def specs():
  """Two episodes of each of five tasks."""
  return [
    EpisodeSpec(ARITHMETIC.make_task(task_seed(0, "arithmetic", i // 2), "train"), i // 2, i)
    for i in range(NUM_EPISODES)
  ]


def play(engine, episodes, domain=ARITHMETIC, config=CONFIG, seed=5):
  return asyncio.run(
    collect(engine, TEMPLATE, {"arithmetic": domain}, episodes, Services(), config, seed)
  )


def assert_same(got, want):
  for name in ("tokens", "action_mask", "behavior_logprobs", "policy_versions"):
    np.testing.assert_array_equal(getattr(got.episode, name), getattr(want.episode, name))
  assert got.episode.responses == want.episode.responses
  assert got.grade == want.grade


def test_episodes_are_records_of_what_was_sampled(engine):
  played = play(engine, specs())
  assert [one.spec for one in played] == specs()
  for one in played:
    record = one.trajectory(seed=5)
    prompt = TEMPLATE.encode(one.spec.task.messages, add_generation_prompt=True)
    np.testing.assert_array_equal(record.tokens[: len(prompt)], prompt)
    np.testing.assert_array_equal(record.action_mask, np.arange(len(record.tokens)) >= len(prompt))
    assert record.turn_starts == (0, len(prompt))
    assert (record.policy_versions == np.where(record.action_mask, 3, -1)).all()
    assert (record.behavior_logprobs[record.action_mask] < 0).all()
    assert (record.group, record.domain, record.seed) == (one.spec.group, "arithmetic", 5)
    # The grade is that of the text, whoever wrote it.
    assert one.trainable
    assert record.outcome == (
      Outcome.TRUNCATED if record.finish_reason == FinishReason.LENGTH else Outcome.SCORED
    )
    assert record.reward == record.rewards[""]
    answered = arithmetic.extract_answer(one.episode.response)
    assert record.passed == (answered == one.spec.task.data["entry"]["answer"])
  completions = {one.episode.tokens.tobytes() for one in played}
  assert len(completions) == NUM_EPISODES  # episodes of one task differ


def test_an_episode_depends_on_its_seed_and_index_alone(engine, weights):
  want = play(engine, specs())
  for one, other in zip(play(engine, specs()[::-1])[::-1], want, strict=True):
    assert_same(one, other)
  fresh = Engine(ENGINE, MODEL, TEMPLATE.tokenizer)
  fresh.set_weights(weights, 3)
  assert_same(play(fresh, specs()[4:5])[0], want[4])
  moved = play(engine, specs(), seed=6)
  assert all(a.episode.responses != b.episode.responses for a, b in zip(moved, want, strict=True))


def test_no_episodes(engine):
  assert play(engine, []) == []


def test_stop_strings_end_a_generation_and_leave_its_text(engine):
  free = play(engine, specs()[:1])[0].episode
  sampled = free.tokens[free.action_mask]
  at = next(i for i, token in enumerate(sampled.tolist()) if token < 128)
  stop = TEMPLATE.tokenizer.decode(sampled[at : at + 1])
  stopped = play(engine, specs()[:1], config=dataclasses.replace(CONFIG, stop_strings=(stop,)))[
    0
  ].episode
  np.testing.assert_array_equal(stopped.tokens[stopped.action_mask], sampled[: at + 1])
  assert stopped.response == TEMPLATE.tokenizer.decode(sampled[:at])
  assert stopped.finish_reason == FinishReason.STOP


async def two_turns(task, policy, services):
  """A question, an answer, an observation, and another answer."""
  del services
  transcript = Transcript()
  transcript.observe(policy.encode(task.messages))
  transcript.act(await policy.generate(transcript.tokens))
  transcript.observe(TEMPLATE.tokenizer.encode("\nAgain: "))
  transcript.act(await policy.generate(transcript.tokens))
  return transcript.episode()


def test_turns_of_an_episode_share_one_record(engine):
  domain = dataclasses.replace(ARITHMETIC, play=two_turns)
  config = dataclasses.replace(CONFIG, sampling=SamplingConfig(temperature=0.9), max_new_tokens=4)
  played = play(engine, specs(), domain, config)
  for one, again in zip(played, play(engine, specs()[::-1], domain, config)[::-1], strict=True):
    assert_same(one, again)
  for one in played:
    starts, episode = one.episode.turn_starts, one.episode
    assert len(starts) == 4
    assert len(episode.responses) == 2
    assert TEMPLATE.tokenizer.decode(episode.tokens[starts[2] : starts[3]]) == "\nAgain: "
    assert not episode.action_mask[starts[2] : starts[3]].any()
    assert episode.action_mask[starts[3] :].all()


def test_a_fault_of_the_engine_surfaces(engine):
  with pytest.raises(ValueError, match=r"max_new_tokens 190\), engine.max_length is 192"):
    play(engine, specs(), config=dataclasses.replace(CONFIG, max_new_tokens=190))


def test_episodes_need_indices_of_their_own(engine):
  twice = [specs()[0], dataclasses.replace(specs()[1], index=0)]
  with pytest.raises(ValueError, match="unique"):
    play(engine, twice)


def test_an_engine_without_weights_surfaces():
  with pytest.raises(ValueError, match="call set_weights first"):
    play(Engine(ENGINE, MODEL, TEMPLATE.tokenizer), specs())


class BrokenEnvironmentError(Exception):
  pass


async def broken(task, policy, services):
  transcript = Transcript()
  transcript.observe(policy.encode(task.messages))
  transcript.act(await policy.generate(transcript.tokens))
  if task == specs()[4].task:
    raise BrokenEnvironmentError("no such tool")
  return transcript.episode()


def test_an_exception_of_an_environment_surfaces(engine):
  with pytest.raises(BrokenEnvironmentError, match="no such tool"):
    play(engine, specs(), dataclasses.replace(ARITHMETIC, play=broken))


def test_an_exception_of_a_grader_surfaces(engine):
  def passed(rewards):
    raise BrokenEnvironmentError(f"cannot judge {sorted(rewards)}")

  with pytest.raises(BrokenEnvironmentError, match="cannot judge"):
    play(engine, specs(), dataclasses.replace(ARITHMETIC, passed=passed))


def test_a_failed_collection_leaves_the_engine_usable(engine):
  want = play(engine, specs())
  with pytest.raises(BrokenEnvironmentError):
    play(engine, specs(), dataclasses.replace(ARITHMETIC, play=broken))
  for got, expected in zip(play(engine, specs()), want, strict=True):
    assert_same(got, expected)
