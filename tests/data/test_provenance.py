"""Undeclared, misspelt and disallowed licences, and files that are not what they were."""

import hashlib
import json

import pytest

from ptjax.data.provenance import PERMISSIVE, check_files, check_license, write_manifest


@pytest.mark.parametrize(
  ("expression", "canonical"),
  [
    ("mit", "MIT"),
    ("GPL-3.0-only OR apache-2.0", "GPL-3.0-only OR Apache-2.0"),
    ("MIT AND (CC-BY-4.0 OR CC-BY-NC-4.0)", "MIT AND (CC-BY-4.0 OR CC-BY-NC-4.0)"),
    ("MIT OR ISC AND GPL-3.0-only", "MIT OR ISC AND GPL-3.0-only"),  # AND binds stronger
  ],
)
def test_allowed(expression, canonical):
  assert check_license("s", expression, PERMISSIVE) == canonical


@pytest.mark.parametrize(
  ("expression", "message"),
  [
    ("", r"source 's' declares no license; give its SPDX expression"),
    ("CC-BY-NC-4.0", r"source 's' is under CC-BY-NC-4\.0, which this run does not allow; add it"),
    ("MIT AND GPL-3.0-only", "is under MIT AND GPL-3.0-only"),
    ("(MIT OR ISC) AND GPL-3.0-only", "does not allow"),
    ("MIT WITH Classpath-exception-2.0", "does not allow"),
    ("LicenseRef-Ours", "does not allow"),
    ("Apache 2", r"license 'Apache 2' is not an SPDX expression"),
    ("CC-BY", r"license 'CC-BY' is not an SPDX expression"),
  ],
)
def test_refused(expression, message):
  with pytest.raises(ValueError, match=message) as error:
    check_license("s", expression, PERMISSIVE)
  assert "\n" not in str(error.value)


def test_a_run_may_allow_more():
  assert check_license("s", "cc-by-sa-4.0", (*PERMISSIVE, "CC-BY-SA-4.0")) == "CC-BY-SA-4.0"
  assert check_license("s", "LicenseRef-Ours", ("LicenseRef-Ours",)) == "LicenseRef-Ours"
  with pytest.raises(ValueError, match="'licenses': license 'mine'"):
    check_license("s", "MIT", ("mine",))


def test_files_are_verified(tmp_path):
  a, b = tmp_path / "a", tmp_path / "b"
  a.write_bytes(b"a")
  b.write_bytes(b"b")
  hashes = [hashlib.sha256(x).hexdigest() for x in (b"a", b"b")]
  paths = [str(a), str(b)]
  expected = dict(zip(paths, hashes, strict=True))
  assert check_files("s", paths, [hashes[0].upper(), hashes[1]]) == expected
  with pytest.raises(ValueError, match=f"declares 1 sha256 for 2 files; .*{hashes[1]}"):
    check_files("s", paths, hashes[:1])
  b.write_bytes(b"c")
  with pytest.raises(ValueError, match=f"b has sha256 2e7d2c.* declared is {hashes[1]}"):
    check_files("s", paths, hashes)


def test_manifest_keeps_its_other_sections(tmp_path):
  write_manifest(tmp_path, "data", [1])
  write_manifest(tmp_path, "model", "m")
  path = write_manifest(tmp_path, "data", [2])
  assert json.loads(path.read_text()) == {"data": [2], "model": "m"}
  assert [p.name for p in tmp_path.iterdir()] == ["manifest.json"]
