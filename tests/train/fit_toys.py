"""Tiny models and data for supervised training."""

import json
from pathlib import Path

import jax
import numpy as np

from ptjax.data.config import DataConfig, SourceConfig
from ptjax.data.provenance import sha256_of
from ptjax.sharding.mesh import MeshConfig, make_mesh
from ptjax.sharding.rules import Rules
from ptjax.train.experiment import ModelConfig
from ptjax.train.loading import Loaded, load_model


def load_toy(source: Path, devices: int = 1, **sizes: int) -> Loaded:
  """The tiny model on the first few devices."""
  mesh = make_mesh(MeshConfig(**sizes), jax.devices()[:devices])
  return load_model(ModelConfig(str(source), remat="none"), mesh, Rules())


def write_jsonl(path: Path, records) -> Path:
  path.write_text("".join(json.dumps(record) + "\n" for record in records))
  return path


def source_config(path: Path) -> DataConfig:
  """The file as the only source of a run."""
  source = SourceConfig("toy", (str(path),), "CC0-1.0", "fit_toys", (sha256_of(path),))
  return DataConfig((source,))


def conversations(count: int = 24, seed: int = 0) -> list[dict]:
  """The assistant answers every question with its own last letter, twice; two turns each."""
  rng = np.random.default_rng(seed)
  records = []
  for i in range(count):
    messages = []
    for _ in range(2):
      letter = "abcd"[rng.integers(4)]
      messages.append({"role": "user", "content": f"{i % 12} {letter}"})
      messages.append({"role": "assistant", "content": letter * 2})
    records.append({"messages": messages})
  return records


def annotated(count: int = 24, seed: int = 0, domain: str = "toy") -> list[dict]:
  """The better answer repeats one of a, b, c, d, the worse one w, x, y or z."""
  rng = np.random.default_rng(seed)
  records = []
  for i in range(count):
    right, wrong = "abcd"[rng.integers(4)], "wxyz"[rng.integers(4)]
    records.append(
      {
        "messages": [{"role": "user", "content": f"question {i % 12}"}],
        "chosen": right * int(rng.integers(1, 4)),
        "rejected": wrong * int(rng.integers(1, 4)),
        "annotator": f"a{i % 3}",
        "license": "CC0-1.0",
        "source": "fit_toys",
        "domain": domain,
      }
    )
  return records
