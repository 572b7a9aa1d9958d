"""Writes comparisons to try `prefer` and `reward` on: sums, the right result preferred to a wrong.

  python -m configs.data.arithmetic_pairs pairs.jsonl

400 comparisons on the training tasks of the domain `arithmetic`, always the same ones. A program
judged them, so a perfect reward model exists: one that can add.
"""

import json
import pathlib
import random
import sys
from collections.abc import Iterator
from typing import Any

from ptjax.domains import arithmetic

COUNT = 400


def comparisons(count: int = COUNT) -> Iterator[dict[str, Any]]:
  """Records of the schema of `data/annotated_pairs.py`; the wrong result is off by 1 to 9."""
  domain = arithmetic.build()
  for seed in range(count):
    rng = random.Random(seed)
    task = domain.make_task(seed, "train")
    entry = task.data["entry"]
    result, terms = int(entry["answer"]), entry["metadata"]["expression"]
    wrong = result + rng.choice((-1, 1)) * rng.randint(1, 9)
    yield {
      "messages": list(task.messages),
      "chosen": f"{terms} = {result}",
      "rejected": f"{terms} = {wrong}",
      "annotator": "configs/data/arithmetic_pairs.py",
      "license": domain.license,
      "source": domain.source,
      "domain": domain.name,
    }


def main(path: str) -> None:
  lines = [json.dumps(record) + "\n" for record in comparisons()]
  pathlib.Path(path).write_text("".join(lines))
  print(f"{len(lines)} comparisons in {path}")


if __name__ == "__main__":
  main(*sys.argv[1:])
