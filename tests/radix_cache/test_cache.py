"""PrefixCache: a state machine of random use against a brute-force model, and the cases one can name."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from ramet.radix_cache import EVICTION_POLICIES, CacheError, Namespace, PrefixCache, SlotAllocator
from ramet.radix_cache.tree import space_of


def ints(values) -> np.ndarray:
    return np.array(list(values), dtype=np.int32)


def test_a_slot_freed_twice_is_caught():
    allocator = SlotAllocator(4)
    slots = allocator.alloc(2)
    allocator.free(slots)
    with pytest.raises(CacheError, match="twice"):
        allocator.free(slots)
    assert allocator.alloc(5) is None


def test_what_was_released_is_matched_again_up_to_the_limit():
    cache = PrefixCache(64)
    ids = ints(range(10))
    lease = cache.match_and_lock(ids, limit=9)
    cache.reserve(lease, 10)
    cache.release(lease, ids)
    assert cache.peek(ids) == 10
    again = cache.match_and_lock(ids, limit=9)
    assert len(again.slots) == 9
    other = cache.match_and_lock(ints([0, 1, 2, 77]), limit=3)
    assert len(other.slots) == 3
    cache.check()
    cache.release(again, ids)
    cache.release(other, ids)
    cache.check()
    assert cache.flush() and cache.free == 64


def test_a_prompt_enters_the_tree_when_planned_and_the_next_request_reads_its_slots():
    cache = PrefixCache(64)
    ids = ints(range(20))
    first = cache.match_and_lock(ids, limit=19)
    cache.reserve(first, 20)
    assert cache.commit(first, ids) is not None
    second = cache.match_and_lock(ids, limit=19)
    assert second.slots.view.tolist() == first.slots.view[:19].tolist()
    cache.reserve(second, 1)
    assert cache.commit(second, ids) is None  # the last id is in the tree already; this copy stays private
    cache.check()
    cache.release(second, ids)
    cache.release(first, ids)
    cache.check()
    assert cache.free + cache.tree.size == 64 and cache.tree.size == 20


def test_salts_never_share():
    cache = PrefixCache(64)
    for salt in ("", "a", "b"):
        lease = cache.match_and_lock(ints(range(8)), Namespace(salt), limit=7)
        assert len(lease.slots) == 0
        cache.reserve(lease, 8)
        cache.release(lease, ints(range(8)))
    assert cache.tree.size == 24
    cache.reserve(big := cache.match_and_lock(ints([99]), Namespace("c"), limit=0), 60)
    cache.check()
    cache.release(big, ints([99] * 60), keep=0)
    cache.check()


def test_eviction_takes_the_least_recently_used_and_no_more_than_needed():
    cache = PrefixCache(20)
    for start in (0, 100):
        lease = cache.match_and_lock(ints(range(start, start + 8)), limit=7)
        cache.reserve(lease, 8)
        cache.release(lease, ints(range(start, start + 8)))
    cache.release(cache.match_and_lock(ints(range(8)), limit=8), ints(range(8)))  # the first is now the younger one
    lease = cache.match_and_lock(ints([500]), limit=0)
    cache.reserve(lease, 6)
    assert cache.peek(ints(range(8))) == 8
    assert cache.peek(ints(range(100, 108))) == 6
    cache.check()


def test_disabled_cache_keeps_nothing():
    cache = PrefixCache(16, enabled=False)
    lease = cache.match_and_lock(ints(range(8)), limit=7)
    cache.reserve(lease, 8)
    assert cache.commit(lease, ints(range(8))) is None
    cache.release(lease, ints(range(8)))
    assert cache.free == 16
    cache.check()


IDS = st.lists(st.integers(0, 2), min_size=1, max_size=14)


class CacheMachine(RuleBasedStateMachine):
    """Any order of match, reserve, commit, release, abort, evict, flush. The model remembers what each slot holds.

    `content[slot]` is the prefix whose KV was written there; a match must find exactly such slots."""

    leases = Bundle("leases")

    @initialize(capacity=st.integers(1, 24), enabled=st.booleans(), eviction=st.sampled_from(sorted(EVICTION_POLICIES)))
    def open(self, capacity, enabled, eviction):
        self.cache = PrefixCache(capacity, enabled=enabled, eviction=eviction)
        self.cache.on_evict = self._about_to_go
        self.content: dict[int, tuple[int, ...]] = {}
        self.out = 0

    @rule(target=leases, ids=IDS, space=st.sampled_from([Namespace(), Namespace("x"), Namespace("", "x")]), wanted=st.integers(0, 14))
    def match(self, ids, space, wanted):
        limit = min(wanted, len(ids) - 1)
        lease = self.cache.match_and_lock(ints(ids), space, limit=limit)
        assert len(lease.slots) <= limit
        assert len(lease.slots) == min(self.cache.peek(ints(ids), space), limit)
        self._read(lease, ids)
        if self.cache.enabled:
            said = self.cache.explain(ints(ids), space)
            assert said.cached == self.cache.peek(ints(ids), space) and (said.cached == len(ids)) == (not said.asked)
            assert all(way[0] != said.asked[0] for way in said.instead)
        self.out += 1
        return lease, ids

    @rule(n=st.integers(1, 20))
    def make_room(self, n):
        free, available = self.cache.free, self.cache.available
        self.cache.make_room(n, "tests")
        assert (self.cache.free, self.cache.available) == (max(free, n) if n <= available else free, available)

    @rule(held=leases, n=st.integers(1, 6))
    def reserve(self, held, n):
        lease, ids = held
        n = min(n, len(ids) - len(lease.slots))
        if n <= 0:
            return
        before = self.cache.available
        slots = self.cache.reserve(lease, n)
        assert (slots is None) == (n > before)
        if slots is not None:
            self._write(lease, ids)

    @rule(held=leases)
    def commit(self, held):
        lease, ids = held
        self.cache.commit(lease, ints(ids))
        self._read(lease, ids)

    @rule(held=leases)
    def extend_match(self, held):
        lease, ids = held
        gained = self.cache.extend_match(lease, ints(ids), limit=len(ids) - 1)
        assert gained >= 0
        self._read(lease, ids)

    @rule(held=leases, cut=st.integers(0, 14))
    def truncate(self, held, cut):
        lease, ids = held
        length = max(0, len(lease.slots) - cut)
        self.cache.truncate(lease, length)
        assert len(lease.slots) == length
        self._read(lease, ids)

    @rule(held=consumes(leases), keep=st.one_of(st.none(), st.integers(0, 14)))
    def release(self, held, keep):
        lease, ids = held
        self.cache.release(lease, ints(ids), keep=None if keep is None else min(keep, len(lease.slots)))
        self.out -= 1

    @precondition(lambda self: self.out == 0)
    @rule()
    def flush(self):
        assert self.cache.flush()
        assert self.cache.free == self.cache.capacity

    def _about_to_go(self, node, last):
        """The KV that goes is still what was written, and nobody holds it."""
        assert node.refs == 0 and not node.children and 0 < last <= node.size
        ids = [int(i) for n in node.path() for i in n.key]
        for position in range(node.stop - last, node.stop):
            assert self.content[int(node.slots[position - node.start])] == (hash(space_of(node)), *ids[: position + 1])

    @rule(held=leases)
    def hit(self, held):
        self.cache.count_hit(held[0])

    def _write(self, lease, ids):
        for position, slot in enumerate(lease.slots.view.tolist()):
            if position >= lease.shared:
                self.content[slot] = (hash(lease.space), *ids[: position + 1])

    def _read(self, lease, ids):
        for position, slot in enumerate(lease.slots.view.tolist()):
            assert self.content[slot] == (hash(lease.space), *ids[: position + 1])

    @invariant()
    def whole(self):
        if hasattr(self, "cache"):
            self.cache.check()
            if self.out == 0:
                assert self.cache.free + self.cache.tree.size == self.cache.capacity
                assert self.cache.tree.locked == 0


CacheMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=60, deadline=None)
TestCacheMachine = CacheMachine.TestCase
