"""The order in which waiting requests get a sandbox. A data structure without a clock or a thread.

Between tenants: each has a virtual time, the sandbox seconds it has used divided by its weight, and
the one furthest behind goes first (fair queueing, Demers et al. 1989; by start times, Goyal et al.
1996). A tenant that was away begins at the virtual time of the whole, so that idling saves nothing
up. That time moves on by the seconds used, divided by the weights of all who want some, and so no
row of newcomers can keep out who is there already. Within a
tenant: by priority, then first come first served. A level of priority is worth `ageing_s` seconds:
of waiting against requests of the same tenant, of sandbox time against other tenants. So it is a
head start of bounded size, and nobody starves.
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class QueueFullError(ValueError):
  """The queue is full, and the caller did not want to wait."""


@dataclass(frozen=True)
class TenantPolicy:
  """What one tenant may have.

  Attributes:
    weight: its share of the sandboxes' time, relative to that of others who want it as well.
    rate: runs it may begin a second, on average.
    burst: runs it may begin at once after it was quiet.
  """

  weight: float = 1.0
  rate: float = math.inf
  burst: int = 1

  def __post_init__(self):
    if not (math.isfinite(self.weight) and self.weight > 0):
      raise ValueError(f"weight={self.weight!r} must be a number above 0")
    if not self.rate > 0:
      raise ValueError(f"rate={self.rate!r} must be above 0 a second")
    if self.burst < 1:
      raise ValueError(f"burst={self.burst!r} must be at least 1")


class Bucket:
  """Tokens that come at a steady rate and are kept up to a number."""

  def __init__(self, rate: float, burst: int, now: float):
    self.rate, self.burst = rate, burst
    self._tokens, self._filled = float(burst), now

  def ready_at(self, now: float) -> float:
    """When there is a token; not after `now` if there is one already."""
    if math.isinf(self.rate):
      return now
    self._tokens = min(self.burst, self._tokens + (now - self._filled) * self.rate)
    self._filled = now
    # A token that only rounding keeps away is there.
    return now if self._tokens > 1 - 1e-9 else now + (1 - self._tokens) / self.rate

  def is_full(self, now: float) -> bool:
    self.ready_at(now)
    return math.isinf(self.rate) or self._tokens >= self.burst

  def take(self) -> None:
    self._tokens -= 1


@dataclass(eq=False)
class Entry:
  """One request that waits. `payload` is the caller's, the rest below it the scheduler's."""

  tenant: str
  priority: int
  submitted: float
  payload: Any = None
  state: str = "new"  # then perhaps "outside", "inside", and at last "taken" or "cancelled"
  charged_s: float = 0.0


@dataclass(eq=False)
class _Tenant:
  policy: TenantPolicy
  bucket: Bucket
  virtual: float = 0.0
  mean_s: float = 1.0  # of its runs; each is charged with it until its own time is known
  heap: list = field(default_factory=list)
  inside: int = 0  # entries of the heap that still wait
  outside: deque[Entry] = field(default_factory=deque)
  running: int = 0

  @property
  def idle(self) -> bool:
    return not (self.inside or self.outside or self.running)

  def head(self) -> Entry | None:
    """What is next, after what was cancelled is out of the way."""
    if len(self.heap) > 2 * self.inside + 16:
      self.heap = [item for item in self.heap if item[2].state == "inside"]
      heapq.heapify(self.heap)
    while self.heap and self.heap[0][2].state != "inside":
      heapq.heappop(self.heap)
    return self.heap[0][2] if self.heap else None


class Scheduler:
  """Waiting requests of all tenants, at most `limit` of them in the queue and the rest before it.

  Args:
    policies: those of the tenants that have their own; all others have `default`.
    limit: entries in the queue. Those that find it full are let in as room comes, first those of
      the tenant that has the fewest in it.
    ageing_s: see above.
  """

  def __init__(
    self,
    policies: Mapping[str, TenantPolicy] | None = None,
    default: TenantPolicy | None = None,
    limit: int = 10_000,
    ageing_s: float = 10.0,
  ):
    self.policies, self.default = policies or {}, default or TenantPolicy()
    self.limit, self.ageing_s = limit, ageing_s
    self._tenants: dict[str, _Tenant] = {}
    self._active: dict[_Tenant, None] = {}  # those with a request that waits or runs
    self._forget_above = 1000
    self._virtual = 0.0  # of the whole
    self._serial = itertools.count()
    self._inside = self._outside = 0

  def __len__(self) -> int:
    """Entries that wait, in the queue and before it."""
    return self._inside + self._outside

  @property
  def full(self) -> bool:
    return self._inside >= self.limit

  def submit(self, entry: Entry) -> None:
    tenant = self._tenant(entry.tenant, entry.submitted)
    if tenant.idle:
      tenant.virtual = max(tenant.virtual, self._virtual)
      self._active[tenant] = None
    if self.full:
      entry.state = "outside"
      tenant.outside.append(entry)
      self._outside += 1
    else:
      self._let_in(tenant, entry)

  def cancel(self, entry: Entry) -> None:
    """Takes a waiting entry out. Nothing happens to one that was taken."""
    tenant, state = self._tenants.get(entry.tenant), entry.state
    if tenant is None:
      return
    if state == "outside":
      tenant.outside.remove(entry)
      self._outside -= 1
    elif state == "inside":
      tenant.inside -= 1
      self._inside -= 1
    else:
      return
    entry.state = "cancelled"
    self._fill()
    self._settle(tenant)

  def take(self, now: float) -> Entry | None:
    """The entry that is next, its tenant charged. None if there is none that may run now."""
    waiting = [(t, head) for t in self._active if (head := t.head())]
    ready = [(t, head) for t, head in waiting if t.bucket.ready_at(now) <= now]
    if not ready:
      return None
    tenant, _ = min(ready, key=self._standing)
    _, _, entry = heapq.heappop(tenant.heap)
    entry.state, entry.charged_s = "taken", tenant.mean_s
    tenant.bucket.take()
    tenant.virtual += tenant.mean_s / tenant.policy.weight
    tenant.running += 1
    tenant.inside -= 1
    self._inside -= 1
    self._fill()
    return entry

  def finish(self, entry: Entry, seconds: float) -> None:
    """The run of a taken entry is over, after so many seconds in a sandbox."""
    tenant = self._tenants[entry.tenant]
    self._virtual += seconds / sum(t.policy.weight for t in self._active)
    tenant.running -= 1
    tenant.virtual += (seconds - entry.charged_s) / tenant.policy.weight
    tenant.mean_s += 0.2 * (seconds - tenant.mean_s)
    self._settle(tenant)

  def ready_at(self, now: float) -> float:
    """When `take` gives something if not now: as the next token comes; infinity if none waits."""
    waiting = (t for t in self._active if t.head())
    return min((t.bucket.ready_at(now) for t in waiting), default=math.inf)

  def _tenant(self, name: str, now: float) -> _Tenant:
    if name not in self._tenants:
      if len(self._tenants) >= self._forget_above:
        self._forget(now)
      policy = self.policies.get(name, self.default)
      self._tenants[name] = _Tenant(policy, Bucket(policy.rate, policy.burst, now))
    return self._tenants[name]

  def _forget(self, now: float) -> None:
    """Drops the tenants of whom nothing is to be remembered, for names are the caller's."""
    self._tenants = {
      name: t
      for name, t in self._tenants.items()
      if not (t.idle and t.virtual <= self._virtual and t.bucket.is_full(now))
    }
    self._forget_above = max(1000, 2 * len(self._tenants))

  def _settle(self, tenant: _Tenant) -> None:
    if tenant.idle:
      self._active.pop(tenant)

  def _standing(self, waiting: tuple[_Tenant, Entry]) -> tuple[float, float]:
    """The lowest is served. Among equals, whose request is the oldest."""
    tenant, head = waiting
    return tenant.virtual - head.priority * self.ageing_s, head.submitted

  def _let_in(self, tenant: _Tenant, entry: Entry) -> None:
    entry.state = "inside"
    key = entry.submitted - entry.priority * self.ageing_s
    heapq.heappush(tenant.heap, (key, next(self._serial), entry))
    tenant.inside += 1
    self._inside += 1

  def _fill(self) -> None:
    while self._outside and not self.full:
      tenant = min((t for t in self._active if t.outside), key=lambda t: t.inside)
      self._outside -= 1
      self._let_in(tenant, tenant.outside.popleft())
