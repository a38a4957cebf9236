"""Orders that depend on how much of each waiting request is cached, exact without looking at each again and again.

Requests that wait are kept in a radix tree of their own ids. Its nodes know whether the cache holds them, so a request has as
many ids cached as its deepest such node is deep, and what enters the cache is noted for thousands of requests by walking one path.

        root ─ prefix ─┬─ · · ·  branches that nobody computed: their requests are candidates of `prefix`
         (cached)      └─ more   cached too: its requests are its own candidates, deeper, and go first

What is evicted is found when its turn comes: a node is never thought to hold less than it does, and before a candidate goes it is looked up.
"""
from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from itertools import count

from ..radix_cache import Namespace
from ..radix_cache.slots import Ints
from .request import Request

Peek = Callable[[Request], int]  # how many of a request's ids are cached now
Key = tuple[int, int]  # smaller goes first


class _Node:
    """A run of ids of waiting requests. Its candidates are the requests that end here or below, but not in or below a cached child."""

    __slots__ = ("run", "depth", "parent", "children", "cached", "ends", "heap", "top")

    def __init__(self, run: Ints, parent: _Node | None, *, cached: bool) -> None:
        self.run, self.parent, self.cached = run, parent, cached
        self.depth: int = (parent.depth if parent else 0) + len(run)
        self.children: dict[int, _Node] = {}
        self.ends = 0  # requests that end here
        self.heap: list[tuple[Key, int, _Node | Request]] = []  # candidates that end here, and the first of each child; some outdated
        self.top: tuple[Key, Request] | None = None  # the first candidate


