"""A plan that the policy makes, and the state of each of its steps.

The policy calls `plan` with the steps that it means to take; the environment says what becomes of
them. What a step is worth is for the environment to decide: a step counts as done because it was
seen to happen, never because the policy says so. A plan may be made anew at any time, which is how
one that failed is given up; what was done stays done.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ptjax.envs.context import Context, Tool
from ptjax.envs.tools import Parameter, ToolSpec

MOST_STEPS = 30
_KEY = "subtasks"


@dataclasses.dataclass
class Subtasks:
  """What an episode planned and did, in `ctx.artifacts`.

  Attributes:
    plans: every plan, in order; each a tuple of steps.
    begun: steps that were attempted or done before the first plan was made.
    done: how often each step has succeeded.
    failed: how often each step has failed.
    open_failures: steps whose last attempt failed.
  """

  plans: list[tuple[str, ...]] = dataclasses.field(default_factory=list)
  begun: int = 0
  done: Counter[str] = dataclasses.field(default_factory=Counter)
  failed: Counter[str] = dataclasses.field(default_factory=Counter)
  open_failures: set[str] = dataclasses.field(default_factory=set)

  def succeed(self, step: str) -> None:
    """The environment has seen this step happen."""
    self._count()
    self.done[step] += 1
    self.open_failures.discard(step)

  def fail(self, step: str) -> None:
    """The policy has tried this step, and it did not happen."""
    self._count()
    self.failed[step] += 1
    self.open_failures.add(step)

  def _count(self) -> None:
    self.begun += not self.plans

  @property
  def recovered(self) -> float:
    """Share of the steps that ever failed that succeeded afterwards; 1 where none failed."""
    return 1.0 - len(self.open_failures) / max(len(self.failed), 1)

  def shown(self) -> str:
    """The present plan, a step a line with its state; "" without one."""
    if not self.plans:
      return ""
    lines = []
    for number, step in enumerate(self.plans[-1], 1):
      state = "failed" if step in self.open_failures else "done" if self.done[step] else "open"
      lines.append(f"{number}. {step}: {state}")
    return "\n".join(lines)


def subtasks_of(ctx: Context) -> Subtasks:
  """Those of this episode, made when first asked for."""
  return ctx.artifacts.setdefault(_KEY, Subtasks())


def played(artifacts: Mapping[str, Any]) -> Subtasks:
  """For graders: those of a finished episode."""
  return artifacts.get(_KEY, Subtasks())


async def _plan(ctx: Context, arguments: Mapping[str, Any]) -> str:
  steps = arguments["steps"]
  if not all(isinstance(step, str) and step.strip() for step in steps):
    return "error: steps must be texts that are not empty"
  if not 1 <= len(steps) <= MOST_STEPS:
    return f"error: {len(steps)} steps; plan 1 to {MOST_STEPS}"
  state = subtasks_of(ctx)
  state.plans.append(tuple(" ".join(step.split())[:80] for step in steps))
  return state.shown()


def plan_tool(step: str) -> Tool:
  """The tool `plan`; `step` says what one step is, as "the name of a product to make"."""
  steps = Parameter("array", f"in order; each is {step}")
  description = f"Sets the plan, or another: a list of steps, each {step}."
  return Tool(ToolSpec("plan", description, {"steps": steps}), _plan)
