"""The engine: a request's output is its own, and every end that a request can come to."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rollout_cases import (
  ENGINE,
  MODEL,
  SAMPLINGS,
  TOKENIZER,
  assert_same,
  engine,
  mixed_requests,
  request,
)

from ptjax.core.types import FinishReason
from ptjax.models.decoder import init_params
from ptjax.rollout.engine import Engine, EngineConfig, generate, prefill_length


@pytest.fixture(scope="module")
def together(weights):
  """32 requests, one a slot."""
  return generate(engine(weights), mixed_requests(32))


def test_alone_or_amid_31_others(weights, together):
  """Every kind of sampling, first and last slots, the shortest and the longest prompts."""
  requests = mixed_requests(32)
  for number in (0, 1, 13, 14, 22, 29, 31):
    alone = generate(engine(weights), [requests[number]])
    assert_same(alone[number], together[number])


def test_order_and_refilled_slots_change_nothing(weights, together):
  """70 requests through 32 slots that others used before, in another order."""
  used = engine(weights)
  generate(used, [dataclasses.replace(r, id=r.id + 500) for r in mixed_requests(40)])
  done = generate(used, mixed_requests(70)[::-1])
  assert set(done) == set(range(70))
  for number, want in together.items():
    assert_same(done[number], want)


def assert_close(got, want):
  """The same tokens; log-probs may differ by rounding."""
  np.testing.assert_array_equal(got.tokens, want.tokens)
  np.testing.assert_allclose(got.logprobs, want.logprobs, rtol=0, atol=1e-5)
  assert got.finish_reason == want.finish_reason


def test_adaptive_widths_change_rounding_alone(weights):
  """Slots come and go: the program narrows as requests end and widens as others arrive."""
  config = dataclasses.replace(ENGINE, adaptive=True)
  requests = mixed_requests(70)
  want = generate(engine(weights), requests)
  made, done, widths = engine(weights, config=config), [], []
  for arriving in (requests[:3], requests[3:12], requests[12:70]):
    for one in arriving:
      made.submit(one)
    for _ in range(2):
      before = made.stats.slot_steps
      done += made.step()
      widths.append((made.stats.slot_steps - before) // ENGINE.decode_chunk)
  while not made.idle:
    done += made.step()
  assert {8, 16, 32} <= set(widths)
  assert {one.id for one in done} == set(range(70))
  for one in done:
    assert_close(one, want[one.id])


@pytest.mark.parametrize(
  ("adaptive", "live", "width"),
  [(False, 1, 48), (True, 0, 12), (True, 12, 12), (True, 13, 24), (True, 25, 48), (True, 48, 48)],
)
def test_width_of_the_program(adaptive, live, width):
  assert EngineConfig(num_slots=48, adaptive=adaptive).width(live) == width


def test_requests_of_one_prompt_differ_by_id_and_by_seed(weights):
  base = request(1)
  same = [base, dataclasses.replace(base, id=2), dataclasses.replace(base, id=3, seed=4)]
  done = generate(engine(weights), same)
  assert len({done[i].tokens.tobytes() for i in (1, 2, 3)}) == 3
  for one in same:
    assert_same(generate(engine(weights), [one])[one.id], done[one.id])


def test_lengths_and_reasons(together):
  for number, one in enumerate(mixed_requests(32)):
    done = together[number]
    assert done.finish_reason == FinishReason.LENGTH
    assert len(done.tokens) == len(done.logprobs) == one.max_new_tokens
    assert (done.logprobs <= 0).all()
    assert ((done.tokens >= 0) & (done.tokens < MODEL.vocab_size)).all()
    assert (done.logprobs == 0).all() == (one.sampling.temperature == 0)


def test_what_nan_weights_left_in_the_cache_is_never_read(weights, together):
  poisoned = engine(jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), weights))
  long = [request(900 + i, prompt_length=30, max_new_tokens=18) for i in range(32)]
  assert all(np.isnan(one.logprobs).all() for one in generate(poisoned, long).values())
  poisoned.set_weights(weights, 0)
  done = generate(poisoned, mixed_requests(32))
  for number, want in together.items():
    assert_same(done[number], want)


def test_stop_ids(weights):
  free = generate(engine(weights), [request(5)])[5]
  for at in (0, 3, 4, 7):  # 3 ends a chunk, 4 begins one
    stop = int(free.tokens[at])
    end = free.tokens.tolist().index(stop) + 1
    done = generate(engine(weights), [request(5, stop_ids=(259, stop))])[5]
    assert done.finish_reason == FinishReason.STOP
    np.testing.assert_array_equal(done.tokens, free.tokens[:end])
    np.testing.assert_array_equal(done.logprobs, free.logprobs[:end])


def test_a_stop_token_at_the_limit_is_a_stop(weights):
  free = generate(engine(weights), [request(5)])[5]
  last = int(free.tokens[-1])
  assert last not in free.tokens[:-1]
  done = generate(engine(weights), [request(5, stop_ids=(last,))])[5]
  assert done.finish_reason == FinishReason.STOP


def ascii_pairs(tokens):
  """Where two neighbouring tokens are both ASCII bytes."""
  return [i for i in range(len(tokens) - 1) if tokens[i] < 128 and tokens[i + 1] < 128]


def test_stop_strings_across_tokens_and_chunks(weights):
  """Bytes are tokens here, so a string of two characters lies across two tokens."""
  across = set()
  for number in range(6):
    base = request(number, max_new_tokens=16)
    free = generate(engine(weights), [base])[number]
    for at in ascii_pairs(free.tokens)[:3]:
      text = TOKENIZER.decode(free.tokens[at : at + 2])
      first = bytes(np.minimum(free.tokens, 255).tolist()).find(text.encode())
      one = dataclasses.replace(base, stop_strings=("never there", text))
      done = generate(engine(weights), [one])[number]
      assert done.finish_reason == FinishReason.STOP
      np.testing.assert_array_equal(done.tokens, free.tokens[: first + 2])
      np.testing.assert_array_equal(done.logprobs, free.logprobs[: first + 2])
      across.add(first % ENGINE.decode_chunk == ENGINE.decode_chunk - 1)
  assert across == {True, False}, "one within a chunk and one across two should be among them"


def test_a_slot_freed_by_a_stop_string_serves_the_next(weights):
  """The device did not know that the first request ended in the middle of a chunk."""
  small = EngineConfig(num_slots=1, max_length=48, decode_chunk=4, min_prefill=8)
  for number in range(20):
    free = generate(engine(weights, config=small), [request(number)])[number]
    if 0 in ascii_pairs(free.tokens):
      break
  text = TOKENIZER.decode(free.tokens[:2])
  want = generate(engine(weights, config=small), [request(77)])[77]
  done = generate(
    engine(weights, config=small), [request(number, stop_strings=(text,)), request(77)]
  )
  assert len(done[number].tokens) == 2
  assert_same(done[77], want)


def test_cancel_waiting_and_running(weights, together):
  busy = engine(weights)
  for one in mixed_requests(40):
    busy.submit(dataclasses.replace(one, max_new_tokens=max(one.max_new_tokens, 6)))
  done = busy.step()
  busy.cancel(3)  # runs
  busy.cancel(35)  # waits
  busy.cancel(4321)  # unknown: nothing happens
  while not busy.idle:
    done += busy.step()
  assert {one.id for one in done} == set(range(40)) - {3, 35}
  for one in done:
    if one.id in together and len(together[one.id].tokens) >= 6:
      assert_same(one, together[one.id])
  busy.submit(request(3))  # its id is free again
  busy.cancel(3)
  assert busy.idle
  assert busy.step() == []


def test_ids_are_unique_among_live_requests(weights):
  live = engine(weights)
  live.submit(request(1))
  with pytest.raises(ValueError, match="request id 1 is already in use"):
    live.submit(request(1))
  live.step()
  with pytest.raises(ValueError, match="request id 1 is already in use"):
    live.submit(request(1))
  while not live.idle:
    live.step()
  live.submit(request(1))


def test_in_flight_update_stamps_versions(weights):
  new = init_params(MODEL, jax.random.key(9))
  old_only = generate(engine(weights, 7), [request(1)])[1]
  live = engine(weights, 7)
  live.submit(request(1))
  assert live.step() == []
  live.set_weights(new, 8)
  done = generate(live, [])[1]
  np.testing.assert_array_equal(done.policy_versions, [7] * 4 + [8] * 8)
  np.testing.assert_array_equal(done.tokens[:4], old_only.tokens[:4])
  assert (done.tokens[4:] != old_only.tokens[4:]).any()
  np.testing.assert_array_equal(old_only.policy_versions, 7)


def test_stats_count_the_work(weights):
  live = engine(weights)
  generate(live, [request(1), request(2, prompt_length=9), request(3, prompt_length=1)])
  assert live.stats.sampled_tokens == 36
  assert live.stats.prefill_tokens == 4 + 8
  assert live.stats.slot_steps == 12 * ENGINE.num_slots


def test_a_group_shares_one_prefill(weights):
  live = engine(weights)
  generate(live, [dataclasses.replace(request(1), id=i) for i in range(4)])
  assert live.stats.prefill_tokens == 4


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: request(1, 40, 9), r"request 1 needs 49 tokens .*max_length is 48"),
    (lambda: request(1, stop_ids=(1, 2, 3, 4, 5)), r"names 5 stop tokens.*max_stop_ids is 4"),
    (lambda: request(1, prompt_length=0), "request 1 has an empty prompt"),
    (lambda: request(1, max_new_tokens=0), "max_new_tokens 0 must be >= 1"),
    (lambda: request(1, stop_strings=("",)), "stop string"),
    (lambda: request(1, seed=-1), "seed"),
    (lambda: request(-1), "id"),
  ],
)
def test_request_errors(weights, make, message):
  """Whatever a request lacks is said when it is made or submitted, not while others run."""
  live = engine(weights)
  with pytest.raises(ValueError, match=message):
    live.submit(make())
  assert live.idle


def test_a_request_may_fill_the_engine_to_the_last_token(weights):
  done = generate(engine(weights), [request(1, 40, 8), request(2, 47, 1), request(3, 1, 47)])
  assert [len(done[i].tokens) for i in (1, 2, 3)] == [8, 1, 47]


def test_engine_errors():
  with pytest.raises(ValueError, match=r"engine.num_slots 0 must be >= 1"):
    EngineConfig(num_slots=0)
  bare = Engine(ENGINE, MODEL, None)
  with pytest.raises(ValueError, match="call set_weights first"):
    bare.step()
  with pytest.raises(ValueError, match="give the engine a tokenizer"):
    bare.submit(request(1, stop_strings=("x",)))


@pytest.mark.parametrize(
  ("prompt", "length"), [(1, 8), (8, 8), (9, 16), (16, 16), (33, 48), (48, 48)]
)
def test_prefill_length(prompt, length):
  assert prefill_length(prompt, ENGINE) == length


@pytest.mark.parametrize("sampling", SAMPLINGS[:2], ids=str)
def test_prompts_around_the_sizes_of_prefill(weights, sampling):
  """Alone equals together where the prefill program changes."""
  requests = [request(i, n, 3, sampling) for i, n in enumerate((1, 2, 8, 9, 10, 16, 17, 18, 33))]
  done = generate(engine(weights), requests)
  for one in requests[3:5]:
    assert_same(generate(engine(weights), [one])[one.id], done[one.id])
