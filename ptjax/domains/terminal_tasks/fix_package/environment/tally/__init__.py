"""Work hours: reading them and summing them up."""

from tally.report import by_person, overtime
from tally.times import minutes, shown
