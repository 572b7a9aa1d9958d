"""GGUF: dequantisation by hand, the rotary layout, and files that are broken in every way."""

import pathlib
import struct

import gguf as gguf_library
import numpy as np
import pytest

from ptjax.models import gguf, huggingface
from ptjax.models.importer import load_pretrained

TINY = pathlib.Path(__file__).parent / "fixtures" / "tiny_llama"
Kind = gguf_library.GGMLQuantizationType

NAMES = {
  "model.embed_tokens.weight": "token_embd.weight",
  "model.norm.weight": "output_norm.weight",
  "lm_head.weight": "output.weight",
  "input_layernorm": "attn_norm",
  "self_attn.q_proj": "attn_q",
  "self_attn.k_proj": "attn_k",
  "self_attn.v_proj": "attn_v",
  "self_attn.o_proj": "attn_output",
  "post_attention_layernorm": "ffn_norm",
  "mlp.gate_proj": "ffn_gate",
  "mlp.up_proj": "ffn_up",
  "mlp.down_proj": "ffn_down",
  "model.layers": "blk",
}


def gguf_name(name: str) -> str:
  for old, new in NAMES.items():
    name = name.replace(old, new)
  return name


def paired_rows(weight: np.ndarray, heads: int) -> np.ndarray:
  """The reordering that the converter of llama.cpp applies to query and key rows."""
  half = weight.shape[0] // heads // 2
  return np.stack(
    [weight[h * 2 * half + j * half + i] for h in range(heads) for i in range(half) for j in (0, 1)]
  )


def write_tiny(path: pathlib.Path, kind=Kind.F32, skip=(), extra=None, metadata=None):
  """The tiny Hugging Face checkpoint as GGUF; rows that fit no block stay float32."""
  values = {
    "block_count": 2,
    "context_length": 64,
    "embedding_length": 32,
    "feed_forward_length": 40,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 12,
    "attention.value_length": 12,
    "rope.dimension_count": 12,
    "rope.freq_base": 500.0,
    "attention.layer_norm_rms_epsilon": 1e-6,
  } | (metadata or {})
  writer = gguf_library.GGUFWriter(path, values.pop("architecture", "llama"))
  for key, value in values.items():
    add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
    add(f"llama.{key}", value)
  heads = {"q_proj": 4, "k_proj": 2}
  for name, stored in [*huggingface.stream_tensors(TINY), *(extra or {}).items()]:
    if name in skip:
      continue
    count = next((count for part, count in heads.items() if part in name), None)
    weight = stored if count is None else paired_rows(stored, count)
    block = gguf_library.GGML_QUANT_SIZES[kind][0]
    used = kind if weight.ndim == 2 and weight.shape[-1] % block == 0 else Kind.F32
    data = gguf_library.quantize(weight, used)
    writer.add_tensor(gguf_name(name), data, raw_dtype=used)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path


def leaves(tree, path=""):
  for key, value in tree.items():
    if isinstance(value, dict):
      yield from leaves(value, f"{path}{key}/")
    else:
      yield path + key, value


def test_rotate_half_layout_by_hand():
  rows = np.arange(8)[:, None]  # two heads of width 4
  np.testing.assert_array_equal(gguf.rotate_half_layout(rows, 2)[:, 0], [0, 2, 1, 3, 4, 6, 5, 7])


def test_float32_file_equals_the_huggingface_directory(tmp_path):
  got = load_pretrained(str(write_tiny(tmp_path / "tiny.gguf")))
  want = load_pretrained(str(TINY))
  # float32 metadata: the norm epsilon is the nearest float32
  assert got.config.norm_eps == pytest.approx(want.config.norm_eps, rel=1e-7)
  fields = ("vocab_size", "d_model", "num_layers", "num_heads", "num_kv_heads", "head_dim", "d_ff",
            "rope_theta", "tie_embeddings", "max_position")  # fmt: skip
  assert [getattr(got.config, f) for f in fields] == [getattr(want.config, f) for f in fields]
  expected = dict(leaves(want.params))
  for name, value in leaves(got.params):
    np.testing.assert_array_equal(value, expected.pop(name), err_msg=name)
  assert not expected


