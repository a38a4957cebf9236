"""Who computes how many tokens in the next step. Integers only: no tensors, no text.

One kind of work: a request has `todo` ids without KV. Requests that only need their next token go first, then chunks of
longer work fill the rest of the step (chunked prefill beside decode: SARATHI, arXiv 2308.16369, section 4), as much as
`Pace` says; then waiting requests are admitted as `WaitQueue` says. When slots run out, the request that is cheapest to compute
again is retracted: its KV stays in the tree as long as nobody needs the room, and it waits to be resumed with the ids it has.
"""
from __future__ import annotations

import time
from collections.abc import Callable

from ..radix_cache import Lease, PrefixCache, RadixNode
from .cost_model import CostModel, Work
from .lengths import Lengths
from .pacing import Pace
from .request import Plan, PlanItem, Request
from .wait_queue import WaitQueue

REGROWTH = 16  # passes without a shortage of memory, after which a step may have one token more
FAIR = 3.0  # times as long as alone: what a prompt beside others may take


class Scheduler:
    """Owns the queues and the only reference to the cache. `plan` and `settle` alternate; `add` and `drop` come between."""

    def __init__(
        self,
        cache: PrefixCache,
        *,
        token_budget: int,
        max_running: int,
        policy: str = "lpm",
        pace: Pace | None = None,
        conservativeness: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cache = cache
        self.token_budget = token_budget  # most tokens of one step
        self._fits = token_budget  # of them, what memory is known to bear
        self._borne = 0  # passes in a row that it bore since
        self.max_running = max_running
        self.pace = pace or Pace(CostModel(), auto=False)
        self.lengths = Lengths(conservativeness)
        self.clock = clock
        self.waiting = WaitQueue(policy, self._peek, self._seconds_needed, clock)
        self.running: list[Request] = []
        self.retractions = 0  # for want of slots
        self.preemptions = 0  # for requests of a higher priority
        self._preemptive = policy == "priority"
        self._returned: list[Request] = []  # joined KV that they need was evicted
        self._step = 0

    def add(self, request: Request) -> None:
        """Queues a request. It is overtaken by at most twice as many others of its priority as waited when it came."""
        self.waiting.add(request)

    def plan(self) -> Plan:
        """The next step's work; slots are reserved and prompts entered in the tree. Empty when there is nothing to do."""
        self._step += 1
        self.lengths.step()
        if self._preemptive and self.waiting:
            self._preempt()
        streams: list[Request] = []
        chunks: list[Request] = []
        for request in self.running:
            (streams if request.todo == 1 else chunks).append(request)
        if self._fits < self.token_budget and self._borne >= REGROWTH:
            self._fits, self._borne = self._fits + 1, 0
        draft = _Draft(self._fits, self.pace.begin(streams, waiting=len(self.waiting)))
        if len(streams) > self._fits:  # the one that waited longest first, so that a small budget goes round
            streams.sort(key=lambda r: (r.last_step, r.arrival))
        chunks.sort(key=lambda r: (r.rank, r.turn))
        self.cache.make_room(min(len(streams), self._fits), "answers that run")
        for request in (*streams, *chunks):
            if draft.budget == 0:
                break
            if request.lease is not None:  # else retracted a moment ago to make room
                self._continue(request, draft)
        if self.waiting and not draft.retracted:  # what was just thrown out must not come back in the same step
            self._admit(draft)
        self._borne += bool(draft.items)
        return draft.plan()

    def take_returned(self) -> list[Request]:
        """Requests that cannot start: joined KV (`runtime.joins`) that they begin with is not, or no longer, in the cache."""
        returned, self._returned = self._returned, []
        return returned

    def settle(self, request: Request, *, keep: bool = True) -> None:
        """Ends a request that runs: what it computed stays in the tree (unless keep=False), its lock is released."""
        self.lengths.ended(request)
        self.running.remove(request)
        self._release(request, keep=keep)

    def drop(self, request: Request) -> None:
        """Ends a request wherever it is."""
        if request.lease is not None:
            self.settle(request)
        else:
            self.waiting.remove(request, admitted=False)

    def fail(self, plan: Plan) -> None:
        """Ends the requests of a plan whose pass failed: nothing it should have written is believed, by them or by others."""
        for item in plan.items:
            self.settle(item.request, keep=False)
        self._disbelieve(plan)

    def undo(self, plan: Plan) -> None:
        """A plan whose pass found no memory: its requests run on from where they stood, and the next steps are half as large.

        Their size then grows slowly, so that a shortage that lasts is met seldom."""
        self._fits, self._borne = max(1, plan.n_tokens // 2), 0
        self._disbelieve(plan)
        for item in plan.items:
            lease = item.request.lease
            assert lease is not None
            self.cache.truncate(lease, item.request.computed)

    def _disbelieve(self, plan: Plan) -> None:
        """Takes out of the tree what a pass should have written, and back what those that run have of it."""
        for node, start in reversed(plan.entered):  # what was entered below another first
            parts = {id(part) for part in node.path() if part.start >= start}  # it may have been split since
            for request in self.running:
                if request.lease is not None and any(id(part) in parts for part in request.lease.node.path()):
                    self._stand_at(request, min(start, request.computed))
            self.cache.forget(node, start)

    def _stand_at(self, request: Request, length: int) -> None:
        """Only the first `length` ids have their KV, and slots; what was counted as cached beyond was not there."""
        assert request.lease is not None
        self.cache.truncate(request.lease, length)
        if request.retractions == 0:
            request.cached_tokens = min(request.cached_tokens, length)
        request.computed = length

    def take_back(self, request: Request, length: int) -> None:
        """Forgets the KV of positions `length`.. (ids that the engine replaced)."""
        if request.lease is not None and request.computed > length:
            self.cache.truncate(request.lease, length)
            request.computed = length

    # ---- those that run ---------------------------------------------------------------------------------------------

    def _continue(self, request: Request, draft: _Draft) -> None:
        """Plans as much of a running request as fits, retracting others or itself when slots run out."""
        assert request.lease is not None
        n = 1
        if request.todo > 1:
            # another request may have brought some of it into the tree meanwhile
            taken_up = self.cache.extend_match(request.lease, request.ids.view, limit=request.match_limit)
            request.computed += taken_up
            request.cached_tokens += taken_up if request.retractions == 0 else 0
            n = self._chunk(request.computed, request.todo, draft)
            if n == 0:
                return
        while not self._reserve(request, n, draft):
            victim = self._victim(draft, spare=request)
            if victim is None:
                if n > 1 and self.cache.available:
                    n = min(n, self.cache.available)
                    continue
                if not draft.items or request is not self._oldest():
                    self._retract(request, draft)
                return
            self._retract(victim, draft)

    def _reserve(self, request: Request, n: int, draft: _Draft) -> bool:
        """Takes n slots for the next n ids; those of a prompt enter the tree at once."""
        lease, start = request.lease, request.computed
        assert lease is not None
        if self.cache.reserve(lease, n) is None:
            return False
        if start < request.prompt_len:
            path = request.ids.view[: min(start + n, request.prompt_len)]
            node = self.cache.commit(lease, path)
            if node is not None:
                draft.entered.append((node, node.start))
                self.waiting.grown(lease.space, path, node.start)
        request.last_step = self._step
        draft.add(request, start, n)
        return True

    # ---- those that wait --------------------------------------------------------------------------------------------

    def _admit(self, draft: _Draft) -> None:
        while draft.budget > 0 and len(self.running) < self.max_running:
            request = self.waiting.next()
            if request is None or not self._start(request, draft):
                break

    def _start(self, request: Request, draft: _Draft) -> bool:
        """Admits a waiting request if its uncached ids and its expected answer fit beside what is promised to those that run."""
        alone = not self.running
        cached = self._peek(request)
        if cached < request.joined:
            self.waiting.remove(request, admitted=False)
            self._returned.append(request)
            return True
        needed = 0 if alone else self._promised(draft) + self.lengths.left(request)
        if not alone and (self.cache.available < len(request.ids) - cached + needed or not self.pace.bears(self.running, request)):
            return False
        n = self._chunk(cached, len(request.ids) - cached, draft)
        if n == 0:
            return False
        lease = self.cache.match_and_lock(request.ids.view, request.namespace, limit=request.match_limit, owner=request.source.rid)
        work = len(request.ids) - len(lease.slots)
        n = min(n, work, self.cache.available)  # what it has locked of its own prefix is available no more
        if n == 0 or not alone and self.cache.available < work + needed:
            self.cache.release(lease, request.ids.view)
            return False
        self._enlist(request, lease)
        draft.promised = needed + work - n
        if not self._reserve(request, n, draft):
            raise RuntimeError("slots that were available could not be reserved")
        return True

    def _chunk(self, start: int, wanted: int, draft: _Draft) -> int:
        """How many of `wanted` tokens from position `start` on this step computes."""
        n = self.pace.chunk(draft.work, start, min(wanted, draft.budget))
        if n:
            draft.work.add(start, n, draws=n == wanted)
        return n

    def _promised(self, draft: _Draft) -> int:
        """Slots that those that run will still ask for: the rest of their ids, and their expected answers."""
        if draft.promised is None:
            unheld = (len(r.ids) - len(r.lease.slots) + self.lengths.left(r) for r in self.running if r.lease is not None)
            draft.promised = sum(unheld)
        return draft.promised

    def _enlist(self, request: Request, lease: Lease) -> None:
        self.cache.count_hit(lease, new=request.encoded)
        request.lease, request.computed = lease, len(lease.slots)
        first = request.started is None
        if request.due is not None:
            request.rank = request.due
        else:  # as if it should take a few times as long as alone: short prompts pass long ones, and none waits for ever
            request.rank = self.clock() + FAIR * self.pace.cost.coefficients.token * request.todo
        if first:
            request.started = self.clock()
            request.cached_tokens = min(request.computed, request.prompt_len) - request.encoded
        request.encoded = 0
        self.waiting.remove(request, admitted=first)
        self.running.append(request)

    def _peek(self, request: Request) -> int:
        return self.cache.peek(request.ids.view[: request.match_limit], request.namespace)

    def _seconds_needed(self, request: Request) -> float:
        """From its start to its first token, if that is what its target is for; else to its end."""
        work, cached, cost = Work(), self._peek(request), self.pace.cost
        work.add(cached, len(request.ids) - cached, draws=True)
        seconds = cost.predict(work)
        if request.source.ttft_target is None and self.running:
            step = Work()
            for other in self.running:
                step.add(other.computed, 1, draws=True)
            seconds += self.lengths.left(request) * cost.predict(step)
        return seconds

    # ---- those that give way ----------------------------------------------------------------------------------------

    def _preempt(self) -> None:
        """Makes room for a waiting request of a higher priority than some that run, before anything is planned."""
        request = self.waiting.next()
        if request is None:
            return
        lower = [r for r in self.running if r.source.priority < request.source.priority]
        needed = len(request.ids) - self._peek(request) + self.lengths.left(request)
        if self.cache.available + sum(len(r.lease.slots) for r in lower if r.lease is not None) < needed:
            return
        while lower and (len(self.running) >= self.max_running or self.cache.available < needed):
            victim = min(lower, key=_price)
            lower.remove(victim)
            self._give_way(victim)
            self.preemptions += 1

    def _victim(self, draft: _Draft, *, spare: Request) -> Request | None:
        """Of the running requests that rank after `spare`, the one that is cheapest to lose; None if there is none.

        The first in rank is never a victim, so there is always progress."""
        planned = {request for request, _, _ in draft.items}
        later = [r for r in self.running if r is not spare and r not in planned and _rank(r) > _rank(spare)]
        return min(later, key=_price, default=None)

    def _oldest(self) -> Request:
        return min(self.running, key=_rank)

    def _retract(self, request: Request, draft: _Draft) -> None:
        self._give_way(request)
        self.lengths.ran_out()
        self.retractions += 1
        draft.retracted.append(request)

    def _give_way(self, request: Request) -> None:
        self.running.remove(request)
        self._release(request, keep=True)
        request.retractions += 1
        self.waiting.resume(request)

    def _release(self, request: Request, *, keep: bool) -> None:
        lease = request.lease
        assert lease is not None
        space, shared, kept = lease.space, lease.shared, request.computed if keep else 0
        self.cache.release(lease, request.ids.view, keep=kept)
        if kept > shared and self.waiting:
            self.waiting.grown(space, request.ids.view[:kept], shared)
        request.lease, request.computed = None, 0


def _rank(request: Request) -> tuple[int, int]:
    """Who keeps its slots: higher priority first, then who came first."""
    return -request.source.priority, request.turn


def _price(request: Request) -> tuple[int, int, int]:
    """What losing a running request costs: by priority, then by the tokens that only it holds and may have to compute again."""
    lease = request.lease
    assert lease is not None
    held, begin = 0, 0
    for node in lease.node.path():
        held += node.stop - begin if node.refs > 1 else 0
        begin = node.stop
    return request.source.priority, len(lease.slots) - held, -request.turn


class _Draft:
    """A plan in the making."""

    def __init__(self, budget: int, work: Work) -> None:
        self.budget = budget
        self.work = work  # the streams are in it from the beginning
        self.items: list[tuple[Request, int, int]] = []
        self.entered: list[tuple[RadixNode, int]] = []
        self.retracted: list[Request] = []
        self.promised: int | None = None

    def add(self, request: Request, start: int, n: int) -> None:
        self.items.append((request, start, n))
        self.budget -= n

    def plan(self) -> Plan:
        return Plan(tuple([_item(*item) for item in self.items]), tuple(self.entered), tuple(self.retracted))


def _item(request: Request, start: int, n: int) -> PlanItem:
    """Made when all of a plan is known: an admission may split the nodes on another request's path."""
    assert request.lease is not None
    path: list[tuple[int, int]] = []
    node = request.lease.node
    while node.parent is not None:
        if node.refs > 1 and node.stop <= start:
            path.append((id(node), node.stop))
        node = node.parent
    path.reverse()
    return PlanItem(request, start, n, request.lease.slots, tuple(path))
