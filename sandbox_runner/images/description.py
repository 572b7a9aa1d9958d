"""What the images hold: each is described by one TOML file beside this one, and by nothing else."""

import hashlib
import platform
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from sandbox_runner.types import Limits

DIRECTORY = Path(__file__).parent
BASE_PACKAGES = DIRECTORY / "base.txt"
INSTALLER = DIRECTORY / "install.py"
SUITE, PYTHON = "bookworm", "3.11"  # of Debian, and the Python that it has
EXACT = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+_-]+")
FORBIDDEN_VARIABLES = ("PYTHON", "LD_")  # the warm interpreter has already read these


@dataclass(frozen=True)
class Description:
  """An image.

  Attributes:
    name: by which `PoolConfig.image` and `run --image` ask for it.
    about: one line for a person.
    debian: names of Debian packages.
    python: packages with exact versions, and all that they need.
    preload: modules that the warm interpreter holds ready.
    wheels: packages like `python` that are not installed, but that pip finds in the sandbox.
    env: variables of every program, laid beneath those of its request.
    limits: those that suit the tools; fields of `Limits`.
  """

  name: str
  about: str
  debian: tuple[str, ...]
  python: tuple[str, ...]
  preload: tuple[str, ...]
  wheels: tuple[str, ...] = ()
  env: Mapping[str, str] = field(default_factory=dict)
  limits: Limits = field(default_factory=Limits)

  def __post_init__(self):
    for requirement in (*self.python, *self.wheels):
      if not EXACT.fullmatch(requirement):
        raise ValueError(f"image {self.name}: {requirement!r} must be NAME==VERSION")
    for variable in self.env:
      if variable.startswith(FORBIDDEN_VARIABLES):
        raise ValueError(f"image {self.name}: env may not hold {variable}; only a request may")

  @property
  def digest(self) -> str:
    """Of all that the image is made from, but for the state of Debian's archive."""
    total = hashlib.sha256(f"{SUITE} {platform.machine()}\n".encode())
    for path in (DIRECTORY / f"{self.name}.toml", BASE_PACKAGES, INSTALLER):
      total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:12]

  @property
  def tag(self) -> str:
    """Its name for docker."""
    return f"sandbox_runner/{self.name}:{self.digest}"


def image_names() -> tuple[str, ...]:
  return tuple(sorted(path.stem for path in DIRECTORY.glob("*.toml")))


def describe(name: str) -> Description:
  """Raises ValueError for a name that no image has."""
  if name not in image_names():
    raise ValueError(f"no image {name!r}; there are {', '.join(image_names())}")
  return parse(name, (DIRECTORY / f"{name}.toml").read_text())


def parse(name: str, text: str) -> Description:
  """Raises ValueError if the text is not a description."""
  try:
    values = tomllib.loads(text)
  except tomllib.TOMLDecodeError as e:
    raise ValueError(f"image {name}: {e}") from e
  known = {f.name for f in fields(Description)} - {"name"}
  if set(values) - known:
    raise ValueError(f"image {name} has {sorted(set(values) - known)}; known are {sorted(known)}")
  for key in ("debian", "python", "preload", "wheels"):
    values[key] = tuple(values.get(key, ()))
  limits = values.pop("limits", {})
  try:
    return Description(name, limits=replace(Limits(), **limits), **values)
  except TypeError as e:
    raise ValueError(f"image {name}: {e}") from e


def limits_of(image: str) -> Limits:
  """Those that suit an image by its name; the usual ones for any other image."""
  return describe(image).limits if image in image_names() else Limits()
