"""More than a hundred kinds of puzzles and exercises: the generators of reasoning-gym.

`reasoning/NAME` is a generator at its defaults, `reasoning/NAME@2` at level 2 of its curriculum.
"""

import dataclasses
import functools
import random
import re
from collections.abc import Mapping
from typing import Any

from ptjax.domains import generators, scorer
from ptjax.domains.domain import Domain
from ptjax.domains.reasoning_answers import accepts, right_answer
from ptjax.domains.split import draw
from ptjax.envs.environment import Services, Split, Task
from ptjax.rewards import tree

INSTRUCTION = "Put the final answer between <answer> and </answer>."

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)

_ATTACKS = (
  "",
  "asdf",
  "None",
  "nan",
  "[]",
  "()",
  "1" * 5000,
  "[" * 2000,
  "__import__('os')._exit(0)",
  "(lambda: 0)()",
  "9**9**9**9",
)

# By name, so that the package is imported only where one of them is built.
GENERATORS = """
  ab acre advanced_geometry aiw arc_1d arc_agi base_conversion basic_arithmetic bf
  binary_alternation binary_matrix bitwise_arithmetic caesar_cipher calendar_arithmetic chain_sum
  circuit_logic coin_flip color_cube_rotation complex_arithmetic count_bits count_primes countdown
  course_schedule cryptarithm decimal_arithmetic decimal_chain_sum dice emoji_mystery
  family_relationships figlet_font fraction_simplification futoshiki game_of_life
  game_of_life_halting gcd group_anagrams gsm_symbolic isomorphic_strings jugs kakurasu
  knight_swap knights_knaves largest_island lcm leg_counting letter_counting letter_jumble
  list_functions mahjong_puzzle manipulate_matrix maze mini_sudoku modulo_grid n_queens
  needle_haystack number_filtering number_format number_sequence number_sorting
  palindrome_generation palindrome_partitioning path_star polynomial_equations
  polynomial_multiplication pool_matrix power_function prime_factorization products
  propositional_logic puzzle24 quantum_lock ransom_note rearc rectangle_count rotate_matrix
  rotten_oranges rubiks_cube self_reference sentence_reordering shortest_path simple_equations
  simple_geometry simple_integration sokoban spell_backward spiral_matrix string_insertion
  string_manipulation string_splitting string_synthesis sudoku survo syllogism time_intervals
  tower_of_hanoi tsumego word_ladder word_sequence_reversal word_sorting zebra_puzzles
""".split()  # noqa: SIM905  a line for each would be a page

# Those that are not admitted, and why.
REFUSED: Mapping[str, str] = {
  "boxnet": "its tasks come without a right answer to check the scorer by",
  "codeio": "the same index makes two different tasks",
  "composite": "a mixture of the others",
  "graph_color": "the answer that comes with a task is not one that its scorer takes",
  "intermediate_integration": "some tasks take minutes to make; the right answer to others is the "
  "integral itself",
  "rush_hour": "its tasks come without a right answer to check the scorer by",
}


@dataclasses.dataclass(frozen=True)
class Config:
  """Which tasks.

  Attributes:
    generator: name of a reasoning-gym dataset.
    level: of every attribute of its curriculum, from 0; None takes its defaults.
    parameters: keyword arguments of the dataset's configuration.
    partial_credit: whether a score under 1 of the dataset's scorer counts. Those scorers give some
      of it to any text that contains the answer, or to anything at all.
  """

  generator: str
  level: int | None = None
  parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  partial_credit: bool = False

  @property
  def name(self) -> str:
    return f"reasoning/{self.generator}" + ("" if self.level is None else f"@{self.level}")


def extract_answer(response: str) -> str | None:
  """What stands between the last tags, or None; one parser for training and evaluation."""
  answers = _ANSWER.findall(response)
  return answers[-1].strip() if answers else None


def build(config: Config) -> Domain:
  """Makes the domain; raises ValueError for an unknown generator, level or wrong parameters."""
  if config.generator in REFUSED:
    raise ValueError(
      f"reasoning-gym's {config.generator} is not admitted: {REFUSED[config.generator]}"
    )
  tasks = generators.dataset(config.generator, config.parameters, config.level)

  def make_entry(rng: random.Random) -> dict[str, Any]:
    return tasks[rng.randrange(generators.num_tasks(config.generator))]

  def make_task(seed: int, split: Split) -> Task:
    entry = draw(make_entry, lambda entry: entry["question"], seed, split)
    message = {"role": "user", "content": f"{entry['question'].rstrip()}\n\n{INSTRUCTION}"}
    return Task(config.name, seed, split, (message,), {"entry": entry})

  async def grade_answer(task: Task, response: str, services: Services) -> float:
    del services
    answer, entry = extract_answer(response), task.data["entry"]
    if answer is None or not accepts(config.generator, answer, entry):
      return 0.0
    score = await scorer.shared().score(
      config.generator, config.parameters, config.level, answer, entry
    )
    return score if config.partial_credit or score == 1.0 else 0.0

  return Domain(
    name=config.name,
    family="reasoning",
    license="Apache-2.0",
    source=f"reasoning-gym {config.generator}",
    make_task=make_task,
    rewards=tree.general_domain(
      tree.Node("general", (tree.Child(1.0, tree.Leaf("format", grade_format)),)),
      tree.Node("domain", (tree.Child(1.0, tree.Leaf("answer", grade_answer)),)),
    ),
    passed=lambda rewards: rewards["domain/answer"] == 1.0,
    oracle=lambda task: f"<answer>{right_answer(config.generator, task.data['entry'])}</answer>",
    attacks=tuple(f"<answer>{text}</answer>" for text in _ATTACKS),
  )


def grade_format(task: Task, response: str, services: Services) -> float:
  """1 for an answer in tags, once and at the end, else 0."""
  del task, services
  once = response.count("<answer>") == response.count("</answer>") == 1
  return float(once and response.rstrip().endswith("</answer>"))


def at_level(generator: str, level: int | None = None) -> Domain:
  """The generator's domain with everything else at its default."""
  return build(Config(generator, level))


DOMAINS = {f"reasoning/{name}": functools.partial(at_level, name) for name in GENERATORS}
