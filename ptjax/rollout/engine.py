"""The rollout engine: fixed slots, continuous batching, few compiled programs.

A finished request's slot is refilled before the next chunk. What a request samples
depends on its seed, its id, its prompt and the weights alone: every program has one
shape, each row of it is computed from that row only, and the key of a token is
fold_in(fold_in(seed, id), position). `EngineConfig.adaptive` gives up the one shape.
"""

import dataclasses
import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from ptjax.core.types import FinishReason
from ptjax.data.tokenizer import Tokenizer
from ptjax.models.config import DecoderConfig
from ptjax.models.decoder import Params
from ptjax.models.quantize import Kind
from ptjax.rollout import decode
from ptjax.rollout.cache import CachePlacement
from ptjax.rollout.history import History, Kept, extend, put_row
from ptjax.rollout.sampling import SamplingParams
from ptjax.rollout.scheduler import Completion, Request, Scheduler
from ptjax.rollout.weights import EngineWeights, decode_config, engine_weights, rounded

_MIN_WIDTH = 8  # a CPU's vector and a TPU's sublanes: fewer rows cost the same
_PREFILL_BATCH = 8


@dataclasses.dataclass(frozen=True)
class EngineConfig:
  """Size of the engine.

  Attributes:
    num_slots: requests decoded side by side.
    max_length: tokens of a request, prompt and completion together.
    decode_chunk: tokens sampled by one program call; finished slots are refilled between
      calls.
    adaptive: run narrower decode programs where few slots are live, and prefill several prompts
      at once. Hardware may round a product of another width differently, so the last bits of a
      request then depend on how many others run.
    min_prefill: shortest prefill program, in tokens; longer prompts use the next power
      of two.
    max_stop_ids: stop tokens a request may name.
    keep_history: requests whose keys and values are kept for their episode's next turn, each as
      large as a slot (`rollout.history`); 0 computes every turn's prompt anew. The last bits of a
      turn then depend on whether its history was still there, for prefill rounds differently.
    weights: of the blocks in the decode loop: the trainer's, or the engine's own in 8 bits
      (`models.quantize`), renewed with every version. Prompts are computed with the trainer's.
      The sampler is then another policy than the trainer's by design: RL must correct for it.
    weight_bits: for experiments on mismatch: matrices rounded to so many bits, kept in their own
      dtype. `rl.contract_tolerance` has to allow it and a correction to make it good.
  """

  num_slots: int = 32
  max_length: int = 256
  decode_chunk: int = 16
  adaptive: bool = False
  min_prefill: int = 32
  max_stop_ids: int = 4
  keep_history: int = 0
  weights: Literal["trainer", "int8", "fp8"] = "trainer"
  weight_bits: int | None = None

  def __post_init__(self):
    if self.weight_bits is not None and not 2 <= self.weight_bits <= 16:
      raise ValueError(f"engine.weight_bits {self.weight_bits} must be 2 to 16, or None")
    if self.weight_bits is not None and self.weights != "trainer":
      raise ValueError(f"engine.weights {self.weights} are in 8 bits already; no weight_bits then")
    for field in dataclasses.fields(self):
      value, least = getattr(self, field.name), int(field.name != "keep_history")
      if isinstance(value, int) and not isinstance(value, bool) and value < least:
        raise ValueError(f"engine.{field.name} {value} must be >= {least}")

  @property
  def quantized(self) -> Kind | None:
    """How the decode loop's weights are quantised."""
    return None if self.weights == "trainer" else self.weights

  def width(self, live: int) -> int:
    """Slots of the narrowest program that holds `live` of them: num_slots or a half of it."""
    width = self.num_slots
    while self.adaptive and width % 2 == 0 and width // 2 >= max(live, _MIN_WIDTH):
      width //= 2
    return width

  def prefill_batch(self, waiting: int) -> int:
    """Prompts of the next prefill program where so many of one length wait."""
    return _PREFILL_BATCH if self.adaptive and 2 * waiting > _PREFILL_BATCH else 1


