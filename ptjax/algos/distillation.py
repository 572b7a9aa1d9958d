"""Divergences between the next-token distributions of a student and its teacher.

Both are exact sums over the vocabulary, not estimates from the sampled token. The gradient reaches
the student alone. Everything from the logits on is float32 or wider.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from ptjax.core.masked import as_float

Divergence = Literal["reverse_kl", "forward_kl"]


def reverse_kl(student_V, teacher_V) -> jax.Array:
  """KL(student || teacher) = sum_v s_v (log s_v - log t_v): seeks a mode of the teacher.

  On states that the student itself reached this is on-policy distillation. Source: Gu et al.
  2023 (MiniLLM), eq. 1; Agarwal et al. 2024 (GKD), section 3.

  Args:
    student_V, teacher_V: logits [..., V].

  Returns:
    f32[...], >= 0 to rounding.
  """
  return _kl(as_float(student_V), jax.lax.stop_gradient(as_float(teacher_V)))


def forward_kl(student_V, teacher_V) -> jax.Array:
  """KL(teacher || student) = sum_v t_v (log t_v - log s_v): covers all of the teacher.

  Its gradient is that of the cross-entropy with the teacher's probabilities. Source: Hinton et
  al. 2015. Arguments as `reverse_kl`.
  """
  return _kl(jax.lax.stop_gradient(as_float(teacher_V)), as_float(student_V))


def _kl(p_V, q_V) -> jax.Array:
  """KL(softmax(p) || softmax(q)); 0 log 0 = 0, and NaN-free in the gradient too."""
  logp_V, logq_V = jax.nn.log_softmax(p_V), jax.nn.log_softmax(q_V)
  present_V = p_V > -jnp.inf
  gap_V = jnp.where(present_V, logp_V, 0) - jnp.where(present_V, logq_V, 0)
  return jnp.sum(jnp.exp(logp_V) * gap_V, axis=-1)


DIVERGENCES = {"reverse_kl": reverse_kl, "forward_kl": forward_kl}
