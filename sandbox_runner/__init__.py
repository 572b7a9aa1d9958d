"""Runs untrusted programs in a pool of sandboxes: limits laid on from outside, outcomes typed.

async with Pool(PoolConfig(size=2)) as pool:
  result = await pool.run(Request(("python3", "main.py"), files={"main.py": b"print(1 + 1)"}))
"""

from sandbox_runner.audit import AuditError
from sandbox_runner.backends.base import BackendStatus
from sandbox_runner.detect import detect_backends
from sandbox_runner.pool import Pool, PoolConfig
from sandbox_runner.posture import PostureError
from sandbox_runner.scheduler import QueueFullError, TenantPolicy
from sandbox_runner.session import (
  Session,
  SessionClosed,
  SessionError,
  SessionExpired,
  SessionLost,
)
from sandbox_runner.shell import Shell, ShellOutput, ShellPrompt
from sandbox_runner.types import (
  Limits,
  NoBackendError,
  Outcome,
  PoolClosedError,
  Request,
  RequestError,
  Result,
  Snapshot,
)

__all__ = [
  "AuditError",
  "BackendStatus",
  "Limits",
  "NoBackendError",
  "Outcome",
  "Pool",
  "PoolClosedError",
  "PoolConfig",
  "PostureError",
  "QueueFullError",
  "Request",
  "RequestError",
  "Result",
  "Session",
  "SessionClosed",
  "SessionError",
  "SessionExpired",
  "SessionLost",
  "Shell",
  "ShellOutput",
  "ShellPrompt",
  "Snapshot",
  "TenantPolicy",
  "detect_backends",
]
