"""Tiny Hugging Face directories of mixtures of experts, with the byte tokenizer."""

import json
from pathlib import Path

import numpy as np
import safetensors.numpy
from tiny_model import END_ID, write_tiny_model

from ptjax.models import families, weight_map

_SHARED = {
  "hidden_size": 32,
  "num_hidden_layers": 2,
  "num_attention_heads": 4,
  "max_position_embeddings": 512,
  "vocab_size": 260,
  "rms_norm_eps": 1e-5,
  "tie_word_embeddings": False,
}
CONFIGS = {
  "mixtral": {
    "architectures": ["MixtralForCausalLM"],
    "intermediate_size": 24,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
  },
  "deepseek": {
    "architectures": ["DeepseekV3ForCausalLM"],
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
  },
}


def write_tiny_moe(directory: Path, kind: str, *, seed: int = 0) -> Path:
  """Random weights whose samples are mostly digits; returns the directory."""
  write_tiny_model(directory)
  (directory / "config.json").write_text(json.dumps(_SHARED | CONFIGS[kind]))
  config = families.decoder_config(directory)
  rng, tensors = np.random.default_rng(seed), {}
  for name, slot in weight_map.slots(config):
    tensors[name] = rng.normal(0, slot.stored[-1] ** -0.5, slot.stored).astype(np.float32)
    if "norm" in name:
      tensors[name] = np.ones(slot.stored, np.float32)
    if name.endswith("correction_bias"):
      tensors[name] = np.zeros(slot.stored, np.float32)
  # As in `tiny_model`: a channel that the head turns into a bias of the logits.
  tensors["model.embed_tokens.weight"][:, 0] = 2.0
  head = tensors["lm_head.weight"]
  head[:, 0] = 0.0
  head[[*b"0123456789", END_ID], 0] = 2.0
  safetensors.numpy.save_file(tensors, directory / "model.safetensors")
  return directory
