"""A tiny Hugging Face model directory with a byte tokenizer, usable as `model.source`."""

import json
from pathlib import Path

import numpy as np
import safetensors.numpy

from ptjax.data.tokenizer import byte_tokenizer
from ptjax.models.config import DecoderConfig

CONFIG = DecoderConfig(
  vocab_size=260, d_model=64, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, d_ff=128
)
END_ID = byte_tokenizer().eos_ids[0]
DIGITS = b"0123456789"


def write_tiny_model(
  directory: Path, *, seed: int = 0, tied: bool = False, favoured: bytes = DIGITS
) -> Path:
  """Writes random weights, with the tokenizer and its chat template; returns the directory.

  An untied model samples mostly `favoured` bytes and the end token, so that an untrained one
  gets rewards that differ.
  """
  directory.mkdir(parents=True, exist_ok=True)
  tokenizer, c = byte_tokenizer(), CONFIG
  config = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": c.d_model,
    "intermediate_size": c.d_ff,
    "max_position_embeddings": c.max_position,
    "num_attention_heads": c.num_heads,
    "num_hidden_layers": c.num_layers,
    "num_key_value_heads": c.num_kv_heads,
    "head_dim": c.head_dim,
    "rms_norm_eps": c.norm_eps,
    "tie_word_embeddings": tied,
    "vocab_size": c.vocab_size,
  }
  options = {
    "eos_token": "<|im_end|>",
    "pad_token": "<|pad|>",
    "chat_template": tokenizer.chat_template,
  }
  (directory / "config.json").write_text(json.dumps(config))
  (directory / "tokenizer.json").write_text(tokenizer.definition)
  (directory / "tokenizer_config.json").write_text(json.dumps(options))
  tensors = _tensors(np.random.default_rng(seed), tied, favoured)
  safetensors.numpy.save_file(tensors, directory / "model.safetensors")
  return directory


def _tensors(rng: np.random.Generator, tied: bool, favoured: bytes) -> dict[str, np.ndarray]:
  c = CONFIG
  wide, narrow = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
  shapes = {
    "self_attn.q_proj": (wide, c.d_model),
    "self_attn.k_proj": (narrow, c.d_model),
    "self_attn.v_proj": (narrow, c.d_model),
    "self_attn.o_proj": (c.d_model, wide),
    "mlp.gate_proj": (c.d_ff, c.d_model),
    "mlp.up_proj": (c.d_ff, c.d_model),
    "mlp.down_proj": (c.d_model, c.d_ff),
  }

  def normal(*shape: int) -> np.ndarray:
    return rng.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)

  tensors = {"model.norm.weight": np.ones(c.d_model, np.float32)}
  for layer in range(c.num_layers):
    prefix = f"model.layers.{layer}."
    for name, shape in shapes.items():
      tensors[f"{prefix}{name}.weight"] = normal(*shape)
    for name in ("input_layernorm", "post_attention_layernorm"):
      tensors[f"{prefix}{name}.weight"] = np.ones(c.d_model, np.float32)
  table = normal(c.vocab_size, c.d_model)
  if not tied:
    # Channel 0 is large for every token; the head turns it into a bias of the logits.
    table[:, 0] = 2.0
    tensors["lm_head.weight"] = head = normal(c.vocab_size, c.d_model)
    head[:, 0] = 0.0
    head[[*favoured, END_ID], 0] = 2.0
  tensors["model.embed_tokens.weight"] = table
  return tensors
