"""In what order waiting requests of one priority are admitted.

A policy keeps the requests that wait and says which it would have next. It is told when the cache grows, so that the order is
exact at any length of the queue without looking at all of it.
"""
from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from ..radix_cache import Namespace
from ..radix_cache.slots import Ints
from .prefix_order import LongestPrefix, Peek, Shortest
from .request import Request


class Order(Protocol):
    """Who is next. `add` and `remove` as requests come and go; a request is in it once."""

    def add(self, request: Request) -> None: ...

    def remove(self, request: Request, *, admitted: bool) -> None: ...

    def best(self) -> Request | None: ...

    def best_of(self, some: Iterable[Request]) -> Request:
        """The one of `some` (at least one, all waiting) that would go first."""
        ...

    def grown(self, space: Namespace, ids: Ints, start: int) -> None:
        """The cache holds `ids` now; the first `start` of them it held before."""
        ...


class Arrival:
    """First come, first served."""

    def __init__(self, peek: Peek) -> None:
        self._line: OrderedDict[Request, None] = OrderedDict()

    def add(self, request: Request) -> None:
        self._line[request] = None

    def remove(self, request: Request, *, admitted: bool) -> None:
        del self._line[request]

    def best(self) -> Request | None:
        return next(iter(self._line), None)

    def best_of(self, some: Iterable[Request]) -> Request:
        return min(some, key=lambda r: r.turn)

    def grown(self, space: Namespace, ids: Ints, start: int) -> None:
        pass


class DepthFirst:
    """Along the tree of prompts, branch by branch: the next in the order of ids after the last admitted, round and round.

    It needs no cache to look at: whatever a branch shares is computed by the first of it, and the others follow while it is hot
    (arXiv 2312.07104, theorem 3.1: depth-first is optimal once everything waits)."""

    def __init__(self, peek: Peek) -> None:
        self._line: list[tuple[bytes, int, Request]] = []
        self._keys: dict[Request, bytes] = {}
        self._at = b""

    def add(self, request: Request) -> None:
        key = request.namespace.encoded() + request.ids.view.astype(">u4").tobytes()  # big-endian bytes sort as the ids do
        self._keys[request] = key
        insort(self._line, (key, request.turn, request), key=_place)

    def remove(self, request: Request, *, admitted: bool) -> None:
        key = self._keys.pop(request)
        del self._line[bisect_left(self._line, (key, request.turn), key=_place)]
        if admitted:
            self._at = key

    def best(self) -> Request | None:
        if not self._line:
            return None
        at = bisect_left(self._line, (self._at, 0), key=_place)
        return self._line[at % len(self._line)][2]

    def best_of(self, some: Iterable[Request]) -> Request:
        return min(some, key=lambda r: (self._keys[r] < self._at, self._keys[r], r.turn))

    def grown(self, space: Namespace, ids: Ints, start: int) -> None:
        pass


def _place(entry: tuple[Any, ...]) -> tuple[bytes, int]:
    return entry[0], entry[1]


POLICIES: dict[str, Callable[[Peek], Order]] = {
    "lpm": LongestPrefix,
    "fcfs": Arrival,
    "dfs": DepthFirst,
    "priority": Arrival,  # and a higher priority takes the place of a lower one that runs: runtime/scheduler.py
    "shortest": Shortest,
}
