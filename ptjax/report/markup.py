"""HTML in which everything is escaped by construction: text becomes markup only through `el`."""

import html


class Markup(str):
  """Text that is HTML already. Only `el` and the renderers of figures make it."""

  __slots__ = ()


def el(tag: str, *children: str, cls: str = "", **attributes: str) -> Markup:
  """`<tag …>children</tag>`; a child or attribute that is not `Markup` is escaped.

  Control characters, which HTML forbids, show as U+FFFD; lone surrogates too, as they have no
  UTF-8 form.
  """
  attributes = ({"class": cls} if cls else {}) | attributes
  opening = "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())
  body = "".join(child if isinstance(child, Markup) else escape(child) for child in children)
  return Markup(f"<{tag}{opening}>{body}</{tag}>")


def escape(text: str) -> str:
  visible = (c if c >= " " or c in "\n\t" else "\ufffd" for c in text)
  shown = "".join("\ufffd" if "\ud800" <= c <= "\udfff" or c == "\x7f" else c for c in visible)
  return html.escape(shown)


def join(*parts: str) -> Markup:
  """Markup pieces one after the other; empty ones vanish."""
  if any(part and not isinstance(part, Markup) for part in parts):
    raise TypeError("join takes markup; wrap text in el()")
  return Markup("".join(parts))
