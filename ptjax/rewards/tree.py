"""Declarative reward trees.

A leaf holds a grader; an inner node is the weighted mean of its children, behind optional
gates. The rules (README of the golden cases, family rewards):

  leaf    the grader's score; a score that is not finite or out of [low, high] is an error. An
          `EpisodeLeaf` grades all turns of an episode and what it left, a `Leaf` the last turn.
  node    gates first, in order: a gate without a value leaves the node without one; a gate
          below its minimum makes the node `gate_value`, and nothing further is run. Then
          value = sum_i w_i * child_i. A child without a value leaves the node without one,
          unless it is optional: then it is left out, and the other weights are divided by
          their sum.
  errors  win over missing values.

Every node that was evaluated is recorded under its path: "" is the root, "domain/tests" the
child `tests` of its child `domain`. Gates are recorded like children.
"""

import dataclasses
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping

from ptjax.envs.environment import Episode, Services, Task
from ptjax.rewards.failures import InvalidScore, ScoringFailure, Unscorable

WEIGHT_TOLERANCE = 1e-6

Score = float | None
Grader = Callable[[Task, str, Services], Score | Awaitable[Score]]
EpisodeGrader = Callable[[Task, Episode, Services], Score | Awaitable[Score]]


@dataclasses.dataclass(frozen=True)
class Leaf:
  """A grader `(task, response, services) -> score`, plain or async.

  The grader returns None or raises `Unscorable` where it has no verdict, and raises
  `InfraFailure` where the machinery failed. Any other exception is a fault of the grader and
  ends the run.
  """

  name: str
  grader: Grader
  low: float = 0.0
  high: float = 1.0

  def __post_init__(self):
    _check_range(self)


@dataclasses.dataclass(frozen=True)
class EpisodeLeaf:
  """A leaf whose grader gets the episode in place of the last response.

  It sees what every turn said (`responses`), what each was shown (`observations`), how its calls
  went (`calls`) and what the environment has kept (`artifacts`). Otherwise as `Leaf`.
  """

  name: str
  grader: EpisodeGrader
  low: float = 0.0
  high: float = 1.0

  def __post_init__(self):
    _check_range(self)


def _check_range(leaf: Leaf | EpisodeLeaf) -> None:
  if not leaf.low <= leaf.high:
    raise ValueError(f"range of {leaf.name} is empty: low {leaf.low}, high {leaf.high}")


@dataclasses.dataclass(frozen=True)
class Child:
  """A weighted child; an optional one may lack a value without harm to its parent."""

  weight: float
  node: "Part"
  optional: bool = False


@dataclasses.dataclass(frozen=True)
class Gate:
  """A condition `value >= minimum` that its parent must meet before its children count."""

  node: "Part"
  minimum: float


@dataclasses.dataclass(frozen=True)
class Node:
  """A weighted mean of children; weights are >= 0 and sum to 1."""

  name: str
  children: tuple[Child, ...]
  gates: tuple[Gate, ...] = ()
  gate_value: float = 0.0

  def __post_init__(self):
    weights = [child.weight for child in self.children]
    # Written so that a NaN weight is refused too.
    if not all(0 <= weight < math.inf for weight in weights):
      raise ValueError(f"weights of {self.name} must be >= 0 and finite, got {weights}")
    if abs(math.fsum(weights) - 1) > WEIGHT_TOLERANCE:
      raise ValueError(
        f"weights of {self.name} do not sum to 1 but to {math.fsum(weights)}; "
        f"divide each of {weights} by that"
      )
    if not math.isfinite(self.gate_value):
      raise ValueError(f"gate_value of {self.name} is not finite: {self.gate_value}")
    names = [item.node.name for item in (*self.gates, *self.children)]
    if len(set(names)) != len(names) or any("/" in name or not name for name in names):
      raise ValueError(
        f"names under {self.name} must be distinct, not empty and without '/', got {names}"
      )


Part = Leaf | EpisodeLeaf | Node


@dataclasses.dataclass(frozen=True)
class RewardTree:
  """A root and the version under which its values are logged; a change of rewards bumps it."""

  root: Node
  version: int = 1


@dataclasses.dataclass(frozen=True)
class Scores:
  """The value of every evaluated node by path, and why the root lacks one, if it does.

  Attributes:
    values: None marks a node without a value.
    failure: None exactly where `values[""]` is a number.
  """

  values: Mapping[str, Score]
  failure: ScoringFailure | None

  @property
  def rewards(self) -> dict[str, float]:
    """The nodes that have a value."""
    return {path: value for path, value in self.values.items() if value is not None}


