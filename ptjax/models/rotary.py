"""Frequencies of the rotary embedding, plain and scaled to longer contexts.

Every scaling here gives a token the frequencies of its own position. For dynamic NTK and LongRoPE,
whose frequencies depend on the length of the sequence, that length is taken to be the token's
position + 1: what decoding with a cache computes, so that sampler and trainer agree and a
token never depends on what follows it.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

KINDS = ("linear", "dynamic", "yarn", "llama3", "longrope")


@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """How the frequencies are changed for a context longer than the one first trained on.

  Attributes:
    kind: one of `KINDS`.
    factor: ratio of the new to the original context.
    original_length: positions of the original context.
    attention_factor: multiplies sine and cosine, hence scores by its square.
    low_freq_factor, high_freq_factor: llama3, bounds of the interpolated wavelengths as
      original_length / factor.
    beta_fast, beta_slow: yarn, rotations within the original context at which the ramp ends.
    truncate: yarn, the ramp begins and ends at whole dimensions.
    short_factors, long_factors: longrope, divisors of each frequency up to the original length
      and beyond it.
  """

  kind: str
  factor: float = 1.0
  original_length: int = 8192
  attention_factor: float = 1.0
  low_freq_factor: float = 1.0
  high_freq_factor: float = 4.0
  beta_fast: float = 32.0
  beta_slow: float = 1.0
  truncate: bool = True
  short_factors: tuple[float, ...] = ()
  long_factors: tuple[float, ...] = ()

  def __post_init__(self):
    if self.kind not in KINDS:
      raise ValueError(f"rope scaling is {self.kind!r}; use one of {', '.join(KINDS)}")
    if not self.factor > 0 or not self.original_length > 0:
      raise ValueError(
        f"rope scaling has factor {self.factor} and original_length {self.original_length}; "
        "both must be positive"
      )
    if self.kind == "llama3" and not self.low_freq_factor < self.high_freq_factor:
      raise ValueError(
        f"rope scaling 'llama3' has low_freq_factor {self.low_freq_factor}, which must be below "
        f"high_freq_factor {self.high_freq_factor}"
      )


def frequencies(
  positions: jax.Array, head_dim: int, theta: float, scaling: RopeScaling | None
) -> jax.Array:
  """Radians per position of the pairs i, f32[H/2]; f32[..., 1, H/2] where they vary by position.

  Args:
    positions: i32[...].
    head_dim: H.
    theta: base of the frequencies, theta^(-2i/H) where nothing is scaled.
    scaling: None for plain rotary embedding (Su et al., 2021).
  """
  half = head_dim // 2
  if scaling is None:
    return theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
  plain = theta ** (-np.arange(half, dtype=np.float64) / half)
  if scaling.kind == "dynamic":
    return _dynamic(positions, head_dim, theta, scaling)
  if scaling.kind == "longrope":
    return _longrope(positions, plain, scaling)
  fixed = {"linear": _linear, "yarn": _yarn, "llama3": _llama3}[scaling.kind]
  return jnp.asarray(fixed(plain, theta, scaling), jnp.float32)


def _linear(plain: np.ndarray, theta: float, s: RopeScaling) -> np.ndarray:
  """Positions divided by the factor (Chen et al., 2023)."""
  del theta
  return plain / s.factor


def _llama3(plain: np.ndarray, theta: float, s: RopeScaling) -> np.ndarray:
  """Long wavelengths divided by the factor, short ones kept, a ramp between (Llama 3.1)."""
  del theta
  rotations = s.original_length * plain / (2 * math.pi)
  kept = (rotations - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
  kept = np.clip(kept, 0.0, 1.0)
  return (1 - kept) * plain / s.factor + kept * plain


def _yarn(plain: np.ndarray, theta: float, s: RopeScaling) -> np.ndarray:
  """Fast pairs kept, slow ones divided by the factor (Peng et al., 2023, section 3.2)."""
  half = len(plain)

  def pair_with(rotations: float) -> float:
    """The (fractional) pair that turns so often within the original context."""
    ratio = s.original_length / (rotations * 2 * math.pi)
    return half * math.log(ratio) / math.log(theta)

  low, high = pair_with(s.beta_fast), pair_with(s.beta_slow)
  if s.truncate:
    low, high = math.floor(low), math.ceil(high)
  low, high = max(low, 0), min(high, 2 * half - 1)
  ramp = (np.arange(half) - low) / (high - low if high != low else 1e-3)
  slow = np.clip(ramp, 0.0, 1.0)
  return slow * plain / s.factor + (1 - slow) * plain


def _dynamic(positions: jax.Array, head_dim: int, theta: float, s: RopeScaling) -> jax.Array:
  """The base grows with the length beyond the original one ("dynamic NTK", bloc97, 2023)."""
  length = jnp.maximum(positions.astype(jnp.float32) + 1, s.original_length)[..., None, None]
  grown = (s.factor * length / s.original_length - (s.factor - 1)) ** (head_dim / (head_dim - 2))
  half = head_dim // 2
  return (theta * grown) ** (-jnp.arange(half, dtype=jnp.float32) / half)


def _longrope(positions: jax.Array, plain: np.ndarray, s: RopeScaling) -> jax.Array:
  """A divisor for each pair, another beyond the original length (Ding et al., 2024)."""
  for name in ("short_factors", "long_factors"):
    if len(getattr(s, name)) != len(plain):
      raise ValueError(
        f"rope scaling 'longrope' has {len(getattr(s, name))} {name}, heads have {len(plain)} pairs"
      )
  short, long = (
    jnp.asarray(plain / np.asarray(factors), jnp.float32)
    for factors in (s.short_factors, s.long_factors)
  )
  beyond = (positions >= s.original_length)[..., None, None]
  return jnp.where(beyond, long, short)


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
  """0.1 weight ln(factor) + 1, by which YaRN sharpens scores (Peng et al., 2023, eq. 22)."""
  return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
