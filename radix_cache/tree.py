"""A radix tree over token ids whose nodes hold KV slots (RadixAttention, arXiv 2312.07104, section 3).

The tree knows nothing of requests, memory or devices: it matches, inserts, splits and evicts. Every edge is a run of
ids; a node's slots are where the KV of that run lies. `refs` counts the leases whose path goes through a node.
"""
from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count

import numpy as np

from .slots import Ints

_NO_INTS: Ints = np.empty(0, dtype=np.int32)


class RadixNode:
    """A run of ids below its parent. `stop` is the depth in tokens of its end; depth of its start is parent.stop."""

    __slots__ = ("key", "slots", "parent", "children", "refs", "last_used", "hits", "stop")

    def __init__(self, key: Ints, slots: Ints, parent: RadixNode | None, last_used: int) -> None:
        self.key, self.slots, self.parent = key, slots, parent
        self.children: dict[int, RadixNode] = {}
        self.refs = 0
        self.last_used = last_used
        self.hits = 0
        self.stop: int = (parent.stop if parent else 0) + len(key)

    @property
    def start(self) -> int:
        return self.stop - len(self.key)

    def path(self) -> list[RadixNode]:
        """The nodes from below the root to this one."""
        nodes: list[RadixNode] = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes


def common_length(a: Ints, b: Ints) -> int:
    """Length of the common prefix of two int arrays."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    first = int(differs.argmax()) if n else 0
    return first if n and differs[first] else n


class RadixTree:
    """One root for each salt, so that requests of different salts never meet.

    `size` is the number of tokens in the tree, `locked` of those in nodes with refs."""

    def __init__(self) -> None:
        self.roots: dict[str, RadixNode] = {}
        self.size = 0
        self.locked = 0
        self.node_count = 0
        self._clock = count(1)
        self._tie = count()
        self._leaves: list[tuple[int, int, RadixNode]] = []  # heap of (last_used, tie, node); stale entries are skipped

    def root(self, salt: str = "") -> RadixNode:
        root = self.roots.get(salt)
        if root is None:
            root = self.roots[salt] = RadixNode(_NO_INTS, _NO_INTS, None, 0)
        return root

    def peek(self, ids: Ints, salt: str = "") -> int:
        """Number of leading ids that the tree holds; changes nothing."""
        node, depth = self.roots.get(salt), 0
        while node is not None and depth < len(ids):
            node = node.children.get(int(ids[depth]))
            if node is not None:
                same = common_length(node.key, ids[depth:])
                depth += same
                if same < len(node.key):
                    break
        return depth

    def descend(self, node: RadixNode, ids: Ints) -> RadixNode:
        """The deepest node below `node` whose path spells a prefix of `ids` (ids after node.stop), split to fit exactly."""
        depth = 0
        while depth < len(ids):
            child = node.children.get(int(ids[depth]))
            if child is None:
                break
            same = common_length(child.key, ids[depth:])
            if same < len(child.key):
                return self._split(child, same)
            node, depth = child, depth + same
        return node

    def ancestor(self, node: RadixNode, depth: int) -> RadixNode:
        """The node on the path to `node` that ends after `depth` ids, made by a split if there is none. depth < node.stop."""
        while node.start >= depth and node.parent is not None:
            node = node.parent
        return node if node.stop == depth else self._split(node, depth - node.start)

    def add_child(self, parent: RadixNode, key: Ints, slots: Ints) -> RadixNode:
        """A new leaf; `parent` has no child that starts with key[0]. Arrays are kept, not copied."""
        node = RadixNode(key, slots, parent, next(self._clock))
        parent.children[int(key[0])] = node
        self.size += len(key)
        self.node_count += 1
        self._offer(node)
        return node

    def lock(self, node: RadixNode, until: RadixNode | None = None) -> None:
        """refs + 1 on the path from `node` up to, without, `until` (or the root); marks it as used now."""
        now = next(self._clock)
        while node is not until and node.parent is not None:
            if node.refs == 0:
                self.locked += len(node.key)
            node.refs += 1
            node.last_used = now
            node = node.parent

    def unlock(self, node: RadixNode, until: RadixNode | None = None) -> None:
        """refs - 1 on the path from `node` up to, without, `until` (or the root); what nobody holds may be evicted from now on."""
        now = next(self._clock)
        while node is not until and node.parent is not None:
            node.refs -= 1
            node.last_used = now
            if node.refs == 0:
                self.locked -= len(node.key)
                self._offer(node)
            node = node.parent

    def evict(self, wanted: int) -> Ints:
        """Slots of the least recently used unlocked leaves, `wanted` of them or all there are.

        Only the end of the last leaf is taken where the whole is not needed."""
        taken: list[Ints] = []
        while wanted > 0 and self._leaves:
            last_used, _, node = heapq.heappop(self._leaves)
            if not self._evictable(node) or last_used != node.last_used:
                continue
            n = min(wanted, len(node.key))
            taken.append(node.slots[len(node.slots) - n :])
            wanted -= n
            self._shorten(node, n)
        return np.concatenate(taken) if taken else _NO_INTS

    def remove(self, node: RadixNode) -> Ints:
        """Cuts an unlocked node with all below it out of the tree; its slots come back."""
        below = self._subtree(node)
        freed = [n.slots for n in below]
        self.size -= sum(map(len, freed))
        self.node_count -= len(below)
        for gone in below:
            gone.children = {}
        parent = node.parent
        assert parent is not None
        del parent.children[int(node.key[0])]
        node.parent = None
        self._offer(parent)
        return np.concatenate(freed)

    def nodes(self) -> Iterator[RadixNode]:
        """All nodes but the roots."""
        for root in self.roots.values():
            for child in root.children.values():
                yield from self._subtree(child)

    def _subtree(self, node: RadixNode) -> list[RadixNode]:
        found = [node]
        for seen in found:
            found.extend(seen.children.values())
        return found

    def _split(self, node: RadixNode, at: int) -> RadixNode:
        """Cuts `node` after `at` ids; the new upper part comes back, with the same locks. `node` stays the lower part,
        so that leases which hold it keep their whole path."""
        parent = node.parent
        assert parent is not None
        upper = RadixNode(node.key[:at], node.slots[:at], parent, node.last_used)
        upper.refs, upper.hits = node.refs, node.hits
        self.node_count += 1
        parent.children[int(upper.key[0])] = upper
        node.key, node.slots, node.parent = node.key[at:], node.slots[at:], upper
        upper.children[int(node.key[0])] = node
        return upper

    def _shorten(self, leaf: RadixNode, n: int) -> None:
        self.size -= n
        if n < len(leaf.key):
            leaf.key, leaf.slots = leaf.key[:-n], leaf.slots[:-n]
            leaf.stop -= n
            self._offer(leaf)
            return
        parent = leaf.parent
        assert parent is not None
        del parent.children[int(leaf.key[0])]
        leaf.parent = None
        self.node_count -= 1
        if parent.parent is None and not parent.children:
            self._drop_root(parent)
        else:
            self._offer(parent)

    def _drop_root(self, root: RadixNode) -> None:
        """Salts come and go: an empty root is forgotten. A lease that stands on it asks `root` again before it grows."""
        for salt, known in list(self.roots.items()):
            if known is root and salt:
                del self.roots[salt]

    def _offer(self, node: RadixNode) -> None:
        if not self._evictable(node):
            return
        heapq.heappush(self._leaves, (node.last_used, next(self._tie), node))
        if len(self._leaves) > 4 * self.node_count + 1024:  # mostly stale by now: every hit on a leaf leaves one behind
            self._leaves = [(n.last_used, next(self._tie), n) for n in self.nodes() if self._evictable(n)]
            heapq.heapify(self._leaves)

    @staticmethod
    def _evictable(node: RadixNode) -> bool:
        return node.refs == 0 and not node.children and node.parent is not None
