"""Process reward models: the loss of step ends, learning, the leaf that reads them."""

import asyncio
import dataclasses
import json

import jax
import numpy as np
import pytest
from fit_toys import load_toy
from train_toys import gradient

from ptjax.core.metrics import read_jsonl
from ptjax.data.annotated_steps import AnnotatedSteps, read_steps
from ptjax.envs.environment import Services, Task
from ptjax.experience.packing import PackConfig
from ptjax.rewards import tree
from ptjax.rewards.process import process_leaf, process_text
from ptjax.rewards.reward_model import RewardModel, load_reward_model
from ptjax.train import supervised
from ptjax.train.experiment import ModelConfig
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.pairs import PairsConfig
from ptjax.train.process_reward import process_problem
from ptjax.train.reward_model import RewardExperiment, RewardModelConfig
from ptjax.train.supervised import FitConfig, FitObserver

ORIGIN = {"annotator": "a", "license": "CC0-1.0", "source": "here", "domain": "toy"}


def judged(count: int, seed: int = 0) -> list[AnnotatedSteps]:
  """Two steps each; a step of letters from the end of the alphabet is wrong."""
  rng = np.random.default_rng(seed)
  items = []
  for i in range(count):
    labels = tuple(bool(x) for x in rng.integers(0, 2, 2))
    steps = tuple("abcd"[rng.integers(4)] * 2 if y else "wxyz"[rng.integers(4)] * 2 for y in labels)
    messages = ({"role": "user", "content": f"question {i % 9}"},)
    items.append(AnnotatedSteps(messages, steps, labels, **ORIGIN))
  return items


@pytest.fixture(scope="module")
def experiment(tied_source):
  return RewardExperiment(
    data=PairsConfig("unused"),
    steps=True,
    reward=RewardModelConfig(num_layers=1),
    pack=PackConfig(length=128, actions=16, rows=8),
    fit=FitConfig(num_steps=16, batch_size=16),
    optimizer=OptimizerConfig(learning_rate=3e-2, eps=1e-2, max_grad_norm=1e9),
    model=ModelConfig(str(tied_source)),
  )


@pytest.fixture(scope="module")
def loaded(tied_source):
  return load_toy(tied_source)


@pytest.fixture(scope="module")
def problem(loaded, experiment):
  return process_problem(loaded, judged(48), judged(16, seed=1), experiment)


def test_loss_is_that_of_numpy(problem, loaded):
  """Scores by the serving path; the gradient of the bias is the mean of sigmoid(score) - label."""
  items, state = judged(12, seed=2), problem.init()
  model = RewardModel(
    trunk_of(loaded), state.params, loaded.template, ("toy",), {"toy": 0.0}, "", ""
  )
  texts = [process_text(loaded.template, i.messages, i.answer, i.steps, "toy") for i in items]
  scores = np.concatenate(model.scores(texts))[:, 0].astype(np.float64)
  labels = np.concatenate([i.labels for i in items])
  batches, _ = problem.batches(state.params, items)
  state, metrics = problem.trainer.update(state, map(problem.place, batches))
  wanted = np.mean(np.logaddexp(0, scores) - labels * scores)
  assert float(metrics["loss"]) == pytest.approx(wanted, rel=2e-5)
  slope = np.mean(1 / (1 + np.exp(-scores)) - labels)
  assert float(gradient(state)["head"]["b"][0, 0]) == pytest.approx(slope, abs=1e-6)
  assert max(np.abs(g).max() for g in jax.tree.leaves(gradient(state)["trunk"])) > 1e-4


def trunk_of(loaded):
  return dataclasses.replace(loaded.model, num_layers=1, tie_embeddings=True)


def test_wrong_steps_are_found_and_the_leaf_says_so(problem, experiment, tmp_path):
  supervised.run(problem, experiment.fit, experiment.checkpoint, tmp_path, FitObserver())
  before, after = read_jsonl(tmp_path / supervised.HELDOUT_FILE)
  assert after["process/accuracy"] > max(0.9, before["process/accuracy"])
  assert 0 <= after["process/ece"] < 0.3
  leaf = process_leaf(load_reward_model(tmp_path), how="min")
  rewards = tree.RewardTree(tree.Node("reward", (tree.Child(1.0, leaf),)))

  def reward(answer: str) -> float:
    task = Task("toy", 0, "train", ({"role": "user", "content": "question 4"},), {})
    return asyncio.run(tree.evaluate(rewards, task, answer, Services())).rewards[""]

  assert reward("aa\ncc") > 0.5 > reward("aa\nzz")
  assert reward("yy\naa") < 0.5


def test_the_schema(tmp_path):
  good = {"messages": [{"role": "user", "content": "q"}], "steps": ["a", "b"], "labels": [1, 0]}
  path = tmp_path / "steps.jsonl"

  def read(**change):
    path.write_text(json.dumps(good | ORIGIN | change) + "\n")
    return read_steps(path)

  (item,) = read()
  assert (item.answer, item.labels) == ("a\nb", (True, False))
  for change, words in (
    ({"labels": [1]}, "2 steps but 1 labels"),
    ({"labels": [1, 2]}, "labels must be a list of 0 and 1"),
    ({"steps": ["a\nb", "c"]}, "without newlines"),
    ({"steps": []}, "steps must be"),
    ({"license": "CC-BY-NC-4.0"}, "does not allow"),
    ({"setps": []}, "unknown field 'setps'"),
  ):
    with pytest.raises(ValueError, match=words) as error:
      read(**change)
    assert str(error.value).startswith(f"{path}, line 1")


def test_settings_of_comparisons_are_refused():
  with pytest.raises(ValueError, match="belong to comparisons"):
    RewardExperiment(PairsConfig("x"), steps=True, reward=RewardModelConfig(members=2))
