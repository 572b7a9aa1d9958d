"""The names of domains that a user types, each with its builder.

A module of this package with a mapping `DOMAINS`, name to builder, offers those: a new domain is
one new file. A module of the user's does the same where the configuration names it.
"""

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping

import ptjax.domains
from ptjax.core.config_build import suggest
from ptjax.domains.domain import Domain

Builder = Callable[..., Domain]


def _found() -> dict[str, Builder]:
  domains: dict[str, Builder] = {}
  for info in pkgutil.iter_modules(ptjax.domains.__path__, "ptjax.domains."):
    if info.name != __name__:
      offered = getattr(importlib.import_module(info.name), "DOMAINS", {})
      if twice := domains.keys() & offered.keys():
        raise ValueError(f"{info.name} offers {sorted(twice)}, which another module has")
      domains |= offered
  return domains


DOMAINS = _found()


def builder(name: str, module: str | None = None) -> Callable[[], Domain]:
  """The builder of a domain.

  Args:
    name: a name that its module offers, or NAME@LEVEL where its builder takes a `level`.
    module: where to look, as `my_lab.chess`; None for ptjax's own.

  Raises:
    ValueError: an unknown name or module, a level that is no number or that nothing takes.
  """
  domains = offered_by(module)
  base, at, level = name.partition("@")
  if base not in domains:
    raise ValueError(f"domain {name!r} is unknown; {suggest(base, domains)}")
  if not at:
    return functools.partial(_made, name, domains[base])
  if not level.isdecimal():
    raise ValueError(f"domain {name!r}: write its level as a number, as {base}@2")
  if "level" not in inspect.signature(domains[base]).parameters:
    raise ValueError(f"domain {name!r}: {base} has no levels; leave @{level} out")
  return functools.partial(_made, name, functools.partial(domains[base], level=int(level)))


def _made(name: str, build: Builder) -> Domain:
  """Everything that is counted by domain goes by the one name."""
  domain = build()
  if domain.name != name:
    raise ValueError(f"domain {name!r} calls itself {domain.name!r}; name it so")
  return domain


def offered_by(module: str | None) -> Mapping[str, Builder]:
  """The builders of a module by name; ptjax's own for None. Raises ValueError for none."""
  if module is None:
    return DOMAINS
  try:
    return importlib.import_module(module).DOMAINS
  except ModuleNotFoundError as error:
    raise ValueError(f"module {module!r} of a domain cannot be imported: {error}") from error
  except AttributeError as error:
    raise ValueError(
      f"module {module!r} has no DOMAINS: a mapping of names to functions that make a Domain"
    ) from error