class LongestPrefix:
    """Longest cached prefix first (arXiv 2312.07104, section 3.2); equals in order of arrival."""

    def __init__(self, peek: Peek) -> None:
        self._peek = peek
        self._roots: dict[Namespace, _Node] = {}
        self._end: dict[Request, _Node] = {}
        self._heap: list[tuple[Key, int, _Node]] = []  # cached nodes by their first candidates; some entries outdated
        self._tie = count()

    # what another order of this kind has in its place

    def _inside(self, request: Request) -> Key:
        """Order of requests that have equally much cached."""
        return request.turn, 0

    def _between(self, first: Request, match: int) -> Key:
        """Order of nodes, by the first of each."""
        return -match, first.turn

    def add(self, request: Request) -> None:
        ids, limit = request.ids.view, request.match_limit
        root = self._roots.setdefault(request.namespace, _Node(ids[:0], None, cached=True))
        node = self._descend(root, ids[:limit])
        if node.depth < limit:
            child = node.children[int(ids[node.depth])] = _Node(ids[node.depth : limit], node, cached=False)
            node = child
        node.ends += 1
        self._end[request] = node
        heapq.heappush(node.heap, (self._inside(request), next(self._tie), request))
        self._update(node)
        self._mark(root, ids[: self._peek(request)])

    def remove(self, request: Request, *, admitted: bool) -> None:
        node = self._end.pop(request)
        node.ends -= 1
        self._update(node)
        while not node.ends and not node.children:
            parent = node.parent
            if parent is None:
                del self._roots[request.namespace]
                break
            del parent.children[int(node.run[0])]
            node.parent = None
            node = parent
        if len(self._heap) > 64 + 8 * len(self._end):
            self._heap = [entry for entry in self._heap if self._valid(entry[0], entry[2])]
            heapq.heapify(self._heap)

    def best(self) -> Request | None:
        while self._heap:
            key, _, node = self._heap[0]
            if not self._valid(key, node):
                heapq.heappop(self._heap)
                continue
            assert node.top is not None
            request = node.top[1]
            true = self._peek(request)
            if true == node.depth:
                return request
            if true < node.depth:
                self._unmark(node, true)
            else:  # brought in by other means than a request
                self._mark(self._roots[request.namespace], request.ids.view[:true])
        return None

    def best_of(self, some: Iterable[Request]) -> Request:
        return min(some, key=lambda r: self._between(r, self._peek(r)))

    def grown(self, space: Namespace, ids: Ints, start: int) -> None:
        """The cache holds `ids` now; the first `start` of them it held before."""
        if (root := self._roots.get(space)) is not None:
            self._mark(root, ids)

    # ---- what is cached ---------------------------------------------------------------------------------------------

    def _mark(self, root: _Node, ids: Ints) -> None:
        """Notes that the cache holds `ids`, as far as anybody waits for them."""
        node = self._descend(root, ids)
        fresh: list[_Node] = []
        while not node.cached and node.parent is not None:
            fresh.append(node)
            node = node.parent
        for node in reversed(fresh):
            node.cached = True
            assert node.parent is not None
            self._update(node.parent)  # whose candidates these are no more
            self._offer(node)

    def _unmark(self, node: _Node, depth: int) -> None:
        """Notes that the cache holds the path to `node` only as far as `depth`, and so nothing below."""
        while node.parent is not None and node.parent.depth > depth:
            node = node.parent
        if node.depth - len(node.run) < depth:
            self._split(node, depth - node.depth + len(node.run))
        below = [node]
        for gone in below:
            gone.cached = False
            below.extend(child for child in gone.children.values() if child.cached)
        for gone in reversed(below):
            self._update(gone)
            if gone.top is not None and gone.parent is not None:
                heapq.heappush(gone.parent.heap, (gone.top[0], next(self._tie), gone))
                self._update(gone.parent)

    # ---- the tree ---------------------------------------------------------------------------------------------------

    def _descend(self, node: _Node, ids: Ints) -> _Node:
        """The deepest node whose path spells a prefix of `ids`, split to fit exactly."""
        while node.depth < len(ids):
            child = node.children.get(int(ids[node.depth]))
            if child is None:
                break
            same = _common(child.run, ids[node.depth :])
            if same < len(child.run):
                return self._split(child, same)
            node = child
        return node

    def _split(self, node: _Node, at: int) -> _Node:
        """Cuts a node after `at` ids; the new upper part comes back."""
        parent = node.parent
        assert parent is not None
        upper = _Node(node.run[:at], parent, cached=node.cached)
        parent.children[int(node.run[0])] = upper
        node.run, node.parent = node.run[at:], upper
        upper.children[int(node.run[0])] = node
        if not node.cached and node.top is not None:
            upper.heap = [(node.top[0], next(self._tie), node)]
            upper.top = node.top
            heapq.heappush(parent.heap, (node.top[0], next(self._tie), upper))
        return upper

    def _update(self, node: _Node) -> None:
        """Finds a node's first candidate anew, and tells whoever counts on it, upwards."""
        while True:
            heap = node.heap
            while heap and not self._counts(node, heap[0][0], heap[0][2]):
                heapq.heappop(heap)
            if len(heap) > 64 + 4 * (len(node.children) + node.ends):
                node.heap = heap = [entry for entry in heap if self._counts(node, entry[0], entry[2])]
                heapq.heapify(heap)
            best = heap[0][2] if heap else None
            top = None if best is None else (heap[0][0], best.top[1] if isinstance(best, _Node) and best.top else best)
            if top == node.top:
                return
            node.top = top  # type: ignore[assignment]
            if node.cached:
                self._offer(node)
                return
            if node.parent is None:
                return
            if top is not None:
                heapq.heappush(node.parent.heap, (top[0], next(self._tie), node))
            node = node.parent

    def _counts(self, node: _Node, key: Key, entry: _Node | Request) -> bool:
        """True if an entry of the node's heap is not outdated."""
        if isinstance(entry, Request):
            return self._end.get(entry) is node
        return entry.parent is node and not entry.cached and entry.top is not None and entry.top[0] == key

    def _offer(self, node: _Node) -> None:
        if node.top is not None:
            heapq.heappush(self._heap, (self._between(node.top[1], node.depth), next(self._tie), node))

    def _valid(self, key: Key, node: _Node) -> bool:
        """True if an entry of the heap of cached nodes is not outdated."""
        return node.cached and node.top is not None and key == self._between(node.top[1], node.depth)


class Shortest(LongestPrefix):
    """Least to compute first: prompt without its cached part; equals in order of arrival."""

    def _inside(self, request: Request) -> Key:
        return len(request.ids), request.turn

    def _between(self, first: Request, match: int) -> Key:
        return len(first.ids) - match, first.turn


def _common(a: Ints, b: Ints) -> int:
    """Length of the common prefix."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    first = int(differs.argmax()) if n else 0
    return first if n and differs[first] else n
