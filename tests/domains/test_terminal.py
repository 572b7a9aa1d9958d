"""Terminal tasks: solved by their solutions, not without them, and not by forgers."""

import asyncio
import dataclasses

import pytest

from ptjax.core.types import Outcome
from ptjax.domains import admission, catalog, terminal
from ptjax.domains.domain import grade, grade_answer, play_answer
from ptjax.domains.harbor import read_folder
from ptjax.envs.environment import Budget, Ending, Services
from ptjax.envs.tools import ToolCall
from sandbox_runner import Pool, PoolConfig
from sandbox_runner.images import limits_of

NAMES = sorted(path.name for path in terminal.TASKS.iterdir())


def on(backend, use, size=2, **more):
  async def main():
    limits = limits_of("terminal")
    config = PoolConfig(size=size, image="terminal", backend=backend, limits=limits, **more)
    async with Pool(config) as pool:
      return await use(Services(images={"terminal": pool}))

  return asyncio.run(main())


def command(text):
  return ToolCall("shell", {"command": text})


async def solved_and_not(name, services):
  """(reward and verdict of the solution, and of doing nothing)."""
  domain = catalog.builder(f"terminal/{name}")()
  task = domain.make_task(0, "train")
  episode = await play_answer(domain, task, domain.oracle(task), services)
  assert episode.ending is Ending.DONE
  right = await grade(domain, task, episode, services)
  nothing = await grade_answer(domain, task, "It is done.", services)
  return right.rewards[""], right.passed, nothing.rewards[""], nothing.passed


@pytest.mark.parametrize("name", ["access_log", "git_lost_work", "fix_package"])
def test_solved_by_its_solution_alone(name):
  assert on("bwrap", lambda s: solved_and_not(name, s)) == (1, True, 0, False)


@pytest.mark.docker
def test_all_are_solved_under_gvisor():
  async def use(services):
    session = services.images["terminal"].lease()
    async with session as s:
      backend = (await s.exec(("true",))).backend
    return backend, await asyncio.gather(*(solved_and_not(name, services) for name in NAMES))

  backend, found = on("docker", use, runtime="runsc")
  assert backend == "docker+runsc"
  assert dict(zip(NAMES, found, strict=True)) == dict.fromkeys(NAMES, (1, True, 0, False))


FORGERS = {
  "links": "ln -sfn {0}/tests/expected.csv report.csv",
  "a link by way of another": "ln -s ../tests t; ln -s t/expected.csv report.csv",
  "a link into proc": "ln -s /proc/self/fd/3 report.csv",
  "a directory in its place": "mkdir report.csv",
  "closed directories": "mkdir -p {0}/logs/a/b {0}/tests; chmod 0 {0}/logs/a {0}/tests {0}/logs",
  "no room": "head -c 520m /dev/zero >big; head -c 9m /dev/zero >bigger",
}


@pytest.mark.parametrize("name", FORGERS)
def test_forgers_earn_nothing(name):
  async def use(services):
    domain = catalog.builder("terminal/access_log")()
    task = domain.make_task(0, "train")
    answer = (command(FORGERS[name].format("/work")), "It is done.")
    return await grade_answer(domain, task, answer, services)

  got = on("bwrap", use)
  assert (got.outcome, got.passed, got.rewards["domain"]) == (Outcome.SCORED, False, 0)


def test_admitted():
  """Its attacks and garbage are played, too; its tests run Python, which forgers prepare."""
  domain = catalog.builder("terminal/sqlite_stock")()
  seen = on("bwrap", lambda s: admission.examine(domain, range(2), s), size=3)
  assert seen.findings == ()
  assert seen.tasks == 1


def test_the_policy_sees_no_tests_and_its_shell_has_a_memory():
  async def use(services):
    domain = catalog.builder("terminal/access_log")()
    task = domain.make_task(0, "train")
    commands = (
      "pwd; printf '%s\\n' /work/*; x=5; cd /tmp",
      "echo $x; pwd; false",
      "grep -rls reward.txt /work /tmp",
      "seq 3000; exit 3",
      "kill -9 $BASHPID",
    )
    answer = (*map(command, commands), command("sleep 100 & disown; echo 'a\nb'"), "It is done.")
    return await play_answer(domain, task, answer, services)

  shown = on("bwrap", use).observations
  assert shown[0] == "/work/app\n/work/app\n[exit code 0]"
  assert shown[1] == "5\n/tmp\n[exit code 1]"
  assert shown[2] == "[exit code 1]"
  assert "characters left out]" in shown[3]
  assert shown[3].endswith("3000\n[exit code 3]")
  assert len(shown[3]) < terminal.SHOWN + 100
  assert shown[4].endswith("[ended by signal 9]")


def test_commands_alone_cannot_run_out_the_clock():
  assert terminal.CALLS * terminal.COMMAND_S < terminal.LEAST_WALL_S
  assert catalog.builder("terminal")().budget.wall_s >= terminal.LEAST_WALL_S


def test_a_command_has_its_own_time(monkeypatch):
  monkeypatch.setattr(terminal, "COMMAND_S", 0.5)

  async def use(services):
    domain = catalog.builder("terminal/contacts")()
    answer = (command("sleep 60"), command("echo on"), "It is done.")
    return await play_answer(domain, domain.make_task(0, "train"), answer, services)

  shown = on("bwrap", use).observations
  assert shown == ("[ended: a command may take 0.5 s]", "on\n[exit code 0]")


