"""Plain data as JSON and back, in the sandboxes and on the host.

JSON's own values and lists stand for themselves; the rest are objects with one key, their type.
"""

import json
from collections import Counter, OrderedDict, defaultdict

MAX_DEPTH = 50
MAX_JSON_BITS = 10_000  # Python refuses to read longer numbers from decimal digits
SEQUENCES = {tuple: "tuple", set: "set", frozenset: "frozenset"}
MAKERS = {name: kind for kind, name in SEQUENCES.items()}
MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
SCALARS = (bool, int, float, str)


def encode(value, depth=MAX_DEPTH):
  """Raises ValueError for what is not plain; a subclass of a plain type is not plain.

  Equal sets have one encoding. The standard library's dicts become dicts.
  """
  kind = type(value)
  if kind is int and value.bit_length() > MAX_JSON_BITS:
    return {"int": hex(value)}
  if value is None or kind in SCALARS:
    return value
  if depth == 0:
    raise ValueError("nested too deeply")
  if kind is bytes:
    return {"bytes": value.hex()}
  if kind is list:
    return [encode(item, depth - 1) for item in value]
  if kind is tuple:
    return {"tuple": [encode(item, depth - 1) for item in value]}
  if kind in SEQUENCES:
    return {SEQUENCES[kind]: sorted((encode(item, depth - 1) for item in value), key=json.dumps)}
  if kind in MAPPINGS:
    return {"dict": [[encode(k, depth - 1), encode(v, depth - 1)] for k, v in value.items()]}
  raise ValueError("not plain data")


def decode(encoded, depth=MAX_DEPTH):
  """Raises ValueError for what `encode` cannot have made."""
  if encoded is None or isinstance(encoded, SCALARS):
    return encoded
  if depth == 0:
    raise ValueError("nested too deeply")
  if isinstance(encoded, list):
    return [decode(item, depth - 1) for item in encoded]
  if not isinstance(encoded, dict) or len(encoded) != 1:
    raise ValueError("not an object with one key")
  ((name, content),) = encoded.items()
  try:
    if name == "int":
      return int(content, 16)
    if name == "bytes":
      return bytes.fromhex(content)
    if name == "dict":
      return {decode(k, depth - 1): decode(v, depth - 1) for k, v in content}
    return MAKERS[name]([decode(item, depth - 1) for item in content])
  except (KeyError, TypeError) as e:
    raise ValueError(f"not plain data: {e}") from e
