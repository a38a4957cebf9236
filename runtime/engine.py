"""The engine: submit, abort, step. No sockets, no threads; `runtime.loop` calls it on a thread, the server in a process.

A step plans, computes, draws and commits. Whatever goes wrong with one request becomes that request's error; a failing
forward pass fails the requests in it and forgets what they had entered in the tree.
"""
from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..radix_cache import PrefixCache
from .batch import ForwardBatch, logprob_positions
from .config import EngineConfig
from .cost_model import CostModel
from .door import Door
from .errors import CancelledError, DeadlineError, EngineClosedError, EngineError, QueueFullError, RametError, RequestError
from .goodput import Goodput
from .joins import MARK, Joins
from .jump import WINDOW, JumpForward
from .model_runner import Runner
from .output import append_jump, append_token, close, final_chunk, next_chunk
from .pacing import Pace
from .pins import Pins
from .protocol import Chunk, FinishReason, GenerateRequest, TokenLogprob
from .request import Plan, PlanItem, Request
from .sampler import ids_logprobs, raw_logprobs, sample
from .scheduler import Scheduler
from .tiers import Tiers

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

LARGEST_STEP = 512  # tokens, when nobody says how many


class Engine:
    """One model, one pool, one queue. Not thread-safe, but for `prepare`, which any thread may call."""

    def __init__(self, runner: Runner, tokenizer: Tokenizer, config: EngineConfig, cost: CostModel | None = None) -> None:
        self.runner, self.tokenizer, self.config = runner, tokenizer, config
        self.cache = PrefixCache(runner.slots, enabled=not config.disable_radix_cache, eviction=config.eviction_policy)
        self.cost = cost or CostModel()
        self.scheduler = Scheduler(
            self.cache,
            token_budget=config.chunked_prefill_size or LARGEST_STEP,
            max_running=config.max_running_requests,
            policy=config.schedule_policy,
            pace=Pace(self.cost, auto=config.chunked_prefill_size is None, tpot_target=config.tpot_target and config.tpot_target / 1000),
            conservativeness=config.schedule_conservativeness,
        )
        self.door = Door(runner, tokenizer, config)
        self.jumps = JumpForward(tokenizer)
        self.pins = Pins(self.cache)
        self.tiers = Tiers.open(config, self.cache, runner)
        self.joins = Joins(self.scheduler, runner, self._ask, self.abort, self._end)
        self.steps = 0  # forward passes
        self.computed_tokens = 0  # rows of all passes
        self.shortages = 0  # passes for which the device had no memory
        self.goodput = Goodput()
        self._setting: str | None = None  # what `cost` holds for, if it is to be kept
        self._live: dict[str, list[Request]] = {}
        self._deadlines: list[tuple[float, int, Request]] = []  # heap; some have ended
        self._done: list[Chunk] = []  # chunks of requests that ended outside a step

    @classmethod
    def open(cls, config: EngineConfig) -> Engine:
        """Finds, reads and places the model that `config` names. Raises ModelError, ConfigError."""
        from .calibrate import calibrate, cost_file, setting
        from .open import open_runner

        runner, tokenizer = open_runner(config)
        about = setting(config, runner)
        cost = CostModel.load(cost_file(about))
        if cost is None and config.tpot_target is not None:
            cost = calibrate(runner)
        engine = cls(runner, tokenizer, config, cost)
        engine._setting = about
        return engine

    # ---- in -------------------------------------------------------------------------------------------------------

    def prepare(self, request: GenerateRequest) -> list[Request]:
        """Validates, encodes and compiles: one Request for each of the n outputs. Raises RequestError, UnsupportedError.

        Takes as long as the text and the grammar are large; call it off the step loop."""
        if request.rid.startswith(MARK):
            raise RequestError(f"rid={request.rid!r}: rids that begin with {MARK!r} are the engine's own", field="rid")
        requests = self.door.prepare(request)
        for one in requests:
            if one.matcher is not None:  # what the grammar forces from the start is computed with the prompt
                one.unsent = self._after_grammar(one)
        return requests

    def submit(self, request: GenerateRequest | list[Request]) -> None:
        """Queues a request, prepared or not. Raises what `prepare` raises, and QueueFullError."""
        requests = request if isinstance(request, list) else self.prepare(request)
        rid = requests[0].source.rid
        if rid in self._live:
            raise RequestError(f"rid={rid!r}: a request with this id is running; ids must differ", field="rid")
        self.check_room(len(requests))
        self._live[rid] = list(requests)
        for one in requests:
            self._queue(one)
            if one.deadline is not None:
                heapq.heappush(self._deadlines, (one.deadline, id(one), one))

    def _queue(self, request: Request) -> None:
        if not self.joins.hold(request) and not self.tiers.fetch(request):  # else it comes when its prefix was joined, or read back
            self.scheduler.add(request)

    def _ask(self, request: GenerateRequest) -> None:
        """Queues a request of the engine's own; its chunks go to nobody."""
        self._live[request.rid] = self.door.prepare(request)
        self._queue(self._live[request.rid][0])

    def check_room(self, n: int) -> None:
        """Raises QueueFullError unless n more requests may wait."""
        waiting = len(self.scheduler.waiting) + len(self.joins)
        if waiting + n > self.config.max_queued_requests:
            raise QueueFullError(f"{waiting} requests wait already (max_queued_requests={self.config.max_queued_requests}); try again later")

    def abort(self, rid: str, reason: Exception | None = None) -> None:
        """Ends a request wherever it is; its slots are free again when this returns. An unknown rid is ignored.

        Its last chunk (from the next `step`) has finish "abort", or `reason` as its error."""
        for request in self._live.get(rid, ())[:]:
            if not self.joins.drop(request) and not self.tiers.drop(request):
                self.scheduler.drop(request)
            self._end(request, reason or CancelledError(f"request {rid!r} was aborted"))

    def flush_cache(self) -> bool:
        """Drops all cached KV, pinned or not, also what lies in host memory and on disk; False, and nothing happens, while requests run or wait."""
        if self._live or self.tiers.loading:
            return False
        self.pins.clear()
        self.tiers.clear()
        return self.cache.flush()

    def close(self, *, keep: bool = True) -> None:
        """Ends the engine: with a `cache_dir` and `keep`, what is cached is written there, for the next start. Nothing may run any more.

        What was learned of this machine's steps is kept for the next run in any case."""
        self.tiers.close(keep=keep)
        self.runner.close()
        if self._setting is not None:
            from .calibrate import cost_file

            self.cost.save(cost_file(self._setting), self._setting)

    @property
    def busy(self) -> bool:
        """True while a `step` has something to do or to report."""
        return bool(self._live or self._done or self.tiers.loading)

    # ---- the loop -------------------------------------------------------------------------------------------------

    def step(self) -> list[Chunk]:
        """One forward pass, and what came of it. An empty list does not mean that nothing is left: see `busy`.

        Raises EngineClosedError when a part of the engine that it cannot do without has died."""
        begin = time.monotonic()
        self.runner.check()
        self._expire(begin)
        for request in self.tiers.arrived():
            self.scheduler.add(request)
        plan = self._plan()
        chunks, self._done = self._done, []
        if not plan:
            self.tiers.rest()
            return self.joins.take(chunks)
        try:
            batch = self.runner.build(plan)
            logits = self.runner.forward(batch).cpu()
            self.runner.check()  # a pass that was given up on the device ends like any other
        except EngineClosedError:  # there is nothing left to compute with
            raise
        except torch.OutOfMemoryError as error:
            self._relieve(plan, error)
            return self.joins.take(chunks + self._take_done())
        except Exception as error:
            self._fail(plan, error)
            return self.joins.take(chunks + self._take_done())
        self.steps += 1
        self.computed_tokens += plan.n_tokens
        tokens = self._draw(plan, batch, logits)
        work = plan.work
        chunks += self._commit(plan, tokens)
        self.cost.observe(work, time.monotonic() - begin)
        return self.joins.take(chunks + self._take_done())

    def _plan(self) -> Plan:
        """The scheduler's next plan; where there is none for want of room, what is held for later gives way."""
        self.joins.advance()
        plan = self.scheduler.plan()
        self.joins.planned()
        while not plan and not self.scheduler.running and (self.scheduler.waiting or self.joins.short) and self._give_way():
            if not self.scheduler.waiting:
                self.joins.advance()
            plan = self.scheduler.plan()
            self.joins.planned()
        return plan

    def _give_way(self) -> bool:
        return self.pins.give_way() or not self.tiers.loading and self.joins.give_way()

    def generate(self, request: GenerateRequest) -> Iterator[Chunk]:
        """Submits one request and steps until it is done: chunks of that request. For use without a loop beside."""
        prepared = self.prepare(request)
        self.submit(prepared)
        open_outputs = len(prepared)
        try:
            while open_outputs:
                for chunk in self.step():
                    if chunk.rid == request.rid:
                        open_outputs -= chunk.last
                        yield chunk
        finally:
            self.abort(request.rid)

    def check(self) -> None:
        """Raises CacheError unless every slot is accounted for and every running request's positions fit its lease."""
        self.cache.check()
        for request in self.scheduler.running:
            assert request.lease is not None and len(request.lease.slots) == request.computed, "lease and computed differ"

    # ---- a step's second half ---------------------------------------------------------------------------------------

    def _draw(self, plan: Plan, batch: ForwardBatch, logits: Tensor) -> dict[Request, int | Exception]:
        """The next id of each item that samples, or why there is none; logprobs of ids that are there already are noted on the way."""
        drawing: list[tuple[PlanItem, int]] = []
        for i, item in enumerate(plan.items):
            begin, end = batch.row_start[i], batch.row_start[i + 1]
            source = item.request.source
            if (source.logprobs or source.token_ids_logprob) and (end > begin or item.request.logprob_from == 0):
                self._note_logprobs(item, logits[begin:end].numpy())
            if item.samples and item.request.draws:
                drawing.append((item, end - 1))
        if not drawing:
            return {}
        requests = [item.request for item, _ in drawing]
        rows = logits if len(drawing) == len(logits) else logits[torch.tensor([row for _, row in drawing])]
        raw = [row.numpy().copy() if r.source.logprobs else None for r, row in zip(requests, rows, strict=True)]
        broken = self._mask(requests, rows)
        ids = sample(rows.numpy(), requests)
        for request, token, kept in zip(requests, ids, raw, strict=True):
            if kept is not None:
                request.logprobs.append(raw_logprobs(kept, token, request.source.top_logprobs))
        return {**dict(zip(requests, ids, strict=True)), **broken}

    def _note_logprobs(self, item: PlanItem, rows: NDArray[np.float32]) -> None:
        """Logprobs of prompt and forced ids, from the rows that predict them; the first id of all has none, and needs no row."""
        request = item.request
        if request.logprob_from == 0 and not request.logprobs:
            request.logprobs.append(TokenLogprob(request.ids[0], None))
        for position, row in zip(logprob_positions(item), rows, strict=False):
            request.logprobs.append(raw_logprobs(row, request.ids[position], request.source.top_logprobs))
        if item.samples and request.source.token_ids_logprob and not request.first_logprobs:
            request.first_logprobs = ids_logprobs(rows[-1], request.source.token_ids_logprob)

    def _mask(self, requests: list[Request], rows: Tensor) -> dict[Request, Exception]:
        """Forbids what the grammars do not allow. Rows without a grammar allow everything. Returns whose grammar failed, and how."""
        broken: dict[Request, Exception] = {}
        if not any(r.matcher for r in requests):
            return broken
        bits = np.full((len(requests), (self.runner.vocab_size + 31) // 32), -1, dtype=np.int32)
        for row, request in zip(bits, requests, strict=True):
            if request.matcher is not None:
                width = self.door.mask_words
                row[width:] = 0
                try:
                    request.matcher.fill(row[:width], budget=request.budget)
                except Exception as error:  # past a limit of the grammar, most likely
                    broken[request] = error
        self.runner.mask_logits(rows, torch.from_numpy(bits))
        return broken

    def _commit(self, plan: Plan, tokens: dict[Request, int | Exception]) -> list[Chunk]:
        chunks: list[Chunk] = []
        for item in plan.items:
            request = item.request
            request.computed = item.stop
            try:
                drawn = tokens.get(request)
                if isinstance(drawn, Exception):
                    raise drawn
                chunk = self._advance(request, drawn, item.samples)
            except Exception as error:  # it is this request's own; the others go on
                if request.lease is not None:
                    self.scheduler.settle(request)
                self._end(request, error if isinstance(error, RametError) else _failure("the answer could not be continued", error))
                continue
            if chunk is not None:
                chunks.append(chunk)
        return chunks

    def _advance(self, request: Request, token: int | None, reached_end: bool) -> Chunk | None:
        """Appends a drawn id and what the grammar forces after it; ends the request if that is the end."""
        if not reached_end:
            return None
        text = ""
        request.first_token = request.first_token or time.monotonic()
        if token is None:
            request.finish = request.finish or FinishReason("length")  # max_new_tokens=0
        else:
            request.last_token = time.monotonic()
            text = append_token(request, token)
            if request.matcher is not None and (request.finish is None or request.finish.type == "length"):
                if not request.matcher.advance(token):
                    raise EngineError(f"token {token} passed the mask and was refused by the grammar")
                if request.finish is None:
                    text += self._after_grammar(request)
                elif request.matcher.finished or request.must_finish and request.matcher.accepting:
                    request.finish = FinishReason("stop")  # complete with its last token: that ends it, not the limit
        if request.finish is not None and request.next_logprob >= len(request.ids):
            self.scheduler.settle(request)
            self._forget(request)
            chunk = final_chunk(request, text)
            self.goodput.count(request.source, chunk.timings)
            return chunk
        return next_chunk(request, text, held=WINDOW if self._jumps(request) else 0)

    def _after_grammar(self, request: Request) -> str:
        """Jumps over forced text; ends the request where nothing may follow."""
        assert request.matcher is not None
        text = ""
        if self._jumps(request) and (jump := self.jumps.plan(request)) is not None:
            keep = len(request.ids) - jump.give_back
            if request.source.logprobs and jump.give_back:
                keep -= 1  # the row before the first replaced id is computed again: its logits are gone, and a logprob is wanted
            if request.lease is None or keep >= min(request.lease.shared, request.computed):  # what is in the tree cannot be taken back
                self.scheduler.take_back(request, keep)
                text = append_jump(request, jump)
        if request.finish is None and request.matcher.finished:
            request.finish = FinishReason("stop")
            text += close(request)
        return text

    def _jumps(self, request: Request) -> bool:
        """True if forced text is appended to this request, so that its last ids may still be replaced."""
        wish = request.params.jump_forward
        return request.matcher is not None and (self.config.jump_forward if wish is None else wish)

    # ---- ends -------------------------------------------------------------------------------------------------------

    def _end(self, request: Request, error: Exception) -> None:
        if not isinstance(error, CancelledError):
            self.goodput.count(request.source, None)
        self._forget(request)
        self._done.append(Chunk(request.source.rid, request.index, error=error))

    def _forget(self, request: Request) -> None:
        siblings = self._live[request.source.rid]
        siblings.remove(request)
        if not siblings:
            del self._live[request.source.rid]

    def _take_done(self) -> list[Chunk]:
        done, self._done = self._done, []
        return done

    def _expire(self, now: float) -> None:
        """Ends what ran out of time."""
        self.pins.expire()
        while self._deadlines and self._deadlines[0][0] < now:
            request = heapq.heappop(self._deadlines)[2]
            if request in self._live.get(request.source.rid, ()):
                self.abort(request.source.rid, DeadlineError(f"request {request.source.rid!r} ran past its deadline"))
        if len(self._deadlines) > 64 + 4 * len(self._live):
            self._deadlines = [entry for entry in self._deadlines if entry[2] in self._live.get(entry[2].source.rid, ())]
            heapq.heapify(self._deadlines)

    def _relieve(self, plan: Plan, error: Exception) -> None:
        """A pass for which the device had no memory: it is tried again in smaller steps, until a single row does not fit."""
        self.shortages += 1
        if plan.n_tokens == 1:
            self._fail(plan, error, "the device has no memory for one more token")
        else:
            self.scheduler.undo(plan)

    def _fail(self, plan: Plan, error: Exception, what: str = "the forward pass failed") -> None:
        """A pass that raised: its requests end with the error, and nothing it should have written is believed."""
        self.scheduler.fail(plan)
        for item in plan.items:
            self._end(item.request, _failure(what, error))


def _failure(what: str, error: Exception) -> EngineError:
    failure = EngineError(f"{what}: {error}")
    failure.__cause__ = error
    return failure