@dataclasses.dataclass
class EngineStats:
  """Work done since the engine was made; the caller takes differences.

  Attributes:
    prefill_tokens: tokens of the prompts computed, padding left out.
    history_tokens: tokens of the prompts that were not computed, for their keys and values were
      kept from the turn before.
    sampled_tokens: tokens given to requests.
    slot_steps: decode steps times the slots of their program, idle ones included.
  """

  prefill_tokens: int = 0
  history_tokens: int = 0
  sampled_tokens: int = 0
  slot_steps: int = 0


class Engine:
  """Generates completions; `submit` requests, call `step` until it is idle."""

  def __init__(
    self,
    config: EngineConfig,
    model: DecoderConfig,
    tokenizer: Tokenizer | None,
    placement: CachePlacement | None = None,
    *,
    record_routes: bool = False,
  ):
    """A tokenizer is needed only by requests with stop strings; a placement, where the weights
    lie on a mesh.

    With `record_routes`, completions tell the experts of their tokens, for router replay.

    Raises:
      ValueError: `record_routes` for a model without experts, or together with kept histories.
    """
    if record_routes and config.keep_history:
      raise ValueError(
        f"engine.keep_history {config.keep_history} with rl.router_replay: the experts of what "
        f"comes between turns are not recorded; set keep_history to 0"
      )
    if record_routes and model.moe is None:
      raise ValueError("record_routes: the model has no experts; set rl.router_replay=False")
    # Capacity would make a request depend on its neighbours: the sampler drops nothing.
    model = dataclasses.replace(model, capacity_factor=None)
    self.config, self.model, self._record = config, model, record_routes
    self._place = (lambda cache: cache) if placement is None else placement.place
    cpu = jax.default_backend() == "cpu" if placement is None else placement.on_cpu
    self._decode_model = decode_config(model, on_cpu=cpu)
    self.stats = EngineStats()
    self._tokenizer = tokenizer
    self._scheduler = Scheduler(config.num_slots)
    self._history = History(config.keep_history, self._place)
    self._weights: EngineWeights | None = None
    self._version = 0
    # The cache has a row for each slot of the program that runs: row i belongs to _rows[i].
    self._rows = np.arange(config.width(0))
    empty = decode.empty_cache if placement is None else placement.empty
    self._cache = empty(model, len(self._rows), config.max_length)
    rows, i32 = config.num_slots, np.int32
    # The slots live on the host between chunks: they are a few hundred bytes.
    self._token, self._length = np.zeros(rows, i32), np.zeros(rows, i32)
    self._limit, self._done = np.zeros(rows, i32), np.ones(rows, bool)
    self._seed, self._id = np.zeros(rows, np.uint32), np.zeros(rows, np.uint32)
    self._stop = np.full((rows, config.max_stop_ids), -1, i32)
    self._sampling = {
      "temperature": np.ones(rows, np.float32),
      "top_k": np.zeros(rows, i32),
      "top_p": np.ones(rows, np.float32),
      "min_p": np.zeros(rows, np.float32),
    }

  def set_weights(self, params: Params, version: int) -> None:
    """Takes a new version; running requests go on under it (in-flight update)."""
    if self.config.weight_bits is not None:
      params = rounded(params, self.config.weight_bits)
    self._history.clear()
    self._weights = engine_weights(params, self._decode_model, self.config.quantized)
    self._version = version

  def submit(self, request: Request) -> None:
    """Queues a request.

    Raises:
      ValueError: it cannot fit the engine, holds ids outside the vocabulary, names too many
        stop tokens, or uses stop strings without a tokenizer.
    """
    need = len(request.prompt) + request.max_new_tokens
    if need > self.config.max_length:
      raise ValueError(
        f"request {request.id} needs {need} tokens (prompt {len(request.prompt)} + "
        f"max_new_tokens {request.max_new_tokens}), engine.max_length is "
        f"{self.config.max_length}; raise it or shorten the request"
      )
    if not 0 <= np.min(request.prompt) <= np.max(request.prompt) < self.model.vocab_size:
      raise ValueError(
        f"request {request.id}: prompt ids {np.min(request.prompt)} to {np.max(request.prompt)} "
        f"are outside the vocabulary of {self.model.vocab_size}; use the model's own tokenizer"
      )
    if len(request.stop_ids) > self.config.max_stop_ids:
      raise ValueError(
        f"request {request.id} names {len(request.stop_ids)} stop tokens, "
        f"engine.max_stop_ids is {self.config.max_stop_ids}"
      )
    if request.stop_strings and self._tokenizer is None:
      raise ValueError(f"request {request.id} has stop strings; give the engine a tokenizer")
    self._scheduler.submit(request)

  def cancel(self, request_id: int) -> None:
    """Drops a request wherever it is; its slot is free at once."""
    slot = self._scheduler.cancel(request_id)
    if slot is not None:
      self._done[slot] = True

  def release(self, request_id: int) -> None:
    """Forgets what was kept of a request: nothing will go on from it."""
    self._history.drop(request_id)

  @property
  def num_kept(self) -> int:
    """Requests of which keys and values are kept."""
    return len(self._history)

  @property
  def idle(self) -> bool:
    """No request waits or runs."""
    return self._scheduler.idle

  def step(self) -> list[Completion]:
    """Fills free slots, decodes one chunk, and returns the requests that ended."""
    if self._weights is None:
      raise ValueError("the engine has no weights; call set_weights first")
    self._fill_slots(self._weights)
    if self.idle:
      return []
    cache, slots, chunk = decode.decode_chunk(
      self._decode_model,
      self.config.decode_chunk,
      self._weights,
      self._cache,
      self._device_slots(),
      self._record,
    )
    self._cache = self._place(cache)
    token, length, done, (tokens, logprobs, counts, routes) = jax.device_get(
      (slots.token_R, slots.length_R, slots.done_R, chunk)
    )
    rows = self._rows
    self._token[rows], self._length[rows], self._done[rows] = token, length, done
    self.stats.slot_steps += int(counts.max()) * len(rows)
    return self._collect(tokens, logprobs, counts, routes)

  def _collect(self, tokens, logprobs, counts, routes) -> list[Completion]:
    finished = []
    row_of = self._row_of()
    for slot, running in self._scheduler.running():
      row = row_of[slot]
      count = int(counts[row])
      before = len(running.tokens)
      own = None if routes is None else routes[row, :count]
      reason = running.extend(tokens[row, :count], logprobs[row, :count], self._version, own)
      self.stats.sampled_tokens += len(running.tokens) - before
      if reason is None and self._done[slot]:
        raise AssertionError(f"slot {slot} is done, request {running.request.id} is not")
      if reason is not None:
        finished.append(running.completion(reason))
        self._history.keep(running.request, finished[-1], self._cache, row)
        self._scheduler.free(slot)
        self._done[slot] = True
    return finished

  def _fill_slots(self, weights: EngineWeights) -> None:
    """Admits waiting requests; requests with one prompt share one prefill."""
    by_prompt: dict[bytes, list[tuple[int, Request]]] = {}
    going_on: list[tuple[int, Request, Kept]] = []
    for slot, request in self._scheduler.admit(self._tokenizer):
      self._set_slot(slot, request)
      if (kept := self._history.take(request)) is not None:
        going_on.append((slot, request, kept))
        continue
      by_prompt.setdefault(np.asarray(request.prompt, np.int32).tobytes(), []).append(
        (slot, request)
      )
    self._fit_rows()
    # The last prompt token is left to the first decode step, which samples after it.
    by_length: dict[int, list[tuple[np.ndarray, list[int]]]] = {}
    for sharing in by_prompt.values():
      prompt = sharing[0][1].prompt[:-1]
      length = prefill_length(len(prompt), self.config)
      by_length.setdefault(length, []).append((prompt, [slot for slot, _ in sharing]))
    for length, prompts in by_length.items():
      start = 0
      while start < len(prompts):
        size = self.config.prefill_batch(len(prompts) - start)
        self._prefill(weights.params, length, prompts[start : start + size], size)
        start += size
    for slot, request, kept in going_on:
      # Its last token, too, is left to the decode step.
      new = np.asarray(request.prompt[len(kept.tokens) : -1], np.int32)
      row = extend(self._decode_model, weights, kept, new, self.config.min_prefill)
      self._cache = self._place(put_row(self._cache, row, self._row_of()[slot]))
      self.stats.prefill_tokens += len(new)
      self.stats.history_tokens += len(kept.tokens)

  def _fit_rows(self) -> None:
    """Gives the cache as many rows as the running slots need."""
    live, row_of = [slot for slot, _ in self._scheduler.running()], self._row_of()
    width = self.config.width(len(live))
    if width == len(self._rows) and row_of.keys() >= set(live):
      return
    idle = [slot for slot in range(self.config.num_slots) if slot not in live]
    slots = live + idle[: width - len(live)]
    # A slot without a row is idle, or about to be filled: any row will do as its start.
    source = np.asarray([row_of.get(slot, 0) for slot in slots], np.int32)
    self._cache = self._place(decode.take_rows(self._cache, source))
    self._rows = np.asarray(slots)

  def _row_of(self) -> dict[int, int]:
    """The row of the cache that each slot has, for those that have one."""
    return {slot: row for row, slot in enumerate(self._rows.tolist())}

  def _prefill(
    self, params: Params, length: int, prompts: list[tuple[np.ndarray, list[int]]], size: int
  ) -> None:
    """Runs up to `size` prompts, each for its slots, in one program of that size."""
    tokens_PT = np.zeros((size, length), np.int32)
    source_R = np.zeros(len(self._rows), np.int32)
    take_R = np.zeros(len(self._rows), bool)
    for i, (prompt, slots) in enumerate(prompts):
      tokens_PT[i, : len(prompt)] = prompt
      own_R = np.isin(self._rows, slots)
      source_R[own_R], take_R = i, take_R | own_R
      self.stats.prefill_tokens += len(prompt)
    kv = decode.prefill(self.model, params, tokens_PT, self._record)
    if self._record:
      kv, routes_PTLX = kv
      self._keep_routes(np.asarray(routes_PTLX), prompts)
    self._cache = self._place(decode.insert(self._cache, kv, source_R, take_R))

  def _keep_routes(self, routes_PTLX: np.ndarray, prompts) -> None:
    """Notes the experts of the prefilled tokens with each request of a prompt."""
    running = dict(self._scheduler.running())
    for routes_TLX, (prompt, slots) in zip(routes_PTLX, prompts, strict=False):
      for slot in slots:
        running[slot].routes.append(routes_TLX[: len(prompt)])

  def _set_slot(self, slot: int, request: Request) -> None:
    prompt = request.prompt
    self._token[slot], self._length[slot] = prompt[-1], len(prompt) - 1
    self._limit[slot], self._done[slot] = len(prompt) + request.max_new_tokens, False
    self._seed[slot], self._id[slot] = request.seed, request.id
    self._stop[slot] = -1
    self._stop[slot, : len(request.stop_ids)] = request.stop_ids
    for name, values in self._sampling.items():
      values[slot] = getattr(request.sampling, name)

  def _device_slots(self) -> decode.Slots:
    rows = self._rows
    sampling = SamplingParams(*(jnp.asarray(v[rows]) for v in self._sampling.values()))
    return decode.Slots(
      token_R=jnp.asarray(self._token[rows]),
      length_R=jnp.asarray(self._length[rows]),
      limit_R=jnp.asarray(self._limit[rows]),
      done_R=jnp.asarray(self._done[rows]),
      key_R=request_keys(self._seed[rows], self._id[rows]),
      stop_RX=jnp.asarray(self._stop[rows]),
      sampling=sampling,
    )


@functools.partial(jax.jit)
def request_keys(seed_R: jax.Array, id_R: jax.Array) -> jax.Array:
  """fold_in(key(seed), id) of each slot."""
  return jax.vmap(lambda seed, request: jax.random.fold_in(jax.random.key(seed), request))(
    seed_R, id_R
  )


def prefill_length(prompt_length: int, config: EngineConfig) -> int:
  """Tokens of the prefill program for a prompt: a power of two, at most `max_length`.

  It depends on this prompt alone, so that its neighbours cannot change its bits.
  """
  length = config.min_prefill
  while length < prompt_length:
    length *= 2
  return min(length, config.max_length)


def generate(engine: Engine, requests: list[Request]) -> dict[int, Completion]:
  """Runs all requests to their end; completions by request id."""
  for request in requests:
    engine.submit(request)
  done = {}
  while not engine.idle:
    done.update((completion.id, completion) for completion in engine.step())
  return done


__all__ = ["Completion", "Engine", "EngineConfig", "FinishReason", "Request", "generate"]
