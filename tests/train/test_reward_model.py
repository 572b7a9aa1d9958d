"""Reward models: the loss, its gradient, learning, the file, the leaf and the critic."""

import asyncio
import dataclasses
import json

import jax
import numpy as np
import pytest
from fit_toys import annotated, load_toy, write_jsonl
from train_toys import (
  assert_trees_close,
  critic_experiment,
  gradient,
  session_on,
  toy_experiment,
  toy_trajectories,
)

from ptjax.core.config import from_json, to_json
from ptjax.core.metrics import read_jsonl
from ptjax.domains.domain import grade_response
from ptjax.envs.environment import Services, Task
from ptjax.experience.mixture import DomainConfig
from ptjax.experience.packing import PackConfig
from ptjax.rewards import tree
from ptjax.rewards.failures import Unscorable
from ptjax.rewards.judge import JudgeConfig
from ptjax.rewards.process import aggregate, process_leaf, process_text, split_steps, step_ends
from ptjax.rewards.reward_model import (
  Batcher,
  RewardModel,
  ScoredText,
  answer_text,
  combine,
  load_reward_model,
  reward_model_leaf,
)
from ptjax.train import supervised
from ptjax.train.experiment import Experiment, ModelConfig
from ptjax.train.manifest import write_run_manifest
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.pairs import PairsConfig, common_prefix, read_split, whole_parts
from ptjax.train.reward_model import (
  RewardExperiment,
  RewardModelConfig,
  pair_metrics,
  rank,
  read_state,
  reward_problem,
)
from ptjax.train.supervised import FitConfig, FitObserver

DOMAINS = ("left", "right")


@pytest.fixture(scope="module")
def experiment(tmp_path_factory, tied_source):
  records = [r for i, d in enumerate(DOMAINS) for r in annotated(40, seed=i, domain=d)]
  for i, record in enumerate(records):
    record["margin"] = float(i % 3)
    if record["domain"] == "right":  # there the taste is the opposite
      record["chosen"], record["rejected"] = record["rejected"], record["chosen"]
  path = write_jsonl(tmp_path_factory.mktemp("data") / "pairs.jsonl", records)
  return RewardExperiment(
    data=PairsConfig(str(path), heldout=0.3),
    reward=RewardModelConfig(num_layers=1, members=2, label_smoothing=0.1, use_margin=True),
    pack=PackConfig(length=128, actions=8, rows=8),
    fit=FitConfig(num_steps=12, batch_size=16),
    optimizer=OptimizerConfig(learning_rate=3e-2, eps=1e-2, max_grad_norm=1e9),
    model=ModelConfig(str(tied_source)),
  )


@pytest.fixture(scope="module")
def loaded(tied_source):
  return load_toy(tied_source)


@pytest.fixture(scope="module")
def problem(loaded, experiment):
  return reward_problem(loaded, *read_split(experiment.data), experiment)


@pytest.fixture(scope="module")
def trained(problem, experiment, tmp_path_factory):
  """(workdir, trained network)."""
  workdir = tmp_path_factory.mktemp("run")
  return workdir, supervised.run(
    problem, experiment.fit, experiment.checkpoint, workdir, FitObserver()
  )


@pytest.fixture(scope="module")
def model(trained):
  return load_reward_model(trained[0])


def one_update(problem, items):
  state = problem.init()
  batches, _ = problem.batches(state.params, items)
  state, metrics = problem.trainer.update(state, map(problem.place, batches))
  return float(metrics["loss"]), gradient(state), len(batches)


def log_sigmoid(x):
  return -np.logaddexp(0, -x)


def test_loss_is_that_of_numpy(problem, loaded, experiment):
  """Scores by the serving path, one padded row a text; the loss in float64."""
  pairs = read_split(experiment.data)[0][:12]
  items = rank(loaded, pairs, DOMAINS, experiment)
  loss, _, _ = one_update(problem, items)
  start = dataclasses.replace(
    model_of(problem, loaded), params=jax.device_get(problem.init().params)
  )
  chosen, rejected = (
    np.concatenate(
      start.scores(
        [answer_text(loaded.template, p.messages, getattr(p, side), p.domain) for p in pairs]
      )
    ).astype(np.float64)
    for side in ("chosen", "rejected")
  )
  gap = chosen - rejected - np.asarray([p.margin for p in pairs])[:, None]
  each = -0.9 * log_sigmoid(gap) - 0.1 * log_sigmoid(-gap) + 0.01 * (chosen + rejected) ** 2
  weights = np.asarray([i.weights for i in items])
  assert (weights.min(), weights.max() > 1) == (0, True), "the bootstrap is part of the test"
  assert loss == pytest.approx((each * weights).mean(), rel=2e-5)


