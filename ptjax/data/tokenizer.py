"""Tokenizer: text to token ids and back, for byte-level BPE vocabularies.

Two rules differ from the usual wrappers, both for safety. Control tokens such as `<|im_end|>`
are recognised only where the caller says that the text is trusted, so that a user's text cannot
end its own turn. And decoding joins the bytes of the tokens, so that a stream of tokens and the
whole sequence give the same text, whatever UTF-8 sequences the tokens cut.
"""

import codecs
import dataclasses
import functools
import hashlib
import json
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers

from ptjax.models import gguf, huggingface

# Types of tokens in GGUF metadata: the rest are ordinary vocabulary.
_CONTROL, _USER_DEFINED = 3, 4

_GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_BYTES = {**_GPT2, "use_regex": False}
_LLAMA3_WORDS = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _sequence(*steps: dict[str, Any]) -> dict[str, Any]:
  return {"type": "Sequence", "pretokenizers": list(steps)}


# How text is cut into words before merging, by the GGUF key `tokenizer.ggml.pre`.
_PRE_TOKENIZERS = {
  "gpt-2": _GPT2,
  "smollm": _sequence({"type": "Digits", "individual_digits": True}, _GPT2),
  "llama-bpe": _sequence(
    {"type": "Split", "pattern": {"Regex": _LLAMA3_WORDS}, "behavior": "Isolated", "invert": False},
    _BYTES,
  ),
}

_BYTE_SPECIALS = ("<|pad|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>")
_BYTE_CHAT_TEMPLATE = (
  "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
  "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@functools.cache
def _byte_of_character() -> dict[str, int]:
  """Byte-level alphabet (GPT-2): printable bytes stand for themselves, the rest for 256+n."""
  printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
  others = [b for b in range(256) if b not in printable]
  return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}


def _token_bytes(token: str) -> bytes:
  """What a vocabulary entry stands for; added tokens outside the alphabet stand for their text."""
  alphabet = _byte_of_character()
  if all(c in alphabet for c in token):
    return bytes(alphabet[c] for c in token)
  return token.encode("utf-8")


