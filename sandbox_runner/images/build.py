"""Builds the trees of images, by debootstrap and without an image registry.

A tree is made beside its place under another name, and renamed when it is whole; what a killed
build has left is removed by the next one. All that a build mounts is mounted in a namespace of its
own, so that nothing has to be unmounted.
"""

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sandbox_runner.images.description import BASE_PACKAGES, DIRECTORY, PYTHON, SUITE, Description
from sandbox_runner.images.install import download_options
from sandbox_runner.images.store import OVERRIDE, directories, find_tree, tree_name

STEP_S = 1800.0
SHOWN_LINES = 8
ROOM_MB = 2048  # what a build needs at most, the base included
GLIBC = range(17, 37)  # minor versions whose wheels run on SUITE
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
UNPACK = ("unshare", "--mount", "--propagation", "private", "debootstrap")
ENTER = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
NEEDED = {"debootstrap": "debootstrap", "unshare": "util-linux", "apt-get": "apt"}
BUILD_ENVIRONMENT = {
  "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
  "HOME": "/root",
  "LANG": "C.UTF-8",
  "DEBIAN_FRONTEND": "noninteractive",
}


class BuildError(ValueError):
  """An image could not be built. The text ends with the last lines of what failed."""


def run_step(what: str, command: list[str], log: Path | None = None, **more) -> str:
  """What the command says; it is added to `log` as well. Raises BuildError if the command fails."""
  options: dict[str, Any] = {
    "stdin": subprocess.DEVNULL,
    "stderr": subprocess.STDOUT,
    "umask": 0o022,
    **more,
  }
  try:
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=STEP_S, check=False, **options)
  except subprocess.TimeoutExpired as e:
    raise BuildError(f"{what} took over {STEP_S:.0f} s") from e
  said = done.stdout.decode("utf-8", "replace")
  if log:
    with log.open("a") as f:
      f.write(said)
  if done.returncode:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    tail = "; ".join(lines[-SHOWN_LINES:])
    where = f"; all of it is in {log}" if log else ""
    raise BuildError(f"{what} failed with status {done.returncode}: {tail}{where}")
  return said


def build_tree(image: Description, mirror: str = "", force: bool = False) -> tuple[Path, bool]:
  """(the tree of this image, whether it was built now). `force` builds a new one in any case.

  Raises BuildError, which says what to do, or OSError.
  """
  existing = find_tree(image)
  if existing and not force:
    return existing, False
  check_builder()
  place = directories()[0]
  place.mkdir(parents=True, exist_ok=True)
  check_room(place)
  target = place / tree_name(image)
  with alone(place, image.name):
    if target.is_dir() and not force:
      return target, False  # built while this one waited
    log = place / f"{image.name}.log"
    log.write_text("")
    with staging(place, image.name) as stage:
      tree = stage / "tree"
      base = base_tree(place, mirror)
      run_step("copying the base", ["cp", "-a", "--reflink=auto", f"{base}/.", str(tree)], log)
      install(image, tree, log)
      if target.is_dir():
        target.rename(stage / "old")
      tree.rename(target)
  return target, True


def remove_old_tree(path: Path) -> None:
  """Under another name first: nobody may find half of it. Raises OSError."""
  with staging(path.parent, f"old-{path.name}") as stage:
    path.rename(stage / "tree")


def check_builder() -> None:
  """Raises BuildError if this process cannot build a tree."""
  if os.geteuid() != 0:
    raise BuildError("root builds trees, for they hold files of many users; run it by sudo")
  for program, package in NEEDED.items():
    if shutil.which(program) is None:
      raise BuildError(f"{program} is not installed; apt-get install -y {package}")


def check_room(place: Path) -> None:
  """Raises BuildError if the disk is too full to build, rather than after minutes of it."""
  free_mb = shutil.disk_usage(place).free >> 20
  if free_mb < ROOM_MB:
    raise BuildError(
      f"{place} has {free_mb} MiB left on its disk, and a build may need {ROOM_MB}; "
      f"make room, or name another directory by {OVERRIDE}"
    )


@contextlib.contextmanager
def alone(place: Path, name: str) -> Iterator[None]:
  """Waits until no other process builds what has this name."""
  with (place / f".{name}.lock").open("w") as f:
    fcntl.flock(f, fcntl.LOCK_EX)
    yield


@contextlib.contextmanager
def staging(place: Path, name: str) -> Iterator[Path]:
  """A directory for a build, removed in the end; an earlier build's, which was killed, as well."""
  path = place / f".building-{name}"
  try:
    remove_tree(path)
    path.mkdir()
    yield path
  finally:
    remove_tree(path)


def remove_tree(path: Path) -> None:
  if path.exists():
    shutil.rmtree(path)


