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


class Worker:
    """One thread that runs small jobs in order, now or after a delay. It starts with the backend and ends with it."""

    def __init__(self, name: str) -> None:
        self._jobs: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._change = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def post(self, work: Callable[[], None], delay: float = 0.0) -> None:
        """Runs `work` on the thread after `delay` seconds; after `close` it is dropped."""
        with self._change:
            if self._closed:
                return
            job = (time.monotonic() + delay if delay else 0.0, next(self._count), work)
            heapq.heappush(self._jobs, job)
            if self._jobs[0] is job:
                self._change.notify()

    def drain(self) -> None:
        """Ends the thread after all jobs that are due."""
        if threading.current_thread() is not self._thread:
            done = threading.Event()
            self.post(done.set)
            done.wait(timeout=5.0)
        self.close()

    def close(self) -> None:
        """Ends the thread after the job it is at."""
        with self._change:
            self._closed = True
            self._jobs.clear()
            self._change.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._change:
                while not self._closed and (not self._jobs or self._jobs[0][0] > time.monotonic()):
                    self._change.wait(max(0.0, self._jobs[0][0] - time.monotonic()) if self._jobs else None)
                if self._closed:
                    return
                work = heapq.heappop(self._jobs)[2]
            try:
                work()
            except Exception:  # a job reports its own errors; one that does not must not end the others
                logging.getLogger(__name__).exception("a deferred job failed")
