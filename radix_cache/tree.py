"""A radix tree over token ids whose nodes hold KV slots (RadixAttention, arXiv 2312.07104, section 3).

The tree knows nothing of requests, memory or devices: it matches, inserts, splits and evicts. Every edge is a run of
ids; a node's slots are where the KV of that run lies. `refs` counts the leases whose path goes through a node.

Ids and slots are held as bytes of int32: comparing a run is one memcmp, a node's memory is its own (no views into arrays
that live on), and a node costs about 500 bytes plus 8 for each of its tokens (benchmarks/tree_ops.py counts them).
"""
from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import count

import numpy as np

from .eviction import POLICIES, Leaves
from .namespace import SHARED, Namespace
from .slots import CacheError, Ints

WIDTH = 4  # bytes of an id or a slot
_INT32 = np.dtype(np.int32)


class RadixNode:
    """A run of ids below its parent. `stop` is the depth in tokens of its end; depth of its start is parent.stop."""

    __slots__ = ("run", "places", "parent", "children", "refs", "last_used", "hits", "stop", "ticket")

    def __init__(self, run: bytes, places: bytes, parent: RadixNode | None, last_used: int) -> None:
        self.run, self.places, self.parent = run, places, parent
        self.children: dict[int, RadixNode] = {}
        self.refs = 0
        self.last_used = last_used
        self.hits = 0
        self.stop: int = (parent.stop if parent else 0) + len(run) // WIDTH
        self.ticket = 0  # of its entry among the leaves that may be evicted

    @property
    def key(self) -> Ints:
        """The ids of the run; not to be written."""
        return np.frombuffer(self.run, dtype=np.int32)

    @property
    def slots(self) -> Ints:
        """Where their KV lies; not to be written."""
        return np.frombuffer(self.places, dtype=np.int32)

    @property
    def size(self) -> int:
        """Tokens of the run."""
        return len(self.run) // WIDTH

    @property
    def start(self) -> int:
        return self.stop - len(self.run) // WIDTH

    @property
    def evictable(self) -> bool:
        return self.refs == 0 and not self.children and self.parent is not None

    def path(self) -> list[RadixNode]:
        """The nodes from below the root to this one."""
        nodes: list[RadixNode] = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes


class Root(RadixNode):
    """The empty run that all prompts of one namespace begin with."""

    __slots__ = ("space",)

    def __init__(self, space: Namespace) -> None:
        super().__init__(b"", b"", None, 0)
        self.space = space


def space_of(node: RadixNode) -> Namespace:
    while node.parent is not None:
        node = node.parent
    assert isinstance(node, Root)
    return node.space


def as_bytes(ids: Ints) -> bytes:
    return (ids if ids.dtype is _INT32 else ids.astype(np.int32)).tobytes()


