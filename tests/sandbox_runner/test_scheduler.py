"""The order of waiting requests, on a clock that the tests move."""

import heapq
import itertools
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Iterable

import pytest

from sandbox_runner.scheduler import Entry, Scheduler, TenantPolicy


def simulate(
  scheduler: Scheduler, arrivals: Iterable[tuple[float, str, int, float]], places: int
) -> list[tuple[Entry, float]]:
  """Runs (time, tenant, priority, seconds) in so many places. Returns (entry, its start)."""
  serial = itertools.count()
  events = [(time, next(serial), what) for time, *what in arrivals]
  heapq.heapify(events)
  started = []
  while events:
    now, _, what = heapq.heappop(events)
    if isinstance(what, Entry):
      places += 1
      scheduler.finish(what, what.payload)
    elif what:
      tenant, priority, seconds = what
      scheduler.submit(Entry(tenant, priority, now, seconds))
    while places and (entry := scheduler.take(now)):
      places -= 1
      started.append((entry, now))
      heapq.heappush(events, (now + entry.payload, next(serial), entry))
    if places and now < scheduler.ready_at(now) < math.inf:
      heapq.heappush(events, (scheduler.ready_at(now), next(serial), None))
  return started


def waits(started: list[tuple[Entry, float]]) -> dict[str, float]:
  """Tenant -> mean wait of its requests."""
  found = defaultdict(list)
  for entry, time in started:
    found[entry.tenant].append(time - entry.submitted)
  return {tenant: statistics.mean(all_waits) for tenant, all_waits in found.items()}


def order(scheduler: Scheduler, entries: Iterable[Entry], now: float = 0.0) -> list[Entry]:
  """What is taken one after another, each run lasting a second."""
  for entry in entries:
    scheduler.submit(entry)
  found = []
  while entry := scheduler.take(now):
    found.append(entry)
    scheduler.finish(entry, 1.0)
  return found


def test_thousand_tasks_of_hundred_tenants_do_not_starve():
  chance = random.Random(0)
  arrivals = [(0.0, f"t{i // 10}", 0, chance.uniform(0.5, 1.5)) for i in range(1000)]
  started = simulate(Scheduler(), arrivals, places=2)
  assert len(started) == 1000
  every = waits(started)
  assert len(every) == 100
  # Submitted tenant by tenant, first come first served would make the last wait twice the median.
  assert max(every.values()) <= 1.3 * statistics.median(every.values())


@pytest.mark.parametrize("places", [1, 2, 8])
def test_flood_of_one_tenant_does_not_delay_the_others(places: int):
  """505 tasks of one tenant are there first, then five of each of 99 others."""
  arrivals = [(0.0, "flood", 0, 1.0)] * 505
  arrivals += [(0.0, f"t{i % 99}", 0, 1.0) for i in range(495)]
  started = simulate(Scheduler(), arrivals, places)
  every = waits(started)
  flood = every.pop("flood")
  assert max(every.values()) <= 3 * statistics.median(every.values())
  assert max(every.values()) < flood
  last_of_others = max(time for entry, time in started if entry.tenant != "flood")
  assert last_of_others <= 510 / places  # theirs, and a fair share of the flood's


def test_long_runs_cost_their_time():
  """Of two tenants that always want more, each gets half of the time, not half of the runs."""
  arrivals = [(0.0, "long", 0, 10.0)] * 200 + [(0.0, "short", 0, 0.1)] * 20_000
  started = simulate(Scheduler(limit=100_000), arrivals, places=4)
  used = defaultdict(float)
  for entry, time in started:
    used[entry.tenant] += entry.payload if time < 400 else 0
  assert used["long"] == pytest.approx(used["short"], rel=0.05)


def test_weight_is_a_share_of_the_time():
  scheduler = Scheduler({"heavy": TenantPolicy(weight=3)})
  started = simulate(scheduler, [(0.0, t, 0, 1.0) for t in ("heavy", "light") * 400], 2)
  first = [entry.tenant for entry, time in started if time < 100]
  assert first.count("heavy") == pytest.approx(3 * first.count("light"), abs=4)


def test_idling_saves_nothing_up():
  """A tenant that comes late shares from then on; it does not catch up on what it did not want."""
  arrivals = [(0.0, "early", 0, 1.0)] * 300 + [(100.0, "late", 0, 1.0)] * 100
  started = simulate(Scheduler(), arrivals, 1)
  then = [entry.tenant for entry, time in started if 100 <= time < 200]
  assert then.count("late") == pytest.approx(50, abs=2)


def test_priority_orders_within_a_tenant():
  entries = [Entry("t", p, 0.0, i) for i, p in enumerate((0, 2, 1, 2))]
  assert [e.payload for e in order(Scheduler(), entries)] == [1, 3, 2, 0]


def test_waiting_outweighs_priority():
  old = Entry("t", 0, 0.0)
  assert order(Scheduler(ageing_s=10), [Entry("t", 1, 9.0), old])[0].priority == 1
  assert order(Scheduler(ageing_s=10), [Entry("t", 1, 11.0), old])[0] is old


def test_priority_is_a_bounded_head_start_over_other_tenants():
  entries = [Entry(t, p, 0.0) for t, p in (("urgent", 1), ("plain", 0)) for _ in range(50)]
  tenants = [e.tenant for e in order(Scheduler(ageing_s=10), entries)]
  assert tenants[:10] == ["urgent"] * 10
  assert tenants[12:52].count("plain") == pytest.approx(20, abs=1)


