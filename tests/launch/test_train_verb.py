import argparse

import pytest

from ptjax.launch import cli, train


def test_a_value_error_in_a_run_is_one_line_and_keeps_its_traceback(tmp_path, capsys):
  log = tmp_path / "error.log"

  def run(_):
    with train.keep_traceback(log):
      raise ValueError("batch 7 is odd;\n  try 8")

  parser = argparse.ArgumentParser()
  parser.set_defaults(run=run, debug=False)
  assert cli.main([], parser) == 2
  expected = f"ptjax: error: batch 7 is odd; try 8 (traceback in {log})\n"
  assert capsys.readouterr().err == expected
  assert "in run\n" in log.read_text()


@pytest.mark.parametrize(
  ("error", "status"),
  [
    (FileNotFoundError(2, "No such file", "model.gguf"), 2),
    (PermissionError("no"), 2),
    (KeyboardInterrupt(), 130),
    (RuntimeError("a fault of ours"), None),
  ],
)
def test_exit_status_by_kind_of_error(error, status, capsys):
  def run(_):
    raise error

  parser = argparse.ArgumentParser()
  parser.set_defaults(run=run, debug=False)
  if status is None:
    with pytest.raises(RuntimeError):
      cli.main([], parser)
  else:
    assert cli.main([], parser) == status
    assert capsys.readouterr().err.count("\n") == 1


def test_no_backend_is_a_user_error():
  from sandbox_runner import NoBackendError

  assert issubclass(NoBackendError, cli.USER_ERRORS)
