"""What gives way first under each policy, and that a choice stays cheap."""
from __future__ import annotations

import heapq
import tracemalloc

import numpy as np
import pytest

from ramet.radix_cache import EVICTION_POLICIES, SHARED, Namespace, PrefixCache
from ramet.runtime.config import CHOICES, EngineConfig
from ramet.runtime.errors import ConfigError


def ints(values) -> np.ndarray:
    return np.array(list(values), dtype=np.int32)


def prompt(name: int, n: int = 8) -> np.ndarray:
    return ints(range(1000 * name, 1000 * name + n))


def use(cache: PrefixCache, ids: np.ndarray, space: Namespace = SHARED) -> int:
    """One request: it matches, computes the rest and leaves all of it in the tree. How much was cached."""
    lease = cache.match_and_lock(ids, space, owner="r")
    cached = len(lease.slots)
    cache.count_hit(lease)
    assert cache.reserve(lease, len(ids) - cached) is not None or cached == len(ids)
    cache.release(lease, ids)
    cache.check()
    return cached


def survivors(cache: PrefixCache, names, n: int = 8) -> list[int]:
    return [name for name in names if cache.peek(prompt(name, n)) == n]


def test_lru_takes_what_was_not_used_for_the_longest_time():
    cache = PrefixCache(24, eviction="lru")
    for name in (1, 1, 1, 2, 3, 4):
        use(cache, prompt(name))
    assert survivors(cache, (1, 2, 3, 4)) == [2, 3, 4]


def test_lfu_takes_what_was_hit_least():
    cache = PrefixCache(24, eviction="lfu")
    for name in (1, 1, 1, 2, 2, 3, 4):
        use(cache, prompt(name))
    assert survivors(cache, (1, 2, 3, 4)) == [1, 2, 4]


def test_slru_keeps_what_was_hit_through_a_scan_that_lru_does_not_survive():
    for eviction, kept in (("slru", [1]), ("lru", [])):
        cache = PrefixCache(40, eviction=eviction)
        for name in (1, 1, *range(10, 30)):
            use(cache, prompt(name))
        assert survivors(cache, [1]) == kept


def test_slru_protects_a_share_of_the_tree_and_no_more():
    cache = PrefixCache(40, eviction="slru")
    for name in (1, 1, 2, 2, 3, 3, 4, 4, 5, 5):  # all of the tree was hit: the newest must still find room
        use(cache, prompt(name))
    use(cache, prompt(6))
    use(cache, prompt(7))
    assert 7 in survivors(cache, range(1, 8)) and 1 not in survivors(cache, range(1, 8))


def test_cost_aware_spares_what_costs_more_to_compute_again():
    ends = []
    for eviction in ("lru", "cost-aware"):
        cache = PrefixCache(9000, eviction=eviction)
        long = prompt(1, 8000)
        use(cache, long)
        use(cache, np.concatenate([long, ints([7] * 100)]))  # a leaf at depth 8000
        use(cache, ints([3] * 500))
        use(cache, ints([4] * 700))
        ends.append((cache.peek(np.concatenate([long, ints([7] * 100)])), cache.peek(ints([3] * 500))))
    assert ends == [(7800, 500), (8100, 200)]


def test_cost_aware_fame_fades():
    cache = PrefixCache(24, eviction="cost-aware")
    for name in (1,) * 4:
        use(cache, prompt(name))
    rounds = 0
    while survivors(cache, [1]):
        rounds += 1
        use(cache, prompt(100 + rounds, 16))
        assert rounds < 20
    assert rounds > 1


@pytest.mark.parametrize("eviction", sorted(EVICTION_POLICIES))
def test_eviction_work_does_not_grow_with_the_tree(eviction, monkeypatch):
    """Counted: how many heap entries are taken and put back for ten evictions among 20 and among 2000 leaves."""
    looked = 0

    def counted(function):
        def call(*args):
            nonlocal looked
            looked += 1
            return function(*args)

        return call

    counts = []
    for n in (20, 2000):
        cache = PrefixCache(8 * n, eviction=eviction)
        for name in range(n):
            use_quick(cache, prompt(name))
        with monkeypatch.context() as patch:
            patch.setattr(heapq, "heappop", counted(heapq.heappop))
            patch.setattr(heapq, "heappush", counted(heapq.heappush))
            looked = 0
            for name in range(n, n + 10):
                use_quick(cache, prompt(name))
            counts.append(looked)
    assert counts[0] == counts[1] > 0


def use_quick(cache: PrefixCache, ids: np.ndarray) -> None:
    lease = cache.match_and_lock(ids)
    cache.reserve(lease, len(ids) - len(lease.slots))
    cache.release(lease, ids)


