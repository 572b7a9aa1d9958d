"""Descriptions of images, where their trees are found, and builds that fail."""

import argparse
import asyncio
import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox_runner import Limits, NoBackendError, Pool, PoolConfig
from sandbox_runner.images import describe, description, image_names, limits_of
from sandbox_runner.images.build import BuildError, build_tree, staging
from sandbox_runner.images.command import run_images
from sandbox_runner.images.description import DIRECTORY, parse
from sandbox_runner.images.store import (
  BUILD,
  OVERRIDE,
  SYSTEM_CACHE,
  check_tree,
  directories,
  find_other_trees,
  find_tree,
  tree_for_bwrap,
  tree_name,
)

REPOSITORY = Path(__file__).parent.parent.parent
AS_ROOT = pytest.mark.skipif(
  os.geteuid() != 0 or shutil.which("debootstrap") is None, reason="needs root and debootstrap"
)


def command(*arguments: str, before: tuple[str, ...] = (), **more) -> subprocess.CompletedProcess:
  return subprocess.run(
    [*before, sys.executable, "-m", "sandbox_runner", *arguments],
    **more,
    capture_output=True,
    text=True,
    cwd=REPOSITORY,
    timeout=120,
    check=False,
  )


def make_tree(path: Path) -> Path:
  """What `check_tree` looks at."""
  for name in ("box", "work", "tmp", "proc", "sys", "dev", "run", "usr/bin"):
    (path / name).mkdir(parents=True)
  (path / "usr/bin/python3").touch()
  return path


def test_the_four_images():
  assert image_names() == ("code", "documents", "modeling3d", "terminal")
  tags = {describe(name).tag for name in image_names()}
  assert len(tags) == 4
  assert limits_of("terminal").disk_mb == 512
  assert limits_of("registry.example/other") == limits_of("") == Limits()


@pytest.mark.parametrize(
  ("text", "said"),
  [
    ("debian = [", "image x: "),
    ('colour = "red"', "image x has ['colour']; known are"),
    ('about = "y"\npython = ["numpy"]', "image x: 'numpy' must be NAME==VERSION"),
    ('about = "y"\npython = ["numpy>=2"]', "'numpy>=2' must be NAME==VERSION"),
    ('about = "y"\nwheels = ["--pre"]', "'--pre' must be NAME==VERSION"),
    ('about = "y"\nenv = {PYTHONPATH = "/"}', "env may not hold PYTHONPATH"),
    ('about = "y"\nlimits = {memory = 5}', "image x: "),
    ('about = "y"\nlimits = {memory_mb = 5}', "memory_mb=5 must be"),
    ("debian = []", "about"),
  ],
)
def test_a_bad_description_is_told(text: str, said: str):
  with pytest.raises(ValueError) as caught:
    parse("x", text)
  assert said in str(caught.value)


def test_digest_is_of_all_that_an_image_is_made_from(monkeypatch, tmp_path: Path):
  for path in DIRECTORY.iterdir():
    if path.is_file():
      shutil.copyfile(path, tmp_path / path.name)
  monkeypatch.setattr("sandbox_runner.images.description.DIRECTORY", tmp_path)
  monkeypatch.setattr("sandbox_runner.images.description.INSTALLER", tmp_path / "install.py")
  before = {name: describe(name).digest for name in image_names()}
  with (tmp_path / "code.toml").open("a") as f:
    f.write("# more\n")
  after = {name: describe(name).digest for name in image_names()}
  assert {name for name in before if before[name] != after[name]} == {"code"}
  (tmp_path / "install.py").write_text("pass")
  last = {name: describe(name).digest for name in image_names()}
  assert not set(last.values()) & set(after.values())


