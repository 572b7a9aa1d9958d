"""Runs the problems of an evaluation of long contexts through the engine; resumes by itself."""

import collections
import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from ptjax.core.metrics import append_jsonl, read_jsonl, write_jsonl
from ptjax.data.chat_template import ChatTemplate
from ptjax.data.tokenizer import Tokenizer, load_tokenizer
from ptjax.domains.context_tasks import filings, ruler
from ptjax.domains.context_tasks.problem import Problem, Room, score
from ptjax.evals.context_config import Cell, ContextEval, cells
from ptjax.models.importer import load_pretrained
from ptjax.rollout.engine import Engine, EngineConfig
from ptjax.rollout.sampling import SamplingConfig
from ptjax.rollout.scheduler import Completion, Request

RESULTS = "results.jsonl"
_AHEAD = 2
"""Problems made ahead of the engine, as a multiple of its slots."""

TASKS = {**ruler.TASKS, "filings": functools.partial(filings.make, "filings")}

Record = Mapping[str, Any]
"""One answered problem: a line of RESULTS."""


@dataclasses.dataclass(frozen=True)
class Asked:
  """A model to ask: its tokens and how it is spoken to."""

  tokenizer: Tokenizer
  chat: bool
  prefix: bool

  def encode(self, prompt: str, prefix: str) -> np.ndarray:
    """i32[n]: all that the model reads before its answer."""
    begun = prefix if self.prefix else ""
    if not self.chat:
      return self.tokenizer.encode(f"{prompt}\n{begun}")
    template = ChatTemplate(self.tokenizer)
    asked = template.encode([{"role": "user", "content": prompt}], add_generation_prompt=True)
    return np.concatenate([asked, self.tokenizer.encode(begun)])

  def count(self, prompt: str, prefix: str) -> int:
    return len(self.encode(prompt, prefix))


def evaluate(
  config: ContextEval, workdir: pathlib.Path, on_record: Callable[[int, int, Record], None]
) -> list[Record]:
  """Answers what `workdir` holds no answer to; returns all records of the configuration.

  Args:
    config: what to measure.
    workdir: holds RESULTS, to which each answer is appended as it comes.
    on_record: told (answered so far, of how many, the new record).

  Raises:
    ValueError: a model that cannot be read or asked, or a length that a task cannot have.
  """
  wanted = cells(config)
  known = {r["key"]: r for r in answered(workdir / RESULTS)}
  missing = [cell for cell in wanted if cell.key not in known]
  if missing:
    pretrained = load_pretrained(config.model.source)
    asked = Asked(load_tokenizer(pretrained.tokenizer_source), config.chat, config.prefix)
    model = dataclasses.replace(
      pretrained.config,
      matmul_dtype=config.model.matmul_dtype,
      activation_dtype=config.model.activation_dtype,
      merge_rows=jax.default_backend() == "cpu",
    )
    params = jax.device_put(pretrained.params)
    for tokens, group in itertools.groupby(missing, key=lambda cell: cell.tokens):
      # One size of engine a length: the longest would make the short ones pay for its cache.
      engine = Engine(EngineConfig(config.slots, tokens), model, asked.tokenizer)
      engine.set_weights(params, 0)
      for record in answer(engine, asked, group, config.seed):
        append_jsonl(workdir / RESULTS, [record])
        known[record["key"]] = record
        on_record(sum(cell.key in known for cell in wanted), len(wanted), record)
  return [known[cell.key] for cell in wanted]


def answered(path: pathlib.Path) -> list[Record]:
  """What an earlier call has written; a line that a kill tore off is removed from the file."""
  if not path.exists():
    return []
  records = read_jsonl(path)
  write_jsonl(path, records)
  return list(records)


def make_problem(cell: Cell, asked: Asked, seed: int) -> Problem:
  """The problem of a cell: a function of the cell, the tokenizer and the seed."""
  depths = None if cell.depth is None else (cell.depth,)
  room = Room(cell.tokens, asked.count)
  return TASKS[cell.task](seed * 2**32 + cell.index, room, depths)


def answer(
  engine: Engine, asked: Asked, group: Iterable[Cell], seed: int
) -> Iterable[dict[str, Any]]:
  """Records of cells of one length, in the order in which their answers come."""
  waiting, asking = collections.deque(enumerate(group)), dict[int, tuple[Cell, Problem]]()
  greedy = SamplingConfig(temperature=0.0)
  while waiting or asking:
    while waiting and len(asking) < _AHEAD * engine.config.num_slots:
      number, cell = waiting.popleft()
      problem = make_problem(cell, asked, seed)
      prompt = asked.encode(problem.prompt, problem.prefix)
      ends = asked.tokenizer.eos_ids
      engine.submit(Request(number, prompt, problem.max_new_tokens, greedy, stop_ids=ends))
      asking[number] = cell, problem
    for done in engine.step():
      yield record_of(*asking.pop(done.id), done, asked.tokenizer)


def record_of(
  cell: Cell, problem: Problem, done: Completion, tokenizer: Tokenizer
) -> dict[str, Any]:
  """What is kept of an answer."""
  response = tokenizer.decode(done.tokens, skip_special=True)
  return {
    "key": cell.key,
    **dataclasses.asdict(cell),
    "depths": problem.depths,
    "prompt_tokens": problem.tokens,
    "answers": problem.answers,
    "response": response,
    "score": score(problem, response),
    "logprob": float(np.sum(done.logprobs, dtype=np.float64)),
    "finish": str(done.finish_reason),
  }
