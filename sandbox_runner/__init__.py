"""Runs untrusted programs in a pool of sandboxes: limits laid on from outside, outcomes typed.

async with Pool(PoolConfig(size=2)) as pool:
  result = await pool.run(Request(("python3", "main.py"), files={"main.py": b"print(1 + 1)"}))
"""

from sandbox_runner.backends.base import BackendStatus
from sandbox_runner.detect import detect_backends
from sandbox_runner.pool import Pool, PoolConfig
from sandbox_runner.types import (
  Limits,
  NoBackendError,
  Outcome,
  Request,
  RequestError,
  Result,
)

__all__ = [
  "BackendStatus",
  "Limits",
  "NoBackendError",
  "Outcome",
  "Pool",
  "PoolConfig",
  "Request",
  "RequestError",
  "Result",
  "detect_backends",
]
