"""Durations as people write them."""


def minutes(text):
  """Minutes of a duration like 7:30 or 45 (minutes alone); raises ValueError for any other text.

  The minutes after a colon are two digits below 60.
  """
  hours, colon, rest = text.strip().partition(":")
  if not colon:
    return int(hours)
  if not rest.isdigit() or int(rest) > 60:
    raise ValueError(f"no duration: {text!r}")
  return int(hours) * 60 + int(rest)


def shown(count):
  """The duration of so many minutes, as 7:05; a negative one has its sign in front, as -0:30."""
  return f"{count // 60}:{count % 60:02d}"
