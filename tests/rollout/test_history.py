"""Turns that go on from a kept history sample what they would have sampled from the start."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rollout_cases import ENGINE, MODEL, SAMPLINGS, TOKENIZER, assert_same, engine, request

from ptjax.models.config import DecoderConfig, LatentConfig, MoeConfig
from ptjax.models.decoder import init_params
from ptjax.rollout import history
from ptjax.rollout.cache import CachePlacement
from ptjax.rollout.engine import Engine, EngineConfig, generate
from ptjax.sharding.mesh import MeshConfig, make_mesh
from ptjax.sharding.rules import Rules
from ptjax.train.experiment import Experiment, RLConfig

KEEPING = dataclasses.replace(ENGINE, keep_history=40)
TURNS = 3


def observation(number: int, turn: int) -> np.ndarray:
  """1 to 9 tokens."""
  rng = np.random.default_rng(100 * number + turn)
  return rng.integers(256, size=1 + (number * 5 + turn) % 9).astype(np.int32)


def play(made: Engine, numbers, *, keep: bool = True):
  """Episodes side by side, turn after turn; the completions of each in order."""
  contexts = {n: request(n, 1 + n % 7).prompt for n in numbers}
  played = {n: [] for n in numbers}
  for turn in range(TURNS):
    requests = {
      n: request(
        n,
        max_new_tokens=1 + (n + turn) % 4,
        sampling=SAMPLINGS[n % len(SAMPLINGS)],
        id=1000 * turn + n,
        keep=keep and turn + 1 < TURNS,
        continues=1000 * (turn - 1) + n if keep and turn else None,
      )
      for n in numbers
    }
    requests = {n: dataclasses.replace(r, prompt=contexts[n]) for n, r in requests.items()}
    done = generate(made, list(requests.values()))
    for n, r in requests.items():
      played[n].append(done[r.id])
      contexts[n] = np.concatenate([contexts[n], done[r.id].tokens, observation(n, turn)])
  return played


def assert_close(got, want):
  """The same tokens; log-probs may differ by rounding."""
  for one, other in zip(got, want, strict=True):
    np.testing.assert_array_equal(one.tokens, other.tokens)
    np.testing.assert_allclose(one.logprobs, other.logprobs, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def scratch(weights):
  """Every turn's prompt computed from its start."""
  return play(engine(weights), range(12), keep=False)


def test_a_kept_history_gives_the_same_log_probs(weights, scratch):
  made = engine(weights, config=KEEPING)
  for number, got in play(made, range(12)).items():
    assert_close(got, scratch[number])


def test_only_what_is_new_is_computed(weights, scratch):
  plain, made = engine(weights), engine(weights, config=KEEPING)
  play(plain, range(12), keep=False)
  play(made, range(12))
  assert plain.stats.history_tokens == 0
  total = made.stats.history_tokens + made.stats.prefill_tokens
  assert total == plain.stats.prefill_tokens
  # Of later turns the last sampled token and all but the last of the observation.
  new = sum(len(observation(n, turn)) for n in range(12) for turn in range(TURNS - 1))
  first = sum(n % 7 for n in range(12))
  assert made.stats.prefill_tokens == first + new


def test_neighbours_change_no_bit(weights):
  together = play(engine(weights, config=KEEPING), range(12))
  for number in (0, 5, 11):
    alone = play(engine(weights, config=KEEPING), [number])[number]
    for one, other in zip(alone, together[number], strict=True):
      assert_same(one, other)


def test_an_adaptive_engine(weights, scratch):
  made = engine(weights, config=dataclasses.replace(KEEPING, adaptive=True))
  for number, got in play(made, range(12)).items():
    assert_close(got, scratch[number])


def test_under_pressure_the_oldest_goes_and_is_computed_anew(weights, scratch):
  made = engine(weights, config=dataclasses.replace(ENGINE, keep_history=5))
  for number, got in play(made, range(12)).items():
    assert_close(got, scratch[number])
  reused = made.stats.history_tokens
  assert reused > 0
  every = engine(weights, config=KEEPING)
  play(every, range(12))
  assert reused < every.stats.history_tokens


def pair(first, **more):
  """A request that is kept, and how to go on from its completion."""
  one = request(first, 6, 5, keep=True)

  def follow(done, extra=(1, 2, 3), **changes):
    prompt = np.concatenate([one.prompt, done.tokens, np.asarray(extra, np.int32)])
    return dataclasses.replace(request(70), prompt=prompt, **{"continues": first} | changes)

  return dataclasses.replace(one, **more), follow


def test_new_weights_forget_all_histories(weights):
  new = init_params(MODEL, jax.random.key(9))
  made = engine(weights, config=KEEPING)
  one, follow = pair(3)
  second = follow(generate(made, [one])[3])
  made.set_weights(new, 1)
  got = generate(made, [second])[70]
  assert made.stats.history_tokens == 0
  want = generate(engine(new, 1), [dataclasses.replace(second, continues=None)])[70]
  assert_same(got, want)


