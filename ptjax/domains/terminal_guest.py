"""Runs in the sandbox of a finished episode: makes room for what comes, and for nothing else.

  python3 -I -c SOURCE "tests logs" "logs/verifier"

removes the first of these names below /work, whatever stands there, and makes the second as
directories. Links to a place that is removed go too, and those into /proc and /dev: a report that
is a link to the expected one would be equal to it. It needs nothing but Python.
"""

import os
import sys

ROOT = "/work"


def remove(path: str) -> None:
  """Removes what stands there, without following links."""
  if os.path.islink(path) or not os.path.isdir(path):
    if os.path.lexists(path):
      os.unlink(path)
    return
  open_up(path)
  for name in os.listdir(path):
    remove(os.path.join(path, name))
  os.rmdir(path)


def open_up(path: str) -> None:
  """Lets its owner read and change a directory."""
  if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
    os.chmod(path, os.stat(path).st_mode | 0o700)


def cut_links(path: str, places: tuple[str, ...]) -> None:
  """Removes links below a directory that lead to one of these places, however many lie between."""
  open_up(path)
  for name in os.listdir(path):
    entry = os.path.join(path, name)
    if os.path.islink(entry):
      if (os.path.realpath(entry) + "/").startswith(places):
        os.unlink(entry)
    elif os.path.isdir(entry):
      cut_links(entry, places)


def main(removed: str, made: str) -> None:
  names = [os.path.join(ROOT, name) for name in removed.split()]
  for name in names:
    remove(name)
  cut_links(ROOT, (*(name + "/" for name in names), "/proc/", "/dev/"))
  for name in made.split():
    os.makedirs(os.path.join(ROOT, name))


if __name__ == "__main__":
  main(sys.argv[1], sys.argv[2])