def test_a_spent_budget_is_verified_all_the_same():
  async def use(services):
    domain = catalog.builder("terminal/access_log")()
    play = dataclasses.replace(domain.play, budget=Budget(turns=1))
    domain = dataclasses.replace(domain, play=play)
    task = domain.make_task(0, "train")
    solve, _ = domain.oracle(task)
    episode = await play_answer(domain, task, (solve,), services)
    return episode, await grade(domain, task, episode, services)

  episode, got = on("bwrap", use)
  assert episode.ending is Ending.TURNS
  assert episode.artifacts["verdict"] == terminal.Verdict(1.0)
  assert got.outcome is Outcome.TRUNCATED
  assert got.rewards[""] == 1


def write_folder(path, **files):
  texts = {
    "task.toml": "",
    "instruction.md": "Do it.",
    "environment/Dockerfile": "FROM sandbox_runner/terminal\nWORKDIR /app\n",
    "tests/test.sh": "true\n",
  } | {name.replace("__", "/").replace("_dot_", "."): text for name, text in files.items()}
  for name, text in texts.items():
    (path / name).parent.mkdir(parents=True, exist_ok=True)
    (path / name).write_text(text)
  return path


VERDICTS = {
  "true": (0, "the tests ended with 0 and wrote no reward"),
  "echo 0.25 >/logs/verifier/reward.txt": (0.25, ""),
  "echo 7 >/logs/verifier/reward.txt": (0, "the reward is no number in [0, 1]: b'7\\n'"),
  "echo nan >/logs/verifier/reward.txt": (0, "the reward is no number in [0, 1]: b'nan\\n'"),
  "echo x >/logs/verifier/reward.txt": (0, "the reward is no number in [0, 1]: b'x\\n'"),
  'echo \'{"reward": 0.5, "time": 7}\' >/logs/verifier/reward.json': (0.5, ""),
  "echo '{\"score\": 0.5}' >/logs/verifier/reward.json": (0, "the reward is no number in [0, 1]"),
  "echo true >/logs/verifier/reward.json": (0, "the reward is no number in [0, 1]: b'true\\n'"),
  "printf '9%0999d' 1 >/logs/verifier/reward.txt": (0, "the reward is no number in [0, 1]"),
  "echo 1 1 >/logs/verifier/reward.txt": (0, "the reward is no number in [0, 1]: b'1 1\\n'"),
  "python3 -c 'import json, helper' && echo 1 >/logs/verifier/reward.txt": (1, ""),
  "ln -s /etc/hostname /logs/verifier/reward.txt": (0, "wrote no reward"),
  "sleep 9": (0, "the tests: timeout"),
}


def test_verdicts(tmp_path):
  """A file of a number in [0, 1], or 0 and the reason."""

  async def use(services):
    found = {}
    for number, text in enumerate(VERDICTS):
      path = write_folder(
        tmp_path / f"t{number}",
        tests__test_dot_sh=text + "\n",
        tests__helper_dot_py="",
        task_dot_toml="[verifier]\ntimeout_sec = 1.5\n",
      )
      domain = terminal.build("mine", [path])
      task = domain.make_task(0, "train")
      plant = command("echo 'raise SystemExit(1)' >json.py")
      episode = await play_answer(domain, task, (plant, "It is done."), services)
      found[text] = episode.artifacts["verdict"]
    return found

  found = on("bwrap", use)
  for text, (reward, detail) in VERDICTS.items():
    assert found[text].reward == reward, text
    assert detail in found[text].detail
    assert bool(detail) == bool(found[text].detail)


def test_an_environment_that_cannot_be_made_is_a_fault(tmp_path):
  text = "FROM sandbox_runner/terminal\nWORKDIR /app\nRUN echo no >&2; false\n"
  domain = terminal.build("mine", [write_folder(tmp_path / "t", environment__Dockerfile=text)])
  task = domain.make_task(0, "train")
  with pytest.raises(ValueError, match="task t: line 3 of its Dockerfile ends as exit 1: no"):
    on("bwrap", lambda s: play_answer(domain, task, "It is done.", s))
  with pytest.raises(ValueError, match=r"task t has no solution/solve\.sh"):
    domain.oracle(task)


def test_folders_are_split_by_their_names(tmp_path):
  domain = catalog.builder("terminal")()
  tasks = {
    split: {domain.make_task(seed, split).data["folder"].name for seed in range(20)}
    for split in ("train", "heldout")
  }
  assert tasks["train"] | tasks["heldout"] == set(NAMES)
  assert not tasks["train"] & tasks["heldout"]
  assert len(tasks["heldout"]) >= 1
  other = "FROM sandbox_runner/code\nWORKDIR /app\n"
  paths = [
    write_folder(tmp_path / "a"),
    write_folder(tmp_path / "b", environment__Dockerfile=other),
  ]
  with pytest.raises(ValueError, match=r"folders of the images \['code', 'terminal'\]"):
    terminal.build("mine", paths)


def test_ten_tasks_have_solutions():
  assert len(NAMES) == 10
  assert all(read_folder(terminal.TASKS / name).solution for name in NAMES)
