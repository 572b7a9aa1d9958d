"""pytest as files for a sandbox whose image lacks it: those of the interpreter that runs this."""

import functools
import importlib.util
from pathlib import Path

PACKAGES = ("_pytest", "pytest", "pluggy", "iniconfig", "packaging", "pygments", "py")
# Of what pygments has for other languages nothing is loaded, and it is most of all.
USED = ("__init__.py", "_mapping.py", "python.py", "diff.py", "default.py")


@functools.cache
def pytest_files() -> dict[str, bytes]:
  found = {}
  for name in PACKAGES:
    origin = Path(importlib.util.find_spec(name).origin)
    paths = origin.parent.rglob("*.py") if origin.name == "__init__.py" else [origin]
    base = origin.parent.parent if origin.name == "__init__.py" else origin.parent
    for path in paths:
      inner = path.relative_to(base)
      many = inner.parts[:2] in (("pygments", "lexers"), ("pygments", "styles"))
      if not many or path.name in USED:
        found[str(inner)] = path.read_bytes()
  return found
