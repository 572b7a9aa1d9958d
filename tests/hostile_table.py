"""The table of the hostile suite, at the end of a test run: cases, backends, and what differs."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

NODE = re.compile(r"test_hostile\.py::test_case\[(?P<backend>[^-\]]+)-(?P<case>.+)\]$")
BACKENDS = ("bwrap", "runc", "runsc")


def differences() -> dict[tuple[str, str], str]:
  """(case, backend) -> why its expectation is another one there, as the case's own note says."""
  found = {}
  for path in sorted((Path(__file__).parent / "hostile").glob("*.json")):
    for case in json.loads(path.read_text()).get("cases", ()):
      for backend, over in (case.get("per_backend") or {}).items():
        found[case["id"], backend] = over.get("note", "no reason is given")
  return found


def lines(outcomes: Iterable[tuple[str, str]], reasons: dict[tuple[str, str], str]) -> list[str]:
  """The table of (node, outcome of the test) pairs; [] if none is of the suite.

  A case that passed against an expectation of its backend's own is "differs", with the reason.
  """
  verdicts: dict[str, dict[str, str]] = {}
  for node, outcome in outcomes:
    if match := NODE.search(node):
      case, backend = match["case"], match["backend"]
      differs = outcome == "passed" and (case.partition("[")[0], backend) in reasons
      verdicts.setdefault(case, {})[backend] = "differs" if differs else outcome
  if not verdicts:
    return []
  width = max(map(len, verdicts))
  table = [f"{'case':{width}}" + "".join(f"  {b:8}" for b in BACKENDS)]
  for case, found in verdicts.items():
    table.append(f"{case:{width}}" + "".join(f"  {found.get(b, '-'):8}" for b in BACKENDS))
  shown = {(c.partition("[")[0], b) for c, found in verdicts.items() for b in found}
  table += [f"differs: {c} under {b}: {why}" for (c, b), why in reasons.items() if (c, b) in shown]
  return [line.rstrip() for line in table]