def general_domain(general: Part, domain: Part, version: int = 1) -> RewardTree:
  """The default tree: 0.3 of the general node and 0.7 of the domain node."""
  return RewardTree(Node("reward", (Child(0.3, general), Child(0.7, domain))), version)


def with_child(tree: RewardTree, node: Part, weight: float) -> RewardTree:
  """The tree with one more child of its root, whose others share 1 - weight as before.

  Raises:
    ValueError: the root is a leaf: wrapped, its path would change.
  """
  if not isinstance(tree.root, Node):
    raise ValueError(
      f"the root {tree.root.name} of the reward tree is a leaf; make it the child of a Node"
    )
  others = [dataclasses.replace(c, weight=c.weight * (1 - weight)) for c in tree.root.children]
  root = dataclasses.replace(tree.root, children=(*others, Child(weight, node)))
  return dataclasses.replace(tree, root=root)


async def evaluate(
  tree: RewardTree, task: Task, answer: str | Episode, services: Services
) -> Scores:
  """Runs the graders and combines their scores.

  Args:
    tree: what to evaluate.
    task: what was asked.
    answer: the episode, or a bare response where no leaf looks at more.
    services: of the graders.

  Raises:
    InvalidScore: a grader is at fault.
    ValueError: a bare response for a leaf that grades episodes.

  Siblings run one after the other, which keeps the log in order: it is the episodes that
  overlap with each other.
  """
  values: dict[str, Score] = {}

  async def leaf(node: Leaf | EpisodeLeaf, path: str) -> float | ScoringFailure:
    try:
      score = _ask(node, task, answer, services)
      if inspect.isawaitable(score):
        score = await score
    except InvalidScore:
      raise
    except ScoringFailure as failure:
      return failure
    if score is None:
      return Unscorable(f"{path} has no verdict")
    return check_score(score, path or node.name, node.low, node.high)

  async def inner(node: Node, path: str) -> float | ScoringFailure:
    for gate in node.gates:
      value = await visit(gate.node, _join(path, gate.node.name))
      if isinstance(value, ScoringFailure):
        return value
      if value < gate.minimum:
        return node.gate_value
    results = [
      (child, await visit(child.node, _join(path, child.node.name))) for child in node.children
    ]
    return _combine(results, path)

  async def visit(node: Part, path: str) -> float | ScoringFailure:
    result = await (inner(node, path) if isinstance(node, Node) else leaf(node, path))
    values[path] = None if isinstance(result, ScoringFailure) else result
    return result

  root = await visit(tree.root, "")
  return Scores(values, root if isinstance(root, ScoringFailure) else None)


def _ask(node: Leaf | EpisodeLeaf, task: Task, answer: str | Episode, services: Services):
  if isinstance(node, EpisodeLeaf):
    if isinstance(answer, str):
      raise ValueError(
        f"leaf {node.name} grades episodes, and got a bare response; play the answer "
        f"and grade its episode"
      )
    return node.grader(task, answer, services)
  return node.grader(task, answer if isinstance(answer, str) else answer.response, services)


def check_score(score: float, path: str, low: float, high: float) -> float:
  """Returns a finite score in [low, high], ends included, unchanged; else raises InvalidScore."""
  try:
    value = float(score)
  except (TypeError, ValueError) as error:
    raise InvalidScore(f"{path} is not a number: {score!r}") from error
  if not math.isfinite(value):
    raise InvalidScore(f"{path} is not finite: {value}")
  if not low <= value <= high:
    raise InvalidScore(f"{path} is out of range: {value} not in [{low}, {high}]")
  return value


def _combine(
  results: list[tuple[Child, float | ScoringFailure]], path: str
) -> float | ScoringFailure:
  """Weighted mean of the children that have a value, or the first failure that counts."""
  present: list[tuple[float, float]] = []
  for child, value in results:
    if not isinstance(value, ScoringFailure):
      present.append((child.weight, value))
    elif not child.optional:
      return value
  if len(present) == len(results):
    return math.fsum(weight * value for weight, value in present)
  total = math.fsum(weight for weight, _ in present)
  if total == 0:
    return Unscorable(f"{path or 'the root'} has no child with a value")
  return math.fsum(weight * value for weight, value in present) / total


def _join(path: str, name: str) -> str:
  return f"{path}/{name}" if path else name
