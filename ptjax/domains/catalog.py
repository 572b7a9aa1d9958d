"""The names of domains that a user types, each with its builder."""

from collections.abc import Callable

from ptjax.domains import addends, arithmetic, code
from ptjax.domains.domain import Domain

DOMAINS: dict[str, Callable[[], Domain]] = {
  "addends": addends.build,
  "arithmetic": arithmetic.build,
  "code": code.build,
}
