"""The house rules that a machine can check."""

import ast
import configparser
import itertools
import re
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from ptjax.core.config import load_config_file
from sandbox_runner.images import describe

ROOT = Path(__file__).parents[1]
PACKAGES = ("ptjax", "sandbox_runner")
DATA = ROOT / "ptjax" / "domains" / "terminal_tasks"
"""Task folders: what lies there is data, whatever its suffix."""
SOURCES = sorted(
  path for name in PACKAGES for path in (ROOT / name).rglob("*.py") if not path.is_relative_to(DATA)
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))
CONFIGS = sorted((ROOT / "configs").glob("*.py"))
LOCKS = sorted((ROOT / "constraints").glob("py*.txt"))
DOCUMENTS = [path for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")] if path.exists()]
# Scripts that run nowhere but in a sandbox, and the image of it.
IN_IMAGES = {"ptjax/domains/solid_parts/measure.py": "modeling3d"}
MAX_LINES = 400


def relative(path: Path) -> str:
  return str(path.relative_to(ROOT))


def setup_cfg() -> configparser.ConfigParser:
  parser = configparser.ConfigParser(interpolation=None)
  parser.read(ROOT / "setup.cfg")
  return parser


def requirements(text: str) -> list[str]:
  return [line for line in text.split("\n") if line.strip()]


def normal(name: str) -> str:
  """The name of a distribution as lock files spell it."""
  return re.sub(r"[-_.]+", "-", re.split(r"[><=!~\[ ;]", name.strip())[0]).lower()


def imported(path: Path) -> set[str]:
  """Top-level names of the modules that a file imports anywhere."""
  found = set()
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      found |= {alias.name.partition(".")[0] for alias in node.names}
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
      found.add(node.module.partition(".")[0])
  return found


@pytest.mark.parametrize("path", CONFIGS, ids=relative)
def test_config_builds_its_experiment(path):
  """The experiment of the verb that its docstring gives with it."""
  from ptjax.launch.cli import VERBS

  documentation = ast.get_docstring(ast.parse(path.read_text())) or ""
  for word in (f"--config {relative(path)}", "Hardware:"):
    assert word in documentation, f"{path.name}: its docstring has no {word!r}"
  command = re.search(rf"ptjax.launch (\w+) --config {relative(path)}", documentation)
  assert command, f"{path.name}: its docstring has no command"
  root = {verb.NAME: verb for verb in VERBS}[command[1]].root()
  assert isinstance(load_config_file(path, root), root)


def test_there_are_configs():
  assert CONFIGS


def test_files_are_short():
  long = {relative(path): len(path.read_text().splitlines()) for path in SOURCES + TESTS}
  assert {name: lines for name, lines in long.items() if lines > MAX_LINES} == {}


def test_packages_have_an_init():
  directories = {path.parent for path in SOURCES}
  assert [relative(d) for d in directories if not (d / "__init__.py").exists()] == []


def test_packages_hold_only_python_and_package_data():
  """What else lies there, an installed ptjax would lack."""
  setup = configparser.ConfigParser()
  setup.read(ROOT / "setup.cfg")
  data = {
    relative(path)
    for package, patterns in setup["options.package_data"].items()
    for pattern in patterns.split()
    for path in (ROOT / package.replace(".", "/")).glob(pattern)
    if path.is_file()
  }
  files = (path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.is_file())
  files = (p for p in files if "__pycache__" not in p.parts)
  others = {relative(p) for p in files if p.suffix != ".py" or p.is_relative_to(DATA)}
  assert others == data


def test_test_modules_have_unique_names():
  """They are imported by bare name: a second `helpers.py` would be taken for the first."""
  names = Counter(path.stem for path in TESTS if path.name != "conftest.py")
  assert [name for name, count in names.items() if count > 1] == []


def test_nothing_imports_a_conftest():
  """Which of the conftest.py files such an import finds depends on the order of the tests."""
  assert [relative(path) for path in TESTS if "conftest" in imported(path)] == []


def test_dependencies_are_imported_and_imports_are_dependencies():
  modules = {
    "flax": "flax",
    "gguf": "gguf",
    "gin": "gin-config",
    "grain": "grain",
    "jax": "jax",
    "jinja2": "jinja2",
    "libtpu": "libtpu",
    "matplotlib": "matplotlib",
    "ml_collections": "ml-collections",
    "ml_dtypes": "ml-dtypes",
    "numpy": "numpy",
    "optax": "optax",
    "orbax": "orbax-checkpoint",
    "packaging": "packaging",
    "pyarrow": "pyarrow",
    "reasoning_gym": "reasoning-gym",
    "rich": "rich",
    "safetensors": "safetensors",
    "seqio": "seqio",
    "tensorboardX": "tensorboardx",
    "tokenizers": "tokenizers",
  }
  cfg = setup_cfg()
  extras = [lines for name, lines in cfg["options.extras_require"].items() if name != "dev"]
  lines = [cfg["options"]["install_requires"], *extras]
  declared = {normal(line) for text in lines for line in requirements(text)}
  used = set().union(*(imported(path) for path in SOURCES if relative(path) not in IN_IMAGES))
  used -= sys.stdlib_module_names | set(PACKAGES)
  assert {modules.get(name, name) for name in used} == declared


@pytest.mark.parametrize(("script", "image"), IN_IMAGES.items())
def test_scripts_for_images_import_what_the_image_holds(script, image):
  used = imported(ROOT / script) - sys.stdlib_module_names
  assert used <= {normal(line) for line in describe(image).python}


def test_types_are_checked_without_the_extras_of_single_tests():
  """`make check` must pass before `make pytest` installs them."""
  rule = r"^\$\(VENV\)/installed-(\w+):.*\n\t\$\(INSTALL\) -e \"\.\[(\w+)\]\""
  extras = [extra for _, extra in re.findall(rule, (ROOT / "Makefile").read_text(), re.M)]
  assert extras
  declared = setup_cfg()["options.extras_require"]
  wanted = {normal(line) for extra in extras for line in requirements(declared[extra])}
  checker = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pyrefly"]
  for script in IN_IMAGES:
    wanted |= imported(ROOT / script) - sys.stdlib_module_names - {"numpy"}
  assert set(checker["replace-imports-with-any"]) == wanted


def test_dependencies_have_lower_bounds_only():
  cfg = setup_cfg()
  lines = requirements(cfg["options"]["install_requires"])
  for extra in cfg["options.extras_require"].values():
    lines += requirements(extra)
  assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_-]+>=[0-9.]+", line)] == []


