"""Which leaf of the tree gives way first. A policy ranks leaves; `Leaves` keeps them in heaps, so that a choice costs O(log n).

lru    the one that was not used for the longest time
lfu    the one that was hit least often; among equals as lru
slru   segmented lru: what was never hit goes before what was, as long as the latter takes at most PROTECTED of the tree
cost-aware   (recompute cost x uses) / size, on a clock that rises with every eviction, so that past fame fades
       (GreedyDual-Size-Frequency, Cherkasova 1998)
"""
from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .tree import RadixNode

PROTECTED = 0.8  # slru: share of the tree's tokens up to which what was hit is spared
QUADRATIC = 4096  # cost: context at which attention costs a token as much as the weights do


class Lru:
    """The base of all policies: one segment, ranked by last use. The lowest rank goes first, among equals the one used least recently."""

    def rank(self, node: RadixNode) -> float:
        return node.last_used

    def segment(self, node: RadixNode) -> int:
        return 0

    def first_segment(self, hit_share: float) -> int:
        """The segment to take from. hit_share: of the tree's tokens, those in nodes that were hit."""
        return 0

    def note_evicted(self, rank: float) -> None:
        """A leaf of that rank goes."""


class Lfu(Lru):
    def rank(self, node: RadixNode) -> float:
        return node.hits


class Slru(Lru):
    def segment(self, node: RadixNode) -> int:
        return 1 if node.hits else 0

    def first_segment(self, hit_share: float) -> int:
        return 1 if hit_share > PROTECTED else 0


class Cost(Lru):
    def __init__(self) -> None:
        self._clock = 0.0

    def rank(self, node: RadixNode) -> float:
        middle = (node.start + node.stop) / 2
        return self._clock + (1 + node.hits) * (1 + middle / QUADRATIC)  # cost over size: that of one of the leaf's tokens

    def note_evicted(self, rank: float) -> None:
        self._clock = max(self._clock, rank)


POLICIES = {"lru": Lru, "lfu": Lfu, "slru": Slru, "cost-aware": Cost}


class Leaves:
    """The leaves that may be evicted. A node's last `offer` counts: older entries of it, marked by their ticket, are skipped."""

    def __init__(self, policy: Lru) -> None:
        self.policy = policy
        self.entries = 0  # those that will be skipped included
        self._heaps: tuple[list[_Entry], list[_Entry]] = ([], [])
        self._tickets = 0
        self._last: _Entry | None = None

    def offer(self, node: RadixNode) -> None:
        """`node` is evictable now, with the rank that it has now."""
        self._tickets = node.ticket = self._tickets + 1
        self.entries += 1
        heapq.heappush(self._heaps[self.policy.segment(node)], (self.policy.rank(node), node.last_used, node.ticket, node))

    def pop(self, hit_share: float) -> RadixNode | None:
        """Takes the leaf that goes first; None when there is none."""
        first = self.policy.first_segment(hit_share)
        for heap in (self._heaps[first], self._heaps[1 - first]):
            while heap:
                self.entries -= 1
                self._last = rank, _, ticket, node = heapq.heappop(heap)
                if ticket == node.ticket and not (node.refs or node.children) and node.parent is not None:
                    self.policy.note_evicted(rank)
                    return node
        return None

    def give_back(self, node: RadixNode) -> None:
        """The last one popped was taken in part: it stays the first of its segment."""
        assert self._last is not None and self._last[-1] is node
        self.entries += 1
        heapq.heappush(self._heaps[self.policy.segment(node)], self._last)

    def tidy(self) -> None:
        """Drops the entries that would be skipped."""
        for heap in self._heaps:
            heap[:] = [entry for entry in heap if entry[2] == entry[3].ticket and entry[3].evictable]
            heapq.heapify(heap)
        self.entries = sum(map(len, self._heaps))


_Entry = tuple[float, int, int, "RadixNode"]  # rank, last used, ticket
