#!/bin/sh
# Gets what pip cannot install. Root on a Debian system installs the missing package and says so;
# anybody else is told the one command to run.
#
#   tools/ensure_system.sh compiler PYTHON   a C compiler and the headers of PYTHON, for pycosat,
#                                            which reasoning-gym needs and which has no wheels
#   tools/ensure_system.sh sandbox PYTHON    docker if its daemon answers, else bubblewrap
set -eu

# get REASON DEBIAN DNF PACMAN: installs the packages, or says how and fails.
get() {
  if command -v apt-get >/dev/null; then
    command="apt-get install -y $2"
  elif command -v dnf >/dev/null; then
    command="dnf install -y $3"
  elif command -v pacman >/dev/null; then
    command="pacman -S --noconfirm $4"
  else
    command=
  fi
  if [ -z "$command" ]; then
    echo "ptjax: $1. Install it with the package manager of this system: $2" >&2
  elif [ "$(id -u)" != 0 ]; then
    echo "ptjax: $1. Run: sudo $command" >&2
  else
    echo "ptjax: $1. Running as root: $command"
    case $command in apt-get*) apt-get update -q >/dev/null ;; esac
    DEBIAN_FRONTEND=noninteractive $command >/dev/null
    return
  fi
  exit 1
}

include_path() {
  "$1" -c 'import sysconfig; print(sysconfig.get_path("include"))'
}

compiles() {
  echo '#include <Python.h>' | "${CC:-cc}" -I "$(include_path "$1")" -E - >/dev/null 2>&1
}

ensure_compiler() {
  compiles "$1" && return
  headers=
  if [ ! -e "$(include_path "$1")/Python.h" ]; then
    headers=$("$1" -c 'import sys; print("python%d.%d-dev" % sys.version_info[:2])')
  fi
  get "pycosat needs a C compiler and Python's headers" \
    "gcc libc6-dev $headers" "gcc python3-devel" "gcc"
  compiles "$1" || {
    echo "ptjax: the C compiler still finds no Python.h of $1" >&2
    exit 1
  }
}

# Prints the backend that works; otherwise one line for each, and fails.
find_backend() {
  "$1" - <<'PYTHON'
import sys

from sandbox_runner import detect_backends

found = detect_backends()
for status in found:
  if status.available:
    print(f"ptjax: the sandbox is {status.name} ({status.detail})")
    sys.exit()
sys.exit("\n".join(f"ptjax: no {s.name}: {s.detail}. Run: {s.fix}" for s in found))
PYTHON
}

ensure_sandbox() {
  find_backend "$1" 2>/dev/null && return
  command -v bwrap >/dev/null || get "no sandbox backend yet" bubblewrap bubblewrap bubblewrap
  find_backend "$1"
}

case "${1-} ${2-}" in
  "compiler "?*) ensure_compiler "$2" ;;
  "sandbox "?*) ensure_sandbox "$2" ;;
  *) echo "usage: $0 compiler|sandbox PYTHON" >&2; exit 2 ;;
esac
