"""Adam whose two moments take a byte each a parameter."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ptjax.train.rounding import keys_like, stochastic

_DTYPE = "float8_e4m3fn"
_LARGEST = 448.0  # of float8_e4m3fn
_SMALLEST = 2.0**-9


class Adam8State(NamedTuple):
  """Moments as float8 and the scale of each row along the last axis, f32[..., 1].

  Attributes:
    count: updates so far.
    mean, mean_scale: the first moment.
    root, root_scale: the square root of the second, whose range is half as wide in the exponent.
  """

  count: jax.Array
  mean: Any
  mean_scale: Any
  root: Any
  root_scale: Any


def scale_by_adam8(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
  """`optax.scale_by_adam` with moments in eight bits, scaled row by row.

  A moment moves by a thousandth of itself where a float8 has steps of a sixteenth: rounded to the
  nearest it would stand still, so it is rounded stochastically. A second moment above 0 stays
  above 0. A scalar keeps float32.

  Source: Adam, Kingma and Ba, 2015; scaled blocks, Dettmers et al., 2022, section 2. The type and
  the rounding differ from the latter's table of 256 values, which TPUs would look up slowly.
  """

  def init(params):
    narrow = jax.tree.map(lambda p: jnp.zeros(p.shape, _DTYPE if p.ndim else jnp.float32), params)
    ones = jax.tree.map(lambda p: jnp.ones((*p.shape[:-1], 1)[: p.ndim], jnp.float32), params)
    copy = lambda tree: jax.tree.map(jnp.copy, tree)  # noqa: E731  an update is donated its state
    return Adam8State(jnp.zeros((), jnp.int32), narrow, ones, copy(narrow), copy(ones))

  def update(updates, state, params=None):
    del params
    count = state.count + 1

    def moments(grad, mean, mean_scale, root, root_scale):
      grad = grad.astype(jnp.float32)
      first = b1 * mean.astype(jnp.float32) * mean_scale + (1 - b1) * grad
      second = b2 * jnp.square(root.astype(jnp.float32) * root_scale) + (1 - b2) * grad * grad
      return first, jnp.sqrt(second)

    # A tree of pairs, as a pair of trees.
    both = jax.tree.map(moments, updates, *state[1:])
    first, root = jax.tree.transpose(jax.tree.structure(updates), jax.tree.structure((0, 0)), both)
    root_correction = jnp.sqrt(1 - b2**count)
    step = jax.tree.map(
      lambda m, r: (m / (1 - b1**count)) / (r / root_correction + eps), first, root
    )
    mean_keys, root_keys = keys_like(first, 2 * count), keys_like(root, 2 * count + 1)
    stored = *_narrowed(first, mean_keys, 0.0), *_narrowed(root, root_keys, _SMALLEST)
    return step, Adam8State(count, *stored)

  return optax.GradientTransformation(init, update)


def _narrowed(tree, keys, least: float) -> tuple[Any, Any]:
  """(float8, scales); what is above 0 becomes at least `least` before it is scaled back."""

  def scale(x):
    if not x.ndim:
      return jnp.ones_like(x)
    return jnp.maximum(jnp.max(jnp.abs(x), axis=-1, keepdims=True) / _LARGEST, 1e-30)

  def narrow(x, scale, key):
    if not x.ndim:
      return x
    scaled = jnp.clip(x / scale, -_LARGEST, _LARGEST)
    scaled = jnp.where(x > 0, jnp.maximum(scaled, least), scaled)
    return stochastic(scaled, _DTYPE, key)

  scales = jax.tree.map(scale, tree)
  return jax.tree.map(narrow, tree, scales, keys), scales
