"""A tokenizer as the files of a Hugging Face directory."""

import json
import pathlib

from ptjax.data.tokenizer import Tokenizer


def write_tokenizer(tokenizer: Tokenizer, directory: pathlib.Path) -> None:
  """Writes `tokenizer.json`, `tokenizer_config.json` and `generation_config.json`.

  `load_tokenizer` of the directory gives the same tokenizer back.
  """
  definition = json.loads(tokenizer.definition)
  added = {token["id"]: token["content"] for token in definition.get("added_tokens", ())}
  ends = tokenizer.eos_ids[:1]
  special = {"bos_token": tokenizer.bos_id, "pad_token": tokenizer.pad_id}
  special |= {"eos_token": ends[0] if ends else None}
  options = {name: added[i] for name, i in special.items() if i is not None}
  options["tokenizer_class"] = "PreTrainedTokenizerFast"
  if tokenizer.chat_template is not None:
    options["chat_template"] = tokenizer.chat_template
  generation = {"eos_token_id": list(tokenizer.eos_ids)}
  for name, value in (
    ("tokenizer.json", definition),
    ("tokenizer_config.json", options),
    ("generation_config.json", generation),
  ):
    (directory / name).write_text(json.dumps(value, indent=1, ensure_ascii=False), "utf-8")
