"""The table at the end of a run of the hostile suite."""

from hostile_table import differences, lines

NODE = "tests/sandbox_runner/test_hostile.py::test_case[{}]"


def test_table():
  outcomes = [
    (NODE.format("bwrap-bomb"), "passed"),
    (NODE.format("runsc-bomb"), "passed"),
    (NODE.format("bwrap-dashed-name[1]"), "failed"),
    (NODE.format("runsc-dashed-name[1]"), "passed"),
    ("tests/sandbox_runner/test_pool.py::test_run[bwrap]", "failed"),
  ]
  reasons = {("dashed-name", "runsc"): "its own kernel", ("other", "runc"): "not run here"}
  assert lines(outcomes, reasons) == [
    "case            bwrap     runc      runsc",
    "bomb            passed    -         passed",
    "dashed-name[1]  failed    -         differs",
    "differs: dashed-name under runsc: its own kernel",
  ]
  assert lines(outcomes[-1:], reasons) == []


def test_every_difference_has_a_reason():
  assert differences()
  assert all(len(reason) > 20 for reason in differences().values())
