"""Everything a run needs, built once: model, mesh, networks, engine, domains, sandboxes."""

import asyncio
import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Generator, Iterator, Mapping, Sequence

import jax
import numpy as np

from ptjax.core.types import Trajectory
from ptjax.data.chat_template import ChatTemplate
from ptjax.domains import catalog
from ptjax.domains.domain import Domain
from ptjax.domains.fitting import fitting
from ptjax.envs.environment import Message, Services
from ptjax.experience.mixture import DomainConfig
from ptjax.experience.packing import PackConfig
from ptjax.models.config import DecoderConfig
from ptjax.models.decoder import Params
from ptjax.models.quantize import quantize_blocks, quantized_axes
from ptjax.rewards.judge import with_judge
from ptjax.rewards.reward_model import load_reward_model
from ptjax.rollout.cache import CachePlacement
from ptjax.rollout.engine import Engine
from ptjax.sharding.mesh import make_mesh
from ptjax.train import adapters
from ptjax.train.batch import PerAction, packed_micro_batches
from ptjax.train.experiment import Experiment
from ptjax.train.loading import Loaded, check_rows, load_model
from ptjax.train.networks import Layout, Trainer, TrainState
from ptjax.train.programs import (
  Critic,
  build_critic,
  critic_at_start,
  policy_trainer,
  score_rows,
  value_rows,
)
from sandbox_runner import Pool, PoolConfig
from sandbox_runner.images import limits_of


@dataclasses.dataclass(frozen=True)
class Session:
  """The live parts of a run; the training state itself is passed around.

  Attributes:
    experiment: the configuration.
    model: shape of the policy.
    model_hash: sha256 of the weights that the run starts from.
    template: tokenizer and chat template.
    domains: by name, in the order of the configuration.
    services: the sandbox pool, where a domain needs one.
    engine: the sampler.
    policy: trains the policy.
    policy_layout: where the policy lives.
    critic: the live parts of the critic; None without one.
    start: the weights that the run starts from, on the mesh.
    reference: what the KL is measured against: `start` itself, or a copy of it in 8 bits.
    runner: the event loop of episodes and sandboxes.
  """

  experiment: Experiment
  model: DecoderConfig
  model_hash: str
  template: ChatTemplate
  domains: dict[str, Domain]
  services: Services
  engine: Engine
  policy: Trainer
  policy_layout: Layout
  critic: Critic | None
  start: Params
  reference: Params
  runner: asyncio.Runner

  def init_policy(self) -> TrainState:
    """The policy at update 0, on buffers of its own; on those of `start` where it is spare."""
    return self.policy.init(self.start if self.start_is_spare else self.trainable())

  @property
  def start_is_spare(self) -> bool:
    """Whether nothing reads `start` once the networks are made."""
    critic_shares = self.critic is not None and self.critic.config.lora is not None
    return self.reference is not self.start and not critic_shares

  def release_start(self) -> None:
    """Frees `start` where it is spare: a checkpoint has taken its place."""
    if self.start_is_spare:
      jax.tree.map(lambda x: x.delete(), self.start)

  def trainable(self) -> Params:
    """What trains of the policy at update 0: the weights, or adapters on them."""
    lora = self.experiment.model.lora
    return adapters.trainable(self.start, self.model, self.policy_layout, lora)

  def init_critic(self) -> TrainState | None:
    """The critic at update 0: its trunk starts as the policy's first layers, or all of it as the
    reward model that the configuration names."""
    if self.critic is None:
      return None
    c = self.critic
    params = critic_at_start(c.config, c.model, c.layout, self.start)
    return c.trainer.init(adapters.trunk_trainable(params, c.model, c.layout, c.config.lora))

  def logprobs(
    self, params: Params, trajectories: list[Trajectory], *, replay: bool = False
  ) -> PerAction:
    """Log-probs of all actions under given policy weights, with recorded experts or its own."""
    score = functools.partial(
      score_rows,
      self.model,
      self.experiment.policy.sampling,
      self.experiment.rl.objective.logit_chunk,
      self.policy_layout,
    )
    pack, layout = self.experiment.pack, self.policy_layout
    return _score_all(score, params, trajectories, pack, layout, replay=replay)

  def values(self, critic: Critic, params: Params, trajectories: list[Trajectory]) -> PerAction:
    """The critic's value of the state before each action."""
    value = functools.partial(value_rows, critic.model, critic.layout)
    return _score_all(value, params, trajectories, self.experiment.pack, critic.layout)


def _score_all(
  score, params, trajectories, packing: PackConfig, layout: Layout, *, replay: bool = False
) -> PerAction:
  packed, parts = packed_micro_batches(trajectories, packing, replay=replay)
  scores = [score(params, layout.place_rows(rows)) for rows in parts]
  return packed.gather(np.concatenate(jax.device_get(scores)))


