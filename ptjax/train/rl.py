"""Reinforcement learning: sample groups, score them, update. Reads top to bottom."""

import dataclasses
import signal
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from ptjax.algos.entropy import EntropyState, control_entropy
from ptjax.core.types import Outcome, Trajectory
from ptjax.envs.environment import Split
from ptjax.evals.guarded import Guarded
from ptjax.evals.hacking import Watched
from ptjax.experience.collect import EpisodeSpec, Played, collect
from ptjax.experience.groups import Sampled, sample_groups
from ptjax.experience.mixture import Mixture, task_seed
from ptjax.train import batch as batches
from ptjax.train import conflict, estimate
from ptjax.train.batch import Batch, PerAction
from ptjax.train.contract import check_contract
from ptjax.train.experiment import Experiment
from ptjax.train.networks import TrainState
from ptjax.train.rl_config import GAE, REINFORCE_PP
from ptjax.train.session import Session
from ptjax.train.telemetry import (
  Stopwatch,
  balance_metrics,
  batch_metrics,
  domains_metrics,
  kl_metric,
  passed_by_domain,
  rollout_metrics,
  sampling_metrics,
)

Review = Callable[["RLState", "StepDone"], tuple["RLState", dict[str, Any]]]
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
    entropy: of the adaptive entropy control; None without one.
    guard: what the regression guard has seen; None without one.
    watched: what the sensors of reward hacking have seen, by domain; None without them.
  """

  step: int
  policy: TrainState
  critic: TrainState | None
  mixture: Mixture
  entropy: EntropyState | None = None
  guard: Guarded | None = None
  watched: Mapping[str, Watched] | None = None


@dataclasses.dataclass(frozen=True)
class StepDone:
  """What a step has played and trained on, for those who look after a run.

  Attributes:
    played: all its episodes.
    batch: what was scored and trained on.
    seconds: by phase: rollout, score, train.
    cosines: of the gradients of pairs of domains, where the step has measured them.
  """

  played: list[Played]
  batch: Batch
  seconds: Mapping[str, float]
  cosines: conflict.Cosines


def initial_entropy(experiment: Experiment) -> EntropyState | None:
  """The state of the entropy control at step 0."""
  if experiment.rl.entropy is None:
    return None
  return EntropyState(experiment.rl.objective.entropy_coef)


def train(
  session: Session, state: RLState, on_step: OnStep, review: Review | None = None
) -> RLState:
  """Runs the steps that are left.

  After each, `review` looks after the domains: it may act on the mixture, and go back to earlier
  weights. Then `on_step` logs and saves.
  """
  e = session.experiment
  while state.step < e.rl.num_steps:
    watch = Stopwatch(session.engine.stats)
    session.engine.set_weights(session.policy.network(state.policy.params), state.step)

    with watch.phase("rollout"):
      sampled = play_step(session, state)
      trajectories = [p.trajectory(e.seed) for p in sampled.kept if trains(e, p)]

    with watch.phase("score"):
      fresh = [t for t in trajectories if staleness(t, state.step) <= e.rl.max_staleness]
      batch, metrics = prepare(session, state, fresh)

    cosines: conflict.Cosines = {}
    if e.rl.conflict_every is not None and state.step % e.rl.conflict_every == 0:
      with watch.phase("conflict"):
        cosines = conflict.measure(session, state.policy, batch)
      metrics |= conflict.metrics(cosines)

    with watch.phase("train"):
      policy, critic, update_metrics = update(session, state, batch)
      jax.block_until_ready(policy.params)

    state.mixture.observe(passed_by_domain(sampled.played))
    entropy = next_entropy(e, state.entropy, update_metrics)
    state = dataclasses.replace(
      state, step=state.step + 1, policy=policy, critic=critic, entropy=entropy
    )
    metrics |= rollout_metrics(sampled.played) | update_metrics
    metrics |= sampling_metrics(sampled, stale=len(trajectories) - len(fresh))
    metrics |= domains_metrics(state.mixture.seen)
    if e.rl.balance is not None:
      metrics |= balance_metrics(state.mixture.shares)
    metrics |= watch.metrics(fresh)
    if review is not None:
      state, more = review(state, StepDone(sampled.played, batch, watch.seconds, cosines))
      metrics |= more
    on_step(state, metrics, sampled.played)
  return state


def trains(e: Experiment, played: Played) -> bool:
  """Whether an episode may train: scored, or cut off where the critic's value stands in."""
  cut = played.grade.outcome is Outcome.TRUNCATED and "" not in played.grade.rewards
  bootstrapped = e.critic is not None and e.critic.bootstrap_truncated and cut
  return played.trainable or bootstrapped


def lost_episodes(e: Experiment, played: list[Played]) -> list[Played]:
  """Those that the machinery lost. A cut answer that its domain does not score is none of them:
  that depends on the configuration alone."""
  return [p for p in played if not trains(e, p) and p.grade.outcome is not Outcome.TRUNCATED]


def staleness(trajectory: Trajectory, step: int) -> int:
  """Steps since the oldest of its tokens was sampled."""
  return step - int(trajectory.policy_versions[trajectory.action_mask].min())


