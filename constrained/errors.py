"""What a constraint may answer instead of a grammar."""
from __future__ import annotations


class GrammarError(Exception):
    """A regex, schema or grammar that does not parse, cannot be enforced exactly, has no document, or passes a limit.

    The message says what and where; `place` is the where alone: a JSON pointer into a schema, a position in a regex,
    the name of a rule, or empty."""

    def __init__(self, message: str, *, place: str = "") -> None:
        super().__init__(message)
        self.place = place


class LimitError(GrammarError):
    """The constraint is well formed but passes a limit on states, memory or time."""
