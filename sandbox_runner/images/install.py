"""Makes an image of the Debian system that this runs in, as root: packages, then its settings.

Runs in a container of `docker build` or in an unpacked tree (see `build`), by the system's own
Python, with the description of the image as argument. Wheels are taken from the directory `wheels`
beside this file; if there is none, pip fetches them.
"""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

SETTINGS = Path("/etc/sandbox_image.json")  # read by the supervisor
MIRROR = Path("/opt/wheels")
# Mount points, and the one writable place of them that a system does not have.
DIRECTORIES = ("box", "work", "tmp", "proc", "sys", "dev", "run")
UNUSED = ("/usr/share/doc", "/usr/share/man", "/usr/share/info", "/usr/share/locale")
CACHES = ("/var/lib/apt/lists", "/var/cache/apt", "/var/cache/debconf", "/var/log")


def main(description: Path) -> None:
  text = tomllib.loads(description.read_text())
  install_debian(text["debian"])
  install_python(text["python"], text.get("wheels", []), description.parent / "wheels")
  settings = {"preload": text["preload"], "env": text.get("env", {})}
  SETTINGS.write_text(json.dumps(settings) + "\n")
  lay_out()
  for module in text["preload"]:
    run(sys.executable, "-c", f"import {module}")
  clean()


def run(*command: object) -> None:
  print("+", *command, flush=True)
  subprocess.run([str(word) for word in command], check=True)


def install_debian(packages: list[str]) -> None:
  options = ("-y", "-q", "--no-install-recommends", "-o", "Dpkg::Options::=--force-unsafe-io")
  run("apt-get", "update", "-q")
  run("apt-get", "upgrade", *options)
  if packages:
    run("apt-get", "install", *options, *packages)


def install_python(packages: list[str], mirrored: list[str], wheels: Path) -> None:
  """Wheels that are to be mirrored are kept, and tried: each must find all that it needs."""
  for marker in Path("/usr/lib").glob("python3*/EXTERNALLY-MANAGED"):
    marker.unlink()  # here nobody but pip looks after Python packages
  pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir")
  if not wheels.is_dir():
    run(*pip, "download", *download_options(wheels), *packages, *mirrored)
  local = ("install", "--root-user-action", "ignore", "--no-index", "--find-links")
  if packages:
    run(*pip, *local, wheels, *packages)
  configuration = "[global]\nno-index = true\ndisable-pip-version-check = true\n"
  if mirrored:
    run(*pip, *local, wheels, "--dry-run", "--ignore-installed", *mirrored)
    shutil.copytree(wheels, MIRROR)
    configuration += f"find-links = {MIRROR}\n"
  Path("/etc/pip.conf").write_text(configuration)


def download_options(directory: Path) -> tuple[str, ...]:
  """Only what is named, and only wheels: nothing of a package is run to download it."""
  return ("--no-deps", "--only-binary", ":all:", "--dest", str(directory))


def lay_out() -> None:
  run("usermod", "--shell", "/bin/sh", "--home", "/tmp", "nobody")  # the user of every program
  for name in DIRECTORIES:
    Path("/", name).mkdir(exist_ok=True)
  temporary = Path("/var/tmp")
  if not temporary.is_symlink():
    shutil.rmtree(temporary)
    temporary.symlink_to("/tmp")


def clean() -> None:
  for place in map(Path, UNUSED + CACHES):
    for entry in place.iterdir() if place.is_dir() else ():
      if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
      else:
        entry.unlink()


if __name__ == "__main__":
  main(Path(sys.argv[1]))
