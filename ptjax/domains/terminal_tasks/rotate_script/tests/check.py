"""Compares what the script said and left with what it should have; exits with 0 where it is right."""

from pathlib import Path

ALL = [f"backup-2026-0{m}-0{d}.tar.gz" for m in (1, 2) for d in (1, 2, 3)]
ALL.insert(0, "backup-2025-12-31.tar.gz")
OTHERS = ["backup-2025-11-11.tar.gz", "backup-2026-01-04.tar", "backup-26-01-05.tar.gz"]
OTHERS += ["notes.txt", "sub", "sub/backup-2025-01-02.tar.gz"]
TWO = ["backup-2025-12-31.tar.gz", "backup-2026-01-02.tar.gz", "backup-2026-01-03.tar.gz"]
NONE = [*TWO, "backup-2026-02-02.tar.gz", "backup-2026-02-03.tar.gz"]


def check(number, said, deleted, status):
  out = Path(f"/logs/run/{number}.out").read_text().splitlines()
  err = Path(f"/logs/run/{number}.err").read_text().splitlines()
  left = Path(f"/logs/run/{number}.left").read_text().splitlines()
  assert out == [*said, f"status {status}"], (number, out)
  assert len(err) == (status == 2), (number, err)
  assert sorted(left) == sorted([*(set(ALL) - set(deleted)), *OTHERS]), (number, left)


check(1, [f"deleted {name}" for name in TWO], TWO, 0)
check(2, [f"would delete {name}" for name in TWO], [], 0)
check(3, [f"deleted {name}" for name in NONE], NONE, 0)
check(4, [], [], 0)
check(5, [], [], 0)
for number in range(6, 12):
  check(number, [], [], 2)