def base_tree(place: Path, mirror: str) -> Path:
  """The tree that all images begin with, built if it is not there."""
  packages = BASE_PACKAGES.read_text().split()
  digest = hashlib.sha256(" ".join((SUITE, platform.machine(), *packages)).encode()).hexdigest()
  target = place / f"base-{digest[:12]}"
  with alone(place, "base"):
    if target.is_dir():
      return target
    sources = [(mirror, SUITE, "main")] if mirror else apt_sources()
    log = place / "base.log"
    log.write_text("")
    with staging(place, "base") as stage:
      tree = stage / "tree"
      options = ["--variant=minbase", "--force-check-gpg", f"--include={','.join(packages)}"]
      command = [*UNPACK, *options, SUITE, str(tree), sources[0][0]]
      run_step("debootstrap of the base", command, log, env=build_environment())
      text = "".join(f"deb {uri} {suite} {component}\n" for uri, suite, component in sources)
      (tree / "etc/apt/sources.list").write_text(text)
      for package in (tree / "var/cache/apt/archives").glob("*.deb"):
        package.unlink()
      tree.rename(target)
  return target


def apt_sources() -> list[tuple[str, str, str]]:
  """(address, suite, component) of Debian's packages for SUITE by this machine's settings of apt.

  Raises BuildError if there are none.
  """
  template = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
  command = ["apt-get", "indextargets", "--format", template, "Created-By: Packages"]
  rows = [tuple(line.split()) for line in run_step("apt-get indextargets", command).splitlines()]
  suites = (SUITE, f"{SUITE}-updates", f"{SUITE}-security")
  found = [(row[0], row[1], row[2]) for s in suites for row in rows if row[1:2] == (s,)]
  sources = [row for row in dict.fromkeys(found) if row[2] == "main"]
  if not sources or sources[0][1] != SUITE:
    raise BuildError(f"apt here knows no mirror of Debian {SUITE}; name one by --mirror ADDRESS")
  return sources


def build_environment() -> dict[str, str]:
  """Nothing of this process's own but its proxies; apt's proxy where there is none."""
  proxies = {name: os.environ[name] for name in PROXIES if name in os.environ}
  if not {"http_proxy", "HTTP_PROXY"} & set(proxies):
    said = run_step("apt-config", ["apt-config", "shell", "proxy", "Acquire::http::Proxy"])
    value = said.strip().removeprefix("proxy=").strip("'\"")
    if value and value != "DIRECT":
      proxies["http_proxy"] = value
  return BUILD_ENVIRONMENT | proxies


def install(image: Description, tree: Path, log: Path) -> None:
  """Runs the installer in the tree, with this machine's name servers and with its pip's wheels."""
  inside = tree / "image"
  inside.mkdir()
  add_recipe(image, inside, log)
  resolver = tree / "etc/resolv.conf"
  resolver.unlink(missing_ok=True)
  shutil.copyfile("/etc/resolv.conf", resolver)
  program = ["python3", "/image/install.py", f"/image/{image.name}.toml"]
  command = [*ENTER, f"--root={tree}", "--wd=/", "--", *program]
  run_step(f"installing image {image.name}", command, log, env=build_environment())
  shutil.rmtree(inside)
  resolver.write_text("")
  shutil.rmtree(tree / "dev")  # sandboxes have their own
  (tree / "dev").mkdir()


def add_recipe(image: Description, directory: Path, log: Path | None = None) -> None:
  """Copies what makes an image into `directory`, the wheels included."""
  for path in DIRECTORY.iterdir():
    if path.suffix in (".toml", ".txt") or path.name in ("install.py", "Dockerfile"):
      shutil.copyfile(path, directory / path.name)
  packages = [*image.python, *image.wheels]
  wheels = directory / "wheels"
  wheels.mkdir()
  if not packages:
    return
  machine = platform.machine()
  platforms = [f"manylinux_2_{minor}_{machine}" for minor in GLIBC] + [f"manylinux2014_{machine}"]
  target = ["--python-version", PYTHON, *(w for p in platforms for w in ("--platform", p))]
  command = [*find_pip(), "download", "--quiet", *download_options(wheels), *target, *packages]
  run_step(f"pip's download for image {image.name}", command, log)


def find_pip() -> list[str]:
  """A pip of this machine, which knows the index to ask. Raises BuildError if there is none."""
  own = [sys.executable, "-m", "pip"]
  if subprocess.run([*own, "--version"], capture_output=True, check=False).returncode == 0:
    return own
  found = shutil.which("pip3") or shutil.which("pip")
  if not found:
    raise BuildError("pip is not installed; apt-get install -y python3-pip")
  return [found]
