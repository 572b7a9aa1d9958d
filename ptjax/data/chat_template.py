"""Renders conversations with the model's own jinja2 template, in a sandbox.

Templates arrive inside model files, so they are untrusted code; message contents arrive from
users and tools, so they are untrusted text. The environment is the one that `transformers`
gives to templates, and text in a message can never become a control token.
"""

import dataclasses
import datetime
import functools
import itertools
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

_GENERATION_BEGIN, _GENERATION_END = "ptjax_generation_begin", "ptjax_generation_end"

# What a template's own expressions can raise on a conversation it was not written for.
_TEMPLATE_ERRORS = (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError)


class _GenerationTag(jinja2.ext.Extension):
  """`{% generation %}...{% endgeneration %}` marks the assistant's text; it renders its body.

  Around the body stand two variables that are undefined, and so nothing, unless `render` is
  asked to mark what the tags enclose.
  """

  tags = {"generation"}  # noqa: RUF012  as the base class declares it

  def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
    line = next(parser.stream).lineno
    body = parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def mark(name: str) -> jinja2.nodes.Node:
      return jinja2.nodes.Output([jinja2.nodes.Name(name, "load")], lineno=line)

    return [mark(_GENERATION_BEGIN), *body, mark(_GENERATION_END)]


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


def strings(value: Any) -> list[str]:
  """All strings inside messages or tool schemas."""
  if isinstance(value, str):
    return [value]
  if isinstance(value, Mapping):
    return [s for item in value.items() for s in strings(item)]
  if isinstance(value, Sequence):
    return [s for item in value for s in strings(item)]
  return []


def private_characters(value: Any, count: int) -> list[str]:
  """Characters of Unicode's private-use area that occur in no string inside `value`."""
  everything = set("".join(strings(value)))
  free = (c for c in map(chr, range(0xE000, 0xF900)) if c not in everything)
  return list(itertools.islice(free, count))


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
    generation_marks: tuple[str, str] | None = None,
  ) -> str:
    """The conversation as text, equal to `apply_chat_template(tokenize=False)` of transformers.

    Args:
      messages: in order, each with at least `role` and `content`.
      add_generation_prompt: end with the header of the assistant's turn.
      tools: JSON schemas, for templates that show them.
      generation_marks: what to write before and after the body of `{% generation %}` blocks.

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

    if generation_marks is not None:
      names |= dict(zip((_GENERATION_BEGIN, _GENERATION_END), generation_marks, strict=True))

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
    if refuse_control_text:
      for text in strings([messages, tools]):
        if found := self.tokenizer.special_pattern.search(text):
          raise ValueError(f"control token {found[0]!r} in the text {text!r}; remove it")
    quoted = self.quote(messages, tools)
    return quoted.encode(
      self.render(quoted.messages, add_generation_prompt=add_generation_prompt, tools=quoted.tools)
    )

  def quote(
    self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
  ) -> "Quoted":
    """The conversation with its control text hidden from the template; see `Quoted`."""
    (mark,) = private_characters([messages, tools], 1)
    pattern, special = self.tokenizer.special_pattern, self.tokenizer.special_tokens

    def hide(text: str) -> str:
      return pattern.sub(lambda m: f"{mark}{special[m[0]]}{mark}", text)

    return Quoted(
      tokenizer=self.tokenizer,
      messages=_map_strings(messages, hide),
      tools=None if tools is None else _map_strings(tools, hide),
      mark=mark,
    )


@dataclasses.dataclass(frozen=True)
class Quoted:
  """A conversation to render whose control text is hidden behind placeholders.

  Attributes:
    tokenizer: encodes what was rendered.
    messages, tools: to be rendered; each control text is `mark`, its token's id, `mark`.
    mark: a private-use character that occurs nowhere in the conversation.
  """

  tokenizer: Tokenizer
  messages: Sequence[Message]
  tools: Sequence[Mapping[str, Any]] | None
  mark: str

  def encode(self, rendered: str) -> np.ndarray:
    """Token ids, i32[T], of rendered text or a part of it that cuts no placeholder."""

    def show(text: str) -> str:
      number = f"{self.mark}([0-9]+){self.mark}"
      return re.sub(number, lambda m: self.tokenizer.decode([int(m[1])]), text)

    pieces = [
      self.tokenizer.encode(show(text)) if i is None else np.asarray([i], np.int32)
      for text, i in self.tokenizer.segments(rendered)
    ]
    return np.concatenate([np.zeros(0, np.int32), *pieces])
