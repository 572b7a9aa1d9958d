"""Operations of a model by formula. The compiler's own count has each loop once and is of no use.

product of a token with a weight matrix      2 per weight, and twice that again backward
attention of one query over S keys           2 S N (H + H_v), half of it where causal
"""

from ptjax.models.config import DecoderConfig
from ptjax.train.experiment import Experiment


def block_weights(c: DecoderConfig) -> int:
  """Weights of all layers that a token is multiplied with: of experts only the chosen ones."""
  tables = (1 if c.tie_embeddings else 2) * c.vocab_size * c.d_model
  blocks = c.num_params - tables - c.d_model
  if c.moe is None:
    return blocks
  idle = c.moe.num_experts - c.moe.top_k
  return blocks - (c.num_layers - c.moe.first_dense) * idle * 3 * c.d_model * c.moe.d_ff


def attention(c: DecoderConfig, queries: int, keys: int) -> float:
  """Of all layers; a query sees `keys` on average, less in the layers with a window."""
  width = 2 * c.num_heads * (c.head_dim + c.value_dim)
  seen = sum(min(keys, c.layer_window(i) or keys) for i in range(c.num_layers))
  return float(width) * queries * seen


def forward(c: DecoderConfig, rows: int, length: int) -> float:
  """Of the layers, over causal rows of that length."""
  tokens = rows * length
  return 2.0 * tokens * block_weights(c) + attention(c, tokens, -(-length // 2))


def logits(c: DecoderConfig, slots: int) -> float:
  return 2.0 * slots * c.d_model * c.vocab_size


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
