"""Operations of a model by formula. The compiler's own count has each loop once and is of no use.

product of a token with a weight matrix      2 per weight, and twice that again backward
attention of one query over S keys           2 S N (H + H_v), half of it where causal
"""

from ptjax.models.config import DecoderConfig


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