def test_low_priority_does_not_starve_under_overload():
  """More of high priority comes than can ever be served, of the same tenant and of another."""
  arrivals = [(t / 2, "mine", 5, 1.0) for t in range(2000)]
  arrivals += [(t / 2, "theirs", 5, 1.0) for t in range(2000)]
  arrivals += [(100.0, "mine", 0, 1.0), (100.0, "quiet", 0, 1.0)]
  started = simulate(Scheduler(ageing_s=10), arrivals, places=1)
  low = {e.tenant: time - 100 for e, time in started if e.priority == 0}
  assert low["quiet"] <= 2 * 50 + 5
  # Before it: what of its tenant was there and what came for 50 s, less the 50 that were done, at
  # one in two seconds; then the other tenant's head start.
  assert low["mine"] <= 2 * (200 + 100 - 50) + 50 + 5


def test_endless_newcomers_do_not_starve_who_is_there():
  arrivals = [(0.0, "there", 0, 1.0)] * 20 + [(t, f"new{t}", 0, 1.0) for t in range(1000)]
  started = simulate(Scheduler(), arrivals, places=1)
  # One more newcomer waits after each of its 20 turns: 1 + 2 + ... + 20 turns of theirs, about.
  assert max(time for entry, time in started if entry.tenant == "there") <= 300


def test_tokens_bound_the_rate():
  scheduler = Scheduler({"slow": TenantPolicy(rate=2, burst=5)})
  arrivals = [(0.0, "slow", 0, 0.01)] * 25 + [(0.0, "fast", 0, 0.01)] * 25
  started = simulate(scheduler, arrivals, places=50)
  times = [time for entry, time in started if entry.tenant == "slow"]
  assert times == pytest.approx([0.0] * 5 + [0.5 * (i + 1) for i in range(20)])
  assert {time for entry, time in started if entry.tenant == "fast"} == {0.0}


def test_burst_is_kept_while_quiet_and_no_more():
  scheduler = Scheduler(default=TenantPolicy(rate=1, burst=3))
  started = simulate(scheduler, [(t, "t", 0, 0.0) for t in [0.0] * 3 + [100.0] * 5], 9)
  assert [time for _, time in started] == pytest.approx([0, 0, 0, 100, 100, 100, 101, 102])


def test_ready_at_is_when_the_next_token_comes():
  scheduler = Scheduler(default=TenantPolicy(rate=0.25))
  assert scheduler.ready_at(7.0) == math.inf
  order(scheduler, [Entry("t", 0, 7.0), Entry("t", 0, 7.0)], now=7.0)
  assert scheduler.take(10.9) is None
  assert scheduler.ready_at(10.9) == pytest.approx(11.0)
  assert scheduler.take(scheduler.ready_at(10.9))


def test_full_queue_lets_in_whom_has_least_in_it():
  scheduler = Scheduler(limit=3)
  flood = [Entry("flood", 0, 0.0, i) for i in range(6)]
  for entry in flood:
    scheduler.submit(entry)
  assert scheduler.full
  small = Entry("small", 0, 0.0)
  scheduler.submit(small)
  assert (len(scheduler), small.state) == (7, "outside")
  assert scheduler.take(0.0) is flood[0]
  assert small.state == "inside"
  assert [e.state for e in flood[3:]] == ["outside"] * 3
  assert scheduler.take(0.0) is small
  assert len(order(scheduler, [])) == 5
  assert (len(scheduler), scheduler.full) == (0, False)


def test_cancelled_entries_are_never_taken():
  scheduler = Scheduler(limit=2)
  entries = [Entry("t", 0, 0.0, i) for i in range(5)]
  for entry in entries:
    scheduler.submit(entry)
  scheduler.cancel(entries[0])
  assert [e.state for e in entries] == ["cancelled", "inside", "inside", "outside", "outside"]
  scheduler.cancel(entries[4])
  scheduler.cancel(entries[4])
  assert len(scheduler) == 3
  assert [e.payload for e in order(scheduler, [])] == [1, 2, 3]
  scheduler.cancel(entries[1])  # taken
  assert len(scheduler) == 0
  assert scheduler.take(0.0) is None


def test_idle_tenants_are_forgotten():
  scheduler = Scheduler()
  for i in range(5000):
    order(scheduler, [Entry(f"t{i}", 0, 0.0)])
  assert len(scheduler._tenants) <= 2000


def test_cancelled_entries_do_not_pile_up_behind_one_that_waits():
  scheduler = Scheduler(default=TenantPolicy(rate=1e-6))
  order(scheduler, [Entry("t", 0, 0.0)])  # takes the only token
  order(scheduler, [Entry("t", 1, 0.0)])
  for _ in range(100):
    entry = Entry("t", 0, 0.0)
    order(scheduler, [entry])
    scheduler.cancel(entry)
  assert len(scheduler) == 1
  assert len(scheduler._tenants["t"].heap) <= 20


@pytest.mark.parametrize("bad", [{"weight": 0}, {"weight": math.inf}, {"rate": 0}, {"burst": 0}])
def test_bad_policy(bad: dict):
  with pytest.raises(ValueError, match=next(iter(bad))):
    TenantPolicy(**bad)
