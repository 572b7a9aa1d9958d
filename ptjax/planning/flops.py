"""Operations of the programs of a run, see `models.flops`."""

from ptjax.models.config import DecoderConfig
from ptjax.models.flops import attention, block_weights, forward, logits
from ptjax.train.experiment import Experiment


def scores(c: DecoderConfig, e: Experiment) -> float:
  """Of one micro-batch of log-probs."""
  return forward(c, e.pack.rows, e.pack.length) + logits(c, e.pack.rows * e.pack.actions)


def gradient(c: DecoderConfig, e: Experiment, *, with_logits: bool = True) -> float:
  """Of one micro-batch: forward, twice that backward, and what remat computes again."""
  again = {"none": 0.0, "full": 1.0}
  layers = forward(c, e.pack.rows, e.pack.length)
  # `dots` keeps the products with weights and computes attention again, `attention` the reverse.
  scores = attention(c, e.pack.rows * e.pack.length, -(-e.pack.length // 2))
  kept = 1 - scores / layers
  again |= {"dots": scores / layers, "attention": kept, "offload": kept}
  repeated = layers * again[c.remat]
  if not with_logits:
    return 3 * layers + repeated
  chunked = e.pack.actions > e.rl.objective.logit_chunk
  return 3 * layers + repeated + (4 if chunked else 3) * logits(c, e.pack.rows * e.pack.actions)


def prefill(c: DecoderConfig, prompts: int, length: int) -> float:
  return forward(c, prompts, length)


def decode(c: DecoderConfig, e: Experiment) -> float:
  """Of one call: a chunk of tokens in every slot, against full caches."""
  tokens = e.engine.num_slots * e.engine.decode_chunk
  per_token = 2.0 * tokens * block_weights(c) + attention(c, tokens, e.engine.max_length)
  return per_token + logits(c, tokens)
