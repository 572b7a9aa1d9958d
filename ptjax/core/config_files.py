"""Runs a function of a user's Python file; a mistake in the file is one line with its place."""

import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from ptjax.core.config_build import ConfigError, one_line, suggest

# What a user's file raises by mistake, as opposed to what the interpreter raises.
_FILE_ERRORS = (
  ArithmeticError,
  AssertionError,
  AttributeError,
  ImportError,
  LookupError,
  NameError,
  OSError,
  SyntaxError,
  TypeError,
  ValueError,
)


def call_in_file(path: str | Path, name: str, args: tuple[str, ...] = ()) -> Any:
  """Imports a Python file and calls its function `name`; a generator is read to its end.

  Raises:
    ConfigError: no such file, no such function, arguments that do not fit it, or an
      exception in the file, with its line.
  """
  file = Path(path)
  function = getattr(_import_file(file), name, None)
  if not callable(function):
    raise ConfigError(f"{file} has no {name}(); define it as the example of --help shows")
  signature = inspect.signature(function)
  try:
    signature.bind(*args)
  except TypeError as error:
    given = ":".join((str(file), *args))
    raise ConfigError(
      f"{file}: {name}{signature} does not fit {given}: {error};"
      f" write {file}:ARG where it takes an argument, else {file}"
    ) from error
  try:
    result = function(*args)
    return list(result) if inspect.isgenerator(result) else result
  except _FILE_ERRORS as error:
    raise ConfigError(_locate(error, file)) from error


def _import_file(file: Path) -> ModuleType:
  if not file.is_file():
    siblings = [str(f) for f in file.parent.glob("*.py")] if file.parent.is_dir() else []
    raise ConfigError(f"file {file} not found; {suggest(str(file), siblings)}")
  name = f"ptjax_user_{file.stem}"
  spec = importlib.util.spec_from_file_location(name, file)
  if spec is None or spec.loader is None:
    raise ConfigError(f"file {file} is not Python; give a .py file")
  module = importlib.util.module_from_spec(spec)
  sys.modules[name] = module  # dataclasses of the file resolve their annotations through it
  try:
    spec.loader.exec_module(module)
  except _FILE_ERRORS as error:
    raise ConfigError(_locate(error, file)) from error
  return module


def _locate(error: Exception, file: Path) -> str:
  """`file:line: Type: message`, the line being the last one of the user's file itself."""
  if isinstance(error, SyntaxError):
    return f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}"
  frames = traceback.extract_tb(error.__traceback__)
  lines = [f.lineno for f in frames if Path(f.filename).resolve() == file.resolve()]
  where = f"{file}:{lines[-1]}" if lines else str(file)
  return f"{where}: {type(error).__name__}: {one_line(error)}"
