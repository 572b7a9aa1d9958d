"""Rejection-sampling fine-tuning: answer each task n times, learn from the best answers.

Source: Dong et al. 2023 (RAFT), algorithm 1; Yuan et al. 2023 (RFT).
"""

import dataclasses
import pathlib
from collections.abc import Sequence

import numpy as np

from ptjax.checkpoint.manager import CheckpointConfig
from ptjax.core.metrics import Mean
from ptjax.core.types import FinishReason
from ptjax.experience.collect import Played
from ptjax.experience.packing import PackConfig
from ptjax.models.decoder import Params
from ptjax.sharding.mesh import MeshConfig
from ptjax.sharding.rules import Rules
from ptjax.train import adapters, supervised
from ptjax.train.experiment import ModelConfig
from ptjax.train.on_policy import (
  NumberedTask,
  RolloutConfig,
  Tasks,
  heldout_pass_rates,
  play,
  played_metrics,
  sampling_session,
)
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.session import Session
from ptjax.train.sft import Aggregation, SFTBatch, sft_batches, sft_trainer
from ptjax.train.supervised import Drive, FitConfig, FitObserver, Problem


@dataclasses.dataclass(frozen=True)
class BestOfNConfig:
  """Which answers are learned from.

  Attributes:
    keep: best answers of a task, at most; equal answers count once.
    min_reward: least reward of an answer; None asks for the domain's verdict "passed".
  """

  keep: int = 1
  min_reward: float | None = None

  def __post_init__(self):
    if self.keep < 1:
      raise ValueError(f"best.keep {self.keep} must be >= 1")


@dataclasses.dataclass(frozen=True)
class BestOfNExperiment:
  """A run of rejection-sampling fine-tuning.

  Attributes:
    name, seed: of the run; the seed decides tasks and sampling.
    rollout: the tasks, and n as `group_size`.
    best: which answers are kept.
    aggregation: see `SFTExperiment`.
    model, mesh, rules: the network and where it lives.
    pack: shape of the rows.
    fit, optimizer, checkpoint: the rest; a batch is of tasks.
  """

  name: str = "best_of_n"
  seed: int = 0
  rollout: RolloutConfig = RolloutConfig()
  best: BestOfNConfig = BestOfNConfig()
  aggregation: Aggregation = "seq_mean_token_mean"
  model: ModelConfig = ModelConfig()
  mesh: MeshConfig = MeshConfig()
  rules: Rules = Rules()
  pack: PackConfig = PackConfig()
  fit: FitConfig = FitConfig()
  optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1e-5)
  checkpoint: CheckpointConfig = CheckpointConfig()

  def __post_init__(self):
    if self.best.keep > self.rollout.group_size:
      raise ValueError(
        f"best.keep {self.best.keep} exceeds rollout.group_size {self.rollout.group_size}: there "
        f"are not so many answers to a task"
      )


def best_answers(played: Sequence[Played], config: BestOfNConfig) -> list[Played]:
  """The best finished answers of each group, by reward; on ties the earlier one.

  Left out are answers without a score, those cut off by the length limit (they would teach not
  to stop), and those under the threshold.
  """
  groups: dict[int, list[Played]] = {}
  for p in played:
    if not p.trainable or p.episode.finish_reason is not FinishReason.STOP:
      continue
    least = config.min_reward
    if p.grade.passed if least is None else p.grade.rewards[""] >= least:
      groups.setdefault(p.spec.group, []).append(p)
  kept = []
  for members in groups.values():
    distinct = {p.episode.tokens.tobytes(): p for p in reversed(members)}
    ranked = sorted(distinct.values(), key=lambda p: (-p.grade.rewards[""], p.spec.index))
    kept += ranked[: config.keep]
  return kept


def best_of_n_problem(session: Session, e: BestOfNExperiment) -> Problem:
  """The problem of a run in an open session."""
  layout = session.policy_layout
  trainer = sft_trainer(session.model, layout, session.start, e.model.lora, e)

  def batches(params: Params, tasks: Sequence[NumberedTask]) -> tuple[list[SFTBatch], dict]:
    played = play(session, params, tasks, e.rollout.group_size)
    kept = best_answers(played, e.best)
    metrics = played_metrics(played) | {
      "bestofn/kept": Mean(len(kept), len(tasks) * e.best.keep),
      "bestofn/reward": Mean.of(np.asarray([p.grade.rewards[""] for p in kept], np.float64)),
    }
    if not kept:
      return [], metrics
    return sft_batches([p.trajectory(e.seed) for p in kept], e.aggregation, e.pack), metrics

  return Problem(
    trainer=trainer,
    init=lambda: trainer.init(session.trainable()),
    source=Tasks(e.rollout.domains, session.domains, e.seed),
    batches=batches,
    place=layout.place_rows,
    heldout=lambda params: heldout_pass_rates(session, params),
    identity=session.model.identity()
    | {"start": session.model_hash}
    | adapters.record(e.model.lora),
  )


def run(
  e: BestOfNExperiment, workdir: pathlib.Path, observer: FitObserver, drive: Drive = supervised.run
) -> None:
  """Trains on the best of n answers, or resumes; see `supervised.run` for what it raises."""
  observer.on_status("loading the model and starting the sandboxes")
  with sampling_session(e, workdir) as session:
    problem = best_of_n_problem(session, e)
    drive(problem, e.fit, e.checkpoint, workdir, observer)
