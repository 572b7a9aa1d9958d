"""RULER's thirteen tasks by name, over our own texts.

Source: C.-P. Hsieh et al., "RULER: What's the real context size of your long-context language
models?", 2024, and the settings of its code (`scripts/synthetic.yaml`). Texts and the wording of
the prompts are ours, so that scores compare models with each other, not with published tables.
"""

import functools
from typing import Protocol

from ptjax.domains.context_tasks import needles, questions, tracing, words
from ptjax.domains.context_tasks.needles import Needles
from ptjax.domains.context_tasks.problem import Problem, Room


class Make(Protocol):
  """Makes a problem; see `needles.make`."""

  def __call__(self, seed: int, room: Room, depths: tuple[float, ...] | None = None) -> Problem: ...


_NEEDLES = {
  "niah_single_1": Needles("noise"),
  "niah_single_2": Needles("essay"),
  "niah_single_3": Needles("essay", values="ids"),
  "niah_multikey_1": Needles("essay", num_keys=4),
  "niah_multikey_2": Needles("needles"),
  "niah_multikey_3": Needles("needles", keys="ids", values="ids"),
  "niah_multivalue": Needles("essay", num_values=4),
  "niah_multiquery": Needles("essay", num_keys=4, num_queries=4),
}

TASKS: dict[str, Make] = {
  **{name: functools.partial(needles.make, name, spec) for name, spec in _NEEDLES.items()},
  "vt": functools.partial(tracing.make, "vt"),
  "cwe": functools.partial(words.make_common, "cwe"),
  "fwe": functools.partial(words.make_frequent, "fwe"),
  "qa_1": functools.partial(questions.make_one_hop, "qa_1"),
  "qa_2": functools.partial(questions.make_two_hops, "qa_2"),
}

ONE_FACT = (*(name for name, n in _NEEDLES.items() if n.num_queries * n.num_values == 1), "qa_1")
"""Tasks whose answer stands in one place of the text."""