def test_the_config_knows_the_policies_and_lists_them():
    assert set(CHOICES["eviction_policy"]) == set(EVICTION_POLICIES)
    with pytest.raises(ConfigError, match="lru, lfu, slru, cost-aware"):
        EngineConfig(eviction_policy="tlru")
    with pytest.raises(ValueError, match="lru, lfu, slru, cost-aware"):
        PrefixCache(8, eviction="tlru")


def test_salt_tenant_and_extra_are_told_apart():
    spaces = [
        Namespace(), Namespace("ab"), Namespace("a", "b"), Namespace("", "ab"), Namespace("b", "a"), Namespace("", "", (("a", "b"),)),
        Namespace("", "", (("ab", ""),)), Namespace("a", "", (("b", ""),)), Namespace("1:a"), Namespace("a1:", ""),
    ]  # fmt: skip
    cache = PrefixCache(8 * len(spaces))
    assert [use(cache, prompt(1), space) for space in spaces] == [0] * len(spaces)
    assert [use(cache, prompt(1), space) for space in spaces] == [8] * len(spaces)
    assert len({space.encoded() for space in spaces}) == len(spaces)
    assert Namespace("s", "t", (("m", "1"), ("a", "2"))).encoded() == Namespace("s", "t", (("a", "2"), ("m", "1"))).encoded()


def test_a_node_takes_the_memory_that_is_stated():
    """About 420 bytes and 8 for each of its tokens, also after splits and evictions (docs/cache.md)."""
    draw = np.random.default_rng(1)
    prompts = [np.concatenate([draw.integers(0, 9, 3), draw.integers(0, 9000, n)]).astype(np.int32) for n in draw.integers(5, 40, 3000)]
    use_quick(PrefixCache(100), prompts[0])  # what is made once is there
    tracemalloc.start()
    cache = PrefixCache(40_000)
    before, _ = tracemalloc.get_traced_memory()
    for ids in prompts:
        use_quick(cache, ids)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert cache.evicted_tokens > 20_000
    ledger = 8 * cache.evicted_tokens + 500 * len(cache._ghosts._entries)
    assert (after - before - 8 * cache.tree.size - ledger) / cache.tree.node_count < 600


def test_an_emptied_namespace_is_forgotten():
    cache = PrefixCache(16)
    for i in range(50):
        use(cache, prompt(1), Namespace(f"s{i}"))
    assert len(cache.tree.roots) <= 3


class TestExplain:
    def test_where_it_diverged_and_from_what(self):
        cache = PrefixCache(64)
        use(cache, ints([*range(10), 20, 21]))
        use(cache, ints([*range(10), 30, 31]))
        said = cache.explain(ints([*range(10), 40, 41]))
        assert (said.cached, said.tokens, said.inside_node, said.branches) == (10, 12, False, 2)
        assert said.asked == (40, 41) and said.instead == ((30, 31), (20, 21))
        inside = cache.explain(ints([0, 1, 2, 99]))
        assert inside.cached == 3 and inside.inside_node and inside.instead[0][0] == 3

    def test_what_evicted_it(self):
        cache = PrefixCache(24)
        use(cache, ints(range(16)))
        lease = cache.match_and_lock(ints([500]), owner="the hungry one")
        cache.reserve(lease, 14)
        said = cache.explain(ints(range(16)))
        assert said.cached == 10
        assert [(e.start, e.stop, e.owner) for e in said.evicted] == [(10, 16, "the hungry one")]
        assert "evicted" in str(said) and "the hungry one" in str(said)
        assert cache.explain(ints([*range(10), 77])).evicted == ()  # that was never there

    def test_evictions_in_pieces_are_told_one_after_the_other(self):
        cache = PrefixCache(16)
        use(cache, ints(range(16)))
        for n in (4, 3):
            lease = cache.match_and_lock(ints([500 + n]), owner=str(n))
            cache.reserve(lease, n)
        assert [(e.start, e.stop, e.owner) for e in cache.explain(ints(range(16))).evicted] == [(9, 12, "3"), (12, 16, "4")]

    def test_nothing_is_known_in_another_namespace(self):
        cache = PrefixCache(16)
        use(cache, ints(range(8)))
        said = cache.explain(ints(range(8)), Namespace("other"))
        assert said.cached == 0 and "namespace" in str(said)
        assert cache.explain(ints(range(8))).cached == 8 and "of 8 tokens" in str(cache.explain(ints(range(8))))

    def test_the_ledger_is_bounded(self, monkeypatch):
        monkeypatch.setattr("ramet.radix_cache.explain.MOST_TOKENS", 20)
        cache = PrefixCache(16)
        for name in range(30):
            use(cache, prompt(name, 16))
        assert cache._ghosts._tokens <= 20
        assert cache.explain(prompt(28, 16)).evicted and not cache.explain(prompt(3, 16)).evicted