class RadixTree:
    """One root for each namespace, so that requests of different ones never meet.

    `size` is the number of tokens in the tree, `locked` of those in nodes with refs, `hit` of those in nodes that were hit."""

    def __init__(self, policy: str = "lru") -> None:
        if policy not in POLICIES:
            raise ValueError(f"eviction policy {policy!r}: choose one of {', '.join(POLICIES)}")
        self.roots: dict[Namespace, Root] = {}
        self.size = 0
        self.locked = 0
        self.hit = 0
        self.node_count = 0
        self._clock = count(1)
        self._leaves = Leaves(POLICIES[policy]())

    def root(self, space: Namespace = SHARED) -> RadixNode:
        root = self.roots.get(space)
        if root is None:
            root = self.roots[space] = Root(space)
        return root

    def peek(self, ids: Ints, space: Namespace = SHARED) -> int:
        """Number of leading ids that the tree holds; changes nothing."""
        root = self.roots.get(space)
        return 0 if root is None else self.locate(root, ids)[1]

    def locate(self, node: RadixNode, ids: Ints) -> tuple[RadixNode, int]:
        """How far below `node` the tree holds `ids` (the ids after node.stop): the last node entered, and how many of the ids match.

        The match may end inside that node, or at its end. Changes nothing."""
        data = as_bytes(ids)
        view, at, n = memoryview(data).cast("i"), 0, len(ids)  # reads single ids faster than an array does
        while at < n:
            child = node.children.get(view[at])
            if child is None:
                break
            node = child
            if not data.startswith(child.run, at * WIDTH):
                return node, at + _common(child.run, data, at)
            at += len(child.run) // WIDTH
        return node, at

    def descend(self, node: RadixNode, ids: Ints) -> RadixNode:
        """The deepest node below `node` whose path spells a prefix of `ids` (ids after node.stop), split to fit exactly."""
        base = node.stop
        found, matched = self.locate(node, ids)
        return found if found.stop == base + matched else self._split(found, base + matched - found.start)

    def ancestor(self, node: RadixNode, depth: int) -> RadixNode:
        """The node on the path to `node` that ends after `depth` ids, made by a split if there is none. depth < node.stop."""
        while node.start >= depth and node.parent is not None:
            node = node.parent
        return node if node.stop == depth else self._split(node, depth - node.start)

    def add_child(self, parent: RadixNode, key: Ints, slots: Ints) -> RadixNode:
        """A new leaf, locked once; `parent` has no child that starts with key[0], and is locked or a root. Arrays are copied."""
        node = RadixNode(as_bytes(key), as_bytes(slots), parent, next(self._clock))
        node.refs = 1
        parent.children[_first(node.run)] = node
        n = len(key)
        self.size += n
        self.locked += n
        self.node_count += 1
        return node

    def note_hit(self, node: RadixNode) -> None:
        """Counts a hit of the path to `node`."""
        while node.parent is not None:
            if node.hits == 0:
                self.hit += node.size
            node.hits += 1
            node = node.parent

    def lock(self, node: RadixNode, until: RadixNode | None = None) -> Ints:
        """refs + 1 on the path from `node` up to, without, `until` (or the root); marks it as used now. The slots of that part."""
        now, places = next(self._clock), []
        while node is not until and (parent := node.parent) is not None:
            if node.refs == 0:
                self.locked += len(node.run) // WIDTH
            node.refs += 1
            node.last_used = now
            places.append(node.places)
            node = parent
        places.reverse()
        return np.frombuffer(b"".join(places), dtype=np.int32)

    def unlock(self, node: RadixNode, until: RadixNode | None = None) -> None:
        """refs - 1 on the path from `node` up to, without, `until` (or the root); what nobody holds may be evicted from now on."""
        now = next(self._clock)
        while node is not until and (parent := node.parent) is not None:
            node.refs -= 1
            node.last_used = now
            if node.refs == 0:
                self.locked -= len(node.run) // WIDTH
                if not node.children:
                    self._offer(node)
            node = parent

    def evict(self, wanted: int, notice: Callable[[RadixNode, int], None] | None = None) -> Ints:
        """Slots of unlocked leaves in the policy's order, `wanted` of them or all there are.

        Only the end of the last leaf is taken where the whole is not needed. `notice` is told of every leaf and how many of its last
        tokens go, just before they do."""
        taken: list[bytes] = []
        while wanted > 0 and (node := self._leaves.pop(self.hit / self.size if self.size else 0.0)) is not None:
            size = len(node.run) // WIDTH
            n = min(wanted, size)
            if notice is not None:
                notice(node, n)
            taken.append(node.places[(size - n) * WIDTH :])
            wanted -= n
            self.size -= n
            self.hit -= n if node.hits else 0
            if n < size:  # a part is left: it stays first in the row
                self._shorten(node, n)
                self._leaves.give_back(node)
            else:
                self.node_count -= 1
                self._detach(node)
        return np.frombuffer(b"".join(taken), dtype=np.int32)

    def remove(self, node: RadixNode) -> Ints:
        """Cuts an unlocked node with all below it out of the tree; its slots come back."""
        below = self._subtree(node)
        freed = b"".join(n.places for n in below)
        self.size -= len(freed) // WIDTH
        self.hit -= sum(n.size for n in below if n.hits)
        self.node_count -= len(below)
        for gone in below:
            gone.children = {}
        self._detach(node)
        for gone in below:
            gone.parent = None  # or it would be taken for a leaf that can be evicted
        return np.frombuffer(freed, dtype=np.int32)

    def nodes(self) -> Iterator[RadixNode]:
        """All nodes but the roots, parents before their children."""
        for root in self.roots.values():
            for child in root.children.values():
                yield from self._subtree(child)

    def check(self) -> None:
        """Raises CacheError unless the tree is well formed and its counters are right."""
        size = locked = hit = count_ = 0
        for node in self.nodes():
            parent = node.parent
            if parent is None or parent.children.get(int(node.key[0])) is not node:
                raise CacheError("a node's parent does not know it")
            if not 0 < len(node.run) == len(node.places) or node.stop != parent.stop + node.size:
                raise CacheError("a node's key, slots and depth do not fit")
            size, count_ = size + node.size, count_ + 1
            locked += node.size if node.refs else 0
            hit += node.size if node.hits else 0
        if (size, locked, hit, count_) != (self.size, self.locked, self.hit, self.node_count):
            raise CacheError("the tree's counters are wrong")

    def _subtree(self, node: RadixNode) -> list[RadixNode]:
        found = [node]
        for seen in found:
            found.extend(seen.children.values())
        return found

    def _split(self, node: RadixNode, at: int) -> RadixNode:
        """Cuts `node` after `at` ids; the new upper part comes back, with the same locks. `node` stays the lower part,
        so that leases which hold it keep their whole path."""
        parent, cut = node.parent, at * WIDTH
        assert parent is not None
        upper = RadixNode(node.run[:cut], node.places[:cut], parent, node.last_used)
        upper.refs, upper.hits = node.refs, node.hits
        self.node_count += 1
        parent.children[_first(upper.run)] = upper
        node.run, node.places, node.parent = node.run[cut:], node.places[cut:], upper
        upper.children[_first(node.run)] = node
        return upper

    @staticmethod
    def _shorten(leaf: RadixNode, n: int) -> None:
        leaf.run, leaf.places = leaf.run[: -n * WIDTH], leaf.places[: -n * WIDTH]
        leaf.stop -= n

    def _detach(self, node: RadixNode) -> None:
        """Takes a node from its parent, which may be evictable now; a namespace that holds nothing any more is forgotten.

        (A lease that stands on a root asks `root` again before it grows.)"""
        parent = node.parent
        assert parent is not None
        del parent.children[_first(node.run)]
        node.parent = None
        if parent.parent is not None:
            self._offer(parent)
        elif not parent.children and isinstance(parent, Root) and self.roots.get(parent.space) is parent:
            del self.roots[parent.space]

    def _offer(self, node: RadixNode) -> None:
        if node.refs or node.children:
            return
        self._leaves.offer(node)
        if self._leaves.entries > 4 * self.node_count + 1024:  # mostly stale by now: every hit on a leaf leaves one behind
            self._leaves.tidy()


def _first(run: bytes) -> int:
    return int.from_bytes(run[:WIDTH], sys.byteorder, signed=True)


def _common(run: bytes, data: bytes, at: int) -> int:
    """Length of the common prefix of a run and the ids from `at` on, in ids; they differ or the ids end before the run does."""
    n = min(len(run) // WIDTH, len(data) // WIDTH - at)
    differs = np.frombuffer(run, _INT32, n) != np.frombuffer(data, _INT32, n, at * WIDTH)
    first = int(differs.argmax())
    return first if differs[first] else n
