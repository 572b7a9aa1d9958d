"""The mixture: exact quotas, a state that resumes, seeds that other domains do not move."""

import numpy as np
import pytest

from ptjax.experience.mixture import DomainConfig, Draw, Mixture, task_seed


def mixture(*weights):
  return Mixture([DomainConfig(f"d{i}", weight) for i, weight in enumerate(weights)])


def test_draws_by_hand():
  draws = mixture(2.0, 1.0).draw(6)
  assert draws == [
    Draw("d0", 0), Draw("d1", 0), Draw("d0", 1), Draw("d0", 2), Draw("d1", 1), Draw("d0", 3),
  ]  # fmt: skip


def worst_quota(weights, num_draws):
  """Largest distance of a domain's draws from its share, over all prefixes."""
  source = mixture(*weights)
  share = np.asarray(weights) / sum(weights)
  drawn, worst = np.zeros(len(weights)), 0.0
  for n, draw in enumerate(source.draw(num_draws), 1):
    drawn[int(draw.domain[1:])] += 1
    worst = max(worst, np.abs(drawn - share * n).max())
  return worst


@pytest.mark.parametrize(
  "weights",
  [
    (1,), (1, 1), (3, 1), (1, 2, 4), (0.1, 0.2, 0.7), (1,) * 7, (100, 1, 1), (5, 4, 3, 2, 1),
    (58, 1, 1, 58, 1, 1, 1, 1, 11, 1, 1),  # the furthest behind first is 1.26 off at draw 110
  ],
  ids=str,
)  # fmt: skip
def test_quotas_hold_after_every_draw(weights):
  assert worst_quota(weights, 400) < 1 + 1e-9


@pytest.mark.parametrize("seed", range(8))
def test_quotas_hold_for_many_domains(seed):
  weights = np.random.default_rng(seed).uniform(0.01, 1, size=40) ** 3
  assert worst_quota(weights, 1500) < 1 + 1e-9


def test_indices_of_a_domain_count_up():
  by_domain = {}
  for draw in mixture(3, 2, 1).draw(60):
    by_domain.setdefault(draw.domain, []).append(draw.index)
  assert {name: indices == list(range(len(indices))) for name, indices in by_domain.items()} == {
    "d0": True, "d1": True, "d2": True,
  }  # fmt: skip
  assert [len(by_domain[f"d{i}"]) for i in range(3)] == [30, 20, 10]


@pytest.mark.parametrize("cut", [0, 1, 7, 13])
def test_resumes_in_the_middle(cut):
  weights = (0.5, 0.3, 0.2)
  whole = mixture(*weights).draw(30)
  first = mixture(*weights)
  head = first.draw(cut)
  saved = first.state()
  first.draw(5)  # after the checkpoint; lost
  second = mixture(*weights)
  second.restore(saved)
  assert head + second.draw(30 - cut) == whole


def test_a_domain_added_on_resume_gets_its_share_from_there():
  """It does not make up for the draws before its time."""
  old = mixture(1, 1)
  old.draw(100)
  new = mixture(1, 1, 2)
  new.restore(old.state())
  domains = [draw.domain for draw in new.draw(40)]
  assert domains.count("d2") == pytest.approx(20, abs=2)
  assert domains.count("d0") == pytest.approx(10, abs=2)


def test_a_domain_removed_on_resume_is_dropped():
  old = mixture(1, 1, 1)
  old.draw(30)
  new = mixture(1, 1)
  new.restore(old.state())
  assert new.draw(2) == [Draw("d0", 10), Draw("d1", 10)]


def test_task_seeds():
  assert task_seed(1, "arithmetic", 0) == task_seed(1, "arithmetic", 0)
  seeds = {
    task_seed(run, domain, index)
    for run in (0, 1)
    for domain in ("arithmetic", "code", "a")
    for index in range(100)
  }
  assert len(seeds) == 600
  assert all(0 <= seed < 2**32 for seed in seeds)


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (mixture, r"domains \[\]"),
    (lambda: Mixture([DomainConfig("a"), DomainConfig("a")]), r"\['a', 'a'\] must be distinct"),
    (lambda: DomainConfig("a", 0.0), "weight 0.0 of domain 'a'"),
    (lambda: DomainConfig("a", float("nan")), "weight nan of domain 'a'"),
    (lambda: DomainConfig("a", float("inf")), "weight inf of domain 'a'"),
  ],
)
def test_errors(make, message):
  with pytest.raises(ValueError, match=message):
    make()
