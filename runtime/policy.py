"""In what order waiting requests are admitted.

A policy is a sort key inside each priority. Whatever it prefers, a request that has been overtaken as often as it may be
(`Request.overtaken_until`, counted in admissions) goes first, so that none waits for ever.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable

from .request import Request

Peek = Callable[[Request], int]  # how many of a request's ids are cached now
Order = Callable[[Iterable[Request], Peek, int], list[Request]]


def fcfs(waiting: Iterable[Request], peek: Peek, admissions: int) -> list[Request]:
    """First come, first served."""
    return sorted(waiting, key=lambda r: (-r.source.priority, r.arrival))


def lpm(waiting: Iterable[Request], peek: Peek, admissions: int) -> list[Request]:
    """Longest prefix match first (arXiv 2312.07104, section 3); equals in order of arrival."""

    def key(r: Request) -> tuple[int, bool, int, float]:
        overdue = admissions >= r.overtaken_until
        return -r.source.priority, not overdue, 0 if overdue else -peek(r), r.arrival

    return sorted(waiting, key=key)


POLICIES: dict[str, Order] = {"lpm": lpm, "fcfs": fcfs}
