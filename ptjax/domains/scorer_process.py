"""The process that `scorer` asks: reads tasks and answers, writes scores. It imports no JAX.

A request is a pickle of (generator, parameters, level, answer, entry) after its length; a reply is
one line, a number or `malformed`.
"""

import contextlib
import functools
import os
import pickle
import resource
import struct
import sys

LENGTH = struct.Struct("!Q")
READY, MALFORMED = b"ready\n", b"malformed\n"
MEMORY = 4 << 30


def serve() -> None:
  """Until the input ends."""
  requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb", buffering=0)
  # What a scorer prints is nobody's reply.
  null = os.open(os.devnull, os.O_WRONLY)
  os.dup2(null, 1)
  os.dup2(null, 2)
  from ptjax.domains.generators import dataset, package

  package()
  limits = {resource.RLIMIT_AS: MEMORY, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0}
  for which, most in limits.items():
    resource.setrlimit(which, (most, most))
  named = functools.cache(lambda name, parameters, level: dataset(name, dict(parameters), level))
  replies.write(READY)
  while head := requests.read(LENGTH.size):
    name, parameters, level, answer, entry = pickle.loads(requests.read(*LENGTH.unpack(head)))
    reply = MALFORMED
    with contextlib.suppress(Exception):  # an answer that its scorer cannot read
      reply = b"%r\n" % float(named(name, parameters, level).score_answer(answer, entry))
    replies.write(reply)


if __name__ == "__main__":
  serve()
