import pytest
from toy_program import OptimToy, Toy

from ptjax.core.config import ConfigError
from ptjax.launch import sweep


def write(tmp_path, body):
  file = tmp_path / "sweep.py"
  file.write_text(f"def get_sweep():\n  {body}\n")
  return file


def test_sets_come_in_order_and_apply(tmp_path):
  body = 'yield from ({"seed": s, "optim.lr": lr} for s in (0, 1) for lr in (1, 0.5))'
  sets = sweep.load_sweep(write(tmp_path, body))
  toys = [sweep.apply_set(Toy(), i, values) for i, values in enumerate(sets)]
  assert toys == [Toy(seed=s, optim=OptimToy(lr)) for s in (0, 1) for lr in (1.0, 0.5)]
  assert str(sweep.run_directory("runs", 12)) == "runs/012"


@pytest.mark.parametrize(
  ("body", "message"),
  [
    ("return []", "get_sweep() yields nothing; yield one dict a run"),
    ("yield 3", "set 0 is 3; yield dicts such as {'seed': 1}"),
    ("yield undefined", "sweep.py:2: NameError: name 'undefined' is not defined"),
  ],
)
def test_bad_sweep_file(tmp_path, body, message):
  with pytest.raises(ConfigError) as error:
    sweep.load_sweep(write(tmp_path, body))
  assert message in str(error.value)


def test_a_bad_set_is_named():
  with pytest.raises(ConfigError, match=r"^set 2 of the sweep: config: batch 7 not divisible"):
    sweep.apply_set(Toy(), 2, {"batch": 7})
