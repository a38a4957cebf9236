"""The requests that wait, and who is next: by priority, then ageing, then targets that are about to be missed, then the policy."""
from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from ..radix_cache import Namespace
from ..radix_cache.slots import Ints
from .ageing import Ageing
from .policy import POLICIES, Order
from .prefix_order import Peek
from .request import Request

Estimate = Callable[[Request], float]  # seconds that a request needs to its first token, or its last where a deadline is meant
KEPT = 16  # empty queues
HURRY = 0.5  # share of the time to a target that a request spends in the policy's order, before it counts by its slack


class WaitQueue:
    """Several queues, one for each priority; a lower one moves when all higher are empty.

    Within one: whoever was retracted resumes first; nobody is overtaken more often than `Ageing` allows; a request that has
    used half of the time to its target goes by slack; all others in the policy's order."""

    def __init__(self, policy: str, peek: Peek, estimate: Estimate, clock: Callable[[], float]) -> None:
        self._make = lambda: _Queue(POLICIES[policy](peek), _Hurry(estimate, clock))
        self._queues: dict[int, _Queue] = {}
        self._turns = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Request]:
        """In no order that matters."""
        for queue in self._queues.values():
            yield from queue.members

    def add(self, request: Request) -> None:
        """A new request. It is overtaken by at most twice as many of its priority as waited when it came."""
        self._turns += 1
        request.turn = self._turns
        self._queue(request).add(request)
        self._size += 1

    def resume(self, request: Request) -> None:
        """One that ran already and gave way."""
        queue = self._queue(request)
        queue.members[request] = None
        heapq.heappush(queue.resumed, (request.turn, request))
        self._size += 1

    def remove(self, request: Request, *, admitted: bool) -> None:
        """It starts (admitted), or is given up."""
        queue = self._queues[request.source.priority]
        queue.remove(request, admitted=admitted)
        self._size -= 1
        if not queue.members and len(self._queues) > KEPT:
            del self._queues[request.source.priority]

    def next(self) -> Request | None:
        """Who should start now; it stays in the queue until `remove`."""
        if not self._size:
            return None
        return self._queues[max(p for p, queue in self._queues.items() if queue.members)].next()

    def grown(self, space: Namespace, ids: Ints, start: int) -> None:
        """The cache holds `ids` now; the first `start` of them it held before."""
        for queue in self._queues.values():
            queue.order.grown(space, ids, start)

    def _queue(self, request: Request) -> _Queue:
        queue = self._queues.get(request.source.priority)
        if queue is None:
            queue = self._queues[request.source.priority] = self._make()
        return queue


class _Queue:
    """The requests of one priority."""

    def __init__(self, order: Order, hurry: _Hurry) -> None:
        self.order, self.hurry = order, hurry
        self.ageing = Ageing()
        self.members: dict[Request, None] = {}
        self.resumed: list[tuple[int, Request]] = []

    def add(self, request: Request) -> None:
        self.members[request] = None
        self.ageing.add(request)
        self.order.add(request)
        self.hurry.add(request)

    def remove(self, request: Request, *, admitted: bool) -> None:
        del self.members[request]
        entry = (request.turn, request)
        if entry in self.resumed:
            self.resumed.remove(entry)
            heapq.heapify(self.resumed)
            return
        self.ageing.remove(request, admitted=admitted)
        self.order.remove(request, admitted=admitted)
        self.hurry.remove(request)

    def next(self) -> Request | None:
        if self.resumed:
            return self.resumed[0][1]
        hurried = self.hurry.first()
        must = self.ageing.head()
        if must is None:
            return hurried or self.order.best()
        return hurried if hurried in must else self.order.best_of(must)


class _Hurry:
    """Requests with a target, by the time at which they must start to meet it: the least slack first.

    One that can no longer meet it takes its ordinary place: hurrying would only make others miss theirs."""

    def __init__(self, estimate: Estimate, clock: Callable[[], float]) -> None:
        self._estimate, self._clock = estimate, clock
        self._calm: list[tuple[float, int, Request]] = []  # by the time at which they begin to hurry
        self._urgent: list[tuple[float, int, Request]] = []  # by the latest time to start
        self._waiting: set[Request] = set()

    def add(self, request: Request) -> None:
        if (due := request.due) is not None:
            self._waiting.add(request)
            heapq.heappush(self._calm, (request.arrival + HURRY * (due - request.arrival), request.turn, request))

    def remove(self, request: Request) -> None:
        self._waiting.discard(request)

    def first(self) -> Request | None:
        if not self._waiting:
            self._calm, self._urgent = [], []
            return None
        now = self._clock()
        while self._calm and self._calm[0][0] <= now:
            _, turn, request = heapq.heappop(self._calm)
            if request in self._waiting:
                assert request.due is not None
                heapq.heappush(self._urgent, (request.due - self._estimate(request), turn, request))
        while self._urgent:
            latest, _, request = self._urgent[0]
            if request in self._waiting and now <= latest:
                return request
            heapq.heappop(self._urgent)
        return None
