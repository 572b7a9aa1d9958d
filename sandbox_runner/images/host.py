"""A docker image made from this host's own Python and shell tools, where no registry is needed.

`docker import` takes a tar of a root tree. The tree holds one interpreter with its whole standard
library, the programs below and the shared libraries of all of them. Its tag is a hash of what went
in, so a host whose Python changes gets a new image.
"""

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from sandbox_runner.backends.bwrap import GROUP, PASSWD, find_python

REPOSITORY = "sandbox_runner/host-python"
PROGRAMS = """
bash sh env cat chmod cp cut date dd dirname basename echo expr false find grep egrep head id ipcmk
ipcs ln ls md5sum mkdir mktemp mv nohup od paste printenv printf pwd readlink realpath rm rmdir sed
seq setsid sha256sum sleep sort stat stty tail tar tee test timeout touch tr true truncate tty uname
uniq unshare wc xargs yes awk mawk gawk diff gzip mkfifo
"""
DIRECTORIES = ("work", "tmp", "proc", "sys", "dev", "etc", "run", "var", "usr/bin", "usr/lib")
SKIPPED = re.compile(r"(^|/)(__pycache__|test|tests|idlelib|tkinter|turtledemo|ensurepip)(/|$)")


def libraries(programs: Iterable[str]) -> set[str]:
  """Paths of the shared libraries of these programs, the loader included."""
  done = subprocess.run(["ldd", *programs], capture_output=True, text=True, timeout=60, check=False)
  return set(re.findall(r"(/\S+\.so[^\s:]*)", done.stdout))


def host_files() -> dict[str, str]:
  """Path in the image -> path on the host."""
  python, prefix = find_python()
  real = os.path.realpath(python)
  found = {"/usr/bin/python3": real, "/usr/bin/python": real}
  programs = [real]
  for name in PROGRAMS.split():
    path = shutil.which(name, path="/usr/bin:/bin")
    if path:
      found[f"/usr/bin/{name}"] = os.path.realpath(path)
      programs.append(path)
  version = Path(real).name  # python3.11
  library = Path(prefix) / "lib" / version
  extensions = []
  for path in library.rglob("*"):
    inner = str(path.relative_to(library))
    if path.is_file() and not SKIPPED.search(inner) and not inner.startswith("site-packages"):
      found[f"/usr/lib/{version}/{inner}"] = str(path)
      if path.suffix == ".so":
        extensions.append(str(path))
  for path in libraries(programs + extensions):
    merged = re.sub(r"^/(lib|lib64)/", r"/usr/\1/", path)
    found[merged] = os.path.realpath(path)
  return found


def image_name(files: dict[str, str]) -> str:
  digest = hashlib.sha256(sys.version.encode())
  for inner, path in sorted(files.items()):
    status = os.stat(path)
    digest.update(f"{inner} {status.st_size} {status.st_mtime_ns}\n".encode())
  return f"{REPOSITORY}:{digest.hexdigest()[:12]}"


def write_tar(files: dict[str, str], out) -> None:
  """The root tree as a tar stream; everything belongs to root and is not writable by others."""
  with tarfile.open(fileobj=out, mode="w|") as tar:

    def add(name: str, data: bytes | None = None, kind: bytes = tarfile.REGTYPE, link: str = ""):
      info = tarfile.TarInfo(name)
      info.type, info.linkname = kind, link
      info.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
      info.size = len(data or b"")
      tar.addfile(info, io.BytesIO(data) if data else None)

    for name in DIRECTORIES:
      add(name, kind=tarfile.DIRTYPE)
    for name in ("bin", "sbin", "lib", "lib64"):
      add(name, kind=tarfile.SYMTYPE, link="usr/bin" if name.endswith("bin") else f"usr/{name}")
    add("var/tmp", kind=tarfile.SYMTYPE, link="/tmp")
    add("etc/passwd", PASSWD)
    add("etc/group", GROUP)
    for inner, path in files.items():
      info = tar.gettarinfo(path, arcname=inner.lstrip("/"))
      info.uid = info.gid = 0
      info.uname = info.gname = "root"
      info.type, info.linkname = tarfile.REGTYPE, ""
      info.size = os.path.getsize(path)
      with open(path, "rb") as f:
        tar.addfile(info, f)


def ensure_host_image(docker: str) -> str:
  """The name of the image, which is made if the daemon does not have it.

  Raises OSError with docker's message if it cannot be made.
  """
  files = host_files()
  name = image_name(files)
  if _docker(docker, "image", "inspect", name, timeout_s=30).returncode == 0:
    return name
  with tempfile.NamedTemporaryFile(prefix="sandbox_runner-", suffix=".tar") as f:
    write_tar(files, f)
    f.flush()
    done = _docker(docker, "import", f.name, name, timeout_s=300)
  if done.returncode:
    raise OSError(f"docker import failed: {done.stderr.strip()[-200:]}")
  return name


def _docker(*command: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
  """Raises OSError if it takes too long."""
  try:
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
  except subprocess.TimeoutExpired as e:
    raise TimeoutError(f"docker {command[1]} did not answer within {timeout_s:g} s") from e
