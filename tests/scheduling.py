"""Requests and steps for tests of the scheduler: no model, no text; the time is a number."""
from __future__ import annotations

from ramet.radix_cache import IntBuffer, PrefixCache
from ramet.runtime.protocol import FinishReason, GenerateRequest, SamplingParams
from ramet.runtime.request import Plan, Request
from ramet.runtime.scheduler import Scheduler


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make(ids, *, rid: str = "r", max_new: int = 4, arrival: float = 0.0, **fields) -> Request:
    source = GenerateRequest(rid, tuple(ids), SamplingParams(max_new_tokens=max_new), **fields)
    return Request(
        source=source, index=0, ids=IntBuffer(list(ids)), prompt_len=len(ids), max_new_tokens=max_new, seed=0, eos_ids=frozenset(),
        matcher=None, must_finish=False, stream=None, stops=None, arrival=arrival,
    )  # fmt: skip


def scheduler(slots: int = 10_000, *, policy: str = "lpm", budget: int = 512, max_running: int = 64, **options) -> Scheduler:
    return Scheduler(PrefixCache(slots), token_budget=budget, max_running=max_running, policy=policy, **options)


def commit(owner: Scheduler, plan: Plan) -> list[Request]:
    """What the engine does after a pass, with ids that nobody drew. Returns who has ended."""
    ended = []
    for item in plan.items:
        request = item.request
        request.computed = item.stop
        if not item.samples:
            continue
        if request.max_new_tokens:
            request.ids.append(1000 + request.output_len)
        if request.output_len >= request.max_new_tokens:
            request.finish = FinishReason("length")
            owner.settle(request)
            ended.append(request)
    return ended


def cached(owner: Scheduler, ids) -> None:
    """Puts `ids` into the tree, as a request that ran would."""
    lease = owner.cache.match_and_lock(IntBuffer(list(ids)).view)
    owner.cache.reserve(lease, len(ids) - len(lease.slots))
    shared = lease.shared
    owner.cache.release(lease, IntBuffer(list(ids)).view)
    owner.waiting.grown(lease.space, IntBuffer(list(ids)).view, shared)


def starts(owner: Scheduler, most: int = 10_000) -> list[Request]:
    """Runs until nothing waits or runs; the requests in the order of their first start."""
    order: list[Request] = []
    for _ in range(most):
        plan = owner.plan()
        order += [item.request for item in plan.items if item.request not in order]
        commit(owner, plan)
        if not owner.running and not owner.waiting:
            return order
    raise AssertionError("requests are left")
