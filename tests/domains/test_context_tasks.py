"""Long-context problems: their length, where facts stand, that they can be solved, their scores."""

import collections
import itertools
import random
import re

import hypothesis
import hypothesis.strategies as st
import pytest

from ptjax.domains.context_tasks import needles, problem, ruler, texts, tracing, words
from ptjax.domains.context_tasks.needles import Needles
from ptjax.domains.context_tasks.problem import Room

NEEDLES = ("single_1", "single_2", "single_3", "multikey_1", "multikey_2", "multikey_3",
           "multivalue", "multiquery")  # fmt: skip
NAMES = [*(f"niah_{name}" for name in NEEDLES), "vt", "cwe", "fwe", "qa_1", "qa_2"]
COUNTED = re.compile(r"\w{1,4}|[^\w\s]")


def count(prompt, prefix):
  """A tokenizer of sorts: up to four letters or digits, or one other character."""
  return sum(1 for text in (prompt, prefix) for _ in COUNTED.finditer(text))


def made(name, seed=0, tokens=1500, **more):
  return ruler.TASKS[name](seed, Room(tokens, count), **more)


def test_the_thirteen_tasks():
  assert list(ruler.TASKS) == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tokens", [1200, 5000, 40_000])
def test_fills_its_room(name, tokens):
  """Counted anew, prompt and allowance are at most `tokens`, and at most the slack below."""
  one = made(name, 3, tokens)
  size = count(one.prompt, one.prefix) + one.max_new_tokens
  assert size == one.tokens + one.max_new_tokens
  assert tokens - max(128, tokens // 50) <= size <= tokens


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_makes_one_problem(name):
  assert made(name, 5) == made(name, 5)
  assert made(name, 5).prompt != made(name, 6).prompt
  assert made(name, 5).answers != made(name, 6).answers or name.startswith("qa")


def solve_needles(prompt):
  """By pattern, knowing nothing of how the text was made."""
  text, _, question = prompt.rpartition("\n")
  asked = re.fullmatch(
    r"What (?:is|are all) the secret (?:\w+) of (.*) in the text above\?", question
  )
  keys = re.split(r", | and ", asked[1])
  return {value for key in keys for value in re.findall(rf"of {key} is (\S+)\.", text)}


def solve_vt(prompt):
  prompt = prompt[prompt.rindex("Follow the assignments") :]
  value = re.search(r"the value (\d+) in", prompt)[1]
  held = {}
  for name, source in re.findall(r"VAR (\w+) = (?:VAR )?(\w+);", prompt):
    held[name] = held.get(source, source)
  return {name for name, what in held.items() if what == value}


def top(counts, number):
  """The most common, which must be unambiguous."""
  ranked = counts.most_common(number + 1)
  assert ranked[number - 1][1] > ranked[number][1]
  return {word for word, _ in ranked[:number]}


def solve_cwe(prompt):
  text = prompt[prompt.rindex("Some words") :]
  return top(collections.Counter(re.findall(r"\d+\. (\w+)", text)), 10)


def solve_fwe(prompt):
  text = prompt.removeprefix("Count how often each coded word occurs in the text below. ")
  coded = text.partition("\nQuestion")[0].split()
  return top(collections.Counter(word for word in coded if word != "..."), 3)


def solve_qa(prompt):
  if born := re.search(r"In which town was (.*) born\?", prompt):
    return set(re.findall(rf"{born[1]} was born in (\w+)", prompt))
  person = re.search(r"the firm that (.*) works for have", prompt)[1]
  firm = re.search(rf"Today {person} works for ([\w ]+)\.", prompt)[1]
  return set(re.findall(rf"{firm} has made .*? Its seat is in (\w+),", prompt))


SOLVERS = {
  "niah": solve_needles,
  "vt": solve_vt,
  "cwe": solve_cwe,
  "fwe": solve_fwe,
  "qa": solve_qa,
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("seed", "tokens"), [(0, 1200), (1, 2500), (2, 9000)])
def test_the_text_says_the_answers_and_no_others(name, seed, tokens):
  one = made(name, seed, tokens)
  assert SOLVERS[name.partition("_")[0]](one.prompt) == set(one.answers)


@pytest.mark.parametrize("depth", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("name", ["niah_single_1", "niah_single_2", "niah_multikey_2", "qa_1"])
def test_facts_stand_where_they_are_told(name, depth):
  one = made(name, 1, 6000, depths=(depth,))
  assert one.depths[0] == pytest.approx(depth, abs=0.02)
  assert one.prompt.count(one.facts[0]) == 1


def test_a_chain_keeps_its_order():
  one = made("vt", 2, 4000, depths=(0.1, 0.3, 0.5, 0.7, 0.9))
  assert one.depths == pytest.approx((0.1, 0.3, 0.5, 0.7, 0.9), abs=0.03)
  places = [one.prompt.index(fact) for fact in one.facts]
  assert places == sorted(places)


@pytest.mark.parametrize("name", ["niah_single_2", "niah_multivalue", "qa_2"])
def test_depths_are_uniform(name):
  """Chi-squared of ten bins over 300 problems, below its 99.9% quantile for 9 degrees (27.9)."""
  depths = [d for seed in range(300) for d in made(name, seed, 1200).depths]
  counts = problem.depth_histogram(depths, 10)
  expected = len(depths) / 10
  assert sum((c - expected) ** 2 / expected for c in counts) < 27.9


def test_even_depths_fill_every_part_once():
  for shift in (0.0, 0.37):
    depths = [problem.even_depth(i, shift) for i in range(16, 32)]
    assert problem.depth_histogram(depths, 16) == [1] * 16


def test_histogram_by_hand():
  assert problem.depth_histogram([0.0, 0.49, 0.5, 1.0], 2) == [2, 2]
  with pytest.raises(ValueError, match=r"depth 1\.5 must be"):
    problem.depth_histogram([1.5], 2)


@pytest.mark.parametrize(
  ("name", "answers", "response", "want"),
  [
    ("niah_multivalue", ("123", "456"), "it is 123", 0.5),
    ("niah_multivalue", ("123", "456"), "456 and\x00123!", 1.0),
    ("niah_multivalue", ("123", "456"), "", 0.0),
    ("qa_1", ("Marlow",), "It was MARLOW.", 1.0),
    ("qa_1", ("Marlow", "Marlow Town"), "marlow", 1.0),
    ("qa_1", ("Marlow",), "Mar low", 0.0),
  ],
)
def test_scores_by_hand(name, answers, response, want):
  match = "part" if name.startswith("qa") else "all"
  one = problem.Problem(name, "", "", answers, match, 1, (), (), "", 0)
  assert problem.score(one, response) == want


def test_precise_scores_by_hand():
  pattern = r"\d{3}"
  assert problem.precise_score(("123", "456"), pattern, "123 456 123") == 1.0
  assert problem.precise_score(("123", "456"), pattern, "123") == 0.5
  assert problem.precise_score(("123", "456"), pattern, "123 456 777 888") == 0.5
  assert problem.precise_score(("123", "456"), pattern, "none") == 0.0


@hypothesis.given(
  st.lists(st.integers(1, 9), min_size=400, max_size=400),
  st.integers(5, 300),
  st.integers(9, 30),
)
@hypothesis.settings(deadline=None, max_examples=60)
def test_most_units_meets_limit_and_slack(sizes, limit, slack):
  """Every unit has at most 9 tokens, so a slack of 9 can always be met."""
  totals = [0, *itertools.accumulate(sizes)]
  calls = []

  def tokens(units):
    calls.append(units)
    return totals[units] if units <= 400 else totals[400] + 9 * (units - 400)

  units = problem.most_units(tokens, limit, slack, 0)
  assert limit - slack <= tokens(units) <= limit
  assert len(calls) <= 14


def test_clear_errors():
  with pytest.raises(ValueError, match=r"cwe: its shortest text takes \d+ tokens"):
    made("cwe", tokens=400)
  with pytest.raises(ValueError, match="2 depths for 1 needles"):
    made("niah_single_1", depths=(0.1, 0.2))
  with pytest.raises(ValueError, match="ascending order"):
    made("vt", depths=(0.9, 0.3, 0.5, 0.7, 0.1))
  with pytest.raises(ValueError, match="fwe has no depth"):
    words.make_frequent("fwe", 0, Room(1500, count), depths=(0.5,))
  with pytest.raises(ValueError, match="may be left; raise the slack"):
    tracing.make("vt", 0, Room(1500, count, slack=0))
  with pytest.raises(ValueError, match="num_queries 2 must be 1 to num_keys 1"):
    Needles(num_queries=2)


def test_distractors_share_no_key():
  """What RULER's own generator leaves to chance: here nine keys in ten are taken."""
  taken = {f"{a}-{n}" for a in texts.ADJECTIVES for n in texts.NOUNS if a > "br"}
  others = needles.other_needles(Needles("needles"), random.Random(0), frozenset(taken))
  keys = {re.search(r"of (\S+) is", next(others))[1] for _ in range(200)}
  assert not keys & taken


def test_spread_depths_have_one_in_each_part():
  depths = problem.spread_depths(random.Random(1), 5)
  assert problem.depth_histogram(depths, 5) == [1] * 5
