"""Reinforcement learning: sample groups, score them, update. Reads top to bottom."""

import dataclasses
import signal
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ptjax.core.types import Trajectory
from ptjax.envs.environment import Split
from ptjax.experience.collect import EpisodeSpec, Played, collect
from ptjax.experience.mixture import Mixture, task_seed
from ptjax.train import batch as batches
from ptjax.train.batch import Batch
from ptjax.train.contract import check_contract
from ptjax.train.networks import TrainState
from ptjax.train.session import Session
from ptjax.train.telemetry import Stopwatch, batch_metrics, kl_metric, rollout_metrics

OnStep = Callable[["RLState", dict[str, Any], list[Played]], None]


class InfrastructureError(ValueError):
  """An episode was lost to the machinery in a run that must not drop any."""


@dataclasses.dataclass(frozen=True)
class RLState:
  """All that changes from step to step, and all that a checkpoint must hold.

  Attributes:
    step: the next step.
    policy: the policy and its optimiser.
    critic: the critic and its optimiser; None without one.
    mixture: how many tasks each domain has set.
  """

  step: int
  policy: TrainState
  critic: TrainState | None
  mixture: Mixture


def train(session: Session, state: RLState, on_step: OnStep) -> RLState:
  """Runs the steps that are left; `on_step` logs and saves after each."""
  e = session.experiment
  while state.step < e.rl.num_steps:
    watch = Stopwatch(session.engine.stats)
    session.engine.set_weights(state.policy.params, state.step)

    with watch.phase("rollout"):
      played = play_step(session, state)
      trajectories = [p.trajectory(e.seed) for p in played if p.trainable]

    with watch.phase("score"):
      batch, metrics = prepare(session, state, trajectories)

    with watch.phase("train"):
      policy, critic, update_metrics = update(session, state, batch)
      jax.block_until_ready(policy.params)

    state = RLState(state.step + 1, policy, critic, state.mixture)
    metrics |= rollout_metrics(played) | update_metrics
    metrics |= watch.metrics(trajectories)
    on_step(state, metrics, played)
  return state


def play_step(session: Session, state: RLState) -> list[Played]:
  """Draws this step's tasks and plays a group of episodes on each."""
  e = session.experiment
  specs = []
  for group, draw in enumerate(state.mixture.draw(e.rl.prompts_per_step)):
    split: Split = "train"
    task = session.domains[draw.domain].make_task(task_seed(e.seed, draw.domain, draw.index), split)
    for _ in range(e.rl.group_size):
      specs.append(EpisodeSpec(task, group, index=len(specs)))
  played = session.runner.run(
    collect(
      session.engine,
      session.template,
      session.domains,
      specs,
      session.services,
      e.policy,
      seed=sampling_seed(e.seed, state.step),
    )
  )
  lost = [p for p in played if not p.trainable]
  if lost and e.rl.deterministic:
    raise InfrastructureError(
      f"step {state.step}: episode {lost[0].spec.index} of domain {lost[0].spec.task.domain} "
      f"has no score ({lost[0].grade.outcome}: {lost[0].grade.detail}); rl.deterministic=True "
      f"drops none; resume the run, or set it to False"
    )
  return played


def prepare(
  session: Session, state: RLState, trajectories: list[Trajectory]
) -> tuple[Batch, dict[str, Any]]:
  """Scores the trajectories under every network and estimates the advantages."""
  e, metrics = session.experiment, {}
  if not trajectories:
    return Batch([], []), metrics
  check_finite(trajectories, state.step)
  check_now = state.step % e.rl.contract_every == 0
  old = None
  if check_now or not e.rl.single_update:
    old = session.logprobs(state.policy.params, trajectories)
  if check_now and old is not None:
    metrics["mismatch/max_gap"] = check_contract(
      trajectories, old, e.rl.contract_tolerance, session.template.tokenizer
    )
  reference = None
  if e.rl.reference:
    measured = batches.first_of_groups(trajectories, e.rl.kl_episodes)
    some = [trajectories[i] for i in measured]
    scores = session.logprobs(session.start, some)
    metrics["policy/kl"] = kl_metric(some, scores)
    reference = scores if e.rl.objective.kl_coef else None
  values, returns = None, None
  if session.critic is not None and state.critic is not None:
    values = session.values(session.critic, state.critic.params, trajectories)
    advantages, returns = batches.critic_advantages(trajectories, values, session.critic.config)
    advantages = batches.whiten(advantages)
  else:
    advantages = batches.group_advantages(trajectories, e.rl.advantages)
  batch = Batch(
    trajectories, advantages, None if e.rl.single_update else old, reference, values, returns
  )
  return batch, metrics | batch_metrics(batch)


def check_finite(trajectories: list[Trajectory], step: int) -> None:
  """Raises ValueError where the policy no longer gives numbers."""
  if not all(np.isfinite(t.behavior_logprobs).all() for t in trajectories):
    raise ValueError(
      f"step {step}: sampled log-probs are not finite, the policy has diverged; go back to the "
      f"last checkpoint with a lower optimizer.learning_rate or optimizer.max_grad_norm"
    )


def update(
  session: Session, state: RLState, batch: Batch
) -> tuple[TrainState, TrainState | None, dict[str, Any]]:
  """Updates the critic and the policy on one batch."""
  e, policy, critic = session.experiment, state.policy, state.critic
  metrics: dict[str, Any] = {}
  if not batch.trajectories:
    return policy, critic, metrics
  for _ in range(e.rl.epochs):
    for part in batches.minibatches(batch, e.rl):
      if session.critic is not None and critic is not None:
        rows = batches.value_batches(part, e.rl, e.pack, e.policy.max_new_tokens)
        placed = (session.critic.layout.place_rows(r) for r in rows)
        critic, more = session.critic.trainer.update(critic, placed)
        metrics |= _named(more, "critic")
      if e.critic is not None and state.step < e.critic.warmup_steps:
        continue
      rows = batches.policy_batches(part, e.rl, e.pack, e.policy.max_new_tokens)
      placed = (session.policy_layout.place_rows(r) for r in rows)
      policy, more = session.policy.update(policy, placed)
      metrics |= _named(more, "optim")
  return policy, critic, metrics


def _named(metrics: dict[str, Any], owner: str) -> dict[str, Any]:
  """Metrics of one update; of several in a step the last is logged."""
  own = ("loss", "grad_norm", "lr")
  return {f"{owner}/{k}" if k in own else k: value for k, value in metrics.items()}


def sampling_seed(seed: int, step: int) -> int:
  """Seed of all sampling of a step, 32 bits."""
  return int(np.random.SeedSequence([seed, step, 0x5A]).generate_state(1)[0])


class PreemptionFlag:
  """Set by SIGTERM; the loop saves at the next step's end."""

  def __init__(self):
    self.is_set = False

  def install(self) -> None:
    signal.signal(signal.SIGTERM, self._set)

  def _set(self, signum, frame) -> None:
    del signum, frame
    self.is_set = True


__all__ = ["PreemptionFlag", "RLState", "train"]