def model_of(problem, loaded):
  trunk = dataclasses.replace(loaded.model, num_layers=1, tie_embeddings=True)
  return RewardModel(trunk, problem.init().params, loaded.template, DOMAINS, {}, "", "")


def test_neither_packing_nor_micro_batches_nor_devices_move_the_gradient(
  problem, loaded, experiment, tied_source
):
  pairs = read_split(experiment.data)
  items = rank(loaded, pairs[0][:16], DOMAINS, experiment)
  loss, grads, _ = one_update(problem, items)
  assert np.abs(grads["head"]["w"]).max() > 1e-2
  assert np.abs(grads["trunk"]["layers"]["attn"]["wq"]).max() > 1e-4
  e = dataclasses.replace(experiment, pack=PackConfig(length=64, actions=4, rows=4))
  sharded = reward_problem(load_toy(tied_source, 8, data=2, fsdp=2, tensor=2), *pairs, e)
  loss2, grads2, parts = one_update(sharded, items[::-1])
  assert parts > 1
  assert loss2 == pytest.approx(loss, abs=1e-5)
  assert_trees_close(grads2, grads, 1e-5)


def test_held_out_pairs_are_learned_in_domains_of_opposite_taste(trained):
  before, after = read_jsonl(trained[0] / supervised.HELDOUT_FILE)
  for domain in DOMAINS:
    assert after[f"reward_model/accuracy/{domain}"] > 0.9, (before, after)
  assert after["reward_model/nll"] < before["reward_model/nll"]
  assert 0 <= after["reward_model/ece"] < 0.5
  report = json.loads((trained[0] / "reward_model" / "reward_model.json").read_text())["report"]
  assert report["heldout"] == pytest.approx({k: after[k] for k in report["heldout"]})
  assert sum(b["count"] for b in report["reliability"]) == report["pairs"]
  assert sum(d["pairs"] for d in report["domains"].values()) == report["pairs"]
  low, high = report["accuracy_interval"]
  assert low < report["heldout"]["reward_model/accuracy"] <= high


def test_pair_metrics_by_hand():
  """Gaps by member (2, 4), (1, -3): means 3 and -1, deviations 1 and 2."""
  chosen, rejected = np.asarray([[2.0, 4.0], [1.0, -3.0]]), np.zeros((2, 2))
  metrics, report = pair_metrics((chosen, rejected), ["a", "b"], bins=5)
  assert metrics["reward_model/accuracy"] == 0.5
  assert metrics["reward_model/disagreement"] == pytest.approx(1.5)
  assert metrics["reward_model/nll"] == pytest.approx(np.mean(np.log1p(np.exp([-3, 1]))))
  confidence = 1 / (1 + np.exp([-3, -1]))
  assert metrics["reward_model/ece"] == pytest.approx(((1 - confidence[0]) + confidence[1]) / 2)
  assert report["domains"]["b"] == {"pairs": 1, "right": 0}


def task(domain="left"):
  return Task(domain, 0, "train", ({"role": "user", "content": "question 3"},), {})


def evaluate(leaf, response, domain="left"):
  rewards = tree.RewardTree(tree.Node("reward", (tree.Child(1.0, leaf),)))
  return asyncio.run(tree.evaluate(rewards, task(domain), response, Services()))


def test_the_saved_model_is_a_leaf_of_a_reward_tree(model):
  leaf = reward_model_leaf(model)
  good, bad = (evaluate(leaf, text).rewards["preference"] for text in ("aa", "zz"))
  assert 0 <= bad < good - 0.1 < 1
  bad, good = (evaluate(leaf, text, "right").rewards["preference"] for text in ("aa", "zz"))
  assert 0 <= bad < good - 0.1 < 1
  good = evaluate(leaf, "aa").rewards["preference"]
  cautious = evaluate(reward_model_leaf(model, how="mean_minus_std", coefficient=5.0), "aa")
  assert cautious.rewards["preference"] < good
  with pytest.raises(ValueError, match=r"no head for domain 'up', only left, right"):
    evaluate(leaf, "aa", "up")


