"""Makes the tiny model that the experiments of this directory start from.

  python -m configs.papers.prepare

Deterministic; 3 to 5 minutes on one core. Everything goes to runs/papers: `start` (random
weights), `examples.jsonl`, `pretrain` (the workdir of the `sft` run) and `base`, the model.
"""

import dataclasses
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import jax

from ptjax.data.provenance import sha256_of
from ptjax.data.tokenizer import byte_tokenizer
from ptjax.data.tokenizer_files import write_tokenizer
from ptjax.domains import addends
from ptjax.models.decoder import init_params
from ptjax.models.exporter import export_model
from ptjax.models.families import decoder_config

ROOT = Path("runs/papers")
# Two tokens of overhead a turn instead of a dozen.
TEMPLATE = (
  "{% for m in messages %}{{ '<|im_start|>' + m['role'][0] + m['content'] + '<|im_end|>' }}"
  "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>a' }}{% endif %}"
)
SHAPE = {
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "vocab_size": 260,
  "hidden_size": 64,
  "intermediate_size": 192,
  "num_hidden_layers": 3,
  "num_attention_heads": 4,
  "num_key_value_heads": 4,
  "head_dim": 16,
  "hidden_act": "silu",
  "max_position_embeddings": 512,
  "rms_norm_eps": 1e-5,
  "rope_theta": 10000.0,
  "tie_word_embeddings": True,
}
EXAMPLES = 100_000
WRONG = 0.3
RIGHT_MARK, WRONG_MARK = ".!"
MARKED = 0.9  # share of the answers whose mark says the truth
FILLER = "-"
MORE, MOST = 0.8, 16  # chance of one filler more after the mark; at most so many


def write_start(directory: Path, shape: dict = SHAPE) -> None:
  """Random weights with the tokenizer of bytes, as a Hugging Face directory."""
  template = directory.with_name(directory.name + "_shape")
  template.mkdir(parents=True, exist_ok=True)
  (template / "config.json").write_text(json.dumps(shape))
  write_tokenizer(dataclasses.replace(byte_tokenizer(), chat_template=TEMPLATE), template)
  config = decoder_config(template)
  params = init_params(config, jax.random.key(0))
  export_model(config, params, directory, template, dtype="float32")
  shutil.rmtree(template)


def answer(rng: random.Random, total: int) -> str:
  """Two numbers, three times in ten with a wrong digit, a mark, and some filler.

  The mark says with some reliability whether the answer is right, so that in the filler the policy
  has a notion of its advantage. How much filler follows depends on nothing.
  """
  first = rng.randint(max(10, total - 99), min(99, total - 10))
  second = total - first
  wrong = rng.random() < WRONG
  if wrong:
    others = [d for d in range(10) if d != second % 10]
    second = second // 10 * 10 + rng.choice(others)
  mark = WRONG_MARK if wrong == (rng.random() < MARKED) else RIGHT_MARK
  count = 0
  while count < MOST and rng.random() < MORE:
    count += 1
  return f"{first}+{second}{mark}{FILLER * count}"


def examples(count: int) -> list[dict]:
  """Conversations on tasks of the training split."""
  rng = random.Random(0)
  out = []
  for seed in range(count):
    task = addends.make_task(seed, "train")
    reply = {"role": "assistant", "content": answer(rng, task.data["sum"])}
    out.append({"messages": [*task.messages, reply]})
  return out


def main() -> None:
  ROOT.mkdir(parents=True, exist_ok=True)
  if not (ROOT / "start").exists():
    write_start(ROOT / "start")
  path = ROOT / "examples.jsonl"
  path.write_text("".join(json.dumps(e) + "\n" for e in examples(EXAMPLES)))
  launch = [sys.executable, "-m", "ptjax.launch"]
  workdir = str(ROOT / "pretrain")
  sft = ["sft", "--config", "configs/papers/pretrain.py", "--workdir", workdir]
  hashed = f"--config.data.sources.0.sha256={sha256_of(path)}"
  subprocess.run([*launch, *sft, hashed], check=True)
  subprocess.run([*launch, "export", "--workdir", workdir, "--to", str(ROOT / "base")], check=True)


if __name__ == "__main__":
  main()
