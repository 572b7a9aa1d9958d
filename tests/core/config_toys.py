"""Toy dataclasses with every annotation that a config may use."""

import dataclasses
from collections.abc import Mapping
from typing import Literal


@dataclasses.dataclass(frozen=True)
class OptimToy:
  lr: float = 1e-3
  warmup: int = 10
  clip: float | None = 1.0


@dataclasses.dataclass(frozen=True)
class CriticToy:
  width: int = 8
  optim: OptimToy = OptimToy(lr=1e-4)


@dataclasses.dataclass(frozen=True)
class DomainToy:
  name: str
  weight: float = 1.0
  params: Mapping[str, int | float | str | bool] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Toy:
  seed: int = 0
  name: str = "toy"
  tag: str | None = None
  deterministic: bool = False
  loss: Literal["grpo", "ppo"] = "grpo"
  batch: int = 8
  data_axis: int = 4
  temperature: float = 1
  mesh: tuple[int, int] = (1, 1)
  stop: tuple[str, ...] = ()
  spans: tuple[tuple[int, int], ...] = ()
  weights: Mapping[str, float] = dataclasses.field(default_factory=dict)
  optim: OptimToy = OptimToy()
  critic: CriticToy | None = None
  domains: tuple[DomainToy, ...] = (DomainToy("code"), DomainToy("arithmetic", weight=3.0))

  def __post_init__(self):
    if self.batch % self.data_axis:
      raise ValueError(
        f"batch {self.batch} not divisible by data axis {self.data_axis};"
        f" try {self.batch // self.data_axis * self.data_axis}"
      )
