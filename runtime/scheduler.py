"""Who computes how many tokens in the next step. Integers only: no tensors, no text, no clock but for statistics.

One kind of work: a request has `todo` ids without KV. Requests that only need their next token go first, then chunks of
longer work fill the rest of the token budget (chunked prefill beside decode: SARATHI, arXiv 2308.16369, section 4), then
waiting requests are admitted in the policy's order. When slots run out the youngest running request is retracted: its
KV stays in the tree as long as nobody needs the room, and it waits to be resumed with the ids it has.
"""
from __future__ import annotations

import time

from ..radix_cache import Lease, PrefixCache, RadixNode
from .policy import POLICIES
from .request import Plan, PlanItem, Request

HEADROOM = 8  # slots kept free for each running request when another is admitted, so that it is not thrown out at once


class Scheduler:
    """Owns the queues and the only reference to the cache. `plan` and `settle` alternate; `add` and `drop` come between."""

    def __init__(self, cache: PrefixCache, *, token_budget: int, max_running: int, policy: str = "lpm") -> None:
        self.cache = cache
        self.token_budget = token_budget
        self.max_running = max_running
        self.order = POLICIES[policy]
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.retractions = 0
        self.admissions = 0
        self._step = 0

    def add(self, request: Request) -> None:
        """Queues a request. It is overtaken by at most twice as many others as waited when it came (ageing)."""
        request.overtaken_until = self.admissions + 2 * len(self.waiting)
        self.waiting.append(request)

    def plan(self) -> Plan:
        """The next step's work; slots are reserved and prompts entered in the tree. Empty when there is nothing to do."""
        self._step += 1
        draft = _Draft(self.token_budget)
        # Decode rows first; among equals the one that waited longest, so that a small budget goes round.
        for request in sorted(self.running, key=lambda r: (r.todo > 1, r.last_step, r.arrival)):
            if draft.budget == 0:
                break
            if request.lease is not None:  # else retracted a moment ago to make room
                self._continue(request, draft)
        if not draft.retracted:  # what was just thrown out must not come back in the same step
            self._admit(draft)
        return draft.plan()

    def settle(self, request: Request, *, keep: bool = True) -> None:
        """Ends a request that runs: what it computed stays in the tree (unless keep=False), its lock is released."""
        self.running.remove(request)
        self._release(request, keep=keep)

    def drop(self, request: Request) -> None:
        """Ends a request wherever it is."""
        if request.lease is not None:
            self.settle(request)
        else:
            self.waiting.remove(request)

    def take_back(self, request: Request, length: int) -> None:
        """Forgets the KV of positions `length`.. (ids that the engine replaced)."""
        if request.lease is not None and request.computed > length:
            self.cache.truncate(request.lease, length)
            request.computed = length

    def _continue(self, request: Request, draft: _Draft) -> None:
        """Plans as much of a running request as fits, retracting others or itself when slots run out."""
        assert request.lease is not None
        if request.todo > 1:  # another request may have brought some of it into the tree meanwhile
            taken_up = self.cache.extend_match(request.lease, request.ids.view, limit=request.match_limit)
            request.computed += taken_up
            request.cached_tokens += taken_up if request.retractions == 0 else 0
        n = min(request.todo, draft.budget)
        while not self._reserve(request, n, draft):
            victim = self._victim(draft, spare=request)
            if victim is None:
                if n > 1 and self.cache.available:
                    n = min(n, self.cache.available)
                    continue
                if not draft.work or request is not self._oldest():
                    self._retract(request, draft)
                return
            self._retract(victim, draft)

    def _admit(self, draft: _Draft) -> None:
        if not self.waiting or not self._may_admit(draft):
            return
        for request in self.order(self.waiting, self._peek, self.admissions):
            if not self._may_admit(draft) or not self._start(request, draft):
                break

    def _may_admit(self, draft: _Draft) -> bool:
        return draft.budget > 0 and len(self.running) < self.max_running

    def _start(self, request: Request, draft: _Draft) -> bool:
        """Admits a waiting request if all its uncached ids fit beside some headroom for those that run."""
        headroom = HEADROOM * (len(self.running) + 1) if self.running else 0
        if self.cache.available <= headroom:
            return False
        lease = self.cache.match_and_lock(request.ids.view, request.namespace, limit=request.match_limit, owner=request.source.rid)
        work = len(request.ids) - len(lease.slots)
        if self.running and self.cache.available < work + headroom:
            self.cache.release(lease, request.ids.view)
            return False
        self._enlist(request, lease)
        n = min(work, draft.budget, self.cache.available)
        if n == 0 or not self._reserve(request, n, draft):
            self._retract(request, draft)
            return False
        return True

    def _enlist(self, request: Request, lease: Lease) -> None:
        self.cache.count_hit(lease)
        request.lease, request.computed = lease, len(lease.slots)
        if request.started is None:
            request.started = time.monotonic()
            request.cached_tokens = min(request.computed, request.prompt_len)
        self.admissions += 1
        self.waiting.remove(request)
        self.running.append(request)

    def _reserve(self, request: Request, n: int, draft: _Draft) -> bool:
        """Takes n slots for the next n ids; those of a prompt enter the tree at once."""
        assert request.lease is not None
        start = request.computed
        if self.cache.reserve(request.lease, n) is None:
            return False
        if start < request.prompt_len:
            node = self.cache.commit(request.lease, request.ids.view[: min(start + n, request.prompt_len)])
            if node is not None:
                draft.entered.append((node, node.start))
        request.last_step = self._step
        draft.add(request, start, n)
        return True

    def _victim(self, draft: _Draft, *, spare: Request) -> Request | None:
        """The running request that loses least by waiting: lowest priority, then youngest. None if only `spare` is left."""
        planned = {request for request, _, _ in draft.work}
        free = [r for r in self.running if r is not spare and r not in planned]
        later = [r for r in free if _rank(r) > _rank(spare)]
        return max(later, key=_rank, default=None)

    def _oldest(self) -> Request:
        return min(self.running, key=_rank)

    def _retract(self, request: Request, draft: _Draft) -> None:
        self.running.remove(request)
        self._release(request, keep=True)
        request.retractions += 1
        self.retractions += 1
        self.waiting.append(request)
        draft.retracted.append(request)

    def _release(self, request: Request, *, keep: bool) -> None:
        assert request.lease is not None
        self.cache.release(request.lease, request.ids.view, keep=request.computed if keep else 0)
        request.lease, request.computed = None, 0

    def _peek(self, request: Request) -> int:
        return self.cache.peek(request.ids.view[: request.match_limit], request.namespace)


def _rank(request: Request) -> tuple[int, float, int]:
    """Who keeps its slots: higher priority first, then who came first."""
    return -request.source.priority, request.arrival, request.index


class _Draft:
    """A plan in the making."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.work: list[tuple[Request, int, int]] = []
        self.entered: list[tuple[RadixNode, int]] = []
        self.retracted: list[Request] = []

    def add(self, request: Request, start: int, n: int) -> None:
        self.work.append((request, start, n))
        self.budget -= n

    def plan(self) -> Plan:
        return Plan(tuple(_item(*work) for work in self.work), tuple(self.entered), tuple(self.retracted))


def _item(request: Request, start: int, n: int) -> PlanItem:
    """Made when all of a plan is known: an admission may split the nodes on another request's path."""
    assert request.lease is not None
    path = tuple((id(node), node.stop) for node in request.lease.node.path() if node.stop <= start)
    return PlanItem(request, start, n, request.lease.slots, path)