@pytest.mark.parametrize("lock", LOCKS, ids=relative)
def test_lock_file_covers_the_dependencies(lock):
  lines = [
    line for line in lock.read_text().splitlines() if line and not line.startswith((" ", "#"))
  ]
  locked = dict(line.partition(";")[0].strip().split("==") for line in lines)
  cfg = setup_cfg()
  build = [line for line in (lock.parent / "build.in").read_text().splitlines() if line[0] != "#"]
  wanted = requirements(cfg["options"]["install_requires"]) + build
  wanted += [line for e in cfg["options.extras_require"].values() for line in requirements(e)]
  for line in wanted:
    name, _, bound = line.partition(">=")
    assert normal(name) in locked, f"{line}: run `make lock`"
    assert version(locked[normal(name)]) >= version(bound or "0"), f"{line}: run `make lock`"


def version(text: str) -> tuple[int, ...]:
  return tuple(int(part) for part in re.findall(r"\d+", text))


def test_lock_files_name_no_index():
  for path in (ROOT / "constraints").iterdir():
    assert "//" not in path.read_text(), f"{path.name} names a package index"


def test_dependencies_have_a_reason():
  """docs/architecture.md names each dependency in backquotes."""
  text = (ROOT / "docs" / "architecture.md").read_text().lower().replace("_", "-")
  declared = {normal(line) for line in requirements(setup_cfg()["options"]["install_requires"])}
  assert [name for name in sorted(declared) if f"`{name}`" not in text] == []


def commands(path: Path) -> list[str]:
  """The command lines in the fenced shell blocks of a document, without their comments."""
  blocks = re.findall(
    r"^ *```(?:sh|bash|shell|console)\n(.*?)^ *```", path.read_text(), re.M | re.S
  )
  joined = "\n".join(blocks).replace("\\\n", " ")
  return [line.strip().removeprefix("$ ") for line in joined.splitlines() if line.strip()]


def documented(program: tuple[str, ...]) -> list[list[str]]:
  """Arguments of each call of `program` in the documents, after any VAR=value."""
  found = []
  for path in DOCUMENTS:
    for line in commands(path):
      words = shlex.split(line, comments=True)
      while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
      if tuple(words[: len(program)]) == program:
        found.append(words[len(program) :])
  return found


def test_documented_make_targets_exist():
  targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.M))
  used = {word for words in documented(("make",)) for word in words if "=" not in word}
  assert used <= targets


def test_documented_ptjax_commands_parse():
  from ptjax.launch.cli import build_parser

  for words in documented(("python", "-m", "ptjax.launch")):
    plain = [word for word in words if not word.startswith("--config.")]
    if "--help" not in plain:  # which prints, and ends with SystemExit
      build_parser().parse_args(plain)
    for name, value in itertools.pairwise(words):
      if name in ("--config", "--sweep", "--gin_file"):
        assert (ROOT / value.partition(":")[0]).exists(), f"the documents name {value}"


def test_readme_names_the_two_commands():
  lines = [line for path in DOCUMENTS if path.name == "README.md" for line in commands(path)]
  for command in ("make demo", "make test"):
    assert any(line.startswith(command) for line in lines), f"README.md shows no {command!r}"


def test_shell_scripts_parse():
  scripts = {".ci/run": "bash", **{relative(p): "sh" for p in (ROOT / "tools").glob("*.sh")}}
  for name, shell in scripts.items():
    subprocess.run([shell, "-n", str(ROOT / name)], check=True)
    assert (ROOT / name).stat().st_mode & 0o100, f"{name} is not executable"


def test_sources_name_no_absolute_home():
  """A path of the machine that a file was written on has no place in it."""
  home = re.compile(r"(?<![\w}])/(root|home|Users)/")  # not /proc/{pid}/root/
  assert [relative(path) for path in SOURCES + CONFIGS if home.search(path.read_text())] == []