def build_domains(configs: Sequence[DomainConfig]) -> dict[str, Domain]:
  """The domains by name, judged by the reward models that the configuration names.

  Raises:
    ValueError: a workdir without a reward model, or a reward model without the head asked for.
  """
  load = functools.cache(load_reward_model)

  def build(config: DomainConfig) -> Domain:
    domain, judge = catalog.builder(config.name, config.module)(), config.judge
    if judge is None:
      return domain
    tree = with_judge(domain.rewards, domain.name, load(judge.workdir), judge)
    return dataclasses.replace(domain, rewards=tree)

  return {config.name: build(config) for config in configs}


@contextlib.contextmanager
def open_session(experiment: Experiment, workdir: pathlib.Path) -> Iterator[Session]:
  """Builds a session; everything it started is stopped on leaving.

  Raises:
    ValueError: weights that cannot be read, shapes that do not fit the mesh, no sandbox
      backend.
  """
  e = experiment
  mesh = make_mesh(e.mesh)
  check_rows(e.pack, Layout(mesh, e.rules))
  loaded = load_model(e.model, mesh, e.rules)
  domains = build_domains(e.domains)
  if e.policy.skip_long_prompts:
    domains = _with_short_prompts(e, domains, loaded.template)
  check_room(e, domains)
  _pool_config(e, workdir, "")  # a wrong configuration is told whether or not it is used
  images = sorted({domain.image for domain in domains.values() if domain.sandboxed})
  pools = {image: _pool_config(e, workdir, image) for image in images}
  with asyncio.Runner() as runner, _sandboxes(pools, runner) as services:
    yield Session(
      experiment=e,
      model=loaded.model,
      model_hash=loaded.content_hash,
      template=loaded.template,
      domains=domains,
      services=services,
      engine=Engine(
        e.engine,
        loaded.model,
        loaded.template.tokenizer,
        CachePlacement(mesh, e.rules),
        record_routes=e.rl.router_replay,
      ),
      policy=policy_trainer(e, loaded.model, loaded.layout, loaded.start),
      policy_layout=loaded.layout,
      start=loaded.start,
      reference=_reference(e, loaded),
      runner=runner,
      critic=build_critic(e, loaded.model, mesh, loaded.start),
    )


def _with_short_prompts(
  e: Experiment, domains: Mapping[str, Domain], template: ChatTemplate
) -> dict[str, Domain]:
  """The domains, without tasks that leave no room for an answer."""

  def tokens(messages: Sequence[Message]) -> int:
    return len(template.encode(messages, add_generation_prompt=True))

  limit = e.engine.max_length - e.policy.max_new_tokens
  return {name: fitting(domain, tokens, limit) for name, domain in domains.items()}


def check_room(e: Experiment, domains: Mapping[str, Domain]) -> None:
  """Raises ValueError where an episode of several turns may fit no row of the trainer."""
  for domain in domains.values():
    if domain.budget is None:
      continue
    sampled = min(domain.budget.sampled(e.policy.max_new_tokens), e.engine.max_length)
    probe = int(e.critic is not None and e.critic.bootstrap_truncated)
    if sampled + probe > e.pack.actions:
      raise ValueError(
        f"an episode of domain {domain.name} samples up to {sampled} tokens ({domain.budget.turns} "
        f"turns of policy.max_new_tokens {e.policy.max_new_tokens}, at most budget.tokens "
        f"{domain.budget.tokens}), pack.actions is {e.pack.actions}; raise it to {sampled + probe}"
      )


def _pool_config(e: Experiment, workdir: pathlib.Path, image: str) -> PoolConfig:
  audit = f"sandbox_audit_{image}.jsonl" if image else "sandbox_audit.jsonl"
  config = PoolConfig(
    backend=e.sandbox.backend, size=e.sandbox.size, audit_path=str(workdir / audit)
  )
  return dataclasses.replace(config, image=image, limits=limits_of(image)) if image else config


@contextlib.contextmanager
def _sandboxes(configs: Mapping[str, PoolConfig], runner: asyncio.Runner) -> Generator[Services]:
  """Started pools, one an image."""
  pools: dict[str, Pool] = {}

  async def start() -> None:
    for image, config in configs.items():
      pool = Pool(config)
      await pool.__aenter__()
      pools[image] = pool
      await pool.settle()  # the loop stands still until the first episode

  async def stop() -> None:
    for pool in pools.values():
      await pool.__aexit__(None, None, None)

  try:
    runner.run(start())
    yield Services(pools.get(""), {image: pool for image, pool in pools.items() if image})
  finally:
    runner.run(stop())


def _reference(e: Experiment, loaded: Loaded) -> Params:
  kind = e.rl.reference_weights
  if kind == "start":
    return loaded.start
  quantized = jax.jit(quantize_blocks, static_argnums=1)(loaded.start, kind)
  placed = loaded.layout.place(quantized, quantized_axes(loaded.model))
  # What is not quantised may still be the arrays of `start`, which the policy takes over.
  return jax.tree.map(jax.numpy.copy, placed)