def test_what_is_asked_at_once_is_scored_at_once(model):
  calls = []

  def score(texts):
    calls.append(len(texts))
    return model.scores(texts)

  ask = Batcher(score)
  texts = [answer_text(model.template, task().messages, "a" * n, "left") for n in (1, 3, 2)]

  async def all_of_them():
    return await asyncio.gather(*map(ask, texts))

  together = asyncio.run(all_of_them())
  assert calls == [3]
  for text, scores in zip(texts, together, strict=True):
    np.testing.assert_allclose(model.scores([text])[0], scores, rtol=1e-5, atol=1e-6)
  assert not np.allclose(together[0], together[1])


def test_members_are_combined():
  scores = np.asarray([1.0, 3.0])
  assert combine(scores, "mean") == 2
  assert combine(scores, "min") == 1
  assert combine(scores, "mean_minus_std", 0.5) == 1.5
  with pytest.raises(ValueError, match="'max' is unknown"):
    combine(scores, "max")


def test_steps_and_their_ends():
  answer = "é = 1\n\n2 + 2\n4"
  steps = split_steps(answer)
  assert steps == ["é = 1", "2 + 2", "4"]
  assert step_ends(answer, steps) == [6, 13, 15]
  assert step_ends("aa aa", ["aa", "aa"]) == [2, 5]
  with pytest.raises(ValueError, match="'b' does not stand"):
    step_ends("aa", ["b"])


def test_process_scores_read_the_prefixes(model):
  """A step's score is that of the text up to its last token: what follows does not matter."""
  messages, answer = task().messages, "aa\nzz\naé"
  steps = split_steps(answer)
  text = process_text(model.template, messages, answer, steps, "left")
  decode = model.template.tokenizer.decode
  prompt = decode(model.template.encode(messages, add_generation_prompt=True))
  prefixes = [decode(text.tokens[: end + 1]).removeprefix(prompt) for end in text.ends]
  assert prefixes == ["aa", "aa\nzz", "aa\nzz\naé"]
  together = model.scores([text])[0]
  for end, scores in zip(text.ends, together, strict=True):
    prefix = text._replace(tokens=text.tokens[: end + 1], ends=np.asarray([end]))
    np.testing.assert_allclose(model.scores([prefix])[0][0], scores, rtol=1e-4, atol=1e-5)


def test_a_process_leaf_combines_the_steps(model):
  answer = "aa\nzz\naa"
  text = process_text(model.template, task().messages, answer, split_steps(answer), "left")
  steps = 1 / (1 + np.exp(model.offsets["left"] - model.scores([text])[0].mean(axis=1)))
  assert steps.min() < steps[-1], "else two of the three would agree"
  wanted = {"min": steps.min(), "mean": steps.mean(), "last": steps[-1]}
  for how, value in wanted.items():
    got = evaluate(process_leaf(model, how=how), answer).rewards["process"]
    assert got == pytest.approx(value, rel=1e-5)
  assert [aggregate([0.5, 0.2, 0.4], how) for how in ("min", "mean", "last")] == pytest.approx(
    [0.2, 1.1 / 3, 0.4]
  )
  empty = evaluate(process_leaf(model), " \n ")
  assert isinstance(empty.failure, Unscorable)


def test_the_shared_prefix_is_stored_once(loaded):
  texts = [answer_text(loaded.template, task().messages, t, "left") for t in ("abc", "abd")]
  examples = [read_state(t) for t in texts]
  assert common_prefix(examples) == len(texts[0].tokens) - 2
  ((_, packed),) = whole_parts([examples], list, PackConfig(64, 8, 1), common_prefix)
  # After the prefix each has its own letter, the end token, and the token that is added.
  assert (packed.rows.segment_ids_BT > 0).sum() == len(texts[0].tokens) - 2 + 2 * 3


def test_states_are_read_at_the_ends():
  """Tokens 5 6 7 8, ends 1 and 3: marked are what follows them, 7 and the added token."""
  example = read_state(ScoredText(np.asarray([5, 6, 7, 8]), np.asarray([1, 3]), "left"))
  assert example.tokens.tolist() == [5, 6, 7, 8, 8]
  assert np.flatnonzero(example.action_mask).tolist() == [2, 4]


