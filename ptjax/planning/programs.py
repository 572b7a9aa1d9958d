"""The programs of a run, lowered for a slice.

Nothing here describes a program: trainers, scoring and engine are the ones that `train` runs, on
arguments that are shapes with shardings.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from ptjax.planning.setup import Setup, policy_batch, value_batch
from ptjax.rollout import decode
from ptjax.rollout.engine import prefill_length
from ptjax.rollout.sampling import SamplingParams
from ptjax.rollout.weights import assemble
from ptjax.train.networks import Trainer, TrainState, sharded_shape
from ptjax.train.programs import score_rows, value_rows

# Long-lived arrays of a run, by the names that tables show; a program may take some of them.
POLICY, POLICY_OPTIMIZER = "policy parameters", "policy optimizer"
START = "starting weights (reference)"
CRITIC, CRITIC_OPTIMIZER = "critic parameters", "critic optimizer"
ENGINE, CACHE = "engine weights", "KV cache"
GRADIENTS, CRITIC_GRADIENTS = "policy gradients", "critic gradients"
BATCH = "batch"


@dataclasses.dataclass(frozen=True)
class Program:
  """One compiled function of a run.

  Attributes:
    name: what it does.
    lower: lowers it; takes long.
    arguments: its abstract arguments by name.
    beside: arrays that live beside it while it runs and are neither arguments nor residents.
  """

  name: str
  lower: Callable[[], jax.stages.Lowered]
  arguments: dict[str, Any]
  beside: dict[str, Any] = dataclasses.field(default_factory=dict)


def residents(setup: Setup) -> dict[str, Any]:
  """What lives on the devices from the first step to the last."""
  held = {
    POLICY: setup.policy.params,
    POLICY_OPTIMIZER: (setup.policy.opt_state, setup.policy.updates),
    START: setup.start,
    ENGINE: (setup.head, setup.layers),
    CACHE: setup.cache,
  }
  if setup.critic_state is not None:
    held[CRITIC] = setup.critic_state.params
    held[CRITIC_OPTIMIZER] = (setup.critic_state.opt_state, setup.critic_state.updates)
  return held


def programs(setup: Setup) -> list[Program]:
  """All programs of a step, those of the largest shapes first where there are several."""
  batch = policy_batch(setup)
  found = [
    *_rollout(setup),
    _score(setup, batch.rows),
    *_training("policy", setup.trainer, setup.policy, batch, (POLICY, POLICY_OPTIMIZER, GRADIENTS)),
  ]
  critic, state = setup.critic, setup.critic_state
  if critic is not None and state is not None:
    batch = value_batch(setup, critic.layout)
    arguments = {CRITIC: state.params, BATCH: batch.rows}
    found.append(
      Program(
        "critic scores",
        lambda: value_rows.lower(critic.model, critic.layout, state.params, batch.rows),
        arguments,
      )
    )
    names = CRITIC, CRITIC_OPTIMIZER, CRITIC_GRADIENTS
    found += _training("critic", critic.trainer, state, batch, names)
  return found


def _score(setup: Setup, rows: Any) -> Program:
  """Log-probs of a micro-batch; under the reference it is the same program."""
  e, params = setup.experiment, setup.policy.params

  def lower() -> jax.stages.Lowered:
    chunk = e.rl.objective.logit_chunk
    return score_rows.lower(setup.model, e.policy.sampling, chunk, setup.layout, params, rows)

  return Program("policy scores", lower, {POLICY: params, BATCH: rows})


def _training(
  network: str, trainer: Trainer, state: TrainState, batch: Any, names: tuple[str, str, str]
) -> list[Program]:
  params, optimizer, gradients = names
  grads = jax.tree.map(lambda x: sharded_shape(x, x.sharding), state.params)
  lowering = trainer.lowering(state, batch)
  opt_state = state.opt_state, state.updates
  return [
    # The sum over the micro-batches before this one lives beside it.
    Program(
      f"{network} gradient",
      lowering["gradient"],
      {params: state.params, BATCH: batch},
      {gradients: grads},
    ),
    Program(
      f"{network} update",
      lowering["apply"],
      {params: state.params, optimizer: opt_state, gradients: grads},
    ),
  ]


def _rollout(setup: Setup) -> list[Program]:
  e, engine = setup.experiment, setup.experiment.engine
  everywhere = NamedSharding(setup.mesh, PartitionSpec())
  prompts = engine.prefill_batch(engine.num_slots)
  length = prefill_length(max(1, engine.max_length - e.policy.max_new_tokens), engine)
  tokens_PT = jax.ShapeDtypeStruct((prompts, length), jnp.int32, sharding=everywhere)
  weights = assemble(setup.start, setup.head, setup.layers)
  slots = jax.tree.map(lambda x: sharded_shape(x, everywhere), _slots(setup))
  return [
    Program(
      "prefill",
      lambda: decode.prefill.lower(setup.model, setup.policy.params, tokens_PT),
      {POLICY: setup.policy.params, "prompts": tokens_PT},
    ),
    Program(
      "decode",
      lambda: decode.decode_chunk.lower(
        setup.decode_model, engine.decode_chunk, weights, setup.cache, slots
      ),
      {ENGINE: (setup.head, setup.layers), CACHE: setup.cache, "slots": slots}
      | {"tables": {k: weights.decode[k] for k in ("embed", "final_norm")}},
    ),
  ]


def _slots(setup: Setup) -> decode.Slots:
  """The state of the slots, as shapes."""
  engine = setup.experiment.engine
  rows = engine.width(engine.num_slots)
  sampling = functools.partial(SamplingParams.of, setup.experiment.policy.sampling, rows)

  def made() -> decode.Slots:
    zeros = jnp.zeros(rows, jnp.int32)
    return decode.Slots(
      token_R=zeros,
      length_R=zeros,
      limit_R=zeros,
      done_R=zeros > 0,
      key_R=jax.random.split(jax.random.key(0), rows),
      stop_RX=jnp.zeros((rows, engine.max_stop_ids), jnp.int32),
      sampling=sampling(),
    )

  return jax.eval_shape(made)
