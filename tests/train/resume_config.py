"""A short deterministic run on a tiny model, which can be made to die at a chosen place.

  python -m ptjax.launch train --config tests/train/resume_config.py:grpo --workdir DIR \\
      --config.model.source=MODEL

The variable PTJAX_TEST_FAULT holds `PLACE:NUMBER`:

  rollout   SIGKILL between two decode chunks of that step
  train     SIGKILL when that update of a network, of several minibatches, was dispatched
  save      SIGKILL while that checkpoint is being written
  sigterm   SIGTERM between two decode chunks of that step
"""

import os
import signal

from ml_collections import ConfigDict

from ptjax.checkpoint.manager import CheckpointConfig, Checkpoints
from ptjax.core.config import to_config_dict
from ptjax.evals.heldout import EvalConfig
from ptjax.experience.collect import PolicyConfig
from ptjax.experience.packing import PackConfig
from ptjax.rollout.engine import Engine, EngineConfig
from ptjax.train.experiment import CriticConfig, Experiment, RLConfig
from ptjax.train.networks import Trainer
from ptjax.train.objectives import PolicyObjective
from ptjax.train.optimizer import OptimizerConfig

FAULT = "PTJAX_TEST_FAULT"
OPTIMIZER = OptimizerConfig(learning_rate=3e-3, warmup_steps=2, schedule="cosine")


def get_config(algorithm: str) -> ConfigDict:
  if FAULT in os.environ:
    place, number = os.environ[FAULT].split(":")
    signum = signal.SIGTERM if place == "sigterm" else signal.SIGKILL
    FAULTS[place](int(number), signum)
  ppo = algorithm == "ppo"
  rl = RLConfig(
    num_steps=6,
    prompts_per_step=4,
    group_size=4,
    advantages="gae" if ppo else "grpo",
    minibatches=2 if ppo else 1,
    reference=True,
    # Its gradient is never 0, whatever a random model happens to get right.
    objective=PolicyObjective(kl_coef=0.5),
    deterministic=True,
    contract_every=3,
  )
  return to_config_dict(
    Experiment(
      name=f"resume_{algorithm}",
      policy=PolicyConfig(max_new_tokens=8),
      engine=EngineConfig(num_slots=8, max_length=192, decode_chunk=2),
      pack=PackConfig(length=256, actions=64, rows=2),
      rl=rl,
      optimizer=OPTIMIZER,
      critic=CriticConfig(num_layers=1, optimizer=OPTIMIZER) if ppo else None,
      eval=EvalConfig(tasks_per_domain=8),
      checkpoint=CheckpointConfig(every=2),
    )
  )


def _in_rollout(step: int, signum: int) -> None:
  decode, seen = Engine.step, []

  def faulty(engine):
    seen.append(engine._version)
    if seen.count(step) == 2:
      os.kill(os.getpid(), signum)
    return decode(engine)

  Engine.step = faulty


def _in_train(number: int, signum: int) -> None:
  update = Trainer.update

  def faulty(trainer, state, batches):
    now = int(state.updates)
    result = update(trainer, state, batches)
    if now == number:
      os.kill(os.getpid(), signum)
    return result

  Trainer.update = faulty


def _in_save(step: int, signum: int) -> None:
  save = Checkpoints.save

  def faulty(checkpoints, number, state, meta):
    save(checkpoints, number, state, meta)
    if number != step:
      return
    while not any(checkpoints.directory.glob(f"{number}.*tmp*")):
      if checkpoints.path(number).exists():
        raise AssertionError(f"checkpoint {number} was complete before the kill")
    os.kill(os.getpid(), signum)

  Checkpoints.save = faulty


FAULTS = {"rollout": _in_rollout, "sigterm": _in_rollout, "train": _in_train, "save": _in_save}