# Half a quantisation step, relative to the largest weight of a block.
@pytest.mark.parametrize(
  ("kind", "tolerance"),
  [(Kind.F16, 2**-11), (Kind.BF16, 2**-8), (Kind.Q8_0, 1 / 250), (Kind.Q4_1, 1 / 14)],
)
def test_quantised_files_are_near(tmp_path, kind, tolerance):
  got = dict(leaves(load_pretrained(str(write_tiny(tmp_path / "tiny.gguf", kind))).params))
  for name, want in leaves(load_pretrained(str(TINY)).params):
    assert got[name].dtype == np.float32
    np.testing.assert_allclose(got[name], want, rtol=0, atol=tolerance * np.abs(want).max())
  wq = next(v for k, v in leaves(load_pretrained(str(TINY)).params) if k.endswith("wq"))
  assert not np.array_equal(got["layers/attn/wq"], wq)  # it was quantised at all


def test_blocks_by_hand(tmp_path):
  codes = np.arange(32)
  q8 = np.float16(0.5).tobytes() + (codes - 16).astype(np.int8).tobytes()
  nibbles = (codes[:16] % 16) | ((15 - codes[:16] % 16) << 4)  # low half first, then high
  q4 = np.float16(0.25).tobytes() + np.float16(-1).tobytes() + nibbles.astype(np.uint8).tobytes()
  path = tmp_path / "blocks.gguf"
  writer = gguf_library.GGUFWriter(path, "llama")
  for name, raw, kind in (("q8", q8, Kind.Q8_0), ("q4", q4, Kind.Q4_1)):
    writer.add_tensor(name, np.frombuffer(raw, np.uint8)[None], raw_dtype=kind)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  header = gguf.read_header(path)
  np.testing.assert_array_equal(gguf.read_tensor(header, "q8")[0], (codes - 16) * 0.5)
  ramp = np.arange(16)
  expected = np.concatenate([ramp, 15 - ramp]) * 0.25 - 1
  np.testing.assert_array_equal(gguf.read_tensor(header, "q4")[0], expected)


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"skip": ("lm_head.weight", "model.layers.1.mlp.up_proj.weight")}, "layers.1.mlp.up_proj"),
    ({"extra": {"model.layers.0.self_attn.q.bias": np.zeros(48, np.float32)}}, "not supported"),
    ({"extra": {"rope_freqs.weight": np.zeros(6, np.float32)}}, "rope_freqs"),
    ({"extra": {"model.layers.2.mlp.up_proj.weight": np.zeros((40, 32), np.float32)}}, "layers.2"),
    ({"metadata": {"feed_forward_length": 44}}, r"gate_proj.*\(40, 32\).*\(44, 32\)"),
    ({"metadata": {"block_count": 2**31}}, "layers.2"),
    ({"metadata": {"attention.head_count": 0}}, "attention.head_count"),
    ({"metadata": {"architecture": "mamba"}}, "architecture 'mamba'"),
    ({"metadata": {"rope.scaling.type": "yarn"}}, "rope scaling 'yarn'"),
    ({"metadata": {"rope.dimension_count": 6}}, "rope.dimension_count"),
    ({"metadata": {"expert_count": 8}}, "8 experts"),
  ],
)
def test_unsupported_or_incomplete_file(tmp_path, options, message):
  path = write_tiny(tmp_path / "tiny.gguf", **options)
  with pytest.raises(ValueError, match=message) as error:
    load_pretrained(str(path))
  assert str(path) in str(error.value)
  assert "\n" not in str(error.value)


def test_truncated_anywhere(tmp_path):
  whole = write_tiny(tmp_path / "tiny.gguf").read_bytes()
  path = tmp_path / "cut.gguf"
  for size in [0, 3, 4, 7, 8, 20, *range(24, len(whole) - 32, 997)]:
    path.write_bytes(whole[:size])
    with pytest.raises(ValueError, match=r"not a sound GGUF file.*download it again"):
      load_pretrained(str(path))


def test_damaged_header_is_a_value_error_or_harmless(tmp_path):
  """A flipped byte may go unseen (a name, a weight) but never ends in another exception."""
  whole = bytearray(write_tiny(tmp_path / "tiny.gguf").read_bytes())
  header = gguf.read_header(tmp_path / "tiny.gguf")
  end = min(info.offset for info in header.tensors.values())
  random = np.random.default_rng(0)
  path = tmp_path / "damaged.gguf"
  refused = 0
  for position in random.integers(0, end, 150):
    damaged = whole.copy()
    damaged[position] ^= 1 << random.integers(8)
    path.write_bytes(damaged)
    try:
      load_pretrained(str(path))
    except ValueError:
      refused += 1
  assert refused > 75


def test_absurd_lengths_do_not_allocate(tmp_path):
  path = tmp_path / "absurd.gguf"
  path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2**62, 2**62) + struct.pack("<Q", 2**63))
  with pytest.raises(ValueError, match="past the end"):
    gguf.read_header(path)
