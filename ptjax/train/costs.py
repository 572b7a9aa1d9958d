"""What a step has cost, by phase and domain: tokens, operations, seconds of devices and sandboxes.

Operations are counted by formula (`models.flops`): a prompt once a group, 2 for each weight and
token forward, twice that again backward; what is computed again or padded is not counted. Seconds
of devices are those of the phase, split by the operations that each domain had in it; what a step
spends outside of its phases belongs to no domain.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ptjax.core.types import Trajectory
from ptjax.experience.collect import Played
from ptjax.models import flops
from ptjax.models.config import DecoderConfig
from ptjax.train import batch as batches
from ptjax.train.experiment import Experiment
from ptjax.train.rl import StepDone
from ptjax.train.telemetry import passed_by_domain

ROLLOUT, SCORE, TRAIN, EVALUATE = "rollout", "score", "train", "evaluate"


@dataclasses.dataclass(frozen=True)
class Cost:
  """Of one domain in one phase.

  Attributes:
    tokens: that the phase was about: sampled ones where episodes are played, else all.
    flops: operations of all devices together.
    device_s: seconds of all devices together.
    sandbox_s: seconds of sandboxes, those spent waiting for one included.
  """

  tokens: int = 0
  flops: float = 0.0
  device_s: float = 0.0
  sandbox_s: float = 0.0


def together(parts: Iterable[Cost]) -> Cost:
  """Their sum."""
  rows = [dataclasses.astuple(part) for part in parts]
  return Cost(*(sum(column) for column in zip(*rows, strict=True)))


Costs = dict[str, dict[str, Cost]]
"""By domain and phase."""


def split_seconds(costs: Mapping[str, Cost], seconds: float, devices: int) -> dict[str, Cost]:
  """The seconds of a phase, split over the domains by their operations."""
  total = sum(cost.flops for cost in costs.values()) or 1.0
  return {
    name: dataclasses.replace(cost, device_s=seconds * devices * cost.flops / total)
    for name, cost in costs.items()
  }


def forward_work(model: DecoderConfig, episodes: Iterable[tuple[str, int, int, int, int]]):
  """(tokens, operations) by domain of one forward pass with logits at the actions.

  `episodes` are (domain, group, prompt tokens, all tokens, actions); the prompt of a group counts
  once.
  """
  work: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
  prompts = set()
  for domain, group, prompt, length, actions in episodes:
    own = length - prompt
    once = own if (domain, group) in prompts else length
    prompts.add((domain, group))
    operations = 2.0 * once * flops.block_weights(model) + flops.logits(model, actions)
    operations += flops.attention(model, own, (prompt + length) // 2)
    operations += flops.attention(model, once - own, prompt // 2)
    tokens, before = work[domain]
    work[domain] = (tokens + once, before + operations)
  return work


def of_episodes(
  played: Sequence[Played], model: DecoderConfig, seconds: float, devices: int
) -> dict[str, Cost]:
  """What it cost to play episodes, by domain."""
  shapes = []
  sampled, sandbox = defaultdict(int), defaultdict(float)
  for p in played:
    mask, name = p.episode.action_mask, p.spec.task.domain
    actions = int(mask.sum())
    prompt = int(mask.argmax()) if actions else len(mask)
    shapes.append((name, p.spec.group, prompt, len(mask), actions))
    sampled[name] += actions
    sandbox[name] += p.sandbox_s
  work = forward_work(model, shapes)
  costs = {
    name: Cost(sampled[name], operations, 0.0, sandbox[name])
    for name, (_, operations) in work.items()
  }
  return split_seconds(costs, seconds, devices)


def of_passes(
  trajectories: Sequence[Trajectory],
  model: DecoderConfig,
  passes: float,
  seconds: float,
  devices: int,
) -> dict[str, Cost]:
  """What forward passes over trajectories cost, by domain; a backward pass counts as two."""
  shapes = [
    (t.domain, t.group, int(t.action_mask.argmax()), len(t.tokens), t.num_actions)
    for t in trajectories
  ]
  work = forward_work(model, shapes)
  costs = {name: Cost(tokens, passes * operations) for name, (tokens, operations) in work.items()}
  return split_seconds(costs, seconds, devices)


def of_step(e: Experiment, model: DecoderConfig, step: int, done: StepDone, devices: int) -> Costs:
  """All phases of a step."""
  moving = [done.batch.trajectories[i] for i in batches.computed(done.batch, e.rl)]
  phases = {
    ROLLOUT: of_episodes(done.played, model, done.seconds[ROLLOUT], devices),
    SCORE: of_passes(
      done.batch.trajectories, model, scoring_passes(e, model, step), done.seconds[SCORE], devices
    ),
    TRAIN: of_passes(
      moving, model, 3.0 * e.rl.epochs * _networks(e, model), done.seconds[TRAIN], devices
    ),
  }
  costs: Costs = defaultdict(dict)
  for phase, by_domain in phases.items():
    for name, cost in by_domain.items():
      costs[name][phase] = cost
  return dict(costs)


def scoring_passes(e: Experiment, model: DecoderConfig, step: int) -> float:
  """Forward passes of the policy's size that score a step's trajectories."""
  checked = step % e.rl.contract_every == 0 or not e.rl.single_update
  share = 1.0 if e.rl.kl_episodes is None else min(1.0, e.rl.kl_episodes / e.rl.group_size)
  return float(checked) + (share if e.rl.reference else 0.0) + _networks(e, model) - 1


def _networks(e: Experiment, model: DecoderConfig) -> float:
  """Networks that train, in sizes of the policy; a critic counts by its layers."""
  if e.critic is None:
    return 1.0
  return 1.0 + (e.critic.num_layers or model.num_layers) / model.num_layers


def to_record(step: int, costs: Costs, played: Sequence[Played]) -> dict:
  """A line of costs.jsonl."""
  counts = passed_by_domain(played)
  domains = {}
  for name, phases in costs.items():
    passed, scored = counts.get(name, (0, 0))
    spent = {phase: dataclasses.asdict(cost) for phase, cost in phases.items()}
    domains[name] = {"passed": passed, "scored": scored, "phases": spent}
  return {"step": step, "domains": domains}
