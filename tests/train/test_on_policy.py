"""Best-of-n and distillation: what is selected, what is learned, and the same bits after a stop."""

import dataclasses

import numpy as np
import pytest
from fit_toys import load_toy
from tiny_model import write_tiny_model
from train_toys import assert_trees_equal, session_on, toy_domain

from ptjax.checkpoint.manager import CheckpointConfig
from ptjax.core.metrics import read_jsonl, without_perf
from ptjax.core.types import FinishReason, Outcome
from ptjax.domains.domain import Grade
from ptjax.envs.environment import Episode, Task
from ptjax.evals.heldout import EvalConfig
from ptjax.experience.collect import EpisodeSpec, Played, PolicyConfig
from ptjax.experience.mixture import DomainConfig
from ptjax.experience.packing import PackConfig
from ptjax.models import decoder
from ptjax.rollout.engine import EngineConfig
from ptjax.train import supervised
from ptjax.train.best_of_n import BestOfNConfig, BestOfNExperiment, best_answers, best_of_n_problem
from ptjax.train.distill import DistillExperiment, distill_problem
from ptjax.train.experiment import ModelConfig
from ptjax.train.on_policy import RolloutConfig, Tasks, session_experiment
from ptjax.train.optimizer import OptimizerConfig
from ptjax.train.supervised import FitConfig, FitObserver

SILENT = FitObserver()
PACK = PackConfig(length=64, actions=32, rows=8)
STEPS = 12


@pytest.fixture(scope="module")
def rollout():
  return RolloutConfig(
    domains=(DomainConfig("toy"),),
    group_size=8,
    policy=PolicyConfig(max_new_tokens=8),
    engine=EngineConfig(num_slots=32, max_length=64, decode_chunk=4),
    eval=EvalConfig(tasks_per_domain=6),
  )


@pytest.fixture(scope="module")
def session(rollout, tiny_source, tmp_path_factory):
  with pytest.MonkeyPatch.context() as patch:
    from ptjax.domains.catalog import DOMAINS

    patch.setitem(DOMAINS, "toy", toy_domain)
    e = BestOfNExperiment(rollout=rollout, model=ModelConfig(str(tiny_source)), pack=PACK)
    with session_on(1, session_experiment(e), tmp_path_factory.mktemp("session")) as session:
      yield session


@pytest.fixture(scope="module")
def best(rollout):
  return BestOfNExperiment(
    rollout=rollout,
    best=BestOfNConfig(min_reward=0.2),
    pack=PACK,
    fit=FitConfig(num_steps=STEPS, batch_size=4, logit_chunk=32),
    optimizer=OptimizerConfig(learning_rate=5e-3),
    checkpoint=CheckpointConfig(every=4),
  )


def played(group, index, reward, text=b"a", finish=FinishReason.STOP, passed=True):
  """An episode of a one-token prompt that is already graded."""
  tokens = np.frombuffer(b"p" + text, np.uint8).astype(np.int32)
  mask = np.arange(len(tokens)) > 0
  episode = Episode(tokens, mask, mask * np.float32(-1), mask - 1, (0, 1), ("",), finish)
  rewards = {} if reward is None else {"": reward}
  outcome = Outcome.UNSCORABLE if reward is None else Outcome.SCORED
  task = Task("toy", 0, "train", (), {})
  return Played(EpisodeSpec(task, group, index), episode, Grade(outcome, rewards, passed))


def test_the_best_answers_are_kept():
  episodes = [
    played(0, 0, 0.5, b"a"),
    played(0, 1, 0.9, b"b"),
    played(0, 2, 0.9, b"b"),  # the same answer again
    played(0, 3, 0.9, b"c"),
    played(0, 4, 1.0, b"d", FinishReason.LENGTH),  # would teach not to stop
    played(1, 5, None, b"e"),
    played(1, 6, 0.3, b"f", passed=False),
    played(2, 7, 0.1, b"g", passed=True),
  ]
  of = lambda **config: [p.spec.index for p in best_answers(episodes, BestOfNConfig(**config))]  # noqa: E731
  assert of() == [1, 7]
  assert of(keep=2) == [1, 3, 7]
  assert of(keep=4) == [1, 3, 0, 7]
  assert of(min_reward=0.3) == [1, 6]
  with pytest.raises(ValueError, match=r"keep 9 exceeds rollout\.group_size 8"):
    BestOfNExperiment(best=BestOfNConfig(keep=9))


def test_tasks_go_on_after_a_restore(session, rollout):
  whole, first, second = (Tasks(rollout.domains, session.domains, seed=1) for _ in range(3))
  expected = [whole.take(3) for _ in range(3)]
  first.take(3)
  second.restore(first.state())
  assert [second.take(3), second.take(3)] == expected[1:]
  assert [t.number for batch in expected for t in batch] == list(range(9))


