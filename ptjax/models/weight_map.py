"""Where each tensor of a Hugging Face checkpoint lies in the decoder's parameter tree.

The one place that knows both names. A slot's `view` gives, of an array in the stored layout, a
numpy view in the tree's layout: import reads through it, export writes through it.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator

import numpy as np

from ptjax.models.config import DecoderConfig


@dataclasses.dataclass(frozen=True)
class Slot:
  """Where one tensor, or a part of it, goes.

  Attributes:
    path: of the leaf in the tree, below the stack for a layer's.
    shape: in the tree, without the axes that `index` fills.
    stored: shape in the file.
    view: an array of shape `stored` as one of shape `shape`, sharing its memory.
    index: of the layer in its stack, and of the expert; () for the whole leaf.
    lead: sizes of the axes that `index` runs over.
  """

  path: tuple[str, ...]
  shape: tuple[int, ...]
  stored: tuple[int, ...]
  view: Callable[[np.ndarray], np.ndarray]
  index: tuple[int, ...] = ()
  lead: tuple[int, ...] = ()


def vector(path: str, *shape: int) -> Slot:
  """Stored flat, wanted [*shape]."""
  return Slot(tuple(path.split("/")), shape, (math.prod(shape),), lambda w: w.reshape(shape))


def projection(path: str, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Slot:
  """Stored [out, in], wanted [*inputs, *outputs]."""
  stored = (math.prod(outputs), math.prod(inputs))
  order = tuple(range(len(outputs), len(outputs) + len(inputs))) + tuple(range(len(outputs)))
  return Slot(
    tuple(path.split("/")),
    inputs + outputs,
    stored,
    lambda w: w.reshape(outputs + inputs).transpose(order),
  )


def slots(c: DecoderConfig) -> Iterator[tuple[str, Slot]]:
  """(name, slot) of every tensor of the model; a name comes twice where it holds two leaves."""
  table = (c.vocab_size, c.d_model)
  yield "model.embed_tokens.weight", Slot(("embed", "table"), table, table, lambda w: w)
  yield "model.norm.weight", vector("final_norm/scale", c.d_model)
  if not c.tie_embeddings:
    yield "lm_head.weight", projection("lm_head/w", (c.d_model,), (c.vocab_size,))
  first = 0
  for stack, num_layers in c.stacks.items():
    dense = c.moe is None or stack == "first_layers"
    for layer in range(num_layers):
      for name, slot in _layer_slots(c, dense=dense):
        yield (
          f"model.layers.{first + layer}.{name}",
          dataclasses.replace(
            slot,
            path=(stack, *slot.path),
            index=(layer, *slot.index),
            lead=(num_layers, *slot.lead),
          ),
        )
    first += num_layers


def _layer_slots(c: DecoderConfig, *, dense: bool) -> Iterator[tuple[str, Slot]]:
  yield from _norms(c)
  yield from (_attention(c) if c.latent is None else _latent(c))
  if dense:
    yield from _feed_forward("mlp.", "mlp", c.d_model, c.d_ff)
  else:
    yield from _experts(c)


def _norms(c: DecoderConfig) -> Iterator[tuple[str, Slot]]:
  names = {"input_layernorm": "attn_norm", "post_attention_layernorm": "mlp_norm"}
  if c.post_norms:
    names = {
      "input_layernorm": "attn_norm",
      "post_attention_layernorm": "attn_post_norm",
      "pre_feedforward_layernorm": "mlp_norm",
      "post_feedforward_layernorm": "mlp_post_norm",
    }
  for name, path in names.items():
    yield f"{name}.weight", vector(f"{path}/scale", c.d_model)


def _attention(c: DecoderConfig) -> Iterator[tuple[str, Slot]]:
  d, query, key = (c.d_model,), (c.num_heads, c.head_dim), (c.num_kv_heads, c.head_dim)
  for letter, heads in (("q", query), ("k", key), ("v", key)):
    yield f"self_attn.{letter}_proj.weight", projection(f"attn/w{letter}", d, heads)
    if c.qkv_bias:
      yield f"self_attn.{letter}_proj.bias", vector(f"attn/b{letter}", *heads)
  yield "self_attn.o_proj.weight", projection("attn/wo", query, d)
  if c.out_bias:
    yield "self_attn.o_proj.bias", vector("attn/bo", c.d_model)
  if c.qk_norm:
    yield "self_attn.q_norm.weight", vector("attn/q_norm", c.head_dim)
    yield "self_attn.k_norm.weight", vector("attn/k_norm", c.head_dim)
  if c.sinks:
    yield "self_attn.sinks", vector("attn/sinks", c.num_heads)


def _latent(c: DecoderConfig) -> Iterator[tuple[str, Slot]]:
  m, d, heads = c.latents, (c.d_model,), (c.num_heads,)
  if m.query_rank:
    rank = (m.query_rank,)
    yield "self_attn.q_a_proj.weight", projection("attn/wq_down", d, rank)
    yield "self_attn.q_a_layernorm.weight", vector("attn/q_norm", m.query_rank)
    yield "self_attn.q_b_proj.weight", projection("attn/wq", rank, (*heads, c.head_dim))
  else:
    yield "self_attn.q_proj.weight", projection("attn/wq", d, (*heads, c.head_dim))
  rank, width = (m.kv_rank,), m.kv_rank + m.rope_dim
  yield "self_attn.kv_a_proj_with_mqa.weight", projection("attn/wkv_down", d, (width,))
  yield "self_attn.kv_a_layernorm.weight", vector("attn/kv_norm", m.kv_rank)
  expanded = (*heads, m.nope_dim + m.value_dim)
  yield "self_attn.kv_b_proj.weight", projection("attn/wkv", rank, expanded)
  yield "self_attn.o_proj.weight", projection("attn/wo", (*heads, m.value_dim), d)


def _feed_forward(prefix: str, path: str, d_model: int, d_ff: int) -> Iterator[tuple[str, Slot]]:
  d, f = (d_model,), (d_ff,)
  yield f"{prefix}gate_proj.weight", projection(f"{path}/w_gate", d, f)
  yield f"{prefix}up_proj.weight", projection(f"{path}/w_up", d, f)
  yield f"{prefix}down_proj.weight", projection(f"{path}/w_down", f, d)


# Names of an expert's gate, up and down matrices, and of the part of a layer that holds them.
_EXPERT_NAMES = {
  "mixtral": ("block_sparse_moe.", ("w1", "w3", "w2")),
  "qwen3_moe": ("mlp.", ("gate_proj", "up_proj", "down_proj")),
  "deepseek_v3": ("mlp.", ("gate_proj", "up_proj", "down_proj")),
}


def _experts(c: DecoderConfig) -> Iterator[tuple[str, Slot]]:
  if c.family == "gpt_oss":
    yield from _fused_experts(c)
    return
  m, d, f = c.experts, (c.d_model,), (c.experts.d_ff,)
  prefix, (gate, up, down) = _EXPERT_NAMES[c.family]
  yield f"{prefix}gate.weight", projection("mlp/router", d, (m.num_experts,))
  if m.scoring == "sigmoid":
    yield f"{prefix}gate.e_score_correction_bias", vector("mlp/correction", m.num_experts)
  for expert in range(m.num_experts):
    for name, slot in (
      (gate, projection("mlp/e_gate", d, f)),
      (up, projection("mlp/e_up", d, f)),
      (down, projection("mlp/e_down", f, d)),
    ):
      placed = dataclasses.replace(slot, index=(expert,), lead=(m.num_experts,))
      yield f"{prefix}experts.{expert}.{name}.weight", placed
  if m.shared_d_ff:
    yield from _feed_forward(f"{prefix}shared_experts.", "mlp/shared", c.d_model, m.shared_d_ff)


def _fused_experts(c: DecoderConfig) -> Iterator[tuple[str, Slot]]:
  """GPT-OSS: all experts in one tensor [E, in, out], columns of gate and up interleaved."""
  m, d, f = c.experts, c.d_model, c.experts.d_ff
  e = m.num_experts
  yield "mlp.router.weight", projection("mlp/router", (d,), (e,))
  yield "mlp.router.bias", vector("mlp/router_bias", e)
  for offset, part in enumerate(("gate", "up")):

    def every_other(w, offset=offset):
      return w[..., offset::2]

    name = "mlp.experts.gate_up_proj"
    yield name, Slot(("mlp", f"e_{part}"), (e, d, f), (e, d, 2 * f), every_other)
    yield f"{name}_bias", Slot(("mlp", f"{part}_bias"), (e, f), (e, 2 * f), every_other)
  down, bias = (e, f, d), (e, d)
  yield "mlp.experts.down_proj", Slot(("mlp", "e_down"), down, down, lambda w: w)
  yield "mlp.experts.down_proj_bias", Slot(("mlp", "down_bias"), bias, bias, lambda w: w)
