"""The real loop with shares that move and advantages of one size, three steps on a tiny model."""

import dataclasses

import pytest
from train_toys import session_on, toy_domain, toy_experiment

from ptjax.checkpoint.manager import CheckpointConfig, Checkpoints
from ptjax.core.metrics import summarize
from ptjax.domains.catalog import DOMAINS
from ptjax.experience.balance import BalanceConfig
from ptjax.experience.mixture import DomainConfig, Mixture
from ptjax.train.experiment import RLConfig
from ptjax.train.rl import RLState, train
from ptjax.train.run import SILENT, restore, save


def test_balance_and_unit_advantages(tiny_source, tmp_path):
  rl = RLConfig(
    num_steps=3,
    prompts_per_step=2,
    group_size=8,
    advantages="dr_grpo",
    balance=BalanceConfig(),
    domain_norm=True,
  )
  records = []
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(DOMAINS, "toy", toy_domain)
    domains = (DomainConfig("toy"), DomainConfig("addends", 3.0))
    e = dataclasses.replace(toy_experiment(tiny_source), domains=domains, rl=rl)
    with session_on(1, e, tmp_path) as opened:
      easy = dataclasses.replace(toy_domain(), passed=lambda rewards: True)
      session = dataclasses.replace(opened, domains=opened.domains | {"toy": easy})
      start = RLState(0, session.init_policy(), None, Mixture(e.domains, rl.balance))
      end = train(session, start, lambda state, metrics, played: records.append(summarize(metrics)))
      checkpoints = Checkpoints(tmp_path / "checkpoints", CheckpointConfig())
      save(session, checkpoints, end)
      checkpoints.wait()
      again = restore(session, checkpoints, SILENT)
      checkpoints.close()
  shares = end.mixture.shares
  assert shares["toy"] != pytest.approx(0.25, abs=1e-3)
  assert records[-1]["balance/share_min"] == pytest.approx(min(shares.values()))
  assert records[-1]["balance/effective_domains"] == pytest.approx(
    1 / sum(share**2 for share in shares.values())
  )
  assert again.mixture.state() == end.mixture.state()
  assert again.mixture.shares == shares
  trained = [r for r in records if r["advantage/std"] > 0]
  assert trained
  for r in trained:  # dr_grpo's own are below the range of the rewards, which is 1
    assert max(r["advantage/max"], -r["advantage/min"]) >= 1
