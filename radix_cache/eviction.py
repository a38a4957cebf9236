"""Which leaf of the tree gives way first. A policy ranks leaves; `Leaves` keeps them in heaps, so that a choice costs O(log n).

lru    the one that was not used for the longest time
lfu    the one that was hit least often; among equals as lru
slru   segmented lru: what was never hit goes before what was, as long as the latter takes at most PROTECTED of the tree
cost-aware   (recompute cost x uses) / size, on a clock that rises with every eviction, so that past fame fades
       (GreedyDual-Size-Frequency, Cherkasova 1998)
"""
from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .tree import RadixNode

PROTECTED = 0.8  # slru: share of the tree's tokens up to which what was hit is spared
QUADRATIC = 4096  # cost: context at which attention costs a token as much as the weights do

Rank = tuple[float, int]  # the lowest goes first; the second number is the time of the last use


class Lru:
    """The base of all policies: one segment, ranked by last use. The lowest rank goes first."""

    def rank(self, node: RadixNode) -> Rank:
        return 0.0, node.last_used

    def segment(self, node: RadixNode) -> int:
        return 0

    def first_segment(self, hit_share: float) -> int:
        """The segment to take from. hit_share: of the tree's tokens, those in nodes that were hit."""
        return 0

    def note_evicted(self, rank: Rank) -> None:
        """A leaf of that rank goes."""


class Lfu(Lru):
    def rank(self, node: RadixNode) -> Rank:
        return node.hits, node.last_used


class Slru(Lru):
    def segment(self, node: RadixNode) -> int:
        return 1 if node.hits else 0

    def first_segment(self, hit_share: float) -> int:
        return 1 if hit_share > PROTECTED else 0


class Cost(Lru):
    def __init__(self) -> None:
        self._clock = 0.0

    def rank(self, node: RadixNode) -> Rank:
        middle = (node.start + node.stop) / 2
        return self._clock + (1 + node.hits) * (1 + middle / QUADRATIC), node.last_used  # cost over size: that of one of the leaf's tokens

    def note_evicted(self, rank: Rank) -> None:
        self._clock = max(self._clock, rank[0])


POLICIES = {"lru": Lru, "lfu": Lfu, "slru": Slru, "cost-aware": Cost}


class Leaves:
    """The leaves that may be evicted. A node's last `offer` counts: older entries of it, marked by their ticket, are skipped."""

    def __init__(self, policy: Lru) -> None:
        self.policy = policy
        self._heaps: tuple[list[_Entry], list[_Entry]] = ([], [])
        self._tickets = count(1)

    def __len__(self) -> int:
        """Entries, those that will be skipped included."""
        return sum(map(len, self._heaps))

    def offer(self, node: RadixNode, rank: Rank | None = None) -> None:
        """`node` is evictable now, with the rank that it has now or the one it is given back with."""
        node.ticket = next(self._tickets)
        heapq.heappush(self._heaps[self.policy.segment(node)], (rank or self.policy.rank(node), node.ticket, node))

    def pop(self, hit_share: float) -> tuple[Rank, RadixNode] | None:
        """Takes the leaf that goes first; None when there is none."""
        first = self.policy.first_segment(hit_share)
        for heap in (self._heaps[first], self._heaps[1 - first]):
            while heap:
                rank, ticket, node = heapq.heappop(heap)
                if ticket == node.ticket and node.evictable:
                    self.policy.note_evicted(rank)
                    return rank, node
        return None

    def rebuild(self, nodes: Iterable[RadixNode]) -> None:
        """Drops the entries that would be skipped. nodes: all of the tree."""
        known = {node.ticket for node in nodes if node.evictable}
        for heap in self._heaps:
            heap[:] = [entry for entry in heap if entry[1] in known]
            heapq.heapify(heap)


_Entry = tuple[Rank, int, "RadixNode"]
