"""The code domain's grader in the real sandbox: crashes cost one test, attacks earn nothing."""

import asyncio
import dataclasses

import sandbox_runner
from ptjax.core.types import Outcome
from ptjax.domains import code
from ptjax.domains.domain import grade_response
from ptjax.envs.environment import Services, Task

DOMAIN = code.build(code.Config(functions=("f",)))
TASK = Task(
  domain="code",
  seed=0,
  split="train",
  messages=({"role": "user", "content": "n plus 1"},),
  data={"function": "f", "inputs": [[0], [1], [2], [3]], "expected": [1, 2, 3, 4]},
)


def grade_all(with_sandbox, responses, task=TASK):
  async def use(services):
    return await asyncio.gather(
      *(grade_response(DOMAIN, task, response, services) for response in responses)
    )

  return with_sandbox(use)


PARTIAL = {
  "wrong for one": "def f(n): return n + 1 if n != 2 else 0",
  "raises": "def f(n): return n + 1 if n != 2 else 1 // 0",
  "ends the process": "import os\ndef f(n): return n + 1 if n != 2 else os._exit(0)",
  "ends first": "import os\ndef f(n): return n + 1 if n else os._exit(0)",
  "exits": "import sys\ndef f(n): return n + 1 if n != 2 else sys.exit(0)",
  "recurses": "def f(n): return n + 1 if n != 2 else f(n)",
  "crashes": "import os\ndef f(n): return n + 1 if n != 2 else os.kill(os.getpid(), 11)",
  "prints": "def f(n):\n  print('[9]', flush=True)\n  return n + 1 if n != 2 else None",
  "wrong type": "def f(n): return n + 1 if n != 2 else 3.0",
}


def test_partial_credit(with_sandbox):
  grades = grade_all(with_sandbox, PARTIAL.values())
  got = {name: g.rewards["domain/tests"] for name, g in zip(PARTIAL, grades, strict=True)}
  assert got == dict.fromkeys(PARTIAL, 0.75)
  assert not any(g.passed for g in grades)


WORTHLESS = (
  *code.ATTACKS,
  "import sys\ndef f(n): return n + 1\nsys.exit(0)",
  "class Any:\n  def __eq__(self, other): return True\ndef f(n): return Any()",
  "class Int(int): pass\ndef f(n): return Int(n + 1)",
  "import os\nos.kill(os.getppid(), 9)",
  "def f(n): return {'test': 0, 'value': 1}",
  "import glob\ndef f(n): return ''.join(open(p).read() for p in glob.glob('*'))",
  "import gc\ndef f(n): return [o for o in gc.get_objects() if type(o) is list][:3]",
  "import time\ntime.sleep(60)",
  "def f(n): return 'x' * 10**6",
  "def f(n): return float('nan')",
  "def f(n):\n  a = []\n  while True: a.append('x' * 10**6)",
)


def test_attacks_earn_nothing_on_the_domain_node(with_sandbox):
  grades = grade_all(with_sandbox, WORTHLESS)
  for response, graded in zip(WORTHLESS, grades, strict=True):
    assert graded.outcome is Outcome.SCORED, response
    assert graded.rewards["domain"] == 0.0, response
    assert not graded.passed


SPOOFS = (
  # Writes guesses into every descriptor it can find, the driver's own output included.
  """import os
for fd in range(3, 64):
  try: os.write(fd, b'loaded\\n[0]\\n[0]\\n[0]\\n[0]\\n')
  except OSError: pass
os._exit(0)""",
  """import os
for i in range(4):
  for guess in range(9):
    line = '{"test": %d, "value": %d}\\n' % (i, guess)
    try: open('/proc/%d/fd/1' % os.getppid(), 'w').write(line)
    except OSError: pass
os._exit(0)""",
)


def test_spoofed_values_are_only_guesses(with_sandbox):
  for graded in grade_all(with_sandbox, SPOOFS):
    assert graded.rewards["domain"] == 0.0


def test_arguments_are_fresh_and_stdout_is_the_candidates_to_use(with_sandbox):
  task = dataclasses.replace(
    TASK, data={"function": "f", "inputs": [[[3, 1]], [[3, 1, 2]]], "expected": [[1, 3], [1, 2, 3]]}
  )
  sloppy = (
    "def f(xs):\n  xs.sort()\n  return xs\nprint(f([2, 1]))\nif __name__ == '__main__': 1 / 0"
  )
  (graded,) = grade_all(with_sandbox, [sloppy], task)
  assert graded.passed


def test_lost_sandbox_is_no_score():
  class LostPool:
    """A pool whose sandbox is always gone, which no real one can be made to be on demand."""

    async def run(self, request):
      return sandbox_runner.Result(sandbox_runner.Outcome.sandbox_lost, detail="gone")

  graded = asyncio.run(grade_response(DOMAIN, TASK, "def f(n): return n + 1", Services(LostPool())))
  assert graded.outcome is Outcome.INFRA_FAILED
  assert graded.rewards == {"general/format": 1.0, "general": 1.0}
  assert not graded.passed
  assert "gone" in graded.detail
