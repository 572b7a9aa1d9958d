"""A policy small enough to sum over: 3 tokens, at most 3 of them, token 0 stops.

It has 7 states (prefixes without a stop) with 3 logits each, and 15 answers. Expectations are sums
over all answers, or all pairs or triples of them, so no test has a sampling error.

Letters: X answers (15), T steps (3), C states (7), V tokens (3), N rows of a batch.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from ptjax.experience.packing import Rows
from ptjax.train.objectives import PolicyBatch, PolicyObjective, action_loss

STATE = {(): 0, (1,): 1, (2,): 2, (1, 1): 3, (1, 2): 4, (2, 1): 5, (2, 2): 6}


def _answers():
  for tokens in itertools.product(range(3), repeat=3):
    length = tokens.index(0) + 1 if 0 in tokens else 3
    yield tokens[:length]


ANSWERS = tuple(dict.fromkeys(_answers()))
NUM = len(ANSWERS)
LENGTH_X = np.asarray([len(a) for a in ANSWERS])
EVERY_ANSWER = np.arange(NUM)
MASK_XT = np.arange(3) < LENGTH_X[:, None]
TOKEN_XT = np.asarray([[*a, *[0] * (3 - len(a))] for a in ANSWERS])
STATE_XT = np.asarray([[STATE[a[:t]] if t < len(a) else 0 for t in range(3)] for a in ANSWERS])
STOPPED_X = np.asarray([a[-1] == 0 for a in ANSWERS])

_rng = np.random.default_rng(7)
THETA_CV = _rng.normal(size=(7, 3))
OTHER_CV = THETA_CV + 0.4 * _rng.normal(size=(7, 3))  # a reference, or a sampler
REWARD_X = _rng.uniform(0.1, 1.0, NUM)
BINARY_X = (_rng.uniform(size=NUM) < 0.4).astype(float)
VALUE_C = _rng.normal(size=7)


def logp_tokens(theta_CV):
  """[X, T] log-prob of every token of every answer; 0 after its end."""
  logp_CV = jax.nn.log_softmax(theta_CV)
  return jnp.where(MASK_XT, logp_CV[STATE_XT, TOKEN_XT], 0)


def logp_answers(theta_CV):
  return logp_tokens(theta_CV).sum(1)


def probs(theta_CV):
  """[X]; they sum to 1."""
  return jnp.exp(logp_answers(theta_CV))


def visits(theta_CV):
  """[C] expected number of visits of every state."""
  return jnp.zeros(7).at[STATE_XT].add(jnp.where(MASK_XT, probs(theta_CV)[:, None], 0))


def entropy_tokens(theta_CV):
  logp_CV = jax.nn.log_softmax(theta_CV)
  entropy_C = -jnp.sum(jnp.exp(logp_CV) * logp_CV, axis=1)
  return jnp.where(MASK_XT, entropy_C[STATE_XT], 0)


def grad_mean(f_X, theta_CV=THETA_CV):
  """grad of E[f] for a fixed function of the answer: the policy gradient, by differentiation."""
  return jax.grad(lambda theta: probs(theta) @ jnp.asarray(f_X))(theta_CV)


def expected_gradient(
  objective: PolicyObjective,
  weight_N,
  advantage_NT,
  *,
  rows_N=EVERY_ANSWER,
  old=None,
  behavior=THETA_CV,
  reference=OTHER_CV,
  theta_CV=THETA_CV,
):
  """Gradient of the real loss of a batch of answers `rows_N`, at `theta_CV`.

  With `weight_N` the probability of the row times its normaliser, it is the expected gradient.

  Args:
    advantage_NT: or one number a row.
    old: parameters of the old policy; None for the policy itself.
    behavior, reference: parameters of the sampler and the reference.
  """
  shape = (len(rows_N), 3)
  advantage_NT = np.broadcast_to(
    advantage_NT[:, None] if np.ndim(advantage_NT) == 1 else advantage_NT, shape
  )
  mask_NT, zeros = MASK_XT[rows_N], np.zeros(shape, np.int32)
  batch = PolicyBatch(
    Rows(zeros, zeros, zeros, zeros, zeros, zeros, mask_NT, zeros),
    np.broadcast_to(np.asarray(weight_N)[:, None], shape),
    advantage_NT,
    logp_tokens(behavior)[rows_N],
    None if old is None else logp_tokens(old)[rows_N],
    logp_tokens(reference)[rows_N],
  )

  def loss(theta_CV):
    logp_NT, entropy_NT = logp_tokens(theta_CV)[rows_N], entropy_tokens(theta_CV)[rows_N]
    return action_loss(objective, logp_NT, entropy_NT, batch)[0]

  return jax.grad(loss)(theta_CV)


def groups(size: int):
  """(rows_NG, probability_N): every group of `size` answers and how likely it is."""
  rows = np.asarray(list(itertools.product(range(NUM), repeat=size)))
  return rows, np.asarray(probs(THETA_CV))[rows].prod(1)


def score_XCV():
  """grad log p of every answer."""
  return jax.jacobian(logp_answers)(THETA_CV)
