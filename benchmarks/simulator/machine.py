"""The real scheduler, policies, tree and pace; only the forward pass is replaced, by the seconds that the cost model says it takes."""
from __future__ import annotations

import heapq
import time
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np

from ramet.radix_cache import IntBuffer, PrefixCache
from ramet.runtime.cost_model import Coefficients, CostModel
from ramet.runtime.pacing import Pace
from ramet.runtime.protocol import FinishReason, GenerateRequest, SamplingParams
from ramet.runtime.request import Plan, Request
from ramet.runtime.scheduler import Scheduler

from .traffic import Call

# Seconds: what the engine learned of two cores (AVX2) with the embedded model, counting processor time.
MACHINE = Coefficients(base=0.0028, token=0.0007, draw=0.00045, read=2.8e-6, pair=5.7e-7)
AROUND = 0.0005  # seconds of a step outside the forward pass
NO_BIAS: MappingProxyType[int, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Setup:
    """How the simulated engine is opened: the fields of EngineConfig of the same names."""

    schedule_policy: str = "lpm"
    max_total_tokens: int = 65_536
    max_running_requests: int = 64
    chunked_prefill_size: int | None = None
    schedule_conservativeness: float = 1.0
    tpot_target: float | None = None  # milliseconds
    disable_radix_cache: bool = False
    eviction_policy: str = "lru"
    machine: Coefficients = MACHINE


@dataclass(slots=True)
class Answer:
    """How one call went. Seconds of simulated time."""

    call: Call
    arrival: float
    ttft: float
    tpot: float
    cached: int
    overdrawn: int  # by how many admissions it was overtaken more than it may be: 0 or less is right
    retractions: int
    when: list[float] = field(default_factory=list)  # of each token, where asked for


@dataclass(slots=True)
class Result:
    answers: list[Answer]
    seconds: float  # simulated
    wall: float  # of this machine
    steps: int
    retractions: int
    held: list[tuple[int, int, int, int]] = field(default_factory=list)  # each step, of those that run: tokens, slots, most tokens ever, requests


class Simulation:
    """One engine's life. `tokens=True` notes when each token came."""

    def __init__(self, setup: Setup = Setup(), *, tokens: bool = False) -> None:
        self.setup, self._tokens = setup, tokens
        self.now = 0.0
        self.cost = CostModel(setup.machine)
        planned = CostModel(setup.machine, observed=1000)  # what the scheduler believes
        planned.margin = 1.0
        target = None if setup.tpot_target is None else setup.tpot_target / 1000
        self.cache = PrefixCache(setup.max_total_tokens, enabled=not setup.disable_radix_cache, eviction=setup.eviction_policy)
        self.scheduler = Scheduler(
            self.cache,
            token_budget=setup.chunked_prefill_size or 512,
            max_running=setup.max_running_requests,
            policy=setup.schedule_policy,
            pace=Pace(planned, auto=setup.chunked_prefill_size is None, tpot_target=target),
            conservativeness=setup.schedule_conservativeness,
            clock=lambda: self.now,
        )
        self._calls: dict[Request, Call] = {}
        self._when: dict[Request, list[float]] = {}
        self._over: dict[Request, int] = {}
        self._admitted: dict[int, int] = {}

    def run(self, calls: list[Call], *, until: float = float("inf")) -> Result:
        """Everything in `calls`, in simulated time; those that follow another come when it is done. Ends early at `until`."""
        begin = time.perf_counter()
        coming = [(call.at, i, call) for i, call in enumerate(calls) if call.after is None]
        heapq.heapify(coming)
        followers: dict[Call, list[tuple[int, Call]]] = {}
        for i, call in enumerate(calls):
            if call.after is not None:
                followers.setdefault(call.after, []).append((i, call))
        answers: list[Answer] = []
        held: list[tuple[int, int, int, int]] = []
        steps = 0
        while (coming or self._calls) and self.now < until:
            while coming and coming[0][0] <= self.now:
                self._arrive(heapq.heappop(coming))
            plan = self.scheduler.plan()
            if not plan:
                if not coming:
                    raise RuntimeError(f"{len(self._calls)} requests wait for what does not come")
                self.now = max(self.now, coming[0][0])
                continue
            self._note_starts(plan)
            steps += 1
            self.now += self.cost.predict(plan.work) + AROUND
            for answer in self._commit(plan):
                answers.append(answer)
                for i, follower in followers.get(answer.call, ()):
                    heapq.heappush(coming, (self.now + follower.at, i, follower))
            if self._tokens:
                running = self.scheduler.running
                most = sum(r.prompt_len + r.max_new_tokens for r in running)
                held.append((sum(r.computed for r in running), self.cache.capacity - self.cache.free, most, len(running)))
        return Result(answers, self.now, time.perf_counter() - begin, steps, self.scheduler.retractions, held)

    def gaps(self, since: float) -> list[float]:
        """Seconds between the tokens of the requests that run still, those of the first `since` seconds left out."""
        return [b - a for when in self._when.values() for a, b in pairwise(when) if b > since]

    def _arrive(self, coming: tuple[float, int, Call]) -> None:
        at, number, call = coming
        source = GenerateRequest(
            str(number), (), SamplingParams(max_new_tokens=call.most, logit_bias=NO_BIAS), priority=call.priority,
            ttft_target=call.ttft_target, tpot_target=call.tpot_target,
        )  # fmt: skip
        nothing: Any = None
        request = Request(
            source=source, index=0, ids=IntBuffer(call.prompt), prompt_len=len(call.prompt), max_new_tokens=call.most, seed=0,
            eos_ids=frozenset(), matcher=None, must_finish=False, stream=nothing, stops=nothing, arrival=at,
        )  # fmt: skip
        self._calls[request] = call
        self._when[request] = []
        self.scheduler.add(request)

    def _note_starts(self, plan: Plan) -> None:
        """Counts admissions, and by how many each request was overtaken. Items of a plan are in the order of admission."""
        for item in plan.items:
            request = item.request
            if request not in self._over and request.retractions == 0:
                priority = request.source.priority
                self._over[request] = self._admitted.get(priority, 0) - request.overtaken_until
                self._admitted[priority] = self._admitted.get(priority, 0) + 1

    def _commit(self, plan: Plan) -> list[Answer]:
        done: list[Answer] = []
        for item in plan.items:
            request = item.request
            request.computed = item.stop
            if not item.samples:
                continue
            if request.first_token is None:
                request.first_token = self.now
            request.last_token = self.now
            if self._tokens:
                self._when[request].append(self.now)
            call = self._calls[request]
            if request.output_len < len(call.answer):
                request.ids.append(int(call.answer[request.output_len]))
            if request.output_len >= len(call.answer):
                request.finish = FinishReason("stop")
                self.scheduler.settle(request)
                timings = request.timings(self.now)
                del self._calls[request]
                done.append(
                    Answer(call, request.arrival, timings.ttft, timings.tpot, request.cached_tokens, self._over.pop(request, 0), request.retractions,
                           self._when.pop(request))
                )  # fmt: skip
        return done


def unique(calls: list[Call]) -> int:
    """Prompt tokens that any order must compute: the size of the tree of all prompts, without what was generated on the way.

    Depth-first order computes no more, if the pool holds the longest request (arXiv 2312.07104, theorem 3.1)."""
    ordered = sorted((np.asarray(call.prompt, dtype=np.int32) for call in calls), key=lambda ids: ids.astype(">u4").tobytes())
    total, before = 0, np.empty(0, dtype=np.int32)
    for ids in ordered:
        n = min(len(before), len(ids))
        differs = np.flatnonzero(before[:n] != ids[:n])
        same = int(differs[0]) if len(differs) else n
        total += len(ids) - min(same, len(ids) - 1)  # the last id is computed in any case, to have something to draw from
        before = ids
    followed = {id(call.after): call.after for call in calls if call.after is not None and call.keeps_answer}
    return total - sum(max(len(call.answer) - 1, 0) for call in followed.values())