def test_the_critic_starts_as_the_reward_model(model, trained, tied_source, tmp_path):
  e = critic_experiment(tied_source)
  critic = dataclasses.replace(e.critic, num_layers=1, reward_model=str(trained[0]))
  with session_on(1, dataclasses.replace(e, critic=critic), tmp_path) as session:
    state = session.init_critic()
    head = model.params["head"]
    np.testing.assert_allclose(
      state.params["head"]["w"], np.mean(head["w"], axis=(0, 1)), rtol=1e-6
    )
    np.testing.assert_array_equal(
      state.params["trunk"]["layers"]["attn"]["wq"], model.params["trunk"]["layers"]["attn"]["wq"]
    )
    values = session.values(session.critic, state.params, toy_trajectories(groups=1))
    assert np.abs(np.concatenate(values)).max() > 1e-3
  deeper = dataclasses.replace(critic, num_layers=2)
  with session_on(1, dataclasses.replace(e, critic=deeper), tmp_path) as session:
    with pytest.raises(ValueError, match=r"num_layers 1 there, 2 here.*set critic\.num_layers"):
      session.init_critic()


def judged_session(source, workdir, **judge):
  domain = DomainConfig("toy", judge=JudgeConfig(str(workdir), **judge))
  return toy_experiment(source, domains=(domain,))


@pytest.mark.usefixtures("toy_in_catalog")
def test_the_configuration_makes_a_reward_model_judge_a_domain(
  model, trained, tied_source, tmp_path
):
  """Reward: 3/4 the share of sevens, 1/4 the taste of the head `left`."""
  e = judged_session(tied_source, trained[0], weight=0.25, head="left")
  with session_on(1, e, tmp_path) as session:
    assert from_json(Experiment, to_json(e)) == e
    write_run_manifest(session, tmp_path)
    domain, toy = session.domains["toy"], task("toy")
    answers = {text: session.runner.run(grade_response(domain, toy, text, Services()))
               for text in ("aa77", "7")}  # fmt: skip
  for text, got in answers.items():
    own = text.count("7") / len(text)
    read = answer_text(model.template, toy.messages, text, "left")
    taste = 1 / (1 + np.exp(model.offsets["left"] - model.scores([read])[0].mean()))
    assert got.rewards["share"] == own
    assert got.rewards["preference"] == pytest.approx(taste, rel=1e-5)
    assert got.rewards[""] == pytest.approx(0.75 * own + 0.25 * taste, rel=1e-5)
  assert [got.passed for got in answers.values()] == [False, True], "the verdict is the domain's"
  (record,) = json.loads((tmp_path / "manifest.json").read_text())["domains"]
  assert record["judge"] == str(trained[0])


@pytest.mark.usefixtures("toy_in_catalog")
def test_a_judge_of_steps(model, trained, tied_source, tmp_path):
  e = judged_session(tied_source, trained[0], weight=1.0, head="right", steps="min")
  with session_on(1, e, tmp_path) as session:
    domain = session.domains["toy"]
    got = session.runner.run(grade_response(domain, task("toy"), "aa\nzz", Services()))
  leaf = process_leaf(model, how="min")
  assert got.rewards[""] == pytest.approx(evaluate(leaf, "aa\nzz", "right").rewards["process"])


@pytest.mark.usefixtures("toy_in_catalog")
def test_a_judge_that_cannot_judge_is_refused_at_the_start(trained, tied_source, tmp_path):
  with pytest.raises(ValueError, match=r"no head for domain 'toy', only left, right"):
    with session_on(1, judged_session(tied_source, trained[0]), tmp_path):
      pass
  with pytest.raises(ValueError, match=r"judge\.weight 1\.5 must be in \(0, 1\]"):
    JudgeConfig("w", weight=1.5)
  with pytest.raises(ValueError, match=r"judge\.coefficient 2\.0 is not read where steps"):
    JudgeConfig("w", coefficient=2.0, steps="min")
  leaf = tree.Leaf("share", lambda *_: 1.0)
  with pytest.raises(ValueError, match="root share of the reward tree is a leaf"):
    tree.with_child(tree.RewardTree(leaf), leaf, 0.5)


def test_a_workdir_without_a_reward_model(tmp_path):
  with pytest.raises(ValueError, match="holds no reward model"):
    load_reward_model(tmp_path)