def test_where_trees_are(monkeypatch, tmp_path: Path):
  monkeypatch.delenv(OVERRIDE, raising=False)
  monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
  monkeypatch.setenv("HOME", str(tmp_path))
  own = tmp_path / ".cache/sandbox_runner/images"
  assert directories() == ([SYSTEM_CACHE] if os.geteuid() == 0 else [own, SYSTEM_CACHE])
  monkeypatch.setenv("XDG_CACHE_HOME", "relative")
  assert directories()[-1] == SYSTEM_CACHE
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
  assert directories() == [tmp_path / "x/sandbox_runner/images", SYSTEM_CACHE]
  monkeypatch.setenv(OVERRIDE, str(tmp_path / "here"))
  assert directories() == [tmp_path / "here"]


def test_an_unbuilt_or_unknown_image_is_told(monkeypatch, tmp_path: Path):
  monkeypatch.setenv(OVERRIDE, str(tmp_path))
  with pytest.raises(ValueError, match=f"image code is not built here; {BUILD} code"):
    tree_for_bwrap("code", False)
  with pytest.raises(ValueError, match="image 'cod' is neither a directory nor one of code, "):
    tree_for_bwrap("cod", False)
  image = describe("code")
  (tmp_path / ".building-code" / "tree").mkdir(parents=True)
  (tmp_path / "code-000000000000").mkdir()
  assert find_tree(image) is None  # neither half of one, nor one of another description
  assert find_other_trees(image) == [tmp_path / "code-000000000000"]
  tree = make_tree(tmp_path / tree_name(image))
  assert tree_for_bwrap("code", False) == str(tree)


def test_a_tree_that_no_sandbox_can_use_is_told(open_directory: Path):
  tree = make_tree(open_directory / "inner" / "tree")
  check_tree(tree, as_other_user=True)
  tree.parent.chmod(0o700)
  check_tree(tree, as_other_user=False)
  with pytest.raises(ValueError, match=f"chmod o\\+x {tree.parent}, or build into another"):
    check_tree(tree, as_other_user=True)
  (tree / "box").rmdir()
  with pytest.raises(ValueError, match=f"{tree} is no root tree for sandboxes; mkdir box in it"):
    check_tree(tree, as_other_user=False)
  (tree / "box").mkdir()
  (tree / "usr/bin/python3").unlink()
  with pytest.raises(ValueError, match="has no /usr/bin/python3"):
    check_tree(tree, as_other_user=False)


def test_a_pool_says_which_image_it_lacks():
  driver = Pool(PoolConfig(backend="bwrap", image="no-such-image"))
  with pytest.raises(NoBackendError, match="image 'no-such-image' is neither"):
    asyncio.run(driver.__aenter__())


@pytest.mark.docker
def test_docker_says_how_to_get_an_image():
  done = command("run", "--backend", "docker", "--image", "no-such-image", "--", "true")
  assert done.returncode == 2
  assert done.stderr.endswith("it has no image no-such-image; fix: docker pull no-such-image\n")


def test_what_a_killed_build_left_is_removed(tmp_path: Path):
  (tmp_path / ".building-code" / "tree").mkdir(parents=True)
  with staging(tmp_path, "code") as stage:
    assert list(stage.iterdir()) == []
  assert list(tmp_path.iterdir()) == []


def test_unknown_names_and_no_docker_are_told(tmp_path: Path):
  done = command("images", "build", "cod")
  assert (done.returncode, done.stderr) == (
    2,
    "sandbox_runner: no image 'cod'; there are code, documents, modeling3d, terminal\n",
  )
  alone = {"PATH": str(tmp_path), OVERRIDE: str(tmp_path)}
  done = command("images", "build", "code", "--backend", "docker", env=alone)
  assert done.returncode == 2
  assert "the docker command is not installed; fix: apt-get install -y docker.io" in done.stderr
  done = command("images", "build", "code", "--base", "debian:bookworm-slim", env=alone)
  assert "--base debian:bookworm-slim needs docker" in done.stderr
  assert command("images", "list", env=alone).stdout.count("tree: not built") == 4


