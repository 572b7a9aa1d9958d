"""`model.today` is the date that a template prints, in training and in a reward model's file."""

import json

import pytest
from fit_toys import annotated, load_toy, write_jsonl
from tiny_model import write_tiny_model

from ptjax.experience.packing import PackConfig
from ptjax.rewards.reward_model import load_reward_model
from ptjax.train import reward_model
from ptjax.train.experiment import ModelConfig
from ptjax.train.pairs import PairsConfig
from ptjax.train.supervised import FitConfig, FitObserver

ASK = ({"role": "user", "content": "hello"},)


@pytest.fixture(scope="module")
def dated_source(tmp_path_factory):
  """A tiny model whose template begins with the date."""
  source = write_tiny_model(tmp_path_factory.mktemp("dated"), tied=True)
  path = source / "tokenizer_config.json"
  options = json.loads(path.read_text())
  options["chat_template"] = '{{ strftime_now("%d %b %Y") }}' + options["chat_template"]
  path.write_text(json.dumps(options))
  return source


def test_a_reward_model_keeps_the_date_that_it_was_trained_with(dated_source, tmp_path):
  e = reward_model.RewardExperiment(
    data=PairsConfig(str(write_jsonl(tmp_path / "pairs.jsonl", annotated(8)))),
    model=ModelConfig(str(dated_source), today="2026-01-31"),
    reward=reward_model.RewardModelConfig(num_layers=1),
    pack=PackConfig(length=96, actions=8, rows=8),
    fit=FitConfig(num_steps=1, batch_size=4),
  )
  reward_model.run(e, tmp_path, FitObserver())
  assert load_reward_model(tmp_path).template.render(ASK).startswith("31 Jan 2026<|im_start|>")


def test_without_a_date_the_clock_is_read(dated_source):
  assert load_toy(dated_source).template.today is None


@pytest.mark.parametrize("text", ["31 Jan 2026", "20260131", "2026-02-30", ""])
def test_what_is_no_date_is_refused(text):
  with pytest.raises(ValueError, match="is no date; write it as 2026-01-31"):
    ModelConfig(today=text)
