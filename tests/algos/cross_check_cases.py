"""Results of TRL and verl (`fixtures/cross_check.json`), and how ours are compared with them."""

import json
import pathlib

import numpy as np

DATA = json.loads((pathlib.Path(__file__).parent / "fixtures" / "cross_check.json").read_text())


def arrays(tree):
  return {k: arrays(v) if isinstance(v, dict) else np.asarray(v) for k, v in tree.items()}


IN = arrays(DATA["inputs"])


def close(got, want, where=True):
  """Equal to a relative 1e-5, an absolute 1e-7: the libraries compute parts in float32."""
  got, want = np.broadcast_arrays(np.asarray(got), np.asarray(want))
  np.testing.assert_allclose(
    np.where(where, got, 0), np.where(where, want, 0), rtol=1e-5, atol=1e-7
  )


def same(theirs, ours):
  """Value and gradient of a loss."""
  close(theirs["loss"], ours[0])
  close(theirs["grad"], ours[1])


def check(function, *args, **settings):
  """A check by a function of its case: `function(*args, theirs, **settings)`."""
  return lambda theirs: function(*args, theirs, **settings)