@dataclasses.dataclass(frozen=True)
class Tokenizer:
  """An immutable, picklable byte-level tokenizer.

  Attributes:
    definition: text of a `tokenizer.json`.
    bos_id: beginning of text, None where the model has none. Never added by `encode`.
    eos_ids: tokens that end a generation.
    pad_id: None where the model has none. It may be one of `eos_ids`, as it is in SmolLM2: tell
      padding from text by lengths and masks, never by comparing ids.
    chat_template: jinja2 source, None where the model has none.

  Raises:
    ValueError: the definition is unreadable, not byte-level, or names impossible ids.
  """

  definition: str
  bos_id: int | None
  eos_ids: tuple[int, ...]
  pad_id: int | None
  chat_template: str | None = None

  def __post_init__(self):
    decoder = json.loads(self.definition).get("decoder") or {}
    kinds = {decoder.get("type"), *(d.get("type") for d in decoder.get("decoders", ()))}
    if "ByteLevel" not in kinds:
      raise ValueError(f"the tokenizer decodes by {sorted(map(str, kinds))}, expected ByteLevel")
    for name, ids in (("bos", (self.bos_id,)), ("eos", self.eos_ids), ("pad", (self.pad_id,))):
      if bad := [i for i in ids if i is not None and not 0 <= i < self.vocab_size]:
        raise ValueError(f"{name} token id {bad[0]} is outside the vocabulary of {self.vocab_size}")
    for token in self._backend.get_added_tokens_decoder().values():
      if token.special and (token.lstrip or token.rstrip or token.single_word):
        raise ValueError(f"control token {token.content!r} swallows its neighbours; unsupported")

  def __reduce__(self):
    # Without the cached backends, which are rebuilt where they are needed.
    return Tokenizer, tuple(getattr(self, f.name) for f in dataclasses.fields(self))

  @functools.cached_property
  def _backend(self) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer.from_str(self.definition)
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True  # control tokens are found by `segments` alone
    return backend

  @functools.cached_property
  def _bytes(self) -> dict[int, bytes]:
    return {i: _token_bytes(t) for t, i in self._backend.get_vocab(with_added_tokens=True).items()}

  @functools.cached_property
  def special_tokens(self) -> Mapping[str, int]:
    """Control tokens: text -> id."""
    added = self._backend.get_added_tokens_decoder()
    return {token.content: i for i, token in sorted(added.items()) if token.special}

  @functools.cached_property
  def special_pattern(self) -> re.Pattern[str]:
    """Matches one control token, the longest that fits; nothing where there are none."""
    longest_first = sorted(self.special_tokens, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

  @functools.cached_property
  def vocab_size(self) -> int:
    """Number of ids. A model's embedding may have more rows than that, never fewer."""
    return max(self._backend.get_vocab(with_added_tokens=True).values()) + 1

  @functools.cached_property
  def content_hash(self) -> str:
    """sha256, hexadecimal, of all fields; for the run manifest."""
    return hashlib.sha256(json.dumps(dataclasses.astuple(self)).encode()).hexdigest()

  def segments(self, text: str) -> Iterator[tuple[str, int | None]]:
    """Cuts trusted text into (control token, its id) and (ordinary text, None), in order."""
    end = 0
    for match in self.special_pattern.finditer(text):
      if match.start() > end:
        yield text[end : match.start()], None
      yield match[0], self.special_tokens[match[0]]
      end = match.end()
    if end < len(text):
      yield text[end:], None

  def encode(self, text: str, *, parse_special: bool = False) -> np.ndarray:
    """Token ids, i32[T]; no beginning- or end-of-text token is added.

    Args:
      text: any text.
      parse_special: recognise control tokens. Only for trusted text; by default
        `<|im_end|>` is nine ordinary characters. For conversations, see `chat_template.py`.
    """
    parts = self.segments(text) if parse_special else [(text, None)]
    ids = [[i] if i is not None else self._backend.encode(part, add_special_tokens=False).ids
           for part, i in parts]  # fmt: skip
    return np.asarray([i for part in ids for i in part], np.int32)

  def token_bytes(self, token_id: int) -> bytes:
    """UTF-8 bytes of one token, often a fragment of a character.

    Ids between `vocab_size` and the rows of a padded embedding stand for nothing.
    """
    return self._bytes.get(int(token_id), b"")

  def decode(self, ids: Sequence[int] | np.ndarray, *, skip_special: bool = False) -> str:
    """Text of `ids`; bytes that are no UTF-8 become U+FFFD. `skip_special` drops control tokens."""
    skipped = set(self.special_tokens.values()) if skip_special else ()
    return b"".join(self.token_bytes(i) for i in ids if int(i) not in skipped).decode(
      "utf-8", errors="replace"
    )


class IncrementalDecoder:
  """Decodes a stream of tokens; pieces join to exactly `Tokenizer.decode` of all ids."""

  def __init__(self, tokenizer: Tokenizer):
    self._tokenizer = tokenizer
    self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

  def push(self, token_id: int) -> str:
    """Text that `token_id` completes; characters still incomplete are held back."""
    return self._utf8.decode(self._tokenizer.token_bytes(token_id))

  def finish(self) -> str:
    """What was held back, as U+FFFD."""
    return self._utf8.decode(b"", final=True)


class StopMatcher:
  """Finds stop strings in a stream of tokens, across any token boundary.

  It compares bytes: UTF-8 is self-synchronising, so a byte match is a character match.
  """

  def __init__(self, tokenizer: Tokenizer, stop_strings: Sequence[str]):
    if not all(stop_strings):
      raise ValueError("an empty stop string matches everywhere; remove it")
    self._tokenizer = tokenizer
    self._stops = tuple(s.encode("utf-8") for s in stop_strings)
    self._keep = max(map(len, self._stops), default=1) - 1
    self._tail = b""

  def push(self, token_id: int) -> bool:
    """Whether a stop string ends within `token_id`."""
    seen, new = len(self._tail), self._tokenizer.token_bytes(token_id)
    window = self._tail + new
    self._tail = window[max(0, len(window) - self._keep) :]
    # Only matches that end in the new bytes: the tail may hold an older, shorter one.
    return any(window.find(stop, max(0, seen - len(stop) + 1)) >= 0 for stop in self._stops)


def _bpe_definition(
  tokens: Sequence[str],
  merges: Sequence[str],
  added: Mapping[int, bool],
  pre_tokenizer: Mapping[str, Any],
  ignore_merges: bool = False,
) -> str:
  """A `tokenizer.json`. `added` maps ids of added tokens to whether they are control tokens."""
  flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
  return json.dumps({
    "version": "1.0",
    "added_tokens": [
      {"id": i, "content": tokens[i], **flags, "special": special} for i, special in added.items()
    ],
    "pre_tokenizer": pre_tokenizer,
    "decoder": _GPT2,
    "model": {
      "type": "BPE",
      "ignore_merges": ignore_merges,
      "vocab": {token: i for i, token in enumerate(tokens)},
      "merges": [merge.split(" ") for merge in merges],
    },
  })  # fmt: skip


def _from_gguf(path: pathlib.Path) -> Tokenizer:
  metadata = gguf.read_header(path).metadata
  kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
  if kind != "gpt2" or pre not in _PRE_TOKENIZERS:
    raise ValueError(
      f"{path}: tokenizer {kind!r} with pre-tokenizer {pre!r} is not supported (have 'gpt2' with "
      f"{sorted(_PRE_TOKENIZERS)}); use the Hugging Face directory of this model"
    )
  try:
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = metadata["tokenizer.ggml.merges"]
    types = metadata["tokenizer.ggml.token_type"]
  except KeyError as error:
    raise ValueError(f"{path}: metadata {error} is missing; convert the model again") from error
  if len(types) != len(tokens) or len(set(tokens)) != len(tokens):
    raise ValueError(f"{path}: {len(tokens)} tokens ({len(set(tokens))} distinct), {len(types)} "
                     "types; convert the model again")  # fmt: skip
  added = {i: t == _CONTROL for i, t in enumerate(types) if t in (_CONTROL, _USER_DEFINED)}
  ends = (metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot"))
  return Tokenizer(
    _bpe_definition(tokens, merges, added, _PRE_TOKENIZERS[pre], pre == "llama-bpe"),
    bos_id=metadata.get("tokenizer.ggml.bos_token_id"),
    eos_ids=tuple(dict.fromkeys(i for i in ends if i is not None)),
    pad_id=metadata.get("tokenizer.ggml.padding_token_id"),
    chat_template=metadata.get("tokenizer.chat_template"),
  )


def _optional_json(path: pathlib.Path) -> dict[str, Any]:
  return huggingface.read_json(path) if path.exists() else {}


def _from_directory(directory: pathlib.Path) -> Tokenizer:
  definition = huggingface.read_json(directory / "tokenizer.json")
  options = _optional_json(directory / "tokenizer_config.json")
  ids = {t["content"]: t["id"] for t in definition.get("added_tokens", ())}

  def id_of(key: str) -> int | None:
    token = options.get(key)
    token = token["content"] if isinstance(token, dict) else token
    if token is not None and token not in ids:
      raise ValueError(f"{directory}: {key} {token!r} is not an added token of tokenizer.json")
    return None if token is None else ids[token]

  ends = _optional_json(directory / "generation_config.json").get("eos_token_id")
  ends = [ends] if isinstance(ends, int) else list(ends or [])
  if (eos := id_of("eos_token")) is not None:
    ends.append(eos)
  template = options.get("chat_template")
  if isinstance(template, list):  # several, by name
    template = {t["name"]: t["template"] for t in template}.get("default")
  if (file := directory / "chat_template.jinja").exists():
    template = file.read_text("utf-8")
  return Tokenizer(
    json.dumps(definition),
    bos_id=id_of("bos_token"),
    eos_ids=tuple(dict.fromkeys(ends)),
    pad_id=id_of("pad_token"),
    chat_template=template,
  )


def load_tokenizer(source: pathlib.Path) -> Tokenizer:
  """Tokenizer of a GGUF file or of a Hugging Face directory with a `tokenizer.json`.

  Args:
    source: `Pretrained.tokenizer_source`, see `ptjax.models.importer`.

  Raises:
    ValueError: missing or damaged files, or a tokenizer that is not byte-level BPE.
  """
  return _from_directory(source) if source.is_dir() else _from_gguf(source)


def byte_tokenizer() -> Tokenizer:
  """A tokenizer for tiny models: ids 0-255 are bytes, 256-259 four control tokens.

  Conversations render as in SmolLM2, without a default system message.
  """
  character = {b: c for c, b in _byte_of_character().items()}
  tokens = [*(character[b] for b in range(256)), *_BYTE_SPECIALS]
  ids = {token: i for i, token in enumerate(tokens) if i >= 256}
  return Tokenizer(
    _bpe_definition(tokens, (), dict.fromkeys(ids.values(), True), _BYTES),
    bos_id=None,
    eos_ids=(ids["<|im_end|>"], ids["<|endoftext|>"]),
    pad_id=ids["<|pad|>"],
    chat_template=_BYTE_CHAT_TEMPLATE,
  )
