"""Transcripts played again are shown the same, and say so where they are not."""

import asyncio
import dataclasses
import json

import pytest

from ptjax.domains import calculator, catalog
from ptjax.domains.domain import play_answer
from ptjax.domains.replay import read_records, recorded, replay
from ptjax.envs.context import Episodic
from ptjax.envs.environment import Budget, Ending, Services
from ptjax.envs.scripted import ScriptedPolicy, say
from ptjax.envs.tool_formats import FENCED, FORMATS, HERMES
from ptjax.envs.tools import ToolCall
from sandbox_runner import Pool, PoolConfig
from sandbox_runner.images import limits_of

DOMAIN = calculator.build()
TASK = DOMAIN.make_task(0, "heldout")
SPECS = [tool.spec for tool in calculator.TOOLS]


def record_of(answer, form=HERMES, domain=DOMAIN):
  episode = asyncio.run(play_answer(domain, TASK, answer, Services(), form))
  return json.loads(json.dumps(recorded(TASK, episode)))


def again(record, domain=DOMAIN):
  return asyncio.run(replay(domain, record, Services()))


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda f: f.name)
def test_the_same_again(form):
  record = record_of(DOMAIN.oracle(TASK), form)
  done = again(record)
  assert (done.difference, done.grade.passed) == ("", True)
  assert list(done.episode.responses) == record["responses"]


def test_differences():
  record = record_of(DOMAIN.oracle(TASK))
  first, *rest = record["observations"]
  assert again(record | {"observations": [first[:-1] + "!", *rest]}).difference == (
    f"observation 0 differs at character {len(first) - 1}: '!' was, 'e' is"
  )
  assert again(record | {"observations": rest[:0]}).difference == (
    f"0 observations were, {len(rest) + 1} are"
  )
  more = [first, *rest, "more"]
  assert again(record | {"observations": more}).difference.startswith(f"{len(more)} observations")


def test_a_turn_that_was_cut_runs_no_call():
  """Cut behind a whole call, as the limit of a generation may fall."""
  call = say((ToolCall("calculate", {"expression": "1+1"}),), HERMES, SPECS)[0]

  class Cut(ScriptedPolicy):
    def room(self, length):
      return len(call)

  episode = asyncio.run(DOMAIN.play(TASK, Cut([call], HERMES), Services()))
  assert (episode.ending, episode.responses, episode.calls) == (Ending.LENGTH, (call,), {})
  done = again(recorded(TASK, episode))
  assert done.difference == ""
  assert (done.episode.ending, done.episode.calls) == (Ending.LENGTH, {})


def test_what_a_budget_of_tokens_has_ended():
  """Counted in tokens of another tokenizer, there may be an observation more."""
  play = dataclasses.replace(DOMAIN.play, budget=Budget(tokens=100))
  short = dataclasses.replace(DOMAIN, play=play)
  record = record_of(DOMAIN.oracle(TASK), domain=short)
  assert record["ending"] == "tokens"
  assert again(record, short).difference == ""
  assert again(record | {"observations": ["x"]}, short).difference


def test_calls_in_reasoning_that_the_prompt_opened_are_none():
  call = say((ToolCall("calculate", {"expression": "1+1"}),), HERMES, SPECS)[0]
  record = record_of(("x",)) | {"responses": [f"{call}</think>Answer: 1"], "reasoning_open": True}
  assert again(record).episode.calls == {}
  assert again(record | {"reasoning_open": False}).episode.calls == {"run": 1}


def test_a_shell_in_a_fresh_sandbox():
  async def main():
    limits = limits_of("terminal")
    config = PoolConfig(size=1, image="terminal", backend="bwrap", limits=limits)
    async with Pool(config) as pool:
      services = Services(images={"terminal": pool})
      domain = catalog.builder("terminal/access_log")()
      task = domain.make_task(0, "train")
      solve, last = domain.oracle(task)
      shell = [ToolCall("shell", {"command": c}) for c in ("wc -l access.log; x=2", "echo $x")]
      episode = await play_answer(domain, task, (*shell, solve, last), services, FENCED)
      drift = [ToolCall("shell", {"command": "date +%N"})]
      other = await play_answer(domain, task, (*drift, last), services)
      return [await replay(domain, recorded(task, e), services) for e in (episode, other)]

  same, other = asyncio.run(main())
  assert (same.difference, same.grade.passed) == ("", True)
  assert same.episode.observations[:2] == ("600 access.log\n[exit code 0]", "2\n[exit code 0]")
  assert other.difference.startswith("observation 0 differs")


def test_an_episode_that_is_lost_this_time_is_a_difference():
  async def lose(task, ctx):
    await (await ctx.sandbox.session()).close()
    await ctx.sandbox.exec(("true",))

  async def main():
    async with Pool(PoolConfig(size=1)) as pool:
      lost = dataclasses.replace(DOMAIN, play=Episodic(lose))
      return await replay(lost, record_of_nothing, Services(pool))

  record_of_nothing = record_of(("x",))
  done = asyncio.run(main())
  assert done.difference == "it could not be played to its end: sandbox: the session is closed"


def test_files(tmp_path):
  path = tmp_path / "t.jsonl"
  record = record_of(("x",))
  path.write_text(json.dumps({"response": "of one turn"}) + "\n" + json.dumps(record) + "\n")
  assert read_records(path) == [record]
  bad = {
    "{": "line 1: no JSON",
    "[]": "line 1: a list, not an object",
    '{"responses": []}': "line 1: the record has no 'domain'",
    json.dumps(record | {"tool_format": "xml"}): "tool_format 'xml' is unknown; known: hermes",
    json.dumps(record | {"observations": [1]}): "observations must be texts",
  }
  for line, message in bad.items():
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match=message):
      read_records(path)
  with pytest.raises(ValueError, match="episodes of domain addends have one turn"):
    again(record, catalog.builder("addends")())
