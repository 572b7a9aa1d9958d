"""What the benchmarks share: the work, the clock, the matmul peak, the table."""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import platform
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ptjax.core.malloc import restart_with_tuned_malloc
from ptjax.data.chat_template import ChatTemplate
from ptjax.envs.environment import Message
from ptjax.models.config import DecoderConfig
from ptjax.train.experiment import Experiment, ModelConfig
from ptjax.train.session import Session, open_session

REQUESTS, PROMPT, NEW = 32, 64, 64  # tokens
GROUP = 4  # samples of a prompt
PEAK_N = 1536


def parser(doc: str) -> argparse.ArgumentParser:
  """Options that every benchmark has; the process gets the malloc settings of the launcher."""
  restart_with_tuned_malloc()
  options = argparse.ArgumentParser(
    description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  options.add_argument("--model", default=ModelConfig.source, help="weights [%(default)s]")
  options.add_argument(
    "--matmul-dtype", choices=("float32", "bfloat16"), default="float32", help="[%(default)s]"
  )
  options.add_argument("--json", type=pathlib.Path, help="append the result to this file")
  return options


def model_config(arguments: argparse.Namespace) -> ModelConfig:
  return ModelConfig(source=arguments.model, matmul_dtype=arguments.matmul_dtype)


@contextlib.contextmanager
def session_of(experiment: Experiment) -> Iterator[Session]:
  """A session as a run opens it, in a workdir that is thrown away."""
  with tempfile.TemporaryDirectory() as workdir:
    with open_session(experiment, pathlib.Path(workdir)) as session:
      yield session


def prompt_messages(template: ChatTemplate, number: int) -> tuple[Message, ...]:
  """The number-th question, PROMPT tokens with the chat template around it.

  Its digits fill it up: the tokenizer makes one token of each.
  """
  rng = random.Random(number)
  text = "Go on with this row of digits: "
  missing = PROMPT
  while missing > 0:
    messages = ({"role": "user", "content": text},)
    missing = PROMPT - len(template.encode(messages, add_generation_prompt=True))
    text += "".join(rng.choice("0123456789") for _ in range(missing))
  if missing < 0:
    raise ValueError(f"the chat template alone needs more than {PROMPT + missing} tokens")
  return messages


def prompt_tokens(template: ChatTemplate, number: int) -> np.ndarray:
  """The number-th prompt, i32[PROMPT]."""
  return template.encode(prompt_messages(template, number), add_generation_prompt=True)


@dataclasses.dataclass(frozen=True)
class Sample:
  """One repetition: wall time, CPU time of this process, cores that others used."""

  seconds: float
  cpu_seconds: float | None = None
  others: float | None = None


def _busy_seconds() -> float:
  """CPU seconds that the whole machine has spent on anything but idling."""
  first = pathlib.Path("/proc/stat").read_text().split("\n", 1)[0]
  ticks = [int(value) for value in first.split()[1:9]]
  idle, iowait = ticks[3:5]
  return (sum(ticks) - idle - iowait) / os.sysconf("SC_CLK_TCK")


class Clock:
  """`stop` gives the sample since `start`."""

  def __init__(self):
    self.start()

  def start(self) -> None:
    self._wall, self._cpu, self._busy = time.perf_counter(), time.process_time(), _busy_seconds()

  def stop(self) -> Sample:
    seconds, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
    return Sample(seconds, cpu, max(0.0, _busy_seconds() - self._busy - cpu) / seconds)


def repeat(work: Callable[[], Any], repeats: int) -> list[Sample]:
  """Samples of `work` after one call that warms up; the arrays it returns are awaited."""
  jax.block_until_ready(work())
  clock, samples = Clock(), []
  for _ in range(repeats):
    clock.start()
    jax.block_until_ready(work())
    samples.append(clock.stop())
  return samples


def matmul_peak(seconds: float = 1.0) -> float:
  """FLOP/s of the fastest single float32 product of PEAK_N x PEAK_N matrices."""
  x = jax.random.normal(jax.random.key(0), (PEAK_N, PEAK_N), jnp.float32)
  product = jax.jit(lambda x: jnp.matmul(x, x, precision=jax.lax.Precision.HIGHEST))
  product(x).block_until_ready()
  best, end = float("inf"), time.perf_counter() + seconds
  while time.perf_counter() < end:
    start = time.perf_counter()
    product(x).block_until_ready()
    best = min(best, time.perf_counter() - start)
  return 2 * PEAK_N**3 / best


def generation_flops(model: DecoderConfig, new_tokens: float) -> float:
  """2 x parameters x new tokens: the model FLOPs of sampling, the prompt not counted."""
  return 2 * model.num_params * new_tokens


def training_flops(model: DecoderConfig, tokens: float) -> float:
  """6 x parameters x tokens: the model FLOPs of an update."""
  return 6 * model.num_params * tokens


def _head_params(model: DecoderConfig) -> int:
  return model.vocab_size * model.d_model


def _body_params(model: DecoderConfig) -> int:
  tables = 1 if model.tie_embeddings else 2
  return model.num_params - tables * _head_params(model)


def computed_training_flops(experiment: Experiment, model: DecoderConfig, rows: int) -> float:
  """Products with weights that an update of `rows` packed rows computes, padding included.

  Forward 2, backward 4 a weight and token; what the backward pass computes again, 2 more.
  Logits exist at the action slots only. Attention scores are not counted.
  """
  pack, chunk = experiment.pack, experiment.rl.objective.logit_chunk
  body = 8 if model.remat == "full" else 6
  head = 8 if pack.actions > chunk else 6
  tokens, actions = rows * pack.length, rows * pack.actions
  return body * _body_params(model) * tokens + head * _head_params(model) * actions


def computed_generation_flops(model: DecoderConfig, slot_steps: int, prefill_tokens: int) -> float:
  """Products with weights that decoding computes in all slots, and prefill in its tokens."""
  decode = generation_flops(model, slot_steps)
  return decode + 2 * _body_params(model) * prefill_tokens


@dataclasses.dataclass(frozen=True)
class Row:
  """What was measured of one piece of work.

  Attributes:
    work: its name.
    samples: one for each repetition.
    tokens: what one repetition is counted in; see README.md.
    model_flops: the FLOPs that these tokens stand for.
    computed_flops: the FLOPs of the products with weights that really ran.
  """

  work: str
  samples: Sequence[Sample]
  tokens: float
  model_flops: float
  computed_flops: float

  def cells(self, peak: float) -> list[str]:
    median = statistics.median(s.seconds for s in self.samples)
    low, high = (f(s.seconds for s in self.samples) for f in (min, max))
    return [
      self.work,
      f"{median:.2f}",
      f"{low:.2f}-{high:.2f}",
      f"{self.tokens / median:.1f}",
      f"{self.model_flops / median / peak:.1%}",
      f"{self.computed_flops / median / peak:.1%}",
      *usage_cells(self.samples),
    ]


COLUMNS = (
  "work", "s median", "s range", "tokens/s", "of peak", "computed", "cpu s", "others", "RSS GB",
)  # fmt: skip


def usage_cells(samples: Sequence[Sample]) -> list[str]:
  """CPU seconds (median), cores that others used (largest), peak RSS so far."""
  known = [s for s in samples if s.cpu_seconds is not None]
  if not known:
    return ["-", "-", "-"]
  cpu, others = statistics.median(s.cpu_seconds for s in known), max(s.others for s in known)
  return [f"{cpu:.2f}", f"{others:.2f}", f"{peak_rss_gb():.2f}"]


def peak_rss_gb() -> float:
  """Largest resident memory of this process so far, in units of 2^30 bytes."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def machine(peak: float) -> dict[str, Any]:
  """What the numbers depend on beside the code."""
  device = jax.devices()[0]
  return {
    "machine": f"{platform.machine()}, {os.cpu_count()} cores, {device.platform}",
    "jax": jax.__version__,
    "f32_matmul_peak_gflops": round(peak / 1e9, 1),
    "python": platform.python_version(),
    "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
  }


def print_table(peak: float, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
  """One line on the machine, then the rows; the first column to the left."""
  facts = machine(peak)
  print(
    f"{facts['machine']}; jax {facts['jax']}; f32 matmul peak at n={PEAK_N}: "
    f"{facts['f32_matmul_peak_gflops']} GFLOP/s"
  )
  widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
  for first, *others in (columns, *rows):
    cells = (f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True))
    print(f"{first:{widths[0]}}  " + "  ".join(cells))


def append_json(path: pathlib.Path | None, peak: float, record: dict[str, Any]) -> None:
  """Appends one line; does nothing without a path."""
  if path is not None:
    with path.open("a") as file:
      file.write(json.dumps(machine(peak) | {"rss_gb": round(peak_rss_gb(), 2)} | record) + "\n")


def report(arguments: argparse.Namespace, benchmark: str, peak: float, rows: Sequence[Row]) -> None:
  """Prints the table of `rows`, and writes them where --json says."""
  print_table(peak, COLUMNS, [row.cells(peak) for row in rows])
  settings = {k: v for k, v in vars(arguments).items() if k != "json"}
  record = {
    "benchmark": benchmark,
    "options": settings,
    "rows": list(map(dataclasses.asdict, rows)),
  }
  append_json(arguments.json, peak, record)
