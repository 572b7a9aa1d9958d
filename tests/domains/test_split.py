"""Splits are disjoint by content, and tasks are a function of their seed."""

import pytest

from ptjax.domains import arithmetic, catalog, code, split


def canonical(task):
  return task.messages[-1]["content"]


# The default arithmetic has some 180 questions in all; the property wants many.
TWO_DIGITS = arithmetic.Config(parameters={**arithmetic.CHAIN_SUM, "max_digits": 2})


@pytest.mark.parametrize(
  "domain", [code.build(), arithmetic.build(TWO_DIGITS)], ids=lambda domain: domain.name
)
def test_no_heldout_question_is_trained_on(domain):
  train, heldout = (
    {canonical(domain.make_task(seed, which)) for seed in range(3000)}
    for which in ("train", "heldout")
  )
  assert len(heldout) >= 50
  assert len(train) > len(heldout)
  assert not train & heldout


def test_splits_of_the_default_arithmetic():
  domain = arithmetic.build()
  train, heldout = (
    {canonical(domain.make_task(seed, which)) for seed in range(3000)}
    for which in ("train", "heldout")
  )
  assert not train & heldout
  assert len(train) + len(heldout) == 200  # 10 x 10 pairs of digits, sum or difference
  assert len(heldout) == pytest.approx(200 * split.HELDOUT_SHARE, abs=15)


def test_code_split_does_not_see_the_function_name():
  domain = code.build(code.Config(functions=("f", "g", "solve")))
  specs = [
    {canonical(domain.make_task(seed, which)).split(" that ")[1] for seed in range(1000)}
    for which in ("train", "heldout")
  ]
  assert not specs[0] & specs[1]


@pytest.mark.parametrize("name", ["addends", "arithmetic", "code"])
def test_tasks_depend_on_seed_and_split_alone(name):
  first, second = catalog.DOMAINS[name](), catalog.DOMAINS[name]()
  for seed in range(50):
    assert first.make_task(seed, "train") == second.make_task(seed, "train")
  assert len({canonical(first.make_task(seed, "train")) for seed in range(50)}) > 25


def test_share_and_normalisation():
  questions = [f"What is {i}?" for i in range(5000)]
  share = sum(split.split_of(q) == "heldout" for q in questions) / len(questions)
  assert share == pytest.approx(split.HELDOUT_SHARE, abs=0.03)
  assert all(split.split_of(q) == split.split_of(f"  {q.upper()}\n") for q in questions[:100])


def test_clear_errors():
  only = next(q for q in map(str, range(100)) if split.split_of(q) == "train")
  with pytest.raises(ValueError, match="no heldout question among 1000 draws from seed 7"):
    split.draw(lambda _: only, str, 7, "heldout")
  with pytest.raises(ValueError, match="split 'test' is unknown"):
    arithmetic.build().make_task(0, "test")
