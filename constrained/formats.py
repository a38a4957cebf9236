"""The string formats that are enforced, as terms."""
from __future__ import annotations

from functools import lru_cache

from .grammar import Term
from .regex import from_regex

_SOURCES = {"date": r"\d{4}-\d\d-\d\d"}
EXACT = frozenset(("date",))


@lru_cache
def term(name: str) -> Term | None:
    """The strings of a format; None if it is not known."""
    source = _SOURCES.get(name)
    return None if source is None else from_regex(source)
