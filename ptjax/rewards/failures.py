"""Why an answer has no score. A failure is typed and never becomes a number."""


class ScoringFailure(Exception):
  """An answer could not be scored; the sample is dropped and counted, not scored 0."""


class InfraFailure(ScoringFailure):
  """The machinery failed (a lost sandbox, a judge that did not answer); a retry may work."""


class Unscorable(ScoringFailure):
  """The grader has no verdict on this answer."""


class InvalidScore(Unscorable):
  """The grader is at fault: its score is no number, not finite or out of range."""