@pytest.mark.parametrize("why", ["released", "unknown", "other tokens", "nothing new"])
def test_what_cannot_be_gone_on_from_is_computed(weights, why):
  made = engine(weights, config=KEEPING)
  one, follow = pair(3)
  done = generate(made, [one])[3]
  second = follow(done)
  match why:
    case "released":
      made.release(3)
    case "unknown":
      second = dataclasses.replace(second, continues=4)
    case "other tokens":
      prompt = second.prompt.copy()
      prompt[2] = (prompt[2] + 1) % 256
      second = dataclasses.replace(second, prompt=prompt)
    case "nothing new":
      second = dataclasses.replace(second, prompt=second.prompt[:10])
  got = generate(made, [second])[70]
  assert made.stats.history_tokens == 0
  assert_same(got, generate(engine(weights), [dataclasses.replace(second, continues=None)])[70])


def test_what_was_sampled_after_a_stop_string_is_not_history(weights):
  """The device samples on to the end of its chunk; these tokens are nobody's."""
  one, follow = pair(3, max_new_tokens=12)
  free = generate(engine(weights), [one])[3]
  text = next(t for t in map(TOKENIZER.decode, free.tokens[:, None]) if t.isascii())
  at = free.tokens.tolist().index(ord(text))
  assert at % ENGINE.decode_chunk != ENGINE.decode_chunk - 1, "something follows in its chunk"
  one = dataclasses.replace(one, stop_strings=(text,))
  made = engine(weights, config=KEEPING)
  second = follow(generate(made, [one])[3])
  got = generate(made, [second])[70]
  assert made.stats.history_tokens == 6 + at
  assert_close(
    [got], [generate(engine(weights), [dataclasses.replace(second, continues=None)])[70]]
  )


def test_a_long_observation_takes_several_programs(weights, monkeypatch):
  monkeypatch.setattr(history, "EXTENSION", 8)
  made = engine(weights, config=KEEPING)
  one, follow = pair(3)
  second = follow(generate(made, [one])[3], extra=range(20))
  got = generate(made, [second])[70]
  assert made.stats.history_tokens == 10
  assert_close(
    [got], [generate(engine(weights), [dataclasses.replace(second, continues=None)])[70]]
  )


def test_nothing_of_a_nan_version_lives_on(weights):
  made = engine(jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), weights), config=KEEPING)
  one, _ = pair(3)
  generate(made, [one])
  made.set_weights(weights, 1)
  one, follow = pair(3)
  second = follow(generate(made, [one])[3])
  got = generate(made, [second])[70]
  assert made.stats.history_tokens == 10
  assert_close(
    [got], [generate(engine(weights), [dataclasses.replace(second, continues=None)])[70]]
  )


MODELS = {
  "windows, sinks, caps": {
    "window": 5, "sliding": (True, False), "sinks": True, "score_cap": 20.0, "qk_norm": True,
    "local_rope_theta": 500.0,
  },
  "experts": {"moe": MoeConfig(4, 2, 16)},
  "latent": {
    "latent": LatentConfig(16, 16, 8, 4, 12), "head_dim": 12, "num_kv_heads": 4,
  },
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_layer(name):
  model = DecoderConfig(**{**dataclasses.asdict(MODEL), **MODELS[name]})
  params = init_params(model, jax.random.key(1))

  def made(config):
    one = Engine(dataclasses.replace(config, num_slots=4, min_prefill=48), model, TOKENIZER)
    one.set_weights(params, 0)
    return one

  keeping = made(KEEPING)
  want = play(made(ENGINE), range(4), keep=False)
  for number, got in play(keeping, range(4)).items():
    assert_close(got, want[number])
  assert keeping.stats.history_tokens > 0


def test_a_cache_on_a_mesh(weights, scratch):
  placement = CachePlacement(make_mesh(MeshConfig(data=2, tensor=2), jax.devices()[:4]), Rules())
  made = Engine(
    dataclasses.replace(KEEPING, num_slots=8, min_prefill=48), MODEL, TOKENIZER, placement
  )
  made.set_weights(weights, 0)
  for number, got in play(made, range(6)).items():
    assert_close(got, scratch[number])
  assert made.stats.history_tokens > 0


def test_errors():
  with pytest.raises(ValueError, match=r"engine\.keep_history -1 must be >= 0"):
    EngineConfig(keep_history=-1)
  moe = dataclasses.replace(MODEL, moe=MoeConfig(4, 2, 16))
  with pytest.raises(ValueError, match=r"keep_history 40 with rl\.router_replay"):
    Engine(KEEPING, moe, TOKENIZER, record_routes=True)
  with pytest.raises(ValueError, match="keep_history 3: the bits of a turn"):
    Experiment(rl=RLConfig(deterministic=True), engine=EngineConfig(keep_history=3))
