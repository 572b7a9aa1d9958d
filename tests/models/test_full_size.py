"""Released models by their own `config.json`: the parameters that transformers counts."""

import functools
import json
import math

import jax
import pytest

from ptjax.models import decoder, families

LLAMA3 = {
  "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
  "original_max_position_embeddings": 8192,
}  # fmt: skip

# Shapes as published; the counts are those of transformers' models on the meta device, for
# DeepSeek-V3 with its 14,848 routing corrections, which are buffers there.
MODELS = {
  "Llama-3.1-8B": (8_030_261_248, {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 128_256, "hidden_size": 4096,
    "intermediate_size": 14_336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0, "rope_scaling": LLAMA3,
  }),
  "Qwen3-4B": (4_022_468_096, {
    "architectures": ["Qwen3ForCausalLM"], "vocab_size": 151_936, "hidden_size": 2560,
    "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6, "rope_theta": 1_000_000, "tie_word_embeddings": True,
  }),
  "gemma-2-2b": (2_614_341_888, {
    "architectures": ["Gemma2ForCausalLM"], "vocab_size": 256_000, "hidden_size": 2304,
    "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6, "sliding_window": 4096,
  }),
  "gemma-3-4b, text": (3_880_263_168, {
    "architectures": ["Gemma3ForCausalLM"], "vocab_size": 262_208, "hidden_size": 2560,
    "intermediate_size": 10_240, "num_hidden_layers": 34, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6, "sliding_window": 1024,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
  }),
  "Mixtral-8x7B": (46_702_792_704, {
    "architectures": ["MixtralForCausalLM"], "vocab_size": 32_000, "hidden_size": 4096,
    "intermediate_size": 14_336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
    "max_position_embeddings": 32_768, "rms_norm_eps": 1e-5, "rope_theta": 1e6,
  }),
  "Qwen3-30B-A3B": (30_532_122_624, {
    "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 151_936, "hidden_size": 2048,
    "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "moe_intermediate_size": 768, "num_experts": 128,
    "num_experts_per_tok": 8, "norm_topk_prob": True, "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6, "rope_theta": 1e6,
  }),
  "gpt-oss-20b": (20_914_757_184, {
    "architectures": ["GptOssForCausalLM"], "vocab_size": 201_088, "hidden_size": 2880,
    "intermediate_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32, "attention_bias": True,
    "num_experts_per_tok": 4, "sliding_window": 128, "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5, "rope_theta": 150_000,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                     "truncate": False, "original_max_position_embeddings": 4096},
  }),
  "DeepSeek-V3": (671_026_419_200, {
    "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 129_280, "hidden_size": 7168,
    "intermediate_size": 18_432, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "max_position_embeddings": 163_840, "rms_norm_eps": 1e-6,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "norm_topk_prob": True,
    "routed_scaling_factor": 2.5, "first_k_dense_replace": 3, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "rope_theta": 10_000, "scoring_func": "sigmoid",
    "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1,
                     "mscale": 1.0, "mscale_all_dim": 1.0,
                     "original_max_position_embeddings": 4096},
  }),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_parameters_without_memory(name, tmp_path):
  count, raw = MODELS[name]
  (tmp_path / "config.json").write_text(json.dumps(raw))
  config = families.decoder_config(tmp_path)
  params = jax.eval_shape(functools.partial(decoder.init_params, config), jax.random.key(0))
  assert sum(math.prod(x.shape) for x in jax.tree.leaves(params)) == config.num_params == count
