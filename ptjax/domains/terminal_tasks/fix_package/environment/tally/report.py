"""Sums over entries, which are pairs of a person and a duration."""

from tally.times import minutes


def by_person(entries, totals={}):
  """Minutes of each person, in the order in which persons first appear."""
  for person, text in entries:
    totals[person] = totals.get(person, 0) + minutes(text)
  return totals


def overtime(entries, limit):
  """Persons with more than `limit`, a duration, in all, and their minutes beyond it."""
  allowed = minutes(limit)
  return {p: n - allowed for p, n in by_person(entries).items() if n >= allowed}
