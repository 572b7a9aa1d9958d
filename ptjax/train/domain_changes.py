"""Domains that come, go or change between two parts of a run."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ptjax.domains.domain import Domain
from ptjax.experience.mixture import DomainConfig
from ptjax.rewards import judge
from ptjax.train.session import Session

ADDED, REMOVED, REVERSIONED, REWEIGHTED = "added", "removed", "reversioned", "reweighted"


@dataclasses.dataclass(frozen=True)
class Change:
  """What is different about a domain.

  Attributes:
    kind: one of the above.
    domain: its name.
    evidence: its version and weight now and in the checkpoint, as far as it was or is there.
  """

  kind: str
  domain: str
  evidence: Mapping[str, Any]


def record(session: Session) -> dict[str, dict[str, Any]]:
  """The domains as a checkpoint names them."""
  return {
    config.name: {
      "version": version(session.domains[config.name], config),
      "weight": config.weight,
    }
    for config in session.experiment.domains
  }


def version(domain: Domain, config: DomainConfig) -> str:
  """The domain's and its rewards', and what tells one reward model that judges it from another."""
  own = f"{domain.version}.{domain.rewards.version}"
  return own if config.judge is None else f"{own}+judge.{judge.version_of(config.judge)}"


def changes(
  then: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]
) -> list[Change]:
  """From one `record` to another, by domain; new ones last."""
  found = []
  for name, old in then.items():
    new = now.get(name)
    if new is None:
      found.append(Change(REMOVED, name, _was(old)))
      continue
    for key, kind in (("version", REVERSIONED), ("weight", REWEIGHTED)):
      if old[key] != new[key]:
        found.append(Change(kind, name, {key: new[key], f"{key}_before": old[key]}))
  return found + [Change(ADDED, name, dict(now[name])) for name in now if name not in then]


def _was(old: Mapping[str, Any]) -> dict[str, Any]:
  return {f"{key}_before": value for key, value in old.items()}


def without_seen(meta: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
  """A checkpoint's record that knows nothing of some domains but how many tasks they have set."""
  if not names:
    return dict(meta)
  mixture = dict(meta["mixture"])
  for part in ("seen", "factor"):
    mixture[part] = _drop(mixture.get(part, {}), names)
  kept = {**meta, "mixture": mixture}
  if meta.get("guard") is not None:
    guard = dict(meta["guard"])
    for part in ("floors", "watches", "drawn", "rates"):
      guard[part] = _drop(guard[part], names)
    kept["guard"] = guard
  if meta.get("watched") is not None:
    kept["watched"] = _drop(meta["watched"], names)
  return kept


def _drop(values: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
  return {name: value for name, value in values.items() if name not in names}
