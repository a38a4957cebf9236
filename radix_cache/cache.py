"""The prefix cache: a radix tree and a slot allocator under one set of rules. The only code that frees slots.

Every slot of the pool is in exactly one hand:

    free          the allocator's stack
    in the tree   a node's `slots`: KV that any request with the same prefix may read
    private       the end of a lease: positions lease.shared.. of one running request

A request holds a `Lease` from admission to its end. Its prompt goes into the tree when it is *planned*, before it is
computed, so that another request planned for the same pass reads the slots that this pass writes.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from .explain import Explanation, Ghosts, explain
from .namespace import SHARED, Namespace
from .slots import CacheError, IntBuffer, Ints, SlotAllocator
from .tree import RadixNode, RadixTree


@dataclass(eq=False, slots=True)
class Lease:
    """One running request's hold on slots: position p of the request has its KV in slots[p].

    Positions below `shared` lie in the tree, on the path to `node`, and are locked; the rest are private."""

    node: RadixNode
    space: Namespace
    owner: str = ""  # for whom, in words: what `explain` names
    slots: IntBuffer = field(default_factory=IntBuffer)
    shared: int = 0

    @property
    def private(self) -> Ints:
        return self.slots.view[self.shared :]


class PrefixCache:
    """Matches, reserves and keeps slots for requests. Not thread-safe: the scheduler alone calls it.

    With enabled=False nothing is ever matched or kept; slots are still counted the same way."""

    def __init__(self, capacity: int, *, enabled: bool = True, eviction: str = "lru") -> None:
        self.allocator = SlotAllocator(capacity)
        self.tree = RadixTree(eviction)
        self.enabled = enabled
        self.evicted_tokens = 0
        self.saved_tokens = 0  # that requests did not compute, because they were here
        self.on_evict: Callable[[RadixNode, int], None] | None = None  # told of a leaf and how many of its last tokens go, before they do
        self._ghosts = Ghosts()
        self._leases: set[Lease] = set()

    @property
    def capacity(self) -> int:
        return self.allocator.capacity

    @property
    def free(self) -> int:
        return self.allocator.free_count

    @property
    def evictable(self) -> int:
        """Cached tokens that no lease protects."""
        return self.tree.size - self.tree.locked

    @property
    def available(self) -> int:
        """How many slots `reserve` could hand out now."""
        return self.free + self.evictable

    def peek(self, ids: Ints, space: Namespace = SHARED) -> int:
        """How many leading ids are cached; changes nothing."""
        return self.tree.peek(ids, space) if self.enabled else 0

    def explain(self, ids: Ints, space: Namespace = SHARED) -> Explanation:
        """Why as many of the ids are cached as are, and no more; changes nothing."""
        return explain(self.tree, self._ghosts, ids, space)

    def match_and_lock(self, ids: Ints, space: Namespace = SHARED, *, limit: int | None = None, owner: str = "") -> Lease:
        """A lease on the longest cached prefix of ids[:limit]; len(lease.slots) positions need no computing."""
        lease = Lease(self.tree.root(space), space, owner)
        self._leases.add(lease)
        self.extend_match(lease, ids, limit=limit)
        return lease

    def count_hit(self, lease: Lease, *, new: int = 0) -> None:
        """Notes that a request really ran on this prefix (statistics of the nodes on its path); `new` of it was computed for it."""
        self.tree.note_hit(lease.node)
        self.saved_tokens += lease.shared - new

    def extend_match(self, lease: Lease, ids: Ints, *, limit: int | None = None) -> int:
        """Takes up what others have put into the tree beyond the lease since; the number of new positions.

        Only while all of the lease is shared: a private position is followed by private ones."""
        start = len(lease.slots)
        wanted = ids[start : len(ids) if limit is None else limit]
        if not self.enabled or start != lease.shared or len(wanted) == 0:
            return 0
        self._stand(lease)
        node = self.tree.descend(lease.node, wanted)
        if node is lease.node:
            return 0
        lease.slots.extend(self.tree.lock(node, until=lease.node))
        lease.node, lease.shared = node, len(lease.slots)
        return len(lease.slots) - start

    def make_room(self, n: int, owner: str) -> None:
        """Evicts what `n` slots that are about to be reserved one by one need, in one go; nothing if there are not so many."""
        if self.free < n <= self.available:
            self._evict(n - self.free, owner)

    def reserve(self, lease: Lease, n: int) -> Ints | None:
        """n more private slots at the end of the lease, evicting if needed; None (and nothing changed) if there are not so many."""
        if n > self.available:
            return None
        if n > self.free:
            self._evict(n - self.free, lease.owner)
        slots = self.allocator.alloc(n)
        if slots is None:
            raise CacheError("eviction freed fewer slots than it counted")
        lease.slots.extend(slots)
        return slots

    def commit(self, lease: Lease, ids: Ints) -> RadixNode | None:
        """Puts the private positions below len(ids) into the tree, where the tree has nothing in their place.

        ids: the request's first tokens, at least lease.shared of them. Returns the new node, or None when nothing was put in: all was
        shared already, or another request got there first (then this one's copies stay private)."""
        stop = min(len(ids), len(lease.slots))
        if not self.enabled or stop <= lease.shared:
            return None
        self._stand(lease)
        if int(ids[lease.shared]) in lease.node.children:
            return None
        lease.node = self.tree.add_child(lease.node, ids[lease.shared : stop], lease.slots.view[lease.shared : stop])
        lease.shared = stop
        return lease.node

    def truncate(self, lease: Lease, length: int) -> None:
        """Gives up the positions from `length` on (ids taken back): private ones are freed, shared ones stay in the tree."""
        if length == len(lease.slots):
            return
        self.allocator.free(lease.slots.view[max(length, lease.shared) :].copy())
        if length < lease.shared:
            node = self.tree.ancestor(lease.node, length)
            self.tree.unlock(lease.node, until=node)
            lease.node, lease.shared = node, length
        lease.slots.truncate(length)

    def release(self, lease: Lease, ids: Ints, *, keep: int | None = None) -> None:
        """Ends the lease. Its first `keep` positions (default: all of them) stay in the tree under `ids`; the rest is freed."""
        keep = len(lease.slots) if keep is None else max(keep, lease.shared)
        self.truncate(lease, keep)
        if self.enabled and keep > lease.shared:
            self._merge_tail(lease, ids[:keep])
        elif len(lease.slots) > lease.shared:
            self.allocator.free(lease.private.copy())
        self.tree.unlock(lease.node)
        self._leases.remove(lease)

    def forget(self, node: RadixNode, start: int) -> None:
        """Removes positions `start`.. of an unlocked node's path: their KV was never written (the pass that should have, failed).

        `start` is where the node began when `commit` made it; splits since then have left its upper parts above it."""
        while node.parent is not None and node.parent.parent is not None and node.parent.start >= start:
            node = node.parent
        if node.parent is not None and node.refs == 0:
            self.allocator.free(self.tree.remove(node))

    def flush(self) -> bool:
        """Drops all cached KV; False, and nothing happens, while a lease is out."""
        if self._leases:
            return False
        self.allocator.free(self.tree.evict(self.tree.size))
        self._ghosts = Ghosts()
        return True

    def check(self) -> None:
        """Raises CacheError unless every slot is in exactly one hand and the tree is well formed."""
        refs: dict[int, int] = {}
        for lease in self._leases:
            path = lease.node.path()
            if path and not _same(np.concatenate([n.slots for n in path]), lease.slots.view[: lease.shared]):
                raise CacheError("a lease's shared slots differ from its path's")
            if sum(n.size for n in path) != lease.shared:
                raise CacheError("a lease's path has another length than it says")
            for node in path:
                refs[id(node)] = refs.get(id(node), 0) + 1
        self.tree.check()
        held = [lease.private for lease in self._leases]
        for node in self.tree.nodes():
            if node.refs != refs.get(id(node), 0):
                raise CacheError(f"a node has refs {node.refs}, {refs.get(id(node), 0)} leases go through it")
            held.append(node.slots)
        slots = np.sort(np.concatenate(held)) if held else np.empty(0, dtype=np.int32)
        if not _same(slots, self.allocator.taken()):
            raise CacheError("slots leaked, or are in two hands")
        if self.free + len(slots) != self.capacity:
            raise CacheError("free and taken slots do not add up to the pool")

    def _evict(self, n: int, owner: str) -> None:
        def notice(node: RadixNode, last: int) -> None:
            self._ghosts.note(node, last, owner)
            if self.on_evict is not None:
                self.on_evict(node, last)

        evicted = self.tree.evict(n, notice)
        self.evicted_tokens += n
        self.allocator.free(evicted)

    def _stand(self, lease: Lease) -> None:
        """A lease that stands on a root stands on the present one: an empty root may have been dropped meanwhile."""
        if lease.node.parent is None:
            lease.node = self.tree.root(lease.space)

    def _merge_tail(self, lease: Lease, ids: Ints) -> None:
        """Hands the private positions, all of those of `ids`, to the tree; copies of what it has already are freed."""
        self._stand(lease)
        node = self.tree.descend(lease.node, ids[lease.shared :])
        known = node.stop
        self.allocator.free(lease.private[: known - lease.shared].copy())
        self.tree.lock(node, until=lease.node)
        lease.node, lease.shared = node, known
        if known == len(ids):
            return
        lease.node = self.tree.add_child(node, ids[known:], lease.slots.view[known:])
        lease.shared = len(ids)


def _same(a: Ints, b: Ints) -> bool:
    return len(a) == len(b) and bool((a == b).all())
