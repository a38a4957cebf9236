"""A running request, and the plan of one step: what the scheduler, the runner and the engine pass to each other."""
from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..radix_cache import IntBuffer, Lease, Namespace
from .cost_model import Work
from .protocol import FinishReason, GenerateRequest, SamplingParams, Timings, TokenLogprob, Usage

if TYPE_CHECKING:
    from ..constrained import Matcher
    from ..radix_cache import RadixNode
    from .stop import StopScanner
    from .tokenizer import TextStream


@dataclass(eq=False, slots=True)
class Request:
    """One output of a `GenerateRequest`. `ids` grows; the first `computed` of them have their KV; the rest is work to do.

    A prompt, a chunk of one, a decode step, forced text: the same thing with another `todo`."""

    # fixed at submit
    source: GenerateRequest
    index: int  # which of the n outputs
    ids: IntBuffer
    prompt_len: int
    max_new_tokens: int  # the wish, cut to what context and pool can hold
    seed: int
    eos_ids: frozenset[int]  # that end this output; empty under ignore_eos
    matcher: Matcher | None
    must_finish: bool  # the grammar's text must be complete within max_new_tokens
    stream: TextStream
    stops: StopScanner
    arrival: float = field(default_factory=time.monotonic)

    # where it stands; by the scheduler
    lease: Lease | None = None
    computed: int = 0
    last_step: int = -1
    rank: float = 0.0  # among prompts that are computed in chunks: smaller first
    turn: int = 0  # place in the order of arrival
    overtaken_until: int = 0  # number of admissions from which on nobody goes before it
    cached_tokens: int = 0  # of the prompt, at first admission
    encoded: int = 0  # of them, those that parts computed for it
    retractions: int = 0
    started: float | None = None  # first planned

    # what came out; by the engine
    forced_at: set[int] = field(default_factory=set)  # positions of forced ids
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of positions logprob_from.. , as far as known
    first_logprobs: tuple[tuple[int, float], ...] = ()
    emitted: int = 0  # ids of the output that a chunk has carried
    unsent: str = ""  # text that goes out with the next chunk
    first_token: float | None = None
    last_token: float | None = None
    finish: FinishReason | None = None

    @property
    def params(self) -> SamplingParams:
        return self.source.params

    @property
    def namespace(self) -> Namespace:
        """With whom it shares KV."""
        return self._namespace(self.source.joined)

    @property
    def part_namespace(self) -> Namespace:
        """That of the parts of its last join."""
        return self._namespace(self.source.joined[:-1])

    def _namespace(self, joined: tuple[tuple[int, ...], ...]) -> Namespace:
        extra = (("joined", ";".join(",".join(map(str, group)) for group in joined)),) if joined else ()
        return Namespace(self.source.cache_salt, self.source.tenant, extra)

    @property
    def joined(self) -> int:
        """How many ids, from the first, must come from the cache: they were joined, and are not computed where they stand."""
        return self.source.joined[-1][-1] if self.source.joined else 0

    @property
    def todo(self) -> int:
        return len(self.ids) - self.computed

    @property
    def output_len(self) -> int:
        return len(self.ids) - self.prompt_len

    @property
    def forced_tokens(self) -> int:
        return len(self.forced_at)

    @property
    def budget(self) -> int | None:
        """Tokens within which the grammar must come to its end; None if it need not."""
        return self.max_new_tokens - self.output_len if self.must_finish else None

    @property
    def logprob_from(self) -> int | None:
        """First position whose logprob is wanted; None if none is."""
        if not self.source.logprobs:
            return None
        return self.source.logprob_start if self.source.logprob_start >= 0 else self.prompt_len

    @property
    def next_logprob(self) -> int:
        """The first position whose logprob is wanted and not known: row next_logprob - 1 must be computed for it."""
        begin = self.logprob_from
        return len(self.ids) if begin is None else begin + len(self.logprobs)

    @property
    def match_limit(self) -> int:
        """How many ids may come from the cache: not the last, nor the one that predicts a wanted logprob."""
        return min(len(self.ids), max(self.next_logprob, 1)) - 1

    @property
    def needs_logits(self) -> bool:
        """True if the last row's logits are used: to draw the next id, or because ids' logprobs there are asked for."""
        return self.draws or bool(self.source.token_ids_logprob)

    @property
    def draws(self) -> bool:
        """False if computing the ids that are there is all: max_new_tokens=0, or the grammar forced the whole answer."""
        return self.max_new_tokens > 0 and self.finish is None

    @property
    def deadline(self) -> float | None:
        """On the monotonic clock."""
        return None if self.source.deadline is None else self.arrival + self.source.deadline

    @property
    def due(self) -> float | None:
        """When it should have begun to answer, or where no target says so be done; on the monotonic clock."""
        target = self.source.ttft_target
        return self.deadline if target is None else self.arrival + target / 1000

    @property
    def tpot_target(self) -> float | None:
        """Seconds."""
        return None if self.source.tpot_target is None else self.source.tpot_target / 1000

    def usage(self) -> Usage:
        return Usage(self.prompt_len, self.cached_tokens, self.output_len, self.forced_tokens, self.retractions)

    def timings(self, now: float) -> Timings:
        first = self.first_token if self.first_token is not None else now
        last = self.last_token if self.last_token is not None else now
        started = self.started if self.started is not None else now
        gaps = max(self.output_len - 1, 1)
        return Timings(queue=started - self.arrival, ttft=first - self.arrival, tpot=(last - first) / gaps, e2e=now - self.arrival)


@dataclass(frozen=True, slots=True)
class PlanItem:
    """`n_tokens` ids of a request, from `start` on, to be computed in this pass. Their KV goes to lease.slots[start:start+n]."""

    request: Request
    start: int
    n_tokens: int
    slots: IntBuffer  # of the whole request so far, those of this pass included
    path: tuple[tuple[int, int], ...]  # tree nodes below `start` that others hold too: (node id, stop), from the root down

    @property
    def stop(self) -> int:
        return self.start + self.n_tokens

    @property
    def samples(self) -> bool:
        """True if the pass reaches the request's last id, so that a next one can be drawn."""
        return self.stop == len(self.request.ids)


@dataclass(frozen=True, slots=True)
class Plan:
    """One step. Empty (falsy) when nothing can or need be computed."""

    items: tuple[PlanItem, ...]
    entered: tuple[tuple[RadixNode, int], ...] = ()  # tree nodes whose KV this pass writes, and where each began
    retracted: tuple[Request, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.items)

    @property
    def n_tokens(self) -> int:
        return sum(item.n_tokens for item in self.items)

    @property
    def work(self) -> Work:
        """What the pass has to do, as the cost model counts it."""
        work = Work()
        for item in self.items:
            work.add(item.start, item.n_tokens, draws=item.samples)
        return work
