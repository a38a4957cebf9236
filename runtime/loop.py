"""An engine on a thread of its own, for callers on other threads.

Three kinds of threads meet here. Callers prepare their requests themselves (validation, tokenizing, grammars) and leave
them in an inbox. The step thread takes them from there and does nothing but step. The dispatcher hands chunks to the
callers' sinks, so that no sink ever holds up a step.
"""
from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ..radix_cache import Namespace
from .config import EngineConfig
from .engine import Engine
from .errors import EngineClosedError, RequestError
from .histogram import Histogram
from .protocol import Chunk, Constraint, ConstraintKind, GenerateRequest, ScoreRequest, Scores
from .request import Request
from .scoring import ScoreCollector, score_requests

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

Sink = Callable[[Chunk], None]


class EngineLoop:
    """Thread-safe. Every submitted request gets its last chunk, whatever happens: also when the engine dies or is closed."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._wake = threading.Condition()
        self._inbox: deque[Callable[[], None]] = deque()
        self._sinks: dict[str, tuple[Sink, int]] = {}  # by rid: who is told, and how many outputs are not done
        self._closed: Exception | None = None
        self.step_time, self.between = Histogram(), Histogram()  # seconds: of steps, and of what callers ask between two of them
        self._out: SimpleQueue[list[tuple[Sink, Chunk]] | None] = SimpleQueue()
        self._stepper = threading.Thread(target=self._run, name="ramet-engine", daemon=True)
        self._dispatcher = threading.Thread(target=self._dispatch, name="ramet-dispatch", daemon=True)
        self._stepper.start()
        self._dispatcher.start()

    @classmethod
    def open(cls, config: EngineConfig) -> EngineLoop:
        """Raises ModelError, ConfigError."""
        return cls(Engine.open(config))

    @property
    def tokenizer(self) -> Tokenizer:
        return self.engine.tokenizer

    def submit(self, request: GenerateRequest, sink: Sink) -> None:
        """Queues a request. Raises RequestError, UnsupportedError, QueueFullError, EngineClosedError at once.

        `sink` gets its chunks in order, on the dispatcher's thread; it should be quick and may submit again."""
        self._submit([self.engine.prepare(request)], [sink])

    def score(self, request: ScoreRequest, sink: Callable[[Scores], None]) -> None:
        """Scores options below one prompt in one pass. Raises as `submit` does."""
        parts = [self.engine.prepare(part) for part in score_requests(request)]
        if not parts:  # an empty prompt, and options of one token each: there is nothing to compute
            sink(Scores(request.rid, tuple((0.0,) for _ in request.options)))
            return
        collector = ScoreCollector(request, len(parts))

        def collect(chunk: Chunk) -> None:
            if (scores := collector.add(chunk)) is not None:
                sink(scores)

        self._submit(parts, [collect] * len(parts))

    def abort(self, rid: str) -> None:
        """Ends a request (or a score); its last chunk has a CancelledError. An unknown rid is ignored."""
        self._post(lambda: self._abort(rid))

    def compile(self, kind: ConstraintKind, source: str, whitespace: str = "json") -> None:
        """Compiles a constraint ahead of its requests; the compiler keeps it. Raises ConstraintError. Takes its time on the caller's thread."""
        self.engine.door.grammar(Constraint(kind, source, whitespace))

    def flush_cache(self) -> bool:
        """Drops all cached KV; False while requests run."""
        return bool(self._ask(self.engine.flush_cache))

    def pin(self, ids: Sequence[int], ttl: float, cache_salt: str = "", tenant: str = "") -> int:
        """Keeps the cached part of a prefix from eviction for `ttl` seconds; its tokens. Raises RequestError, UnsupportedError."""
        return int(self._ask(lambda: self.engine.pins.pin(ids, ttl, Namespace(cache_salt, tenant))))

    def unpin(self, ids: Sequence[int], cache_salt: str = "", tenant: str = "") -> bool:
        """Lets a pinned prefix be evicted again; False if it was not pinned."""
        return bool(self._ask(lambda: self.engine.pins.unpin(ids, Namespace(cache_salt, tenant))))

    def stats(self) -> dict[str, Any]:
        """Queues, pool and counters as they are now."""
        from .stats import engine_stats

        times = {"step_seconds": self.step_time.snapshot(), "between_steps_seconds": self.between.snapshot()}
        return {**self._ask(lambda: engine_stats(self.engine)), **times}

    def tree(self, depth: int = 64, min_tokens: int = 1) -> dict[str, Any]:
        """The radix tree as nested dicts: tokens, text, hits, refs, children."""
        from .stats import tree_dump, with_text

        return with_text(self._ask(lambda: tree_dump(self.engine, depth, min_tokens)), self.tokenizer.decode)

    def explain(self, ids: Sequence[int], cache_salt: str = "", tenant: str = "") -> dict[str, Any]:
        """Why as much of a prompt is cached as is, and no more: `radix_cache.Explanation` as a dict, with the texts of its ids."""
        from .stats import explanation

        found = self._ask(lambda: explanation(self.engine, ids, Namespace(cache_salt, tenant)))
        decode = self.tokenizer.decode
        return {**found, "asked_text": decode(found["asked"]), "instead_text": [decode(way) for way in found["instead"]]}

    def server_info(self) -> dict[str, Any]:
        """What runs here: model, limits, peer, options, and `stats`."""
        from .stats import server_info

        return {**server_info(self.engine), **self.stats()}

    def check(self) -> None:
        """Raises CacheError unless every slot is accounted for."""
        self._ask(self.engine.check)

    def close(self) -> None:
        """Ends all requests with EngineClosedError and joins the threads. Twice is once."""
        self._shut(EngineClosedError("the engine was shut down"))
        for thread in (self._stepper, self._dispatcher):
            if thread is not threading.current_thread():
                thread.join()

    # ---- callers' side ----------------------------------------------------------------------------------------------

    def _submit(self, prepared: list[list[Request]], sinks: list[Sink]) -> None:
        rids = [requests[0].source.rid for requests in prepared]
        with self._wake:
            self._refuse_if_closed()
            for rid in rids:
                if rid in self._sinks:
                    raise RequestError(f"rid={rid!r}: a request with this id is running; ids must differ", field="rid")
            self.engine.check_room(len(self._inbox) + sum(map(len, prepared)))
            for rid, requests, sink in zip(rids, prepared, sinks, strict=True):
                self._sinks[rid] = (sink, len(requests))
            self._inbox.append(lambda: self._enqueue(prepared))
            self._wake.notify()

    def _enqueue(self, prepared: list[list[Request]]) -> None:
        for requests in prepared:
            self.engine.submit(requests)

    def _post(self, action: Callable[[], None]) -> None:
        with self._wake:
            if self._closed is None:
                self._inbox.append(action)
                self._wake.notify()

    def _ask(self, question: Callable[[], Any]) -> Any:
        """Runs `question` on the step thread, between two steps, and waits for the answer."""
        answer: Future[Any] = Future()

        def run() -> None:
            try:
                answer.set_result(question())
            except BaseException as error:
                answer.set_exception(error)

        with self._wake:
            self._refuse_if_closed()
            self._inbox.append(run)
            self._wake.notify()
        return answer.result()

    def _refuse_if_closed(self) -> None:
        if self._closed is not None:
            raise EngineClosedError(str(self._closed)) from self._closed

    # ---- the step thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        ended: float | None = None  # of the last step, if work was left then
        sound = False
        try:
            while self._take_inbox():
                begun = time.monotonic()
                if ended is not None:
                    self.between.observe(begun - ended)
                chunks = self.engine.step()
                now = time.monotonic()
                self.step_time.observe(now - begun)
                ended = now if self.engine.busy else None
                self._send(chunks)
            sound = True
        except BaseException as error:
            died = EngineClosedError(f"the engine died: {error}")
            died.__cause__ = error
            self._shut(died)
        self._fail_all()
        self.engine.close(keep=sound)

    def _take_inbox(self) -> bool:
        """Waits until there is something to do, runs what callers left; False when closed."""
        with self._wake:
            while not self._inbox and not self.engine.busy and self._closed is None:
                self._wake.wait()
            if self._closed is not None:
                return False
            actions = list(self._inbox)
            self._inbox.clear()
        for action in actions:
            action()
        return True

    def _abort(self, rid: str) -> None:
        self.engine.abort(rid)
        for part in [known for known in self._sinks if known.startswith(rid + "/")]:
            self.engine.abort(part)

    def _send(self, chunks: list[Chunk]) -> None:
        if not chunks:
            return
        mail: list[tuple[Sink, Chunk]] = []
        with self._wake:
            for chunk in chunks:
                sink, left = self._sinks[chunk.rid]
                mail.append((sink, chunk))
                if chunk.last:
                    if left == 1:
                        del self._sinks[chunk.rid]
                    else:
                        self._sinks[chunk.rid] = (sink, left - 1)
        self._out.put(mail)

    def _shut(self, reason: Exception) -> None:
        with self._wake:
            self._closed = self._closed or reason
            self._wake.notify()

    def _fail_all(self) -> None:
        """The step thread's last act: everyone still waiting learns why, and every question gets an answer."""
        with self._wake:
            inbox, self._inbox = list(self._inbox), deque()
            sinks, self._sinks = self._sinks, {}
        for rid, (sink, left) in sinks.items():
            self._out.put([(sink, Chunk(rid, index, error=self._closed)) for index in range(left)])
        for action in inbox:
            try:
                action()
            except Exception:
                continue
        self._out.put(None)

    # ---- the dispatcher ---------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        while (mail := self._out.get()) is not None:
            for sink, chunk in mail:
                try:
                    sink(chunk)
                except Exception as error:
                    threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, None)))
