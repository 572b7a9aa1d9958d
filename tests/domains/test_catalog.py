"""Domains by name: ptjax's own, and those of a module of the user's."""

import pytest

from ptjax.domains import catalog
from ptjax.experience.mixture import DomainConfig
from ptjax.train.experiment import Experiment

MODULE = """
import dataclasses
from ptjax.domains import addends

DOMAINS = {"chess": lambda: dataclasses.replace(addends.build(), name="chess")}
"""


def test_every_name_builds_its_domain():
  for name in catalog.DOMAINS:
    assert catalog.builder(name)().name == name


def test_a_domain_of_another_name_is_refused(tmp_path, monkeypatch):
  (tmp_path / "their_domains.py").write_text(MODULE.replace('"chess":', '"draughts":'))
  monkeypatch.syspath_prepend(tmp_path)
  with pytest.raises(ValueError, match="'draughts' calls itself 'chess'"):
    catalog.builder("draughts", "their_domains")()


def test_a_domain_is_one_file():
  assert {"addends", "arithmetic", "code", "reasoning/maze"} <= catalog.DOMAINS.keys()


def test_a_module_of_the_users(tmp_path, monkeypatch):
  (tmp_path / "my_domains.py").write_text(MODULE)
  monkeypatch.syspath_prepend(tmp_path)
  assert catalog.builder("chess", "my_domains")().name == "chess"
  Experiment(domains=(DomainConfig("chess", module="my_domains"), DomainConfig("addends")))
  with pytest.raises(ValueError, match="domain 'ches' is unknown; did you mean chess"):
    Experiment(domains=(DomainConfig("ches", module="my_domains"),))


@pytest.mark.parametrize(
  ("name", "module", "message"),
  [
    ("reasoning/gdc", None, "'reasoning/gdc' is unknown; did you mean reasoning/gcd"),
    ("code@2", None, "code has no levels; leave @2 out"),
    ("reasoning/gcd@two", None, "write its level as a number, as reasoning/gcd@2"),
    ("chess", "no_such_module", "module 'no_such_module' of a domain cannot be imported"),
    ("chess", "json", "module 'json' has no DOMAINS"),
  ],
)
def test_clear_errors(name, module, message):
  with pytest.raises(ValueError, match=message):
    catalog.builder(name, module)
