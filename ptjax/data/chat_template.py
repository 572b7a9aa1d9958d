"""Renders conversations with the model's own jinja2 template, in a sandbox.

Templates arrive inside model files, so they are untrusted code; message contents arrive from
users and tools, so they are untrusted text. The environment is the one that `transformers`
gives to templates, and text in a message can never become a control token.
"""

import dataclasses
import datetime
import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import jinja2
import jinja2.ext
import jinja2.sandbox
import numpy as np

from ptjax.data.tokenizer import Tokenizer

Message = Mapping[str, Any]

# What a template's own expressions can raise on a conversation it was not written for.
_TEMPLATE_ERRORS = (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError)


class _GenerationTag(jinja2.ext.Extension):
  """`{% generation %}...{% endgeneration %}` marks the assistant's text; it renders its body."""

  tags = {"generation"}  # noqa: RUF012  as the base class declares it

  def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
    next(parser.stream)
    return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
  raise jinja2.TemplateError(message)


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
  # jinja2's own filter escapes HTML, which models were not trained on.
  return json.dumps(
    value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
  )


@functools.lru_cache(maxsize=16)
def _compile(source: str) -> jinja2.Template:
  environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
  )
  environment.filters["tojson"] = _tojson
  cast(dict[str, Any], environment.globals)["raise_exception"] = _raise_exception
  try:
    return environment.from_string(source)
  except jinja2.TemplateSyntaxError as error:
    raise ValueError(f"chat template, line {error.lineno}: {error.message}") from error


def _strings(value: Any) -> list[str]:
  """All strings inside messages or tool schemas."""
  if isinstance(value, str):
    return [value]
  if isinstance(value, Mapping):
    return [s for item in value.items() for s in _strings(item)]
  if isinstance(value, Sequence):
    return [s for item in value for s in _strings(item)]
  return []


def _map_strings(value: Any, change) -> Any:
  if isinstance(value, str):
    return change(value)
  if isinstance(value, Mapping):
    return {change(k): _map_strings(v, change) for k, v in value.items()}
  if isinstance(value, Sequence):
    return [_map_strings(v, change) for v in value]
  return value


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
  """A tokenizer with the template that its model was trained on.

  Attributes:
    tokenizer: gives the template and the control tokens.
    today: what `strftime_now` shows to templates that print the date; the clock where None.
      Set it, and a resumed run renders the prompts of the first day.

  Raises:
    ValueError: the tokenizer has no template, or one with a syntax error.
  """

  tokenizer: Tokenizer
  today: datetime.datetime | None = None

  def __post_init__(self):
    if self.tokenizer.chat_template is None:
      raise ValueError("the model has no chat template; use an instruction-tuned model")
    _compile(self.tokenizer.chat_template)

  def _token_text(self, token_id: int | None) -> str | None:
    return None if token_id is None else self.tokenizer.decode([token_id])

  def render(
    self,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
  ) -> str:
    """The conversation as text, equal to `apply_chat_template(tokenize=False)` of transformers.

    Args:
      messages: in order, each with at least `role` and `content`.
      add_generation_prompt: end with the header of the assistant's turn.
      tools: JSON schemas, for templates that show them.

    Raises:
      ValueError: the template refuses the conversation, or fails on it.
    """
    if not messages:
      raise ValueError("an empty conversation has nothing to render; pass a message")
    names = {
      "bos_token": self._token_text(self.tokenizer.bos_id),
      "eos_token": self._token_text(next(iter(self.tokenizer.eos_ids), None)),
      "pad_token": self._token_text(self.tokenizer.pad_id),
    }

    def strftime_now(form: str) -> str:
      return (self.today or datetime.datetime.now()).strftime(form)

    try:
      return _compile(self.tokenizer.chat_template).render(
        messages=messages,
        tools=tools,
        documents=None,
        add_generation_prompt=add_generation_prompt,
        strftime_now=strftime_now,
        **{name: text for name, text in names.items() if text is not None},
      )
    except _TEMPLATE_ERRORS as error:
      raise ValueError(f"the chat template cannot render this conversation: {error}") from error

  def encode(
    self,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    refuse_control_text: bool = False,
  ) -> np.ndarray:
    """Token ids, i32[T]: control tokens of the template are parsed, those in messages never.

    Control text inside messages or tools (`<|im_end|>` typed by a user) is encoded as ordinary
    characters. Before rendering each is replaced by a placeholder in a private-use character
    that occurs nowhere in the input; what is found in the rendered text is the template's own.
    Without such text the ids equal those of transformers.

    Args:
      messages, add_generation_prompt, tools: see `render`.
      refuse_control_text: raise instead.

    Raises:
      ValueError: see `render`; or control text with `refuse_control_text`.
    """
    pattern, special = self.tokenizer.special_pattern, self.tokenizer.special_tokens
    texts = _strings([messages, tools])
    if refuse_control_text:
      for text in texts:
        if found := pattern.search(text):
          raise ValueError(f"control token {found[0]!r} in the text {text!r}; remove it")
    everything = "".join(texts)
    mark = next(c for c in map(chr, range(0xE000, 0xF900)) if c not in everything)

    def hide(text: str) -> str:
      return pattern.sub(lambda m: f"{mark}{special[m[0]]}{mark}", text)

    def show(text: str) -> str:
      return re.sub(f"{mark}([0-9]+){mark}", lambda m: self.tokenizer.decode([int(m[1])]), text)

    rendered = self.render(
      _map_strings(messages, hide),
      add_generation_prompt=add_generation_prompt,
      tools=None if tools is None else _map_strings(tools, hide),
    )
    pieces = [
      self.tokenizer.encode(show(text)) if i is None else np.asarray([i], np.int32)
      for text, i in self.tokenizer.segments(rendered)
    ]
    return np.concatenate([np.zeros(0, np.int32), *pieces])
