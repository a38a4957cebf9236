"""Orders that depend on how much of each waiting request is cached, exact without looking at each again and again.

Requests whose cached parts are the same ids form a group. What one group has cached changes in two ways only:

    less   something was evicted. A group is looked up when its turn comes; if the tree has less by then, the whole group moves
           to the shorter prefix: its members agree on those ids.
    more   a path entered the tree. Whoever agrees with it beyond what it had so far was in the group of a prefix of that path,
           and waited for the path's next id: `grown` looks for such groups at each new depth of the path, by hashes.

So what a group is thought to have cached is never less than the truth, and the best is found by a heap that corrects its top.
"""
from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from itertools import count

import numpy as np
from numpy.typing import NDArray

from ..radix_cache import Namespace
from ..radix_cache.slots import Ints
from .request import Request

Peek = Callable[[Request], int]  # how many of a request's ids are cached now
Key = tuple[int, int]


class _Group:
    """Waiting requests that have the same `match` ids cached. `by_next`: the members by the id that they would need next."""

    __slots__ = ("space", "digest", "match", "by_next", "size", "heap", "offered")

    def __init__(self, space: Namespace, digest: int, match: int) -> None:
        self.space, self.digest, self.match = space, digest, match
        self.by_next: dict[int, set[Request]] = {}
        self.size = 0
        self.heap: list[tuple[Key, int, Request]] = []  # (order inside, tie, member), and some that left
        self.offered: Key | None = None  # its entry in the heap of groups


class LongestPrefix:
    """Longest cached prefix first (arXiv 2312.07104, section 3.2); equals in order of arrival."""

    def __init__(self, peek: Peek) -> None:
        self._peek = peek
        self._group_of: dict[Request, _Group] = {}
        self._groups: dict[Namespace, dict[int, _Group]] = {}  # by digest
        self._heap: list[tuple[Key, int, _Group]] = []
        self._tie = count()
        self._digests = _Digests()

    # what another order of this kind has in its place: keys are smaller for who goes first

    def _inside(self, request: Request) -> Key:
        """Order inside a group."""
        return request.turn, 0

    def _between(self, first: Request, match: int) -> Key:
        """Order of groups, by the first of each."""
        return -match, first.turn

    def add(self, request: Request) -> None:
        self._place(request, self._peek(request))

    def remove(self, request: Request, *, admitted: bool) -> None:
        self._leave(self._group_of.pop(request), request)

    def best(self) -> Request | None:
        while self._heap:
            key, _, group = self._heap[0]
            first = self._first(group) if key == group.offered else None
            if first is None:  # an entry that was replaced, or nobody left
                heapq.heappop(self._heap)
                continue
            now = self._between(first, group.match)
            if now != key:
                group.offered = now
                heapq.heapreplace(self._heap, (now, next(self._tie), group))
                continue
            true = self._peek(first)
            if true == group.match:
                return first
            if true < group.match:
                self._shrink(group, true)
            else:  # brought in by other means than a request
                self.remove(first, admitted=False)
                self._place(first, true)
        return None

    def best_of(self, some: Iterable[Request]) -> Request:
        return min(some, key=lambda r: self._between(r, self._peek(r)))

    def grown(self, space: Namespace, ids: Ints, start: int) -> None:
        """The cache holds `ids` now; the first `start` of them it held before."""
        groups = self._groups.get(space)
        if not groups or start >= len(ids):
            return
        digests = self._digests.of(ids)
        for digest in groups.keys() & digests[start:-1].tolist():
            group = groups[digest]
            if group.match < len(ids) and (woken := group.by_next.pop(int(ids[group.match]), None)):
                group.size -= len(woken)
                self._deepen(woken, group, ids, digests)
                self._drop_if_empty(group)

    def _deepen(self, woken: Iterable[Request], group: _Group, ids: Ints, digests: NDArray[np.uint64]) -> None:
        """Places requests that agree with `ids` on more than their group's prefix."""
        begin, guess = group.match, group.match
        for request in sorted(woken, key=lambda r: r.turn):
            own = request.ids.view
            limit = min(len(ids), request.match_limit)
            # most often as many as the one before: two comparisons of whole runs instead of a search
            if not (guess <= limit and (guess == limit or own[guess] != ids[guess]) and np.array_equal(own[begin:guess], ids[begin:guess])):
                differs = own[begin:limit] != ids[begin:limit]
                guess = begin + int(differs.argmax()) if differs.any() else limit
            self._enter(request, self._group(group.space, int(digests[guess]), guess))

    def _shrink(self, group: _Group, match: int) -> None:
        members = [request for some in group.by_next.values() for request in some]
        group.by_next, group.size, group.offered = {}, 0, None
        self._drop_if_empty(group)
        shorter = self._group(group.space, self._digests.at(members[0].ids.view, match), match)
        for request in members:
            self._enter(request, shorter)

    def _place(self, request: Request, match: int) -> None:
        self._enter(request, self._group(request.namespace, self._digests.at(request.ids.view, match), match))

    def _group(self, space: Namespace, digest: int, match: int) -> _Group:
        groups = self._groups.setdefault(space, {})
        group = groups.get(digest)
        if group is None:
            group = groups[digest] = _Group(space, digest, match)
        return group

    def _enter(self, request: Request, group: _Group) -> None:
        self._group_of[request] = group
        group.by_next.setdefault(request.ids[group.match], set()).add(request)
        group.size += 1
        heapq.heappush(group.heap, (self._inside(request), next(self._tie), request))
        if group.heap[0][2] is request:
            key = self._between(request, group.match)
            if group.offered is None or key < group.offered:
                group.offered = key
                heapq.heappush(self._heap, (key, next(self._tie), group))

    def _leave(self, group: _Group, request: Request) -> None:
        key = request.ids[group.match]
        group.by_next[key].remove(request)
        if not group.by_next[key]:
            del group.by_next[key]
        group.size -= 1
        self._drop_if_empty(group)

    def _drop_if_empty(self, group: _Group) -> None:
        if group.size:
            if len(group.heap) > 2 * group.size + 64:
                group.heap = [entry for entry in group.heap if self._group_of.get(entry[2]) is group]
                heapq.heapify(group.heap)
            return
        group.offered = None
        groups = self._groups[group.space]
        if groups.get(group.digest) is group:
            del groups[group.digest]
            if not groups:
                del self._groups[group.space]

    def _first(self, group: _Group) -> Request | None:
        while group.heap:
            request = group.heap[0][2]
            if self._group_of.get(request) is group:
                return request
            heapq.heappop(group.heap)
        return None


