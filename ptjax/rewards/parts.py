"""The parts of a reward: what each child of the root contributed."""

from collections.abc import Mapping

from ptjax.rewards.tree import Node, RewardTree


def root_parts(tree: RewardTree, rewards: Mapping[str, float]) -> list[tuple[float, float | None]]:
  """(weight, value) of every child of the root, in the order of the tree; their sum is the root.

  A child without a value has None. Where a gate closed the root, no child was run and each part is
  the gate's value, so that the weighted sum still is the root. A root that is a leaf is one part.

  Args:
    tree: the domain's tree.
    rewards: values by path, the root's under "".
  """
  root = tree.root
  if not isinstance(root, Node):
    return [(1.0, rewards[""])]
  values = [rewards.get(child.node.name) for child in root.children]
  if all(value is None for value in values):
    values = [root.gate_value] * len(values)
  return [(child.weight, value) for child, value in zip(root.children, values, strict=True)]