def play_step(session: Session, state: RLState) -> Sampled:
  """Draws this step's tasks and plays a group of episodes on each."""
  e = session.experiment
  if e.rl.dynamic_sampling is None:
    played = play_groups(session, state, 0, e.rl.prompts_per_step, 0)
    return Sampled(played, played, {}, rounds=1, missing=0)
  return sample_groups(
    lambda *which: play_groups(session, state, *which),
    e.rl.prompts_per_step,
    e.rl.dynamic_sampling,
  )


def play_groups(
  session: Session, state: RLState, number: int, count: int, first_group: int
) -> list[Played]:
  """Plays the groups of one rollout of a step; `number` counts the rollouts of the step."""
  e = session.experiment
  specs = []
  for group, draw in enumerate(state.mixture.draw(count), start=first_group):
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
      seed=sampling_seed(e.seed, state.step, number),
    )
  )
  lost = lost_episodes(e, played)
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
    network = session.policy.network(state.policy.params)
    old = session.logprobs(network, trajectories, replay=e.rl.router_replay)
  if check_now and old is not None:
    metrics["mismatch/max_gap"] = check_contract(
      trajectories, old, e.rl.contract_tolerance, session.template.tokenizer
    )
  if e.rl.objective.old_policy == "sampler":
    old = [t.behavior_logprobs[t.action_mask] for t in trajectories]
  reference = None
  if e.rl.reference:
    measured = batches.first_of_groups(trajectories, e.rl.kl_episodes)
    some = [trajectories[i] for i in measured]
    scores = session.logprobs(session.reference, some)
    metrics["policy/kl"] = kl_metric(some, scores)
    reference = scores if e.rl.objective.kl_coef else None
  advantages, values, returns = estimates(session, state, trajectories, reference)
  if e.rl.domain_norm:
    advantages = estimate.unit_by_domain(advantages, [t.domain for t in trajectories])
  needs_old = not e.rl.single_update or e.rl.objective.old_policy == "sampler"
  batch = Batch(
    trajectories,
    advantages,
    old if needs_old else None,
    reference if e.rl.objective.kl_in_loss else None,
    values,
    returns,
    domain_shares=state.mixture.weights,
    entropy_coef=None if state.entropy is None else state.entropy.applied,
  )
  return batch, metrics | batch_metrics(batch)


def estimates(
  session: Session, state: RLState, trajectories: list[Trajectory], reference: PerAction | None
) -> tuple[PerAction, PerAction | None, PerAction | None]:
  """(advantages, old values, returns); the last two are None without a critic."""
  rl = session.experiment.rl
  rewards = estimate.outcome_rewards(trajectories, rl, session.experiment.policy.max_new_tokens)
  penalties = None
  if rl.objective.kl_in_reward and reference is not None:
    penalties = estimate.kl_penalties(trajectories, reference, rl)
  if rl.advantages == GAE and session.critic is not None and state.critic is not None:
    values, bootstraps = state_values(session, state, trajectories)
    config = session.critic.config
    advantages, returns = estimate.critic_advantages(
      trajectories, values, config, rewards, penalties, bootstraps
    )
    return estimate.whiten(advantages), values, returns
  if rl.advantages == REINFORCE_PP:
    return (
      estimate.token_return_advantages(trajectories, rewards, penalties, rl.gamma),
      None,
      None,
    )
  if penalties is not None:
    rewards = [r - float(p.sum()) for r, p in zip(rewards, penalties, strict=True)]
  trees = {name: domain.rewards for name, domain in session.domains.items()}
  return estimate.group_advantages(trajectories, rl.advantages, rewards, trees), None, None


def state_values(
  session: Session, state: RLState, trajectories: list[Trajectory]
) -> tuple[PerAction, list[float | None]]:
  """The critic's value before each action, and after the last one where no verdict ends it."""
  if session.critic is None or state.critic is None:
    raise ValueError("values need a critic")
  cut = ["" not in t.rewards for t in trajectories]
  probed = [estimate.with_probe(t) if c else t for t, c in zip(trajectories, cut, strict=True)]
  network = session.critic.trainer.network(state.critic.params)
  values = session.values(session.critic, network, probed)
  bootstraps = [float(v[-1]) if c else None for v, c in zip(values, cut, strict=True)]
  return [v[:-1] if c else v for v, c in zip(values, cut, strict=True)], bootstraps


def next_entropy(
  e: Experiment, state: EntropyState | None, metrics: dict[str, Any]
) -> EntropyState | None:
  """The entropy control after a step; as it was where the policy took no update."""
  if state is None or e.rl.entropy is None or "policy/entropy" not in metrics:
    return state
  entropy = float(metrics["policy/entropy"].compute())
  control = e.rl.entropy
  return control_entropy(
    state, entropy, target=control.target, step=control.step, limit=control.limit
  )


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


def sampling_seed(seed: int, step: int, number: int = 0) -> int:
  """Seed of all sampling of a rollout, 32 bits; `number` counts the rollouts of the step."""
  words = [seed, step, 0x5A] + ([number] if number else [])
  return int(np.random.SeedSequence(words).generate_state(1)[0])


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
