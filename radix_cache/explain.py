"""Why a prompt hits as much as it does: where it leaves the tree, what lies there instead, and what was there and had to go."""
from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

import numpy as np

from .namespace import Namespace
from .slots import Ints
from .tree import WIDTH, RadixNode, RadixTree, Root, as_bytes

MOST_TOKENS = 262_144  # that the ledger of evictions remembers
SHOWN = 8  # ids of a way not taken


@dataclass(frozen=True, slots=True)
class Eviction:
    """Positions start..stop-1 of the prompt were here, and went."""

    start: int
    stop: int
    owner: str  # the request that needed the room
    seconds_ago: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the tree knows of a prompt of `tokens` ids: the first `cached` are there, reached through `nodes` nodes.

    asked: the ids that come next in the prompt; instead: those that the tree has in their place, one way a branch (both cut at SHOWN).
    inside_node: the prompt leaves in the middle of a run that others share whole. hits: of the last node on the way."""

    tokens: int
    cached: int
    nodes: int
    hits: int
    inside_node: bool
    asked: tuple[int, ...]
    instead: tuple[tuple[int, ...], ...]
    branches: int  # how many ways the tree knows there; `instead` shows SHOWN of them, the last used first
    evicted: tuple[Eviction, ...]

    def __str__(self) -> str:
        text = f"{self.cached} of {self.tokens} tokens are cached, over {self.nodes} nodes (the last was hit {self.hits} times)"
        if self.cached == self.tokens:
            return text + "."
        if self.instead:
            text += f"; the prompt goes on with {list(self.asked)}, the tree with " + " or ".join(str(list(way)) for way in self.instead)
        elif not self.cached:
            text += "; nothing begins so in this namespace"
        else:
            text += f"; the tree ends there, the prompt goes on with {list(self.asked)}"
        for gone in self.evicted:
            text += f"; positions {gone.start} to {gone.stop - 1} were evicted {gone.seconds_ago:.1f} s ago for {gone.owner or 'another request'}"
        return text + "."


class Ghosts:
    """A ledger of what was evicted, of MOST_TOKENS tokens at most. Writing is quick, since evictions happen inside steps; `find` searches."""

    def __init__(self) -> None:
        self._entries: deque[_Ghost] = deque()  # oldest first
        self._tokens = 0

    def note(self, node: RadixNode, last: int, owner: str) -> None:
        """The last `last` tokens of `node` go, for `owner`."""
        kept = len(node.run) - last * WIDTH
        run, above, top = node.run[kept:], [node.run[:kept]], node
        while top.parent is not None:
            top = top.parent
            above.append(top.run)
        assert isinstance(top, Root)
        self._entries.append((top.space, above, run, owner, time.monotonic()))
        self._tokens += last
        while self._tokens > MOST_TOKENS:
            self._tokens -= len(self._entries.popleft()[2]) // WIDTH

    def find(self, space: Namespace, data: bytes, depth: int) -> tuple[Eviction, ...]:
        """What of the ids in `data` hung on their first `depth`, and on that in turn."""
        found, now = [], time.monotonic()
        while depth * WIDTH < len(data) and (ghost := self._latest(space, data, depth * WIDTH)):
            run, owner, when = ghost
            same = _same_ids(run, data[depth * WIDTH :])
            found.append(Eviction(depth, depth + same, owner, now - when))
            depth += same
            if same * WIDTH < len(run):
                break
        return tuple(found)

    def _latest(self, space: Namespace, data: bytes, cut: int) -> tuple[bytes, str, float] | None:
        path, next_id = data[:cut], data[cut : cut + WIDTH]
        for where, above, run, owner, when in reversed(self._entries):
            if run.startswith(next_id) and where == space and b"".join(reversed(above)) == path:
                return run, owner, when
        return None


_Ghost = tuple[Namespace, list[bytes], bytes, str, float]  # where; the runs that it hung on, from below; its own run; for whom; when


def explain(tree: RadixTree, ghosts: Ghosts, ids: Ints, space: Namespace) -> Explanation:
    data = as_bytes(ids)
    root = tree.roots.get(space)
    if root is None:
        return Explanation(len(ids), 0, 0, 0, False, _first(ids), (), 0, ghosts.find(space, data, 0))
    node, cached = tree.locate(root, ids)
    inside = cached < node.stop
    if inside:
        ways = [node.key[cached - node.start :]]
    else:
        ways = [child.key for child in sorted(node.children.values(), key=lambda child: -child.last_used)]
    return Explanation(
        tokens=len(ids),
        cached=cached,
        nodes=len(node.path()),
        hits=node.hits,
        inside_node=inside,
        asked=_first(ids[cached:]),
        instead=tuple(_first(way) for way in ways[:SHOWN]) if cached < len(ids) else (),
        branches=len(ways),
        evicted=ghosts.find(space, data, cached),
    )


def _first(ids: Ints) -> tuple[int, ...]:
    return tuple(int(i) for i in ids[:SHOWN])


def _same_ids(a: bytes, b: bytes) -> int:
    n = min(len(a), len(b)) // WIDTH
    differs = np.frombuffer(a, np.int32, n) != np.frombuffer(b, np.int32, n)
    return int(differs.argmax()) if differs.any() else n
