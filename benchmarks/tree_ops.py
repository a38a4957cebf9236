"""What does the tree cost? Random matches and inserts on a large tree, with eviction at work, and the memory of a node.

    python benchmarks/tree_ops.py [--operations 1000000] [--nodes 200000] [--eviction lru] [--json FILE]

Prompts are drawn from a family that branches as chats do: a few system prompts, documents below them, questions below those.
A match is what admission does (match, lock, release); an insert is what follows the match of a new prompt (reserve slots, which evicts two
nodes on average, enter the tree, release); `both` is the whole life of a request. The allowance is 20 us and 0.1 us a token of the prompt.
"""
from __future__ import annotations

import argparse
import json
import random
import statistics
import time
import tracemalloc

import numpy as np

from ramet.radix_cache import EVICTION_POLICIES, Lease, PrefixCache


class Family:
    """Random prompts of three levels: 50 beginnings of 40 to 200 ids, 200 middles below each, ends without number."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.source = np.random.default_rng(seed).integers(0, 50_000, 1 << 20).astype(np.int32)

    def _run(self, number: int, n: int) -> np.ndarray:
        at = (number * 7919) % (len(self.source) - n)
        return self.source[at : at + n]

    def prompt(self, ends: int) -> np.ndarray:
        first, middle, end = self.draw.randrange(50), self.draw.randrange(200), self.draw.randrange(ends)
        top, below = self._run(first, 40 + first * 3), self._run(1000 + first * 200 + middle, 10 + middle % 50)
        number = 100_000 + (first * 200 + middle) * ends + end
        return np.concatenate([top, below, self._run(number, 5 + number % 30)])


def use(cache: PrefixCache, ids: np.ndarray) -> None:
    insert(cache, cache.match_and_lock(ids), ids)


def insert(cache: PrefixCache, lease: Lease, ids: np.ndarray) -> None:
    if len(ids) > len(lease.slots):
        cache.reserve(lease, len(ids) - len(lease.slots))
        cache.commit(lease, ids)
    cache.release(lease, ids)


def fill(cache: PrefixCache, family: Family, nodes: int) -> None:
    while cache.tree.node_count < nodes and cache.free > 300:
        use(cache, family.prompt(1 << 20))


def memory(nodes: int) -> tuple[float, float]:
    """Bytes of a node, and of a node without the 8 of each of its tokens, as the allocator counts them."""
    cache, family = PrefixCache(nodes * 40), Family(3)
    tracemalloc.start()
    fill(cache, family, nodes)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / cache.tree.node_count, (held - 8 * cache.tree.size) / cache.tree.node_count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--eviction", choices=sorted(EVICTION_POLICIES), default="lru")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()

    probe, family = PrefixCache(options.nodes * 60, eviction=options.eviction), Family(1)
    fill(probe, family, options.nodes)
    cache = PrefixCache(probe.tree.size + 64, eviction=options.eviction)  # so that it is full at that many nodes, and inserts evict
    del probe
    fill(cache, family := Family(1), options.nodes)
    print(f"{cache.tree.node_count} nodes, {cache.tree.size} tokens, policy {options.eviction}")

    times: dict[str, list[tuple[float, int]]] = {"match": [], "insert": [], "both": []}
    clock = time.perf_counter
    for _ in range(options.operations):
        if family.draw.random() < 0.5:
            ids = family.prompt(20)  # seen before, more or less
            begin = clock()
            lease = cache.match_and_lock(ids)
            cache.release(lease, ids[: len(lease.slots)])
            times["match"].append((clock() - begin, len(ids)))
        else:
            ids = family.prompt(1 << 20)
            begin = clock()
            lease = cache.match_and_lock(ids)
            matched = clock()
            insert(cache, lease, ids)
            end = clock()
            times["insert"].append((end - matched, len(ids)))
            times["both"].append((end - begin, len(ids)))
    cache.check()

    report: dict[str, object] = {"nodes": cache.tree.node_count, "evicted_tokens": cache.evicted_tokens, "eviction": options.eviction}
    print(f"{cache.tree.node_count} nodes at the end, {cache.evicted_tokens} tokens evicted on the way")
    print(f"{'':8} {'median':>9} {'p99':>9} {'tokens':>7} {'allowed':>9}   of the allowance (median)")
    for name, taken in times.items():
        seconds = sorted(t for t, _ in taken)
        tokens = statistics.mean(n for _, n in taken)
        share = statistics.median(t * 1e6 / (20 + 0.1 * n) for t, n in taken)
        median, p99 = seconds[len(seconds) // 2] * 1e6, seconds[len(seconds) * 99 // 100] * 1e6
        print(f"{name:8} {median:6.1f} us {p99:6.1f} us {tokens:7.0f} {20 + 0.1 * tokens:6.1f} us   {share:.2f}")
        report[name] = {"median_us": median, "p99_us": p99, "mean_tokens": tokens, "share_of_allowance": share}
    whole, bare = memory(min(options.nodes, 50_000))
    print(f"memory: {whole:.0f} bytes a node; {bare:.0f} and 8 for each of its tokens")
    report["bytes_a_node"], report["bytes_a_node_without_tokens"] = whole, bare
    if options.json:
        with open(options.json, "w") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()
