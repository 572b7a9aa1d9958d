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
START, REFERENCE = "starting weights (reference)", "reference in 8 bits"
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
    ENGINE: (setup.head, setup.layers),
    CACHE: setup.cache,
  }
  if setup.start is not None:
    held[START] = setup.start
  if setup.reference is not setup.start:
    held[REFERENCE] = setup.reference
  if setup.critic_state is not None:
    held[CRITIC] = setup.critic_state.params
    held[CRITIC_OPTIMIZER] = (setup.critic_state.opt_state, setup.critic_state.updates)
  return held


def programs(setup: Setup) -> list[Program]:
  """All programs of a step, those of the largest shapes first where there are several."""
  batch = policy_batch(setup)
  names = POLICY, POLICY_OPTIMIZER, GRADIENTS
  found = [
    *_rollout(setup),
    *_scores(setup, batch.rows),
    *_training("policy", setup.trainer, setup.policy, batch, names),
  ]
  critic, state = setup.critic, setup.critic_state
  if critic is not None and state is not None:
    batch = value_batch(setup, critic.layout)
    network = critic.trainer.network(state.params)
    found.append(
      Program(
        "critic scores",
        lambda: value_rows.lower(critic.model, critic.layout, network, batch.rows),
        {CRITIC: state.params, BATCH: batch.rows} | _base(critic.trainer),
      )
    )
    names = CRITIC, CRITIC_OPTIMIZER, CRITIC_GRADIENTS
    found += _training("critic", critic.trainer, state, batch, names)
  return found


def _base(trainer: Trainer) -> dict[str, Any]:
  """What a network's adapters lie beside."""
  return {} if trainer.frozen is None else {START: trainer.frozen.base}


def _scores(setup: Setup, rows: Any) -> list[Program]:
  """Log-probs of a micro-batch. Under the reference it is the same program, but for one in 8 bits
  or without the policy's adapters."""
  e, trainer = setup.experiment, setup.trainer

  def scores(name: str, params: Any, arguments: dict[str, Any]) -> Program:
    def lower() -> jax.stages.Lowered:
      chunk = e.rl.objective.logit_chunk
      return score_rows.lower(setup.model, e.policy.sampling, chunk, setup.layout, params, rows)

    return Program(name, lower, arguments | {BATCH: rows})

  found = [scores("policy scores", setup.network, {POLICY: setup.policy.params} | _base(trainer))]
  if setup.reference is not setup.start:
    found.append(scores("reference scores", setup.reference, {REFERENCE: setup.reference}))
  elif trainer.frozen is not None:
    found.append(scores("reference scores", setup.start, {START: setup.start}))
  return found


def _training(
  network: str, trainer: Trainer, state: TrainState, batch: Any, names: tuple[str, str, str]
) -> list[Program]:
  params, optimizer, gradients = names
  grads = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32, sharding=x.sharding), state.params
  )
  lowering = trainer.lowering(state, batch)
  opt_state = state.opt_state, state.updates
  whole = {params: state.params, BATCH: batch} | _base(trainer)
  found = [
    # The sum over the micro-batches before this one lives beside it.
    Program(f"{network} gradient", lowering["gradient"], whole, {gradients: grads}),
    Program(
      f"{network} update",
      lowering["apply"],
      {params: state.params, optimizer: opt_state, gradients: grads},
    ),
  ]
  if "load" in lowering:
    found.append(Program("router load", lowering["load"], whole))
  return found


def _rollout(setup: Setup) -> list[Program]:
  e, engine = setup.experiment, setup.experiment.engine
  everywhere = NamedSharding(setup.mesh, PartitionSpec())
  record = e.rl.router_replay
  samples = dataclasses.replace(setup.model, capacity_factor=None)  # the sampler drops nothing
  prompts = engine.prefill_batch(engine.num_slots)
  length = prefill_length(max(1, engine.max_length - e.policy.max_new_tokens), engine)
  tokens_PT = jax.ShapeDtypeStruct((prompts, length), jnp.int32, sharding=everywhere)
  weights = assemble(setup.network, setup.head, setup.layers)
  slots = jax.tree.map(lambda x: sharded_shape(x, everywhere), _slots(setup))
  return [
    Program(
      "prefill",
      lambda: decode.prefill.lower(samples, setup.network, tokens_PT, record),
      {POLICY: setup.policy.params, "prompts": tokens_PT} | _base(setup.trainer),
    ),
    Program(
      "decode",
      lambda: decode.decode_chunk.lower(
        setup.decode_model, engine.decode_chunk, weights, setup.cache, slots, record
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
