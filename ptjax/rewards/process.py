"""Process rewards: a reward model's scores at the ends of an answer's steps, as one number.

Each step's score is sigmoid(score - offset), the probability that the answer is right so far; the
answer is worth its worst step (`min`, Lightman et al. 2023 compare it with the product), the mean,
or the last one.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from ptjax.data.chat_template import ChatTemplate
from ptjax.envs.environment import Message, Services, Task
from ptjax.rewards.failures import Unscorable
from ptjax.rewards.reward_model import (
  Batcher,
  Combine,
  RewardModel,
  ScoredText,
  answer_tokens,
  combine,
  sigmoid,
)
from ptjax.rewards.tree import Leaf

Aggregate = Literal["min", "mean", "last"]


def split_steps(answer: str, separator: str = "\n") -> list[str]:
  """The steps of an answer: its parts between separators, those of white space left out.

  Joined, the parts with their separators are the answer again, but for the empty ones.
  """
  return [step for step in answer.split(separator) if step.strip()]


def step_ends(answer: str, steps: Sequence[str]) -> list[int]:
  """Bytes of the answer before the end of each step.

  Raises:
    ValueError: the steps do not stand in the answer in this order.
  """
  ends, at = [], 0
  for step in steps:
    start = answer.find(step, at)
    if start < 0 or not step:
      raise ValueError(f"step {step!r} does not stand in the answer after byte {at}")
    at = start + len(step)
    ends.append(len(answer[:at].encode()))
  return ends


def process_text(
  template: ChatTemplate,
  messages: Sequence[Message],
  answer: str,
  steps: Sequence[str],
  domain: str,
) -> ScoredText:
  """A conversation with its answer, read at the token that holds each step's last byte.

  Raises:
    ValueError: no steps, or an answer that the template renders otherwise than it is written.
  """
  if not steps:
    raise ValueError("an answer without steps has no process reward")
  whole = answer_tokens(template, messages, answer)
  start = int(np.argmax(whole.action_mask))
  pieces = [template.tokenizer.token_bytes(int(t)) for t in whole.tokens[start:]]
  if not b"".join(pieces).startswith(answer.encode()):
    raise ValueError("the chat template changes the answer's text, so its steps cannot be found")
  lengths = np.cumsum([len(piece) for piece in pieces])
  ends = start + np.searchsorted(lengths, step_ends(answer, steps), side="left")
  return ScoredText(whole.tokens, ends, domain)


def aggregate(step_scores: Sequence[float], how: Aggregate) -> float:
  """One number from the scores of the steps, in order; raises ValueError without any."""
  if not step_scores:
    raise ValueError("no step scores to aggregate")
  match how:
    case "min":
      return min(step_scores)
    case "mean":
      return sum(step_scores) / len(step_scores)
    case "last":
      return step_scores[-1]
  raise ValueError(f"aggregate {how!r} is unknown; use min, mean or last")


def process_leaf(
  model: RewardModel,
  name: str = "process",
  how: Aggregate = "min",
  *,
  separator: str = "\n",
  members: Combine = "mean",
  head: str | None = None,
) -> Leaf:
  """A leaf that scores each step of the answer; one without steps has no verdict.

  The head is that of the task's domain, unless one is named.
  """
  ask = Batcher(model.scores)

  async def grade(task: Task, response: str, services: Services) -> float:
    del services
    steps = split_steps(response, separator)
    if not steps:
      raise Unscorable("the answer has no steps")
    domain = head or task.domain
    text = process_text(model.template, task.messages, response, steps, domain)
    offset = model.offsets[model.domains[model.head_of(domain)]]
    scores_SM = await ask(text)
    return aggregate([sigmoid(combine(s, members) - offset) for s in scores_SM], how)

  return Leaf(name, grade)
