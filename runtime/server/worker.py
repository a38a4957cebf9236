"""The engine process: `python -m ramet.runtime.server.worker`, started by the HTTP process with a `Spec` on its stdin.

Threads: the main one reads frames; small lanes run `submit` (encoding, and compiling grammars, apart, so that a slow
grammar never holds up a plain prompt) and calls; the engine steps on its own thread; one thread sends; one beats; one reads the
engine's numbers; one waits for the end of stdin, which is the parent's death, and leaves then: no worker is ever orphaned.
"""

from __future__ import annotations

import gc
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import zmq

from ..config import EngineConfig
from ..errors import EngineClosedError, RametError, UnsupportedError
from ..protocol import Chunk, GenerateRequest, ScoreRequest, Scores
from . import ipc
from .parts import Loop, factory

BEAT = 0.5  # seconds
CALLS = ("flush_cache", "server_info", "stats", "tree", "explain", "pin", "unpin", "compile")  # what a Call frame may name

log = logging.getLogger("ramet.worker")


class Spec(msgspec.Struct, frozen=True):
    """What a worker is started with: one line of JSON."""

    factory: str
    config: EngineConfig
    requests: str
    replies: str
    log_level: str = "info"
    log_format: str = "text"
    watchdog_timeout: float = 300.0


class Worker:
    """Serves one loop over two sockets until `Stop`, or until the engine dies."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.context = zmq.Context()
        self.out: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.pending: dict[str, bool] = {}  # rid being submitted -> was it aborted meanwhile
        self.lock = threading.Lock()
        self.lanes = {kind: ThreadPoolExecutor(2, f"submit-{kind}") for kind in ("plain", "constrained", "calls")}
        self.stats: dict[str, Any] = {}
        self.stats_at = time.monotonic()
        self.stopping = False
        self.sender = threading.Thread(target=self._send, name="sender", daemon=True)

    def run(self) -> int:
        """The exit status: 0 after `Stop`, 1 when the engine could not be opened."""
        source = ipc.configure(self.context.socket(zmq.PULL))
        ipc.bind_private(source, self.spec.requests)
        self.sender.start()
        try:
            self.loop: Loop = factory(self.spec.factory).open_loop(self.spec.config)
            info = self.loop.server_info()
        except Exception as error:
            if not isinstance(error, RametError):
                log.exception("the engine could not be opened")
            return self._leave(1, ipc.Failed(f"{error}" if isinstance(error, RametError) else f"{type(error).__name__}: {error}"))
        gc.collect()
        gc.freeze()  # model and libraries stay: no collection between two steps need look at them
        self.out.put(ipc.Ready(os.getpid(), info))
        self.stats_at = time.monotonic()
        for task in (self._beat, self._watch):
            threading.Thread(target=task, name=task.__name__.strip("_"), daemon=True).start()
        reader = ipc.Reader(ipc.ToWorker)
        while True:
            frame = reader.read(source.recv_multipart())
            if isinstance(frame, ipc.Stop):
                self.stopping = True
                self.loop.close()
                return self._leave(0)
            if frame is not None:
                self._handle(frame)

    def _handle(self, frame: Any) -> None:
        if isinstance(frame, ipc.Submit):
            lane = "plain" if frame.request.params.constraint is None else "constrained"
            self._enter(lane, frame.request, self._submit)
        elif isinstance(frame, ipc.Score):
            self._enter("plain", frame.request, self._score)
        elif isinstance(frame, ipc.Abort):
            self._abort(frame.rid)
        else:
            self.lanes["constrained" if frame.name == "compile" else "calls"].submit(self._call, frame)

    def _enter(self, lane: str, request: Any, run: Callable[[Any], None]) -> None:
        with self.lock:
            self.pending[request.rid] = False
        self.lanes[lane].submit(run, request)

    def _submit(self, request: GenerateRequest) -> None:
        try:
            self.loop.submit(request, self.out.put)
        except Exception as error:
            self._refused(error)
            self.out.put(Chunk(request.rid, error=error))
        self._entered(request.rid)

    def _score(self, request: ScoreRequest) -> None:
        try:
            self.loop.score(request, lambda scores: self.out.put(ipc.Scored(scores)))
        except Exception as error:
            self._refused(error)
            self.out.put(ipc.Scored(Scores(request.rid, error=error)))
        self._entered(request.rid)

    def _entered(self, rid: str) -> None:
        with self.lock:
            aborted = self.pending.pop(rid, False)
        if aborted:
            self.loop.abort(rid)

    def _abort(self, rid: str) -> None:
        with self.lock:
            if rid in self.pending:  # still encoding: abort as soon as the engine knows it
                self.pending[rid] = True
                return
        self.loop.abort(rid)

    def _refused(self, error: Exception) -> None:
        if not isinstance(error, RametError):
            log.error("a request failed in submit", exc_info=error)

    def _call(self, call: ipc.Call) -> None:
        try:
            method = getattr(self.loop, call.name, None) if call.name in CALLS else None
            if method is None:
                raise UnsupportedError(f"this engine has no {call.name!r}", field=call.name)
            self.out.put(ipc.Answer(call.number, method(**call.arguments)))
        except Exception as error:
            self._refused(error)
            self.out.put(ipc.Answer(call.number, error=error))

    def _beat(self) -> None:
        """A long step does not stop the beat: it goes out with the stats there are. One that never ends does."""
        while True:
            if time.monotonic() - self.stats_at > self.spec.watchdog_timeout:
                log.error("the step loop has not answered for %g s", self.spec.watchdog_timeout)
                os._exit(4)
            self.out.put(ipc.Beat(self.stats))
            time.sleep(BEAT)

    def _watch(self) -> None:
        """Reads the engine's stats, which may wait for a step to end; leaves when the engine has died."""
        while True:
            try:
                self.stats = self.loop.stats()
                self.stats_at = time.monotonic()
            except EngineClosedError as error:
                if self.stopping:  # it was asked to end, and may be writing its cache down
                    return
                log.error("the engine died: %s", error)
                self._leave(1)
                os._exit(1)
            except Exception:
                log.exception("stats failed")
            time.sleep(BEAT)

    def _leave(self, status: int, *frames: Any) -> int:
        """Sends what is queued, waits until it is on its way, and gives back the status."""
        for frame in frames:
            self.out.put(frame)
        self.out.put(None)
        self.sender.join(5)
        return status

    def _send(self) -> None:
        context = zmq.Context()  # its own, so that term() waits for this socket alone
        target = ipc.configure(context.socket(zmq.PUSH))
        target.setsockopt(zmq.LINGER, 2000)  # milliseconds
        target.connect(self.spec.replies)
        closing = False
        while not closing:
            chunks: list[Chunk] = []
            for item in _drain(self.out):
                if isinstance(item, Chunk):
                    chunks.append(item)
                elif item is None:
                    closing = True
                else:
                    _send_frame(target, item)
            if chunks:
                _send_frame(target, ipc.Chunks(chunks, time.monotonic()))
        target.close()
        context.term()  # waits up to LINGER: what was sent arrives


def _drain(source: queue.SimpleQueue[Any]) -> list[Any]:
    """Everything in the queue, waiting for the first."""
    items = [source.get()]
    try:
        while True:
            items.append(source.get_nowait())
    except queue.Empty:
        return items


def _send_frame(target: Any, frame: Any) -> None:
    try:
        data = ipc.encode(frame)
    except Exception as error:  # a value without a wire form must not end the sender
        log.exception("a %s frame could not be encoded", type(frame).__name__)
        if not isinstance(frame, ipc.Answer):
            return
        data = ipc.encode(ipc.Answer(frame.number, error=error))
    target.send(data)


def _leave_with_parent(spec: Spec) -> None:
    sys.stdin.buffer.read()  # returns at end of file: the parent is gone, however it went
    ipc.remove_folder(Path(spec.requests.removeprefix("ipc://")).parent)
    os._exit(3)


def main() -> int:
    from .logs import configure

    spec = msgspec.json.decode(sys.stdin.buffer.readline(), type=Spec)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    threading.Thread(target=_leave_with_parent, args=(spec,), name="parent", daemon=True).start()
    configure(spec.log_level, process="worker", style=spec.log_format)
    return Worker(spec).run()


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # threads of the engine's libraries have nothing left to do
