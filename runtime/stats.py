"""The engine as it is, as plain dicts: for `/server_info`, `/loads`, `/tree` and the command line."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ..radix_cache import Namespace, RadixNode
    from .engine import Engine


def engine_stats(engine: Engine) -> dict[str, Any]:
    """Counts of requests, tokens and slots."""
    cache, scheduler = engine.cache, engine.scheduler
    engine.pins.expire()  # an idle engine does not step
    return {
        "running": len(scheduler.running),
        "waiting": len(scheduler.waiting),
        "steps": engine.steps,
        "computed_tokens": engine.computed_tokens,
        "pool": {"slots": cache.capacity, "free": cache.free, "cached": cache.tree.size, "evictable": cache.evictable},
        "pinned_tokens": engine.pins.tokens,
        "tree_nodes": cache.tree.node_count,
        "saved_tokens": cache.saved_tokens,
        "tiers": engine.tiers.stats(),
        "joins": {"waiting": len(engine.joins), "joined_tokens": engine.joins.joined_tokens},
        "evicted_tokens": cache.evicted_tokens,
        "retractions": scheduler.retractions,
        "preemptions": scheduler.preemptions,
        "memory_shortages": engine.shortages,
        "goodput": {"with_targets": engine.goodput.asked, "met": engine.goodput.met, "share": engine.goodput.share},
        "step_cost": {"steps": engine.cost.observed, "margin": engine.cost.margin, "seconds": asdict(engine.cost.coefficients)},
        "grammars": engine.door.grammar_counts(),
        "requests": [
            {
                "rid": r.source.rid, "index": r.index, "prompt_tokens": r.prompt_len, "cached_tokens": r.cached_tokens,
                "computed": r.computed, "todo": r.todo, "output_tokens": r.output_len, "forced_tokens": r.forced_tokens,
            }
            for r in scheduler.running
        ],
    }  # fmt: skip


def server_info(engine: Engine) -> dict[str, Any]:
    """The configuration that took effect, and limits."""
    from importlib.metadata import version

    return {
        "version": version("ramet"),
        **asdict(engine.config),
        "context_length": engine.runner.context_length,
        "max_total_tokens": engine.runner.slots,
        "vocab_size": engine.runner.vocab_size,
        "bos_id": engine.tokenizer.bos_id,
        "eos_ids": sorted(engine.tokenizer.eos_ids),
        "peer": engine.runner.describe(),
    }


def tree_dump(engine: Engine, depth: int, min_tokens: int) -> dict[str, Any]:
    """Nested nodes down to `depth`, without subtrees that start with fewer than `min_tokens` ids. `with_text` is for after."""

    def dump(node: RadixNode, level: int) -> dict[str, Any]:
        children = [c for c in node.children.values() if c.size >= min_tokens]
        return {
            "tokens": node.size,
            "ids": node.key,
            "hits": node.hits,
            "saved_tokens": node.hits * node.size,
            "refs": node.refs,
            "last_used": node.last_used,
            "children": [dump(c, level + 1) for c in children] if level < depth else [],
        }

    cache = engine.cache
    return {
        "size": cache.tree.size,
        "eviction_policy": engine.config.eviction_policy,
        "saved_tokens": cache.saved_tokens,
        "evicted_tokens": cache.evicted_tokens,
        "tiers": engine.tiers.stats(),
        "roots": [{"salted": bool(space.salt), "tenant": space.tenant, **dump(root, 0)} for space, root in cache.tree.roots.items()],
    }


def explanation(engine: Engine, ids: Sequence[int], space: Namespace) -> dict[str, Any]:
    """`cache.explain` as a dict, and `below`: how many leading ids lie in host memory or on disk."""
    array = np.asarray(ids, dtype=np.int32)
    return {**asdict(engine.cache.explain(array, space)), "below": engine.tiers.below(array, space)}


def with_text(node: dict[str, Any], decode: Callable[[list[int]], str]) -> dict[str, Any]:
    """Puts text in the place of ids, in the whole tree: off the step thread, for it takes its time."""
    if "ids" in node:
        node["text"] = decode(node.pop("ids").tolist())
    for child in (*node.get("roots", ()), *node.get("children", ())):
        with_text(child, decode)
    return node
