"""Pairs, and what is trained on them before the sweeps: reward models, and DPO against SFT.

  python -m configs.papers.preferences pairs     pairs of right and wrong answers, three files
  python -m configs.papers.preferences reward    a reward model from each of them, of few and many
  python -m configs.papers.preferences dpo       DPO and SFT on each of them, and their pass rates

`reward` is what `configs/papers/overoptimisation.py` needs. `dpo` compares DPO on the pairs with
SFT on their better answers (Rafailov et al. 2023, Direct preference optimization, 6.2:
"Preferred-FT"); its result is runs/papers/dpo.json. All of it goes through the verbs of
`ptjax.launch`.
"""

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from configs.papers.common import MODEL, SEEDS
from configs.papers.prepare import ROOT, answer
from ptjax.data.provenance import sha256_of
from ptjax.domains import addends
from ptjax.envs.environment import Services, Task

PAIRS = 2000
FEW, MANY = 100, PAIRS
ORIGIN = {"annotator": "program", "license": "CC0-1.0", "source": "configs/papers/preferences.py"}


def pairs_file(seed: int, count: int = PAIRS) -> Path:
  return ROOT / f"pairs_{seed}_{count}.jsonl"


def reward_workdir(seed: int, count: int) -> Path:
  return ROOT / "reward" / f"{seed}_{count}"


def annotated(seed: int, count: int) -> list[dict[str, Any]]:
  """Comparisons of a right with a wrong answer, as the model was taught to give them."""
  rng = random.Random(1000 + seed)
  out = []
  for i in range(count):
    task = addends.make_task(seed * PAIRS + i, "train")
    chosen, rejected = (_draw(rng, task, score) for score in (1.0, 0.0))
    messages = list(task.messages)
    pair = {"messages": messages, "chosen": chosen, "rejected": rejected, "domain": "addends"}
    out.append(pair | ORIGIN)
  return out


def _draw(rng: random.Random, task: Task, score: float) -> str:
  while True:
    text = answer(rng, task.data["sum"])
    if addends.grade_answer(task, text, Services()) == score:
      return text


def write_jsonl(path: Path, records: list[dict[str, Any]]) -> Path:
  path.write_text("".join(json.dumps(r) + "\n" for r in records))
  return path


def launch(*args: str) -> None:
  subprocess.run([sys.executable, "-m", "ptjax.launch", *args], check=True)


def make_pairs() -> None:
  for seed in SEEDS:
    records = annotated(seed, PAIRS)
    for count in (FEW, MANY):
      write_jsonl(pairs_file(seed, count), records[:count])


def train_reward_models() -> None:
  for seed in SEEDS:
    for count in (FEW, MANY):
      launch(
        "reward",
        *("--config", "configs/papers/reward.py", "--workdir", str(reward_workdir(seed, count))),
        f"--config.data.path={pairs_file(seed, count)}",
        f"--config.seed={seed}",
      )


def compare_dpo() -> None:
  """Each run, its export, and the held-out pass rate of the exported model.

  Killed, it goes on: finished runs and exports are kept.
  """
  results = [{"arm": "start", "seed": 0, **pass_rate(MODEL, "start")}]
  for seed in SEEDS:
    pairs = pairs_file(seed)
    chosen = write_jsonl(ROOT / f"chosen_{seed}.jsonl", conversations(pairs))
    preferences = ("prefer", "configs/papers/dpo.py", f"--config.data.path={pairs}")
    examples = (
      f"--config.data.sources.0.files={chosen}",
      f"--config.data.sources.0.sha256={sha256_of(chosen)}",
    )
    arms = {
      "DPO": preferences,
      "DPO, slower": (*preferences, "--config.optimizer.learning_rate=1e-4"),
      "SFT": ("sft", "configs/papers/sft.py", *examples),
    }
    for arm, (verb, config, *overrides) in arms.items():
      name = f"{arm}_{seed}".lower().replace(", ", "_")
      workdir = ROOT / "dpo" / name
      common = ("--config", config, "--workdir", str(workdir), f"--config.seed={seed}")
      launch(verb, *common, *overrides)
      model = workdir / "model"
      if not model.exists():
        launch("export", "--workdir", str(workdir), "--to", str(model))
      results.append({"arm": arm, "seed": seed, **pass_rate(str(model), name)})
  (ROOT / "dpo.json").write_text(json.dumps(results, indent=1) + "\n")
  print(json.dumps(results, indent=1))


def conversations(pairs: Path) -> list[dict[str, Any]]:
  """The better answers of a file of pairs, as examples for SFT."""
  records = [json.loads(line) for line in pairs.read_text().splitlines()]
  return [
    {"messages": [*r["messages"], {"role": "assistant", "content": r["chosen"]}]} for r in records
  ]


def pass_rate(model: str, name: str) -> dict[str, int]:
  """Held-out tasks passed of a model, by the evaluation before a run whose one step changes
  nothing."""
  workdir = ROOT / "dpo" / f"{name}_eval"
  launch(
    "train",
    *("--config", "configs/papers/length_bias.py", "--workdir", str(workdir)),
    f"--config.model.source={model}",
    "--config.optimizer.learning_rate=0.0",
    "--config.rl.num_steps=1",
    "--config.eval.tasks_per_domain=1024",
  )
  before = json.loads((workdir / "eval.jsonl").read_text().splitlines()[0])
  return {"passed": before["passed"], "total": before["total"]}


STAGES = {"pairs": make_pairs, "reward": train_reward_models, "dpo": compare_dpo}


def main() -> None:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("stage", choices=STAGES)
  STAGES[parser.parse_args().stage]()


if __name__ == "__main__":
  main()
