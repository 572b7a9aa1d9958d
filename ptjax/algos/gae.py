"""Generalised advantage estimation over the action tokens of one trajectory (callers `vmap`).

Only tokens that the policy chose are steps of the decision process. Prompt, tool output and padding
(mask 0) are skipped: they take no reward, no value, no decay. The value that follows an action is
that of the next action, however many observation tokens lie between:

  mask        1    1    0    0    1
  value      v1   v2    .    .   v3        delta_2 = r_2 + gamma v3 - v2

Source: Schulman et al. 2016 (GAE), eq. 11-16.
"""

import jax
import jax.numpy as jnp

from ptjax.core.masked import as_float, fill, masked_count


def gae(rewards_T, values_T, mask_T, terminated, bootstrap, gamma, lam):
  """Advantages and value targets of one trajectory.

  Over the action tokens k = 1..n in order:
  delta_k = r_k + gamma V_{k+1} - V_k,  A_k = delta_k + gamma lam A_{k+1},  A_{n+1} = 0,
  returns_k = A_k + V_k.

  Args:
    rewards_T, values_T: [T]; not read where mask is 0.
    mask_T: [T], 1 at action tokens.
    terminated: scalar bool; true means V_{n+1} = 0.
    bootstrap: V_{n+1} of a truncated trajectory, the value of the state after its last token;
      not read when terminated.
    gamma, lam: discount and trace decay, in [0, 1].

  Returns:
    (advantages f32[T], returns f32[T]), 0 where mask is 0. Constants: stop_gradient at the loss.
  """
  mask_T = jnp.asarray(mask_T) != 0
  rewards_T = fill(as_float(rewards_T), mask_T)
  values_T = fill(as_float(values_T), mask_T)

  def step(carry, inputs):
    next_value, next_advantage = carry
    reward, value, is_action = inputs
    advantage = reward + gamma * next_value - value + gamma * lam * next_advantage
    carry = (
      jnp.where(is_action, value, next_value),
      jnp.where(is_action, advantage, next_advantage),
    )
    return carry, advantage

  last_value = jnp.where(terminated, 0, jnp.asarray(bootstrap)).astype(values_T.dtype)
  init = (last_value, jnp.zeros_like(last_value))
  _, advantages_T = jax.lax.scan(step, init, (rewards_T, values_T, mask_T), reverse=True)
  advantages_T = fill(advantages_T, mask_T)
  return advantages_T, advantages_T + values_T


def gae_decoupled(rewards_T, values_T, mask_T, terminated, bootstrap, gamma, lam_policy, lam_value):
  """Advantages with `lam_policy`, value targets with `lam_value` (VAPO; lam_value = 1 is unbiased).

  Arguments and result otherwise as `gae`. Source: Yuan et al. 2025 (VC-PPO).
  """
  trajectory = (rewards_T, values_T, mask_T, terminated, bootstrap, gamma)
  advantages_T, _ = gae(*trajectory, lam_policy)
  _, returns_T = gae(*trajectory, lam_value)
  return advantages_T, returns_T


def length_adaptive_lambda(mask_T, alpha) -> jax.Array:
  """lam = clip(1 - 1 / (alpha n), 0, 1), n the action tokens; 0 for an empty trajectory.

  The trace then reaches about alpha n tokens whatever the length. Source: Yue et al. 2025 (VAPO).
  """
  num_actions = masked_count(mask_T)
  return jnp.where(
    num_actions > 0, jnp.clip(1 - 1 / (alpha * jnp.maximum(num_actions, 1)), 0, 1), 0
  )


def gae_length_adaptive(
  rewards_T, values_T, mask_T, terminated, bootstrap, gamma, alpha, lam_value
):
  """`gae_decoupled` with lam_policy = `length_adaptive_lambda`; also returns that lambda."""
  lam = length_adaptive_lambda(mask_T, alpha)
  advantages_T, returns_T = gae_decoupled(
    rewards_T, values_T, mask_T, terminated, bootstrap, gamma, lam, lam_value
  )
  return advantages_T, returns_T, lam


def gae_turns(rewards_T, values_T, mask_T, turns_T, terminated, bootstrap, gamma, lam):
  """GAE whose steps are turns: the actions between two observations are one decision.

  With V_k the value before the first action of turn k, r_k the sum of the rewards of its actions:
  delta_k = r_k + gamma V_{k+1} - V_k,  A_k = delta_k + gamma lam A_{k+1}. Every action of the turn
  gets A_k, and returns_k = A_k + V_k: nothing is discounted within a turn, so what follows from
  any of its states is the same sum.

    mask      1    1    0    0    1
    turns     0    0    .    .    1
    value    v1    .    .    .   v2        delta_1 = r_1 + r_2 + gamma v2 - v1

  Args:
    turns_T: i32[T], the turn of each action, in 0..T-1 and not falling; not read where mask is 0.
    Others as `gae`.

  Returns:
    (advantages f32[T], returns f32[T]), 0 where mask is 0.

  Source: Zhou et al. 2024 (ArCHer), section 3, for turns as the steps of the decision process.
  """
  mask_T = jnp.asarray(mask_T) != 0
  num = mask_T.shape[0]
  turns_T = fill(jnp.asarray(turns_T), mask_T, num)  # one more segment takes what is no action
  first_T = mask_T & (jnp.cumsum(mask_T) == _first_count(turns_T, mask_T))
  total_T = jax.ops.segment_sum(fill(as_float(rewards_T), mask_T), turns_T, num + 1)[turns_T]
  advantages_T, returns_T = gae(total_T, values_T, first_T, terminated, bootstrap, gamma, lam)

  def everywhere(x_T):
    return fill(jax.ops.segment_sum(x_T, turns_T, num + 1)[turns_T], mask_T)

  return everywhere(advantages_T), everywhere(returns_T)


def _first_count(turns_T, mask_T) -> jax.Array:
  """How many actions there are up to the first one of the same turn, itself included."""
  num = mask_T.shape[0]
  counts_T = jnp.where(mask_T, jnp.cumsum(mask_T), num + 1)
  return jax.ops.segment_min(counts_T, turns_T, num + 1)[turns_T]


def discounted_returns(rewards_T, mask_T, gamma) -> jax.Array:
  """G_k = r_k + gamma G_{k+1} over the action tokens: GAE with lam = 1 and no values; f32[T]."""
  rewards_T = as_float(rewards_T)
  return gae(rewards_T, jnp.zeros_like(rewards_T), mask_T, True, 0.0, gamma, 1.0)[0]


def place_outcome_reward(score, mask_T) -> jax.Array:
  """Zero rewards but for the score on the last action token, also when observations follow it.

  An empty trajectory stays all zero. The score keeps its fraction whatever its dtype.
  """
  mask_T = jnp.asarray(mask_T) != 0
  actions_left_T = jnp.cumsum(mask_T[::-1])[::-1]
  is_last_T = mask_T & (actions_left_T == 1)
  return jnp.where(is_last_T, as_float(score), 0)
