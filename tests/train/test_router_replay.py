"""Router replay: the sampler's experts, recorded for every token and taken again in training."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_moe import write_tiny_moe
from train_toys import session_on, toy_domain, toy_experiment, toy_trajectories

from ptjax.core.metrics import summarize
from ptjax.core.types import FinishReason
from ptjax.domains.catalog import DOMAINS
from ptjax.envs.environment import Generation, Transcript
from ptjax.experience.mixture import DomainConfig, Mixture
from ptjax.experience.packing import PackConfig, pack
from ptjax.models import decoder
from ptjax.models.config import MoeConfig
from ptjax.models.experts import route
from ptjax.rollout.engine import Engine, Request, generate
from ptjax.train.batch import recorded_routes
from ptjax.train.experiment import ModelConfig, RLConfig
from ptjax.train.rl import RLState, play_groups, train


@pytest.fixture(scope="module")
def source(tmp_path_factory):
  return write_tiny_moe(tmp_path_factory.mktemp("mixtral"), "mixtral")


@pytest.fixture(scope="module")
def session(source, tmp_path_factory):
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(DOMAINS, "toy", toy_domain)
    e = toy_experiment(
      source,
      domains=(DomainConfig("toy"),),
      model=ModelConfig(str(source), remat="none"),
      rl=RLConfig(num_steps=2, prompts_per_step=2, group_size=4, router_replay=True),
    )
    with session_on(1, e, tmp_path_factory.mktemp("run")) as session:
      yield session


def near_ties(params, tilt: float):
  """Expert 1 has the router's column of expert 0, but for `tilt`: who wins depends on its sign."""
  router_LDE = params["layers"]["mlp"]["router"]
  twin_LD = router_LDE[:, :, 0] * (1 + tilt)
  router_LDE = router_LDE.at[:, :, 1].set(twin_LD)
  layers = params["layers"] | {"mlp": params["layers"]["mlp"] | {"router": router_LDE}}
  return params | {"layers": layers}


@pytest.fixture(scope="module")
def sampled(session):
  """(the sampler's weights, trajectories that they sampled)."""
  params = near_ties(session.start, 1e-5)
  session.engine.set_weights(params, 0)
  state = RLState(0, None, None, Mixture(session.experiment.domains))
  played = play_groups(session, state, 0, 2, 0)
  return params, [p.trajectory(0) for p in played]


def test_recorded_weights_by_hand():
  """The experts are the recorded ones, the weights those of the present logits."""
  logits = jnp.log(jnp.asarray([[1.0, 4.0, 2.0, 1.0], [1.0, 4.0, 2.0, 1.0]]))
  recorded = jnp.asarray([[3, 2], [-1, -1]])
  experts, weights = route(logits, MoeConfig(4, 2, 8, normalize=False), recorded_TX=recorded)
  np.testing.assert_array_equal(experts, [[3, 2], [1, 2]])
  np.testing.assert_allclose(weights, [[0.125, 0.25], [0.5, 0.25]], rtol=1e-6)


def test_gradients_flow_through_the_weights_of_recorded_experts():
  logits = jnp.log(jnp.asarray([[1.0, 4.0, 2.0, 1.0]]))

  def weight(logits):
    return route(logits, MoeConfig(4, 1, 8, normalize=False), recorded_TX=jnp.asarray([[3]]))[1][
      0, 0
    ]

  np.testing.assert_allclose(
    jax.grad(weight)(logits), [[-1 / 64, -4 / 64, -2 / 64, 7 / 64]], rtol=1e-5
  )


def test_the_engine_records_what_the_decoder_chooses(session):
  """Prompts of several lengths, two of them shared; every token but the last has its experts."""
  prompts = [np.arange(1, n + 1, dtype=np.int32) * 7 % 256 for n in (1, 5, 5, 9)]
  prompts[2] = prompts[1]
  e = session.experiment
  engine = Engine(e.engine, session.model, None, record_routes=True)
  engine.set_weights(session.start, 0)
  done = generate(engine, [Request(i, p, 6) for i, p in enumerate(prompts)])
  network = functools.partial(decoder.bind, session.model)
  routing = jax.jit(lambda params, packed: network(params)(packed, keep_routing=True))
  for i, prompt in enumerate(prompts):
    tokens_T = np.concatenate([prompt, done[i].tokens])[:-1]
    index_T = np.arange(len(tokens_T), dtype=np.int32)
    packed = decoder.Packed(*(x[None] for x in (tokens_T, index_T, index_T * 0 + 1, index_T * 0)))
    _, routed = routing(session.start, packed)
    assert done[i].routes.dtype == np.int8
    np.testing.assert_array_equal(done[i].routes, np.moveaxis(routed.experts_TX[:, 0], 0, 1))


def test_replay_gives_the_samplers_log_probs_where_a_tie_flips(session, sampled):
  params, trajectories = sampled
  flipped = near_ties(params, -1e-5)
  gaps = {}
  for replay in (True, False):
    scores = session.logprobs(flipped, trajectories, replay=replay)
    pairs = zip(trajectories, scores, strict=True)
    gaps[replay] = max(np.abs(t.behavior_logprobs[t.action_mask] - s).max() for t, s in pairs)
  assert gaps[True] < 1e-3
  assert gaps[False] > 0.03


def test_packed_routes_stand_at_their_tokens():
  """A route that names its token: shared prompts, branches and padding."""
  trajectories = [
    dataclasses.replace(
      t, routes=np.tile((t.tokens // 2)[:, None, None], (1, 3, 2)).astype(np.int8)
    )
    for t in toy_trajectories()
  ]
  rows = pack(trajectories, PackConfig(64, 32, 2), routes=recorded_routes(trajectories)).rows
  real_BT = rows.segment_ids_BT > 0
  assert rows.routes_BTLX.shape == (*real_BT.shape, 3, 2)
  want = np.where(real_BT, rows.tokens_BT // 2, -1)
  np.testing.assert_array_equal(
    rows.routes_BTLX, np.broadcast_to(want[..., None, None], rows.routes_BTLX.shape)
  )
  with pytest.raises(ValueError, match="11 of 12 trajectories have recorded routes"):
    recorded_routes([*trajectories[:-1], dataclasses.replace(trajectories[-1], routes=None)])


def test_a_token_keeps_the_experts_of_its_first_reading():
  def act(transcript, tokens, marks):
    n, routes = len(tokens), np.asarray(marks, np.int8)[:, None, None]
    transcript.act(
      Generation(np.asarray(tokens), np.zeros(n), np.zeros(n), "", FinishReason.STOP, routes)
    )

  transcript = Transcript()
  transcript.observe(np.asarray([1, 2]))
  act(transcript, [3, 4], [10, 11, 12])  # of tokens 1, 2, 3
  transcript.observe(np.asarray([5]))
  act(transcript, [6], [20, 21, 22, 23, 24])  # of 1 to 5: 4 and 5 are new
  np.testing.assert_array_equal(transcript.episode().routes[:, 0, 0], [10, 11, 12, 23, 24, -1])


def test_a_run_replays(session):
  records = []
  state = RLState(0, session.init_policy(), None, Mixture(session.experiment.domains))
  train(session, state, lambda state, metrics, played: records.append(summarize(metrics)))
  assert records[0]["mismatch/max_gap"] < 1e-3
  assert all(r["mismatch/ratio_max"] < 1.01 for r in records if "mismatch/ratio_max" in r)


def test_a_model_without_experts_is_refused(session):
  dense = dataclasses.replace(session.model, moe=None)
  with pytest.raises(ValueError, match="the model has no experts"):
    Engine(session.experiment.engine, dense, None, record_routes=True)
