"""What the experiments of this directory share: the tiny model's domain, shapes and sampling.

`python -m configs.papers.prepare` makes the model that they start from.
"""

import dataclasses
from typing import Any

from ptjax.checkpoint.manager import CheckpointConfig
from ptjax.evals.heldout import EvalConfig
from ptjax.experience.collect import PolicyConfig
from ptjax.experience.mixture import DomainConfig
from ptjax.experience.packing import PackConfig
from ptjax.rollout.engine import EngineConfig
from ptjax.train.experiment import Experiment, ModelConfig, RLConfig
from ptjax.train.optimizer import OptimizerConfig

MODEL = "runs/papers/base"
SEEDS = (0, 1, 2)

PROMPT = 8  # tokens: <|im_start|> u, three digits, <|im_end|>, <|im_start|> a
GROUP = 8


def addends(name: str, rl: RLConfig, *, answer: int, **changes: Any) -> Experiment:
  """An experiment on the domain `addends`; a group fills a row, a step is one micro-batch.

  Args:
    name: of the arm.
    rl: the algorithm.
    answer: limit of an answer, tokens: 8 leave a right one a token or two, 24 let it run on.
    changes: of the experiment.
  """
  defaults: dict[str, Any] = {
    "name": name,
    "domains": (DomainConfig("addends"),),
    "model": ModelConfig(MODEL, remat="none"),
    "policy": PolicyConfig(max_new_tokens=answer),
    "engine": EngineConfig(
      num_slots=64, max_length=PROMPT + answer, decode_chunk=8, adaptive=True, min_prefill=8
    ),
    "pack": PackConfig(
      length=PROMPT + GROUP * answer, actions=GROUP * answer, rows=rl.prompts_per_step
    ),
    "rl": dataclasses.replace(rl, group_size=GROUP),
    "optimizer": OptimizerConfig(learning_rate=3e-4),
    "eval": EvalConfig(tasks_per_domain=256),
    "checkpoint": CheckpointConfig(every=10_000),
  }
  return Experiment(**defaults | changes)
