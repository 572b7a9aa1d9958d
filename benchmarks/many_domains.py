"""A run over all reasoning-gym domains: what mixture, rewards and metrics take of a step.

  python benchmarks/many_domains.py --steps 8 --prompts 4
  python benchmarks/many_domains.py --tiny --steps 200

The run is `configs/reasoning_100.py` with the steps, tasks and group given. With --tiny a model of
one layer of random weights takes the place of SmolLM2, with its tokenizer. Rewards are as if
every answer had to be scored, at the mean time of a right one: SmolLM2 seldom writes its answer
where the scorer looks for it. They run beside the decoding; the rest is wall time in the loop.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import pathlib
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import safetensors.numpy

from ptjax.core.metrics import MetricsWriter, read_jsonl
from ptjax.data.tokenizer import Tokenizer, load_tokenizer
from ptjax.domains.catalog import builder
from ptjax.domains.domain import grade_response
from ptjax.envs.environment import Services
from ptjax.experience.mixture import Mixture
from ptjax.models.importer import load_pretrained
from ptjax.report.html import write_report
from ptjax.train import rl
from ptjax.train import run as runs
from ptjax.train.experiment import Experiment, ModelConfig
from ptjax.train.overseer import Overseer

MIXTURE, METRICS = "mixture", "metrics and logs"


def write_tiny(tokenizer: Tokenizer, directory: pathlib.Path) -> None:
  """A model of one layer with the vocabulary of that tokenizer."""
  width, vocabulary = 32, 49_152
  rng = np.random.default_rng(0)
  shapes = {
    "model.embed_tokens.weight": (vocabulary, width),
    "model.layers.0.self_attn.q_proj.weight": (width, width),
    "model.layers.0.self_attn.k_proj.weight": (width, width),
    "model.layers.0.self_attn.v_proj.weight": (width, width),
    "model.layers.0.self_attn.o_proj.weight": (width, width),
    "model.layers.0.mlp.gate_proj.weight": (width, width),
    "model.layers.0.mlp.up_proj.weight": (width, width),
    "model.layers.0.mlp.down_proj.weight": (width, width),
  }
  tensors = {n: rng.normal(0, s[-1] ** -0.5, s).astype(np.float32) for n, s in shapes.items()}
  for name in (
    "model.norm",
    "model.layers.0.input_layernorm",
    "model.layers.0.post_attention_layernorm",
  ):
    tensors[f"{name}.weight"] = np.ones(width, np.float32)
  safetensors.numpy.save_file(tensors, directory / "model.safetensors")
  config = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": width, "intermediate_size": width,
    "max_position_embeddings": 2048, "num_attention_heads": 2, "num_hidden_layers": 1,
    "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
    "vocab_size": vocabulary,
  }  # fmt: skip
  special = {"eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
  files = {
    "config.json": config,
    "tokenizer_config.json": special | {"chat_template": tokenizer.chat_template},
  }
  for name, content in files.items():
    (directory / name).write_text(json.dumps(content))
  (directory / "tokenizer.json").write_text(tokenizer.definition)


@contextlib.contextmanager
def timed() -> Iterator[dict[str, float]]:
  """Seconds in the functions that are neither rollout nor training."""
  spent: dict[str, float] = defaultdict(float)
  places = [
    (Mixture, ("draw", "observe"), MIXTURE),
    (rl, ("rollout_metrics", "sampling_metrics", "domains_metrics", "balance_metrics"), METRICS),
    (Overseer, ("review",), METRICS),
    (MetricsWriter, ("write",), METRICS),
    (runs, ("summarize",), METRICS),
  ]
  originals = []
  for owner, names, label in places:
    for name in names:
      original = getattr(owner, name)
      originals.append((owner, name, original))
      setattr(owner, name, _timed(original, spent, label))
  try:
    yield spent
  finally:
    for owner, name, original in originals:
      setattr(owner, name, original)


def _timed(function, spent: dict[str, float], label: str):
  def call(*args, **kwargs):
    start = time.perf_counter()
    try:
      return function(*args, **kwargs)
    finally:
      spent[label] += time.perf_counter() - start

  return call


def seconds_to_grade(e: Experiment) -> float:
  """Mean wall time of grading a right answer, over the domains; their scorer has started."""

  async def grade_all() -> float:
    spent = 0.0
    for config in e.domains:
      domain = builder(config.name)()
      task = domain.make_task(0, "train")
      answer = domain.oracle(task)
      await grade_response(domain, task, answer, Services())
      start = time.perf_counter()
      await grade_response(domain, task, answer, Services())
      spent += time.perf_counter() - start
    return spent / len(e.domains)

  return asyncio.run(grade_all())


def experiment(arguments: argparse.Namespace, source: str) -> Experiment:
  sys.path.append(str(pathlib.Path(__file__).parents[1]))
  from configs.reasoning_100 import get_config
  from ptjax.core.config_build import build, plain

  e = build(Experiment, plain(get_config()))
  steps = {"num_steps": arguments.steps, "prompts_per_step": arguments.prompts}
  return dataclasses.replace(
    e,
    model=ModelConfig(source),
    rl=dataclasses.replace(e.rl, **steps, group_size=arguments.group),
    eval=dataclasses.replace(e.eval, tasks_per_domain=arguments.heldout),
  )


def main() -> None:
  options = argparse.ArgumentParser(description=__doc__)
  options.add_argument("--tiny", action="store_true")
  options.add_argument("--steps", type=int, default=8)
  options.add_argument("--prompts", type=int, default=20)
  options.add_argument("--group", type=int, default=4)
  options.add_argument("--heldout", type=int, default=0)
  options.add_argument("--workdir", type=pathlib.Path, help="kept, with its report")
  arguments = options.parse_args()
  with contextlib.ExitStack() as stack:
    scratch = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    source = ModelConfig.source
    if arguments.tiny:
      write_tiny(load_tokenizer(load_pretrained(source).tokenizer_source), scratch)
      source = str(scratch)
    workdir = arguments.workdir or scratch / "run"
    workdir.mkdir(parents=True, exist_ok=True)
    e = experiment(arguments, source)
    spent = stack.enter_context(timed())
    runs.run(e, workdir)
    report(e, workdir, spent)
    write_report(workdir)


def report(e: Experiment, workdir: pathlib.Path, spent: dict[str, float]) -> None:
  steps = read_jsonl(workdir / "metrics.jsonl")
  total = sum(r["perf/time_total"] for r in steps)
  drawn: dict[str, int] = defaultdict(int)
  for record in read_jsonl(workdir / "costs.jsonl"):
    for name, domain in record["domains"].items():
      drawn[name] += domain["scored"]
  least, most = min(drawn.values(), default=0), max(drawn.values(), default=0)
  print(f"{len(steps)} steps, {total / len(steps):.2f} s each")
  print(f"{len(drawn)} of {len(e.domains)} domains drawn")
  print(f"{least} to {most} scored episodes each")
  episodes = sum(drawn.values())
  parts = {**spent, "rewards": episodes * seconds_to_grade(e)}
  parts["together"] = sum(parts.values())
  for name, seconds in parts.items():
    print(f"{name:18} {1e3 * seconds / len(steps):8.1f} ms a step  {100 * seconds / total:6.2f}%")


if __name__ == "__main__":
  main()
