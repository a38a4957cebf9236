"""What a program needs of whatever computes its answers, in process or far away.

    backend.submit(request, sink)       -> chunks to sink, from a thread of the backend; the last of each index has .last
    backend.score(request, sink)        -> one Scores to sink
    backend.abort(rid)                  -> a request nobody waits for any more
    backend.encode / decode             -> its token ids; a state is kept in them
    backend.render_chat(messages, ...)  -> chat as the model was trained on it, or None
    backend.defer(work, delay)          -> runs work soon on the backend's own worker thread

`submit` and `score` return at once and raise a RequestError there and then if the request is wrong. Sinks must be quick.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Protocol, runtime_checkable

from ...runtime.protocol import Chunk, GenerateRequest, ScoreRequest, Scores

ChunkSink = Callable[[Chunk], None]
ScoreSink = Callable[[Scores], None]
Message = Mapping[str, Any]


@runtime_checkable
class Backend(Protocol):
    """See the top of the file. `speculates`: whether a request costs so much that asking ahead can pay (remote services)."""

    speculates: bool

    @property
    def bos_id(self) -> int | None: ...
    @property
    def eos_ids(self) -> Sequence[int]: ...

    def encode(self, text: str, *, add_special: bool = False) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...
    def render_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str | None:
        """The conversation as text, special tokens included; None if the model has no chat template of its own."""

    def submit(self, request: GenerateRequest, sink: ChunkSink) -> None: ...
    def score(self, request: ScoreRequest, sink: ScoreSink) -> None: ...
    def abort(self, rid: str) -> None: ...
    def defer(self, work: Callable[[], None], delay: float = 0.0) -> None: ...

    def flush_cache(self) -> bool: ...
    def get_server_info(self) -> dict[str, Any]: ...
    def shutdown(self) -> None: ...


@runtime_checkable
class Pinning(Protocol):
    """What a backend with a prefix cache of its own can do besides; programs ask with `isinstance`, others go without.

    A pin belongs to (ids, cache_salt): pinning again renews its time, and one `unpin` ends it.
    """

    def pin(self, ids: Sequence[int], ttl: float, cache_salt: str = "") -> int:
        """Computes what of `ids` is not cached, and keeps it from eviction for `ttl` seconds. Returns how many tokens that holds.

        Raises RequestError where too much is pinned already, UnsupportedError where the cache is switched off.
        """

    def unpin(self, ids: Sequence[int], cache_salt: str = "") -> bool:
        """Lets `ids` be evicted again. False if they were not pinned."""


@runtime_checkable
class Joining(Protocol):
    """A backend that may take requests with `joined` parts: `joins` says whether it does."""

    joins: bool


class Line(Protocol):
    """One state of a program, to a backend that keeps states: `submit` and `score` as the backend's own, for this state alone.

    `close` says that the state has ended. One that asks again all the same is answered."""

    def submit(self, request: GenerateRequest, sink: ChunkSink) -> None: ...
    def score(self, request: ScoreRequest, sink: ScoreSink) -> None: ...
    def fork(self, ids: Sequence[int]) -> Line:
        """A state that goes on from this one's `ids`."""

    def close(self) -> None: ...


@runtime_checkable
class Keeping(Protocol):
    """A backend that keeps states on its side, so that a request brings only what is new; asked for with `isinstance`."""

    def line(self) -> Line:
        """A state that begins."""


def compute(backend: Backend, request: GenerateRequest) -> None:
    """Has a request computed that wants no text, and waits for it. Raises its error."""
    over = threading.Event()
    errors: list[Exception] = []

    def take(chunk: Chunk) -> None:
        if chunk.error is not None:
            errors.append(chunk.error)
        if chunk.last:
            over.set()

    backend.submit(request, take)
    over.wait()
    if errors:
        raise errors[0]


class Worker:
    """One thread that runs small jobs in order, now or after a delay. It starts with the backend and ends with it."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._later: list[tuple[float, int, Callable[[], None]]] = []  # a heap; of the same time, in order
        self._count = itertools.count()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def post(self, work: Callable[[], None], delay: float = 0.0) -> None:
        """Runs `work` on the thread after `delay` seconds; after `close` it is dropped."""
        if delay:
            self.post_at(work, time.monotonic() + delay)
        elif not self._closed:
            self._jobs.put(work)

    def post_at(self, work: Callable[[], None], when: float) -> None:
        """Runs `work` on the thread at a time of `time.monotonic`; after `close` it is dropped."""
        if self._closed:
            return
        entry = when, next(self._count), work
        heapq.heappush(self._later, entry)  # one step of the interpreter, as all on this list: no lock, for which threads would queue
        if entry in self._later[:1]:  # else the thread is not woken: it looks when the first of them is due
            self._jobs.put(_nothing)

    def close(self) -> None:
        """Ends the thread after the jobs that are due."""
        self._closed = True
        self._jobs.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while True:
            timeout = self._perform_due()
            try:
                work = self._jobs.get(timeout=timeout)
            except Empty:
                continue
            if work is None:
                return
            _perform(work)

    def _perform_due(self) -> float | None:
        """Runs the delayed jobs whose time has come; returns how long it is until the next one."""
        while self._later:
            remaining = self._later[0][0] - time.monotonic()  # this thread alone takes from it
            if remaining > 0:
                return remaining
            _perform(heapq.heappop(self._later)[2])
        return None


def _nothing() -> None:
    """A job that only makes the thread look at what is due."""


def _perform(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:  # a job reports its own errors; one that does not must not end the others
        logging.getLogger(__name__).exception("a deferred job failed")
