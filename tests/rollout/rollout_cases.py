"""A tiny random model, and requests of mixed lengths and settings for its engine."""

import numpy as np

from ptjax.data.tokenizer import byte_tokenizer
from ptjax.models.config import DecoderConfig
from ptjax.rollout.engine import Engine, EngineConfig, Request
from ptjax.rollout.sampling import SamplingConfig

TOKENIZER = byte_tokenizer()
MODEL = DecoderConfig(
  vocab_size=260, d_model=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=48
)
# One size of engine: its programs compile once for all tests.
ENGINE = EngineConfig(num_slots=32, max_length=48, decode_chunk=4, min_prefill=8)

SAMPLINGS = (
  SamplingConfig(),
  SamplingConfig(temperature=0.7),
  SamplingConfig(temperature=0.7, top_k=20),
  SamplingConfig(top_p=0.8),
  SamplingConfig(temperature=1.2, top_k=50, top_p=0.9, min_p=0.01),
  SamplingConfig(temperature=0.0),
)


def engine(params, version=0, config=ENGINE) -> Engine:
  made = Engine(config, MODEL, TOKENIZER)
  made.set_weights(params, version)
  return made


def request(number=0, prompt_length=5, max_new_tokens=12, sampling=SAMPLINGS[0], **more) -> Request:
  prompt = np.random.default_rng(1000 + number).integers(256, size=prompt_length)
  more = {"id": number, "seed": 3} | more
  return Request(
    prompt=prompt.astype(np.int32), max_new_tokens=max_new_tokens, sampling=sampling, **more
  )


def mixed_requests(count: int) -> list[Request]:
  """Prompts of 1 to 33 tokens, completions of 1 to 14, every kind of sampling."""
  return [
    request(i, 1 + (i * 7) % 33, 1 + (i * 5) % 14, SAMPLINGS[i % len(SAMPLINGS)])
    for i in range(count)
  ]


def assert_same(got, want):
  """Bitwise equal completions."""
  assert got.id == want.id
  assert got.finish_reason == want.finish_reason
  for name in ("tokens", "logprobs", "policy_versions"):
    np.testing.assert_array_equal(getattr(got, name), getattr(want, name), err_msg=name)
