"""Instruction following: every kind is admitted, and told from what does not meet it."""

import asyncio
import itertools
import random

import pytest

from ptjax.domains import instruction_texts as texts
from ptjax.domains import instructions
from ptjax.domains.admission import admit
from ptjax.domains.domain import grade_response
from ptjax.domains.instruction_kinds import BY_NAME, KINDS, choose, language_of
from ptjax.envs.environment import Services, Task

PLAIN = "Lima is a lively place with the charm of old streets and wide parks"


def grade(response, city="Lima", **constraints):
  task = Task("instructions", 0, "train", (), {"city": city, "constraints": constraints})
  return asyncio.run(grade_response(instructions.build(), task, response, Services()))


def test_admitted():
  domain = instructions.build(instructions.Config(1, 5))
  assert asyncio.run(admit(domain, range(60), Services())) == []


@pytest.mark.parametrize(
  ("name", "value", "good", "bad"),
  [
    ("language", "German", "Lima ist eine Stadt und das ist sehr schön mit Meer", PLAIN),
    ("at_least", 3, "one two three", "one two"),
    ("at_most", 3, "one two three", "one two three four"),
    ("keyword", ["bridge", "violin"], "A Bridge, a violin.", "A bridge and violins"),
    ("forbidden", "famous", "infamous", "It is Famous."),
    ("no_commas", None, "one; two", "one, two"),
    ("bullets", 2, "- a\n* b\n", "- a\n- b\nand c"),
    ("bullets", 2, "- a\n- b", "- a\n- b\n- c"),
    ("paragraphs", 2, "a\nb\n\n \nc", "a\nb"),
    ("sentences", 2, "It costs 3.5 euros. Yes!", "One. Two. Three."),
    ("json", "note", ' {"note": "a"} ', '{"note": "a", "b": 1}'),
    ("json", "note", '{"note": "a"}', '{"note": 1}'),
    ("ending", "End of note", "So. END of note\n", "End of note."),
    ("upper", None, "A 1.", "A b"),
    ("lower", None, "a 1.", "12"),
    ("quotes", None, '"a"', '"'),
  ],
)
def test_kinds_tell_good_from_bad(name, value, good, bad):
  assert BY_NAME[name].met(value, good)
  assert not BY_NAME[name].met(value, bad)


def test_every_pair_that_may_be_asked_together_has_an_answer():
  for first, second in itertools.combinations(KINDS, 2):
    if first.group == second.group or {first.name, second.name} & {*first.conflicts,
                                                                    *second.conflicts}:  # fmt: skip
      continue
    for seed in range(10):
      rng = random.Random(seed)
      asked = {kind.name: kind.draw(rng) for kind in (first, second)}
      task = Task("instructions", 0, "train", (), {"city": "Lima", "constraints": asked})
      assert grade(instructions.oracle(task), **asked).passed, asked


def test_choice_is_free_of_conflicts_and_reaches_every_kind():
  seen = set()
  for seed in range(200):
    chosen = choose(random.Random(seed), 4)
    names = {kind.name for kind in chosen}
    assert not any(names & set(kind.conflicts) for kind in chosen)
    seen |= names
  assert seen == set(BY_NAME)


@pytest.mark.parametrize(
  ("response", "value"),
  [(PLAIN, 1.0), (PLAIN.replace(" is", ", is"), 0.5), (PLAIN.replace("Lima", "It"), 0.0),
   ("Lima is fine", 0.0), ("Lima " * 20, 0.0)],
)  # fmt: skip
def test_partial_credit_behind_the_topic(response, value):
  graded = grade(response, no_commas=None, at_least=10)
  assert graded.rewards["domain"] == value
  assert graded.passed is (value == 1.0)


def test_languages_do_not_share_their_words():
  for a, b in itertools.combinations(texts.FUNCTION_WORDS.values(), 2):
    assert not a & b
  for name, sentence in texts.SENTENCES.items():
    assert language_of(sentence) == name
  assert language_of("12 34") is None


def test_impossible_counts_are_refused():
  with pytest.raises(ValueError, match="1 <= least <= most <= 5, got least 2, most 1"):
    instructions.Config(2, 1)
