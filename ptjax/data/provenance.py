"""Where data comes from: licence, origin and content hash of each source, checked before use.

Licences are SPDX expressions, checked against SPDX's own list (`packaging.licenses`). A source
is usable where its expression can be met by licences that the run allows: one side of an OR,
both sides of an AND.
"""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

PERMISSIVE = (
  "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC-BY-3.0", "CC-BY-4.0", "CC0-1.0",
  "CDLA-Permissive-1.0", "CDLA-Permissive-2.0", "ISC", "MIT", "ODC-By-1.0", "PDDL-1.0",
  "Unlicense", "Zlib",
)  # fmt: skip
"""Licences that let models be trained and published with attribution at most."""


@dataclasses.dataclass(frozen=True)
class Provenance:
  """What is known of a source.

  Attributes:
    source: its name in the run.
    license: SPDX expression; "LicenseRef-..." names one that SPDX does not list.
    origin: where it was got: an address, a paper, who wrote it.
    files: name and sha256 of each file.
  """

  source: str
  license: str
  origin: str
  files: Mapping[str, str]


def check_license(source: str, expression: str, allowed: Sequence[str]) -> str:
  """The canonical form of a source's licence.

  Raises:
    ValueError: none declared, not an SPDX expression, or not met by `allowed`.
  """
  if not expression:
    raise ValueError(f"source {source!r} declares no license; give its SPDX expression")
  canonical = _canonical(source, expression)
  granted = {_canonical("licenses", item) for item in allowed}
  if not _met(canonical.replace("(", " ( ").replace(")", " ) ").split(), granted):
    raise ValueError(
      f"source {source!r} is under {canonical}, which this run does not allow; add it to "
      f"data.licenses if you may use it, or leave the source out"
    )
  return canonical


def _canonical(source: str, expression: str) -> str:
  try:
    return str(canonicalize_license_expression(expression))
  except InvalidLicenseExpression as error:
    raise ValueError(
      f"{source!r}: license {expression!r} is not an SPDX expression ({error}); see the list of "
      f"SPDX, or name it LicenseRef-..."
    ) from error


def _met(tokens: list[str], granted: set[str]) -> bool:
  """Whether `granted` meets a canonical expression: OR binds weakest, then AND, then WITH."""
  for operator, combine in (("OR", any), ("AND", all)):
    depth, parts = 0, [[]]
    for token in tokens:
      depth += {"(": 1, ")": -1}.get(token, 0)
      if token == operator and depth == 0:
        parts.append([])
      else:
        parts[-1].append(token)
    if len(parts) > 1:
      return combine(_met(part, granted) for part in parts)
  if tokens[0] == "(":
    return _met(tokens[1:-1], granted)
  return " ".join(tokens) in granted


def sha256_of(path: str | pathlib.Path) -> str:
  """sha256 of a file's bytes, hexadecimal; what `sha256sum` prints."""
  with pathlib.Path(path).open("rb") as stream:
    return hashlib.file_digest(stream, "sha256").hexdigest()


def check_files(source: str, files: Sequence[str], declared: Sequence[str]) -> dict[str, str]:
  """{path: sha256} of a source's files.

  Raises:
    ValueError: a hash is not declared, or the content is another.
  """
  found = {path: sha256_of(path) for path in files}
  if len(declared) != len(files):
    hashes = ", ".join(repr(h) for h in found.values())
    raise ValueError(
      f"source {source!r} declares {len(declared)} sha256 for {len(files)} files; these files have "
      f"sha256=({hashes},)"
    )
  for (path, actual), expected in zip(found.items(), declared, strict=True):
    if actual != expected.lower():
      raise ValueError(
        f"source {source!r}: {path} has sha256 {actual}, declared is {expected}; it is another "
        f"version, or damaged"
      )
  return found


def write_manifest(workdir: pathlib.Path, section: str, content: Any) -> pathlib.Path:
  """Replaces one section of `workdir/manifest.json`, keeping the others; returns its path."""
  path = workdir / "manifest.json"
  manifest = json.loads(path.read_text()) if path.exists() else {}
  draft = workdir / ".manifest.json.new"
  draft.write_text(json.dumps(manifest | {section: content}, indent=2, sort_keys=True) + "\n")
  draft.replace(path)
  return path
