"""The generators of reasoning-gym as domains: admitted, and their scorers kept from harm."""

import asyncio

import pytest

from ptjax.core.types import Outcome
from ptjax.domains import catalog, generators, reasoning
from ptjax.domains.admission import examine
from ptjax.domains.domain import grade_response
from ptjax.domains.reasoning_answers import accepts, right_answer
from ptjax.domains.scorer import Scorer
from ptjax.envs.environment import Services
from ptjax.rewards.failures import Unscorable

# Their scorers evaluate the answer.
EVALUATING = (
  "binary_matrix",
  "countdown",
  "n_queens",
  "polynomial_multiplication",
  "puzzle24",
  "simple_integration",
  "spiral_matrix",
  "string_insertion",
)
HOSTILE = (
  "__import__('os').system('true')",
  "print(1)",
  "x.__class__",
  "(lambda: 0)()",
  "9**9**9**9",
  "9^9^9",
  "2**(9**9)",
  "9**999",
  "exec('1')",
  "f'{open}'",
  "[[]]*10**9",
  "eval(x)",
  "1 if x else 2; y",
)


def grade(name, response, seed=0):
  domain = catalog.builder(name)()
  task = domain.make_task(seed, "train")
  return asyncio.run(grade_response(domain, task, response, Services()))


def test_every_generator_is_offered_or_refused_with_a_reason():
  known = set(generators.package().factory.DATASETS)
  assert set(reasoning.GENERATORS) | set(reasoning.REFUSED) == known
  assert not set(reasoning.GENERATORS) & set(reasoning.REFUSED)
  assert len(reasoning.GENERATORS) >= 100


@pytest.mark.parametrize("name", reasoning.GENERATORS)
def test_admitted(name):
  report = asyncio.run(examine(reasoning.at_level(name), range(3), Services()))
  assert report.findings == ()


def test_the_easiest_and_the_hardest_level_differ():
  def longest(level):
    domain = catalog.builder(f"reasoning/chain_sum@{level}")()
    assert domain.name == f"reasoning/chain_sum@{level}"
    return max(len(domain.make_task(i, "train").messages[0]["content"]) for i in range(20))

  assert longest(0) + 20 < longest(9)


@pytest.mark.parametrize("name", EVALUATING)
def test_what_is_evaluated_is_harmless(name):
  tasks = generators.dataset(name, {})
  for answer in HOSTILE:
    assert not accepts(name, answer, tasks[0]), answer
  for i in range(30):
    assert accepts(name, right_answer(name, tasks[i]), tasks[i])


@pytest.mark.parametrize(
  ("name", "answer"),
  [("puzzle24", "6*4*1*1"), ("complex_arithmetic", "nan"), ("game_of_life_halting", "perhaps")],
)
def test_answers_that_the_package_pays_for_whatever_was_asked(name, answer):
  for seed in range(5):
    graded = grade(f"reasoning/{name}", f"<answer>{answer}</answer>", seed)
    assert graded.rewards["domain"] == 0.0, seed


@pytest.mark.parametrize(
  ("response", "root"),
  [
    ("<answer>{}</answer>", 1.0),
    ("They share it: <answer> {} </answer>\n", 1.0),
    ("<answer>0</answer> no, <answer>{}</answer>", 0.7),
    ("<answer>{}</answer> as was to be shown", 0.7),
    ("<answer>0</answer>", 0.3),
    ("{}", 0.0),
    ("<answer>{}", 0.0),
  ],
)
def test_rewards(response, root):
  right = generators.dataset("gcd", {})
  task = catalog.builder("reasoning/gcd")().make_task(0, "train")
  assert task.data["entry"] == right[task.data["entry"]["metadata"]["source_index"]]
  graded = grade("reasoning/gcd", response.format(task.data["entry"]["answer"]))
  assert graded.outcome is Outcome.SCORED
  assert graded.rewards[""] == pytest.approx(root)


def test_partial_credit_is_the_scorers_own():
  entry = generators.dataset("countdown", {})[0]
  response = f"<answer>{sum(entry['metadata']['numbers'])}</answer>"
  for partial in (False, True):
    domain = reasoning.build(reasoning.Config("countdown", partial_credit=partial))
    graded = asyncio.run(grade_response(domain, domain.make_task(0, "train"), response, Services()))
    assert (graded.rewards["domain"] > 0) is partial
    assert not graded.passed


@pytest.mark.parametrize(
  ("name", "answer", "why"),
  [
    ("puzzle24", "9**9**9**9", "took over 1 s"),
    ("spiral_matrix", "__import__('os')._exit(1)", "took its process down"),
  ],
)
def test_a_scorer_that_does_not_come_back_is_ended_and_the_next_answer_is_scored(name, answer, why):
  scorer, entry = Scorer(deadline_s=1.0), generators.dataset(name, {})[0]
  right = right_answer(name, entry)
  try:
    assert asyncio.run(scorer.score(name, {}, None, right, entry)) == 1.0
    with pytest.raises(Unscorable, match=why):
      asyncio.run(scorer.score(name, {}, None, answer, entry))
    assert asyncio.run(scorer.score(name, {}, None, right, entry)) == 1.0
  finally:
    scorer.close()


def test_an_answer_that_its_scorer_cannot_read_is_wrong():
  assert grade("reasoning/prime_factorization", "<answer>asdf</answer>").rewards["domain"] == 0.0


@pytest.mark.parametrize(
  ("build", "message"),
  [
    (lambda: reasoning.at_level("codeio"), "codeio is not admitted: the same index makes two"),
    (lambda: reasoning.at_level("mazes"), "no generator 'mazes'; it has ab, acre"),
    (lambda: reasoning.at_level("acre", 1), "acre has no curriculum"),
    (lambda: reasoning.at_level("maze", -1), "level -1 of maze must be >= 0"),
    (
      lambda: reasoning.build(reasoning.Config("maze", parameters={"width": 3})),
      "maze refuses {'width': 3}",
    ),
  ],
)
def test_configuration_errors(build, message):
  with pytest.raises(ValueError, match=message):
    build()
