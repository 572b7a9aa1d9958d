from pathlib import Path

import pytest

from ptjax.launch.cli import VERBS, build_parser

TOY = Path(__file__).with_name("toy_program.py")

CONFIG = """
from ptjax.core.config import to_config_dict
from toy_program import Toy

def get_config():
  return to_config_dict(Toy())
"""


@pytest.fixture
def toy(python, tmp_path):
  """Runs the toy program on a good config and a fresh workdir, with more arguments."""
  (tmp_path / "good.py").write_text(CONFIG)
  (tmp_path / "bad.py").write_text("x = 1")

  def run(*args, config="good.py"):
    config = ["--config", tmp_path / config] if config else []
    return python(TOY, "--workdir", tmp_path / "run", *config, *args)

  return run


def test_both_front_ends_and_overrides_reach_the_program(toy):
  from_python = toy("--config.optim.lr=2", "--config.seed=1")
  assert from_python.returncode == 0, from_python.stderr
  from_gin = toy("--gin_bindings", "OptimToy.lr = 2", "--config.seed=1", config=None)
  assert from_gin.returncode == 0, from_gin.stderr
  assert from_python.stdout == from_gin.stdout
  assert len(from_python.stdout) == 65


BAD = {
  "unknown key": (["--config.optim.lrr=1"], "config.optim.lrr=1: unknown key; did you mean"),
  "wrong type": (["--config.seed=x"], "config.seed=x: expected int; write for example"),
  "batch": (["--config.batch=7"], "batch 7 not divisible by data axis 4; try 4"),
  "no value": (["--config.batch"], "write --config.batch=VALUE"),
  "unknown argument": (["--wrkdir=x"], "unrecognized arguments: --wrkdir=x"),
  "both front ends": (["--gin_bindings", "Toy.seed = 1"], "one of the two"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_argument(toy, assert_user_error, name):
  args, message = BAD[name]
  assert_user_error(toy(*args), message)


@pytest.mark.parametrize(
  ("config", "args", "message"),
  [
    ("goood.py", [], "did you mean"),
    ("bad.py", [], "has no get_config()"),
    (None, [], "give either --config FILE"),
    (None, ["--gin_bindings", "Toy.sed = 1"], "config.sed=1: unknown key; did you mean"),
    (None, ["--gin_bindings", "Toyy.seed = 1"], "gin: no config class Toyy; did you mean Toy?"),
    (None, ["--gin_bindings", "Toy.seed ="], "gin: Unable to parse value."),
    (None, ["--gin_file", "absent.gin"], "gin file absent.gin not found"),
  ],
)
def test_bad_file(toy, assert_user_error, config, args, message):
  assert_user_error(toy(*args, config=config), message)


def test_debug_shows_the_traceback(toy):
  result = toy("--debug", "--config.batch=7")
  assert result.returncode != 0
  assert "Traceback" in result.stderr


def test_help_is_complete_and_loads_no_jax(python):
  code = (
    "import sys; from ptjax.launch.cli import build_parser; text = build_parser().format_help();"
    "print(text); sys.exit('jax' in sys.modules)"
  )
  result = python("-c", code)
  assert result.returncode == 0, result.stderr
  for verb in VERBS:
    assert f"\n    {verb.NAME} " in result.stdout
    assert verb.HELP in result.stdout


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.NAME)
def test_help_of_a_verb_has_examples_that_parse(verb, capsys):
  parser = build_parser()
  with pytest.raises(SystemExit) as stop:
    parser.parse_args([verb.NAME, "--help"])
  assert stop.value.code == 0
  assert "examples:" in capsys.readouterr().out
  joined = verb.EPILOG.replace("\\\n", "").replace('"RLConfig.kl_coef = 0.01"', "B")
  examples = [line.split() for line in joined.splitlines() if " -m ptjax.launch " in line]
  assert examples
  for _, _, _, name, *words in examples:
    rest = [word.replace("$SLURM_ARRAY_TASK_ID", "3") for word in words]
    args = parser.parse_args([name, *(a for a in rest if not a.startswith("--config."))])
    assert args.verb == verb.NAME
    assert any(a.startswith("--config.") for a in rest) <= getattr(args, "takes_overrides", False)


@pytest.mark.parametrize(
  ("args", "message"),
  [
    (["trian"], "invalid choice: 'trian'"),
    ([], "the following arguments are required: VERB"),
    (["view", "no/such/run"], "no/such/run is not a directory"),
    (["eval", "--workdir", "no/such/run"], "no/such/run holds no config.json"),
    (["doctor", "--config.seed=1"], "doctor takes no --config.seed=1"),
  ],
)
def test_misuse_of_a_verb(python, assert_user_error, args, message):
  assert_user_error(python("-m", "ptjax.launch", *args), message)