def test_prune_removes_what_is_old_and_not_in_use(tmp_path: Path):
  now = tmp_path / tree_name(describe("code"))
  old, used = tmp_path / "code-000000000000", tmp_path / "terminal-000000000000"
  for path in (now, old, used, tmp_path / "base-000000000000"):
    (path / "usr").mkdir(parents=True)
  alone = {"PATH": str(tmp_path), OVERRIDE: str(tmp_path)}
  hold = ("bwrap", "--dev-bind", "/", "/", "--bind", str(used), "/mnt", "cat")
  with subprocess.Popen(hold, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
    holder.stdin.write(b"there\n")
    holder.stdin.flush()
    assert holder.stdout.readline() == b"there\n"
    done = command("images", "prune", env=alone)
    holder.stdin.close()
  assert (done.returncode, done.stdout) == (0, f"{old}: removed\n{used}: in use, left\n")
  left = {path.name for path in tmp_path.iterdir()}
  assert left == {now.name, used.name, "base-000000000000"}


@pytest.mark.docker
def test_prune_removes_old_tags(monkeypatch, tmp_path: Path, capsys):
  shutil.copyfile(DIRECTORY / "code.toml", tmp_path / "prune-test.toml")
  monkeypatch.setattr(description, "DIRECTORY", tmp_path)  # the images of this host stay
  tag = "sandbox_runner/prune-test:000000000000"
  empty = subprocess.run(["tar", "-cT", "/dev/null"], capture_output=True, check=True).stdout
  subprocess.run(["docker", "import", "-", tag], input=empty, check=True, capture_output=True)
  assert run_images(argparse.Namespace(action="list")) == 0
  assert capsys.readouterr().out.endswith(f"which `images prune` removes: {tag}\n")
  assert run_images(argparse.Namespace(action="prune")) == 0
  assert capsys.readouterr().out == f"{tag}: removed\n"
  found = subprocess.run(["docker", "image", "inspect", tag], capture_output=True, check=False)
  assert found.returncode == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is told that root builds")
def test_missing_debootstrap_is_told(tmp_path: Path):
  alone = {"PATH": str(tmp_path), OVERRIDE: str(tmp_path / "images")}
  done = command("images", "build", "code", "--backend", "bwrap", env=alone)
  assert (done.returncode, done.stderr) == (
    2,
    "sandbox_runner: debootstrap is not installed; apt-get install -y debootstrap\n",
  )


@AS_ROOT
def test_full_disk_is_told_at_once(tmp_path: Path):
  small = f'mount -t tmpfs -o size=30m none {tmp_path} && exec "$@"'
  done = command(
    *("images", "build", "code", "--backend", "bwrap"),
    before=("unshare", "--mount", "--propagation", "private", "sh", "-c", small, "sh"),
    env={**os.environ, OVERRIDE: str(tmp_path)},
  )
  assert done.returncode == 2
  assert f"{tmp_path} has 30 MiB left on its disk" in done.stderr


@AS_ROOT
def test_a_failed_build_leaves_no_image_and_its_last_lines(monkeypatch, tmp_path: Path):
  monkeypatch.setenv(OVERRIDE, str(tmp_path))
  image = describe("code")
  with pytest.raises(BuildError, match="Failed getting release file file:///nowhere/dists"):
    build_tree(image, mirror="file:///nowhere")
  assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == []
  assert "nowhere" in (tmp_path / "base.log").read_text()


@AS_ROOT
def test_a_failure_after_the_base_leaves_no_image(monkeypatch, tmp_path: Path):
  bases = list(SYSTEM_CACHE.glob("base-*"))
  if not bases:
    pytest.skip(f"no image is built; {BUILD} code")
  for base in bases:
    (tmp_path / base.name).symlink_to(base)
  monkeypatch.setenv(OVERRIDE, str(tmp_path))
  absent = dataclasses.replace(describe("documents"), python=("pypdf==0.0.0.1",))
  with pytest.raises(BuildError, match=r"pip's download for image documents .*pypdf==0\.0\.0\.1"):
    build_tree(absent)
  assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == [b.name for b in bases]
