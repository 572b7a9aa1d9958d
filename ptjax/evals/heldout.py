"""Pass rates on held-out tasks."""

import dataclasses
from collections.abc import Sequence

from ptjax.core.stats import wilson_interval
from ptjax.data.chat_template import ChatTemplate
from ptjax.domains.domain import Domain
from ptjax.envs.environment import Services
from ptjax.experience.collect import EpisodeSpec, Played, PolicyConfig, collect
from ptjax.experience.mixture import task_seed
from ptjax.rollout.engine import Engine

# Held-out tasks are numbered by a seed of their own: every run is measured on the same ones.
TASK_SEED = 20_231


@dataclasses.dataclass(frozen=True)
class EvalConfig:
  """The held-out evaluation before and after training.

  Attributes:
    tasks_per_domain: held-out tasks, one sampled answer each; 0 skips the evaluation.
    sample_seed: decides the sampling, which is the policy's (temperature included).
  """

  tasks_per_domain: int = 100
  sample_seed: int = 1

  def __post_init__(self):
    if self.tasks_per_domain < 0:
      raise ValueError(f"eval.tasks_per_domain {self.tasks_per_domain} must be >= 0")


@dataclasses.dataclass(frozen=True)
class PassRate:
  """Held-out result of a domain, or of all together.

  Attributes:
    domain: its name, or "all".
    passed: tasks solved.
    total: tasks that could be scored.
  """

  domain: str
  passed: int
  total: int

  @property
  def rate(self) -> float:
    return self.passed / self.total if self.total else float("nan")

  @property
  def interval(self) -> tuple[float, float]:
    """Wilson 95%; nan where nothing could be scored."""
    if not self.total:
      return float("nan"), float("nan")
    return wilson_interval(self.passed, self.total)


async def heldout(
  engine: Engine,
  template: ChatTemplate,
  domains: dict[str, Domain],
  services: Services,
  policy: PolicyConfig,
  config: EvalConfig,
  first: int = 0,
) -> list[Played]:
  """Plays held-out tasks of every domain, numbered from `first` on."""
  specs = []
  for name, domain in domains.items():
    for i in range(config.tasks_per_domain):
      task = domain.make_task(task_seed(TASK_SEED, name, first + i), "heldout")
      specs.append(EpisodeSpec(task, group=len(specs), index=len(specs)))
  return await collect(engine, template, domains, specs, services, policy, config.sample_seed)


def pass_rates(played: Sequence[Played]) -> list[PassRate]:
  """One `PassRate` a domain, then "all". Episodes without a score are left out."""
  scored = [p for p in played if p.trainable]
  names = list(dict.fromkeys(p.spec.task.domain for p in played))

  def rate(name: str, members: list[Played]) -> PassRate:
    return PassRate(name, sum(p.grade.passed for p in members), len(members))

  by_domain = [rate(n, [p for p in scored if p.spec.task.domain == n]) for n in names]
  return [*by_domain, rate("all", scored)]
