"""Parallel encoding: parts of a prompt that were each computed below one prefix, joined by their KV.

    joined=((p, a, b),)     positions 0..p are the prefix, p..a and a..b two parts, from b on everything sees everything

A part attends to the prefix and to itself, at the positions it has right behind the prefix. After the join the parts stand one
after the other: V is copied, K is rotated on by as many positions as its part has moved (rotary embeddings of positions add up).
A part alone is an ordinary prompt, `prefix + part`, and an ordinary entry of the tree: it is found there by any other join.

A request with parts waits here until the tree holds its joined KV, under a namespace that names the spans. Parts that the tree
lacks are computed as requests of their own; when all are there, they are locked, copied and let go in one go. The scheduler admits such
a request only while its joined KV is there, and hands it back when it was evicted: nobody computes a joined position in place.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count, pairwise

import numpy as np

from ..radix_cache import Lease
from ..radix_cache.slots import Ints
from .model_runner import Copying
from .protocol import Chunk, GenerateRequest, SamplingParams
from .request import Request
from .scheduler import Scheduler

MARK = "(part of a join) "  # how the rids of parts begin; the engine refuses a caller's that does
_NOTHING = SamplingParams(max_new_tokens=0)


@dataclass(eq=False, slots=True)
class _Join:
    """Requests that wait for one joined prefix. `leases` hold the parts that are there, by their number."""

    ids: Ints  # up to the end of the last part
    group: tuple[int, ...]  # the end of the prefix, and of each part
    waiters: list[Request] = field(default_factory=list)
    leases: dict[int, Lease] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)  # parts under way: rid to number
    computed: int = 0  # tokens, by parts that were asked for
    rests: bool = False  # it gave way: others first

    @property
    def first(self) -> Request:
        return self.waiters[0]

    def part(self, number: int) -> Ints:
        """The prefix and one part."""
        start, stop = self.group[number : number + 2]
        return np.concatenate([self.ids[: self.group[0]], self.ids[start:stop]])

    @property
    def n_parts(self) -> int:
        return len(self.group) - 1


class Joins:
    """The joins of one engine. Not thread-safe: the step thread alone calls it.

    `ask` queues a part's request, `drop` ends one, `fail` ends a request that waits here with an error."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: object,
        ask: Callable[[GenerateRequest], None],
        drop: Callable[[str], None],
        fail: Callable[[Request, Exception], None],
    ) -> None:
        self._scheduler, self._cache, self._runner = scheduler, scheduler.cache, runner
        self._ask, self._drop, self._fail = ask, drop, fail
        self._joins: dict[tuple[object, bytes], _Join] = {}  # the oldest first
        self._asked: dict[str, _Join] = {}
        self._held: dict[Request, Lease] = {}  # joined KV of requests that have not started
        self._numbers = count()
        self.joined_tokens = 0  # copied
        self.short = False  # a join has all its parts and no room to join them

    def __len__(self) -> int:
        """Requests that wait here."""
        return sum(len(join.waiters) for join in self._joins.values())

    def hold(self, request: Request) -> bool:
        """True if the request's joined KV is yet to be made: it waits here."""
        stop = request.joined
        if not stop or self._cache.peek(request.ids.view[:stop], request.namespace) == stop:
            return False
        ids = request.ids.view[:stop].copy()
        join = self._joins.setdefault((request.namespace, ids.tobytes()), _Join(ids, request.source.joined[-1]))
        join.waiters.append(request)
        return True

    def advance(self) -> None:
        """Between two steps: asks for parts that lack, joins where none does; those requests are queued."""
        self.short = False
        for key, join in list(self._joins.items()):
            if not self._awake(join):
                continue
            self._lock(join)
            if len(join.leases) == join.n_parts and self._make(join):
                del self._joins[key]

    def planned(self) -> None:
        """After a plan: requests that run hold their joined KV themselves; those whose joined KV was gone wait here again."""
        for request in [one for one in self._held if one.lease is not None]:
            self._let_go(request)
        for request in self._scheduler.take_returned():
            if not self.hold(request):
                self._queue(request)

    def take(self, chunks: list[Chunk]) -> list[Chunk]:
        """What of a step's chunks is not an answer to a part."""
        if not self._asked and not any(chunk.rid.startswith(MARK) for chunk in chunks):
            return chunks
        for chunk in chunks:
            if chunk.last and (join := self._asked.pop(chunk.rid, None)) is not None:
                del join.asked[chunk.rid]
                if chunk.error is not None:
                    self._give_up(join, chunk.error)
                elif chunk.usage is not None:
                    join.computed += chunk.usage.prompt_tokens - chunk.usage.cached_tokens
        return [chunk for chunk in chunks if not chunk.rid.startswith(MARK)]

    def drop(self, request: Request) -> bool:
        """Lets go of a request; False if it does not wait here."""
        self._let_go(request)
        for key, join in self._joins.items():
            if request in join.waiters:
                join.waiters.remove(request)
                if not join.waiters:
                    del self._joins[key]
                    self._end(join)
                return True
        return False

    def give_way(self) -> bool:
        """Unlocks what the youngest join holds, for others that wait; False if nothing is held that may be let go.

        While no request waits for room, the oldest join keeps what it has: it is the one that goes on."""
        holders = [join for join in self._joins.values() if join.leases]
        if not self._scheduler.waiting and holders and holders[0] is next(iter(self._joins.values())):
            del holders[0]
        if holders:
            self._unlock(holders[-1])
            holders[-1].rests = True
            return True
        if self._held:
            self._let_go(next(reversed(self._held)))
            return True
        return False

    # ---- one join -----------------------------------------------------------------------------------------------------

    def _awake(self, join: _Join) -> bool:
        """One that gave way goes on when there is room for all of it, or nothing else is left to do."""
        alone = not self._scheduler.running and not self._scheduler.waiting and join is next(iter(self._joins.values()))
        join.rests = join.rests and not alone and self._cache.available < 2 * len(join.ids)
        return not join.rests

    def _lock(self, join: _Join) -> None:
        """Locks the parts that are there, and asks for the others."""
        source = join.first.source
        space = join.first.part_namespace
        for number in range(join.n_parts):
            if number in join.leases or number in join.asked.values():
                continue
            ids = join.part(number)
            if self._cache.peek(ids, space) == len(ids):
                join.leases[number] = lease = self._cache.match_and_lock(ids, space, owner=source.rid)
                self._cache.tree.note_hit(lease.node)
                continue
            rid = f"{MARK}{next(self._numbers)}"
            join.asked[rid], self._asked[rid] = number, join
            self._ask(
                GenerateRequest(
                    rid, tuple(ids.tolist()), _NOTHING, priority=source.priority, cache_salt=source.cache_salt, tenant=source.tenant,
                    joined=source.joined[:-1],
                )
            )  # fmt: skip

    def _make(self, join: _Join) -> bool:
        """Copies the parts to where they stand in the joined prompt and queues its requests; False if there is no room for that yet."""
        cache, request, stop = self._cache, join.first, len(join.ids)
        lease = cache.match_and_lock(join.ids, request.namespace, owner=request.source.rid)
        have = len(lease.slots)
        if have < stop:
            if cache.reserve(lease, stop - have) is None:
                cache.release(lease, join.ids)
                self.short = True
                return False
            self._copy(join, lease.slots.view, have)
            cache.commit(lease, join.ids)
            self._scheduler.waiting.grown(request.namespace, join.ids, have)
            self.joined_tokens += stop - have
        self._unlock(join)
        request.encoded = join.computed
        for one in join.waiters:
            self._held[one] = cache.match_and_lock(join.ids, request.namespace, owner=one.source.rid)
            self._queue(one)
        cache.release(lease, join.ids)
        return True

    def _copy(self, join: _Join, target: Ints, have: int) -> None:
        """To target[have:]; the prefix as it is, each part moved on to its place."""
        assert isinstance(self._runner, Copying)
        prefix = join.group[0]
        sources, shifts = [join.leases[0].slots.view[:prefix]], np.zeros(len(target), dtype=np.int32)
        for number, (start, stop) in enumerate(pairwise(join.group)):
            sources.append(join.leases[number].slots.view[prefix:])
            shifts[start:stop] = start - prefix
        self._runner.copy_kv(np.concatenate(sources)[have:], target[have:], shifts[have:])

    def _queue(self, request: Request) -> None:
        if request.turn:  # it waited or ran before
            self._scheduler.waiting.resume(request)
        else:
            self._scheduler.add(request)

    def _give_up(self, join: _Join, error: Exception) -> None:
        self._joins = {key: other for key, other in self._joins.items() if other is not join}
        self._end(join)
        for request in join.waiters:
            self._fail(request, error)

    def _end(self, join: _Join) -> None:
        self._unlock(join)
        for rid in list(join.asked):
            self._asked.pop(rid, None)
            self._drop(rid)

    def _unlock(self, join: _Join) -> None:
        for number, lease in join.leases.items():
            self._cache.release(lease, join.part(number))
        join.leases.clear()

    def _let_go(self, request: Request) -> None:
        lease = self._held.pop(request, None)
        if lease is not None:
            self._cache.release(lease, request.ids.view[: request.joined])