class Shortest(LongestPrefix):
    """Least to compute first: prompt without its cached part; equals in order of arrival."""

    def _inside(self, request: Request) -> Key:
        return len(request.ids), request.turn

    def _between(self, first: Request, match: int) -> Key:
        return len(first.ids) - match, first.turn


class _Digests:
    """Hashes of all prefixes of a run of ids at once: sums of ids times random numbers, one for each position.

    The numbers are drawn anew for each queue, so that nobody can aim at a collision; one would cost order, never an answer."""

    def __init__(self) -> None:
        self._random = np.random.default_rng()
        self._factors = np.empty(0, dtype=np.uint64)

    def of(self, ids: Ints) -> NDArray[np.uint64]:
        """(len(ids) + 1,): element n is the digest of ids[:n]."""
        sums = np.zeros(len(ids) + 1, dtype=np.uint64)
        np.cumsum(self._terms(ids), out=sums[1:])
        return sums

    def at(self, ids: Ints, length: int) -> int:
        """The digest of ids[:length]."""
        return int(self._terms(ids[:length]).sum(dtype=np.uint64)) if length else 0

    def _terms(self, ids: Ints) -> NDArray[np.uint64]:
        if len(self._factors) < len(ids):
            more = self._random.integers(1, 2**64 - 1, max(1024, 2 * len(ids)), dtype=np.uint64)
            more[: len(self._factors)] = self._factors
            self._factors = more
        return (ids.astype(np.uint64) + np.uint64(1)) * self._factors[: len(ids)]
