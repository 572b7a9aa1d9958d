"""Run inside a sandbox, by `posture`: prints what an untrusted program finds there, as JSON.

It only measures. What it prints is judged on the host.
"""

import ctypes
import errno
import json
import os
import socket
import stat

ADDRESSES = (  # of the metadata services of clouds, and of a public name server
  ("169.254.169.254", 80),
  ("fd00:ec2::254", 80),
  ("1.1.1.1", 53),
)
READ_ONLY = (
  "/",
  "/usr",
  "/usr/bin",
  "/bin",
  "/lib",
  "/etc",
  "/var",
  "/opt",
  "/root",
  "/home",
  "/sys",
)
SOCKET_DIRECTORIES = ("/run", "/var/run", "/tmp", "/var/lib")
SOCKETS_SEEN = 2000  # directory entries that are looked at
IO_URING_SETUP, AF_VSOCK = 425, 40  # the same on every processor
PR_GET_NO_NEW_PRIVS = 39

libc = ctypes.CDLL(None, use_errno=True)


def lines(path):
  try:
    with open(path) as f:
      return f.read().splitlines()
  except OSError:
    return []


def mounts():
  """[mount point, device, file system, options] of each."""
  found = []
  for line in lines("/proc/self/mountinfo"):
    left, _, right = line.partition(" - ")
    fields = left.split()
    found.append([fields[4], fields[2], right.split()[0], fields[5].split(",")])
  return found


def status():
  pairs = (line.partition(":") for line in lines("/proc/self/status"))
  return {name: value.strip() for name, _, value in pairs}


def routes():
  """The interface of each route."""
  found = [line.split()[0] for line in lines("/proc/net/route")[1:] if line.strip()]
  return found + [line.split()[-1] for line in lines("/proc/net/ipv6_route") if line.strip()]


def interfaces():
  return [line.partition(":")[0].strip() for line in lines("/proc/net/dev")[2:]]


def connection_errors():
  """Address -> the error of a connection to it; "" where there is none."""
  found = {}
  for host, port in ADDRESSES:
    try:
      with socket.create_connection((host, port), timeout=1):
        found[host] = ""
    except OSError as e:
      found[host] = errno.errorcode.get(e.errno or 0, str(e))
  return found


def sockets():
  """Socket files where daemons have theirs."""
  found, seen = [], 0
  for top in SOCKET_DIRECTORIES:
    for directory, _, names in os.walk(top):
      for name in names:
        seen += 1
        if seen > SOCKETS_SEEN:
          return found
        path = os.path.join(directory, name)
        try:
          if stat.S_ISSOCK(os.stat(path).st_mode):
            found.append(path)
        except OSError:
          continue
  return found


def filtered_calls():
  """Call -> its error. Each has another one, or none, where no filter denies it."""
  found = {}
  for name, call in (
    ("unshare", lambda: libc.unshare(0)),
    ("setns", lambda: libc.setns(-1, 0)),
    ("io_uring_setup", lambda: libc.syscall(IO_URING_SETUP, 0, None)),
    ("socket of a hypervisor", lambda: libc.socket(AF_VSOCK, socket.SOCK_STREAM, 0)),
  ):
    failed = call() == -1
    found[name] = errno.errorcode.get(ctypes.get_errno(), "?") if failed else ""
  return found


def written():
  """Directories of the system in which a file can be made."""
  found = []
  for directory in READ_ONLY:
    path = os.path.join(directory, "posture-probe")
    try:
      os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
      os.unlink(path)
      found.append(directory)
    except OSError:
      continue
  return found


def environments():
  """Every variable of every process that can be seen."""
  found = set()
  for entry in os.listdir("/proc"):
    if entry.isdigit():
      try:
        with open(f"/proc/{entry}/environ", "rb") as f:
          found.update(f.read(1 << 20).decode("utf-8", "replace").split("\0"))
      except OSError:
        continue
  return sorted(found - {""})


def main():
  print(
    json.dumps(
      {
        "mounts": mounts(),
        "status": status(),
        "no_new_privs": libc.prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0),
        "users": [*os.getresuid(), *os.getresgid(), *os.getgroups()],
        "interfaces": interfaces(),
        "routes": routes(),
        "connection_errors": connection_errors(),
        "sockets": sockets(),
        "filtered_calls": filtered_calls(),
        "written": written(),
        "environments": environments(),
      }
    )
  )


if __name__ == "__main__":
  main()
