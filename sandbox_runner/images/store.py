"""Where built images are, and how each backend finds them.

A tree is a directory NAME-DIGEST in one of `directories`; it gets this name when it is whole. For
docker the daemon holds the image, under `Description.tag`.
"""

import contextlib
import os
from pathlib import Path

from sandbox_runner.images.description import Description, describe, image_names
from sandbox_runner.images.install import DIRECTORIES

OVERRIDE = "SANDBOX_RUNNER_IMAGES"
SYSTEM_CACHE = Path("/var/cache/sandbox_runner/images")
BUILD = "python -m sandbox_runner images build"


def directories() -> list[Path]:
  """Where trees are looked for; the first is where they are built.

  Root builds for all users, and where the sandboxes' own user can go: its home is closed to others.
  """
  override = os.environ.get(OVERRIDE)
  if override:
    return [Path(override).absolute()]
  cache = os.environ.get("XDG_CACHE_HOME", "")
  if os.path.isabs(cache):  # others are to be ignored, says the XDG specification
    own = Path(cache)
  elif os.geteuid() == 0:
    return [SYSTEM_CACHE]
  else:
    own = Path.home() / ".cache"
  return [own / "sandbox_runner" / "images", SYSTEM_CACHE]


def tree_name(image: Description) -> str:
  return f"{image.name}-{image.digest}"


def find_tree(image: Description) -> Path | None:
  """The whole tree of this image, if it is built."""
  paths = (directory / tree_name(image) for directory in directories())
  return next((path for path in paths if path.is_dir()), None)


def find_other_trees(image: Description) -> list[Path]:
  """Trees of this image that were built from an older description."""
  found = {path for d in directories() for path in d.glob(f"{image.name}-*") if path.is_dir()}
  return sorted(path for path in found if path.name != tree_name(image))


def trees_in_use() -> set[str]:
  """Names of the trees that some process of this host has as its root, or mounted elsewhere."""
  roots = set()
  for path in Path("/proc").glob("[0-9]*/mountinfo"):
    with contextlib.suppress(OSError):  # it has just ended, or is not ours to look into
      roots |= {line.split()[3] for line in path.read_text().splitlines()}
  return {os.path.basename(root) for root in roots}


def tree_for_bwrap(image: str, as_other_user: bool) -> str:
  """The root tree that `image` means: one of ours by its name, or a path.

  Raises ValueError if it cannot be used by a sandbox, which root runs `as_other_user`.
  """
  if not image:
    return ""
  if image in image_names():
    path = find_tree(describe(image))
    if path is None:
      raise ValueError(f"image {image} is not built here; {BUILD} {image}")
  else:
    path = Path(image).absolute()
    if not path.is_dir():
      names = ", ".join(image_names())
      raise ValueError(f"image {image!r} is neither a directory nor one of {names}")
  check_tree(path, as_other_user)
  return str(path)


def check_tree(path: Path, as_other_user: bool) -> None:
  """Raises ValueError for a tree that bwrap could not make a sandbox of."""
  lacking = [name for name in DIRECTORIES if not (path / name).is_dir()]
  if lacking:
    raise ValueError(f"{path} is no root tree for sandboxes; mkdir {' '.join(lacking)} in it")
  if not os.path.lexists(path / "usr/bin/python3"):
    raise ValueError(f"{path} has no /usr/bin/python3, which every sandbox needs")
  closed = [p for p in (path, *path.parents) if not p.stat().st_mode & 0o001]
  if as_other_user and closed:
    raise ValueError(
      f"sandboxes run as a user of their own and cannot enter {closed[0]}, in which {path} is; "
      f"chmod o+x {closed[0]}, or build into another directory by {OVERRIDE}"
    )


def docker_name(image: str) -> tuple[str, str]:
  """(docker's name of `image`, the command that gets it)."""
  if image in image_names():
    return describe(image).tag, f"{BUILD} {image}"
  return image, f"docker pull {image}"
