"""Rotary settings of a `config.json`, in every spelling that is in use.

Old files have `rope_theta` and `rope_scaling` with `type`, newer ones `rope_type`; the newest
keep all in `rope_parameters`, which may hold one entry for each type of layer.
"""

import math
import pathlib
from collections.abc import Mapping
from typing import Any

from ptjax.models.rotary import KINDS, RopeScaling, yarn_magnitude

_LAYER_TYPES = {"full_attention", "sliding_attention"}
_YARN = {"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}
# Keys of each kind: those that must be there, and those that may.
_KEYS = {
  "linear": ({"factor"}, set()),
  "dynamic": ({"factor"}, set()),
  "yarn": ({"factor"}, _YARN),
  "llama3": ({"factor", "low_freq_factor", "high_freq_factor"}, set()),
  "longrope": ({"short_factor", "long_factor"}, {"factor", "attention_factor"}),
}
# Some files repeat this for kinds that have no use for it.
_ORIGINAL = "original_max_position_embeddings"


class Rope:
  """One rotary embedding: `theta`, `scaling`, and the keys it was read from (`options`)."""

  def __init__(self, theta: float, scaling: RopeScaling | None, options: Mapping[str, Any]):
    self.theta, self.scaling, self.options = theta, scaling, options


def read_rope(
  raw: Mapping[str, Any],
  path: pathlib.Path,
  theta: float = 10_000.0,
  layers: str = "full_attention",
) -> Rope:
  """The rotary embedding of one type of layer.

  Args:
    raw: the configuration; needs max_position_embeddings.
    path: named in errors.
    theta: the base where the file names none.
    layers: full_attention or sliding_attention, where the file tells them apart.

  Raises:
    ValueError: an unknown kind, a missing or unknown key, or a value of the wrong type.
  """
  key = "rope_scaling" if raw.get("rope_scaling") else "rope_parameters"
  given = raw.get(key) or {}
  if not isinstance(given, Mapping):
    raise ValueError(f"{path}: {key} is {given!r}, expected an object")
  if given.keys() & _LAYER_TYPES:
    if unknown := given.keys() - _LAYER_TYPES:
      raise ValueError(f"{path}: {key} names the unknown layer types {sorted(unknown)}")
    given = given.get(layers) or {}
  options = {k: v for k, v in given.items() if v is not None}
  base = options.pop("rope_theta", raw.get("rope_theta") or theta)
  if isinstance(base, bool) or not isinstance(base, int | float) or not base > 0:
    raise ValueError(f"{path}: rope_theta is {base!r}, expected a positive number")
  kinds = {options.pop(k) for k in ("rope_type", "type") if k in options} - {"default"}
  if options.get("partial_rotary_factor", 1.0) == 1.0:
    options.pop("partial_rotary_factor", None)
  if not kinds and not options:
    return Rope(float(base), None, {})
  if len(kinds) != 1 or not kinds <= set(KINDS):
    raise ValueError(
      f"{path}: {key} {given} is not supported; use rope_type 'default' or one of "
      f"{', '.join(KINDS)}, with its own keys"
    )
  (kind,) = kinds
  return Rope(float(base), _scaling(kind, options, raw, f"{path}: {key} {given}"), options)


def _scaling(kind: str, options: dict, raw: Mapping[str, Any], where: str) -> RopeScaling:
  required, optional = _KEYS[kind]
  if missing := required - options.keys():
    raise ValueError(f"{where} lacks {', '.join(sorted(missing))}")
  if unknown := options.keys() - required - optional - {_ORIGINAL}:
    raise ValueError(f"{where} has keys that {kind!r} does not know: {', '.join(sorted(unknown))}")
  for name, value in options.items():
    values = value if name in ("short_factor", "long_factor") else [value]
    numbers = isinstance(values, list) and all(type(v) in (int, float) for v in values)
    if not numbers and not (name == "truncate" and isinstance(value, bool)):
      raise ValueError(f"{where}: {name} is {value!r}, expected a number")
  longest = raw["max_position_embeddings"]
  original = raw.get(_ORIGINAL) or options.get(_ORIGINAL, longest)
  factor = options.get("factor", longest / original)
  settings: dict[str, Any] = {"factor": float(factor), "original_length": int(original)}
  if kind == "dynamic":
    settings["original_length"] = int(longest)
  elif kind == "yarn":
    settings |= _yarn_settings(options, factor)
  elif kind == "llama3":
    settings |= {k: float(options[k]) for k in ("low_freq_factor", "high_freq_factor")}
  elif kind == "longrope":
    stretched = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    settings |= {
      "attention_factor": float(options.get("attention_factor", stretched)),
      "short_factors": tuple(map(float, options["short_factor"])),
      "long_factors": tuple(map(float, options["long_factor"])),
    }
  try:
    return RopeScaling(kind, **settings)
  except ValueError as error:
    raise ValueError(f"{where}: {error}") from error


def _yarn_settings(options: Mapping[str, Any], factor: float) -> dict[str, Any]:
  magnitude = options.get("attention_factor")
  if magnitude is None:
    magnitude = yarn_magnitude(factor)
    if (some := options.get("mscale")) and (every := options.get("mscale_all_dim")):
      magnitude = yarn_magnitude(factor, some) / yarn_magnitude(factor, every)
  return {
    "attention_factor": float(magnitude),
    "beta_fast": float(options.get("beta_fast") or 32),
    "beta_slow": float(options.get("beta_slow") or 1),
    "truncate": bool(options.get("truncate", True)),
  }