def run_all(problem, e, tasks, workdir, observer=SILENT):
  """A run from the first task; compiled programs are shared."""
  problem = dataclasses.replace(problem, source=tasks())
  return supervised.run(problem, e.fit, e.checkpoint, workdir, observer)


@pytest.fixture(scope="module")
def best_run(session, best, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("best")
  problem = best_of_n_problem(session, best)
  tasks = lambda: Tasks(best.rollout.domains, session.domains, best.seed)  # noqa: E731
  return problem, tasks, workdir, run_all(problem, best, tasks, workdir)


def test_best_of_n_raises_the_reward(best_run):
  records = read_jsonl(best_run[2] / "metrics.jsonl")
  assert len(records) == STEPS
  rewards = [r["reward/mean"] for r in records]
  assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.2, rewards
  assert all(r["bestofn/reward"] >= r["reward/mean"] for r in records if r["bestofn/kept"])
  before, after = read_jsonl(best_run[2] / supervised.HELDOUT_FILE)
  assert before["pass/toy"] <= after["pass/toy"]


def test_best_of_n_stopped_between_checkpoints_ends_in_the_same_bits(best_run, best, tmp_path):
  class Killed(Exception):
    pass

  def kill(step, record):
    if step == 5:
      raise Killed

  problem, tasks, workdir, whole = best_run
  with pytest.raises(Killed):
    run_all(problem, best, tasks, tmp_path, FitObserver(on_step=kill))
  assert_trees_equal(run_all(problem, best, tasks, tmp_path), whole)
  records = [
    [without_perf(r) for r in read_jsonl(d / "metrics.jsonl")] for d in (tmp_path, workdir)
  ]
  assert records[0] == records[1]


def test_a_step_without_good_answers_leaves_the_network_alone(best_run, best, session, tmp_path):
  none = dataclasses.replace(
    best, best=BestOfNConfig(min_reward=2.0), fit=FitConfig(num_steps=1, batch_size=1)
  )
  problem = best_of_n_problem(session, none)
  end = run_all(problem, none, best_run[1], tmp_path)
  assert_trees_equal(end, problem.init())
  (record,) = read_jsonl(tmp_path / "metrics.jsonl")
  assert record["bestofn/kept"] == 0
  assert "optim/loss" not in record


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
  """A deeper taste for letters than for digits."""
  return load_toy(write_tiny_model(tmp_path_factory.mktemp("teacher"), seed=1, favoured=b"xyz"))


@pytest.mark.parametrize("divergence", ["reverse_kl", "forward_kl"])
def test_distillation_lowers_the_divergence(session, rollout, teacher, divergence, tmp_path):
  """And its first loss is that of float64 NumPy on the same answers."""
  e = DistillExperiment(
    teacher=ModelConfig("teacher"),
    divergence=divergence,
    rollout=dataclasses.replace(rollout, group_size=2),
    pack=PACK,
    fit=FitConfig(num_steps=8, batch_size=6, logit_chunk=16),
    optimizer=OptimizerConfig(learning_rate=1e-2),
  )
  problem = distill_problem(session, teacher, e)
  tasks = Tasks(rollout.domains, session.domains, e.seed)
  batches, _ = problem.batches(session.start, tasks.take(6))
  wanted = numpy_kl(session, teacher, batches, divergence)
  supervised.run(problem, e.fit, e.checkpoint, tmp_path, SILENT)
  kl = [r[f"distill/{divergence}"] for r in read_jsonl(tmp_path / "metrics.jsonl")]
  assert kl[0] == pytest.approx(wanted, rel=1e-4)
  assert kl[-1] < 0.5 * kl[0], kl


def numpy_kl(session, teacher, batches, divergence) -> float:
  total, count = 0.0, 0
  for batch in batches:
    rows = batch.rows
    logps = []
    for model, params in ((session.model, session.start), (teacher.model, teacher.start)):
      packed = decoder.Packed(*map(np.asarray, rows[:4]))
      hidden = np.asarray(decoder.bind(model, params)(packed), np.float64)
      states = np.take_along_axis(hidden, rows.predictor_BA[:, :, None], axis=1)[rows.mask_BA]
      logits = states @ np.asarray(params["lm_head"]["w"], np.float64)
      logps.append(logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True))
    s, t = logps if divergence == "reverse_kl" else logps[::-1]
    total += (np.exp(s) * (s - t)).sum()
    count += rows.mask_BA.sum()
  return total / count


def test_a_teacher_of_other_tokens_is_refused(session, rollout, teacher):
  e = DistillExperiment(teacher=ModelConfig("elsewhere"), rollout=rollout)
  wide = dataclasses.replace(
    teacher, model=dataclasses.replace(teacher.model, vocab_size=teacher.model.vocab_size + 4)
  )
  with pytest.raises(ValueError, match="'elsewhere' has other tokens than the student"):
    distill_problem(session, wide, e)
