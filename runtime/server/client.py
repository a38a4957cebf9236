"""The HTTP process's side of the engine: requests out, chunks back, on one asyncio loop."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import zmq
import zmq.asyncio

from ..errors import EngineClosedError, QueueFullError, RequestError
from ..histogram import Histogram
from ..protocol import Chunk, GenerateRequest, ScoreRequest, Scores
from . import ipc

log = logging.getLogger("ramet.client")


class Inbox:
    """Chunks of one request that nobody has read yet. One reader."""

    __slots__ = ("_items", "_waiter")

    def __init__(self) -> None:
        self._items: list[Any] = []
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[Any]:
        """Everything that came since the last call; waits for the first."""
        if not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        items, self._items = self._items, []
        return items


class EngineClient:
    """Sends requests to the worker that is attached, and hands each its answers.

    `check` is asked about every prompt before it is sent. `stats` are the worker's latest; `last_beat` is when they came
    (time.monotonic). `info` is the engine's `server_info()`.
    """

    def __init__(self, *, max_open: int, check: Callable[[Any], None], observe: Callable[[GenerateRequest, Chunk], None] | None = None) -> None:
        self.max_open = max_open
        self.check = check
        self.observe = observe
        self.info: dict[str, Any] = {}
        self.stats: dict[str, Any] = {}
        self.delivery = Histogram()  # seconds, from the worker's thread that sends to this loop
        self.last_beat = 0.0
        self.ready = False
        self._open: dict[str, Inbox] = {}
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count()
        self._context = zmq.asyncio.Context()
        self._plain: zmq.Context[Any] = zmq.Context.shadow(self._context.underlying)
        self._in: Any = None
        self._out: Any = None
        self._reading: asyncio.Task[None] | None = None
        self._started: asyncio.Future[dict[str, Any]] | None = None

    @property
    def open_requests(self) -> int:
        return len(self._open)

    # ---- the worker that is attached

    async def attach(self, endpoints: ipc.Endpoints) -> asyncio.Future[dict[str, Any]]:
        """Opens the sockets. The future gives the engine's info when it is open, or EngineClosedError with its own words."""
        self._started = asyncio.get_running_loop().create_future()
        self._in = ipc.configure(self._context.socket(zmq.PULL))
        ipc.bind_private(self._in, endpoints.replies)
        self._out = ipc.configure(self._plain.socket(zmq.PUSH))
        self._out.connect(endpoints.requests)
        self._reading = asyncio.create_task(self._read(self._in, ipc.Reader(ipc.ToServer)), name="engine-replies")
        self.last_beat = time.monotonic()
        return self._started

    async def detach(self, error: Exception) -> None:
        """Closes the sockets; every open request and call ends with `error`."""
        self.ready = False
        if self._reading is not None:
            self._reading.cancel()
        for socket in (self._in, self._out):
            if socket is not None:
                socket.close(0)
        self._in = self._out = self._reading = None
        if self._started is not None and not self._started.done():
            self._started.set_exception(error)
        self.fail_open(error)
        for call in self._calls.values():
            if not call.done():
                call.set_exception(error)
        self._calls.clear()

    def fail_open(self, error: Exception) -> None:
        """Ends every open request with `error`, here; the engine learns of it when their readers have left."""
        for rid, inbox in self._open.items():
            inbox.put(Chunk(rid, error=error))

    def stop(self) -> None:
        """Asks the worker to close its engine and leave."""
        self._send(ipc.Stop())

    # ---- requests

    async def stream(self, request: GenerateRequest) -> AsyncGenerator[list[Chunk], None]:
        """The chunks of a request, those that came together in one list, until each of its n outputs is finished.

        Raises the request's error. Leaving early aborts the request, so wrap it in `contextlib.aclosing`."""
        inbox = self._enter(request)
        left = request.params.n  # outputs that are not finished
        try:
            self._send(ipc.Submit(request))
            while left:
                chunks = await inbox.take()
                for chunk in chunks:
                    if self.observe is not None:
                        self.observe(request, chunk)
                    if chunk.error is not None:
                        raise chunk.error
                    left -= chunk.finish is not None
                yield chunks
        finally:
            del self._open[request.rid]
            if left and self.ready:
                self._send(ipc.Abort(request.rid))

    async def score(self, request: ScoreRequest) -> Scores:
        """Raises the request's error."""
        inbox = self._enter(request)
        done = False
        try:
            self._send(ipc.Score(request))
            scores = (await inbox.take())[0]
            done = True
            if scores.error is not None:
                raise scores.error
            return scores
        finally:
            del self._open[request.rid]
            if not done and self.ready:
                self._send(ipc.Abort(request.rid))

    async def call(self, name: str, *, timeout: float = 10.0, **arguments: Any) -> Any:
        """The answer of one of the worker's methods. Raises its error, or TimeoutError."""
        self._require_ready()
        number = next(self._numbers)
        answer = self._calls[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(ipc.Call(number, name, arguments))
            return await asyncio.wait_for(answer, timeout)
        finally:
            self._calls.pop(number, None)

    def abort(self, rid: str) -> bool:
        """Aborts an open request; False when there is none of that id."""
        if rid not in self._open:
            return False
        self._send(ipc.Abort(rid))
        return True

    def abort_prefix(self, prefix: str) -> int:
        """Aborts every open request whose id starts so; "" means all. How many."""
        return sum(self.abort(rid) for rid in list(self._open) if rid.startswith(prefix))

    def _enter(self, request: GenerateRequest | ScoreRequest) -> Inbox:
        rid = request.rid
        self._require_ready()
        self.check(request.prompt)
        if rid in self._open:
            raise RequestError(f"rid {rid!r}: a request of that id is still running", field="rid")
        if len(self._open) >= self.max_open:
            raise QueueFullError(f"{len(self._open)} requests are open already; try again later")
        inbox = self._open[rid] = Inbox()
        return inbox

    def _require_ready(self) -> None:
        if not self.ready:
            raise EngineClosedError("the engine is not running; try again later")

    def _send(self, frame: Any) -> None:
        data = ipc.encode(frame)
        if len(data) > ipc.MAX_FRAME:
            raise RequestError(f"the request takes {len(data)} bytes; at most {ipc.MAX_FRAME} fit", field="prompt")
        if self._out is not None:
            self._out.send(data)

    # ---- answers

    async def _read(self, socket: Any, reader: ipc.Reader) -> None:
        while True:
            frame = reader.read(await socket.recv_multipart())
            if frame is not None:
                try:
                    self._handle(frame)
                except Exception:  # one bad answer must not end the reader
                    log.exception("an answer of the worker could not be handled")

    def _handle(self, frame: Any) -> None:
        if isinstance(frame, ipc.Chunks):
            self.delivery.observe(max(0.0, time.monotonic() - frame.sent))
            for chunk in frame.items:
                if (inbox := self._open.get(chunk.rid)) is not None:
                    inbox.put(chunk)
        elif isinstance(frame, ipc.Beat):
            self.stats, self.last_beat = frame.stats, time.monotonic()
        elif isinstance(frame, ipc.Scored):
            if (inbox := self._open.get(frame.scores.rid)) is not None:
                inbox.put(frame.scores)
        elif isinstance(frame, ipc.Answer):
            if (call := self._calls.get(frame.number)) is not None and not call.done():
                call.set_exception(frame.error) if frame.error else call.set_result(frame.value)
        elif self._started is not None and not self._started.done():
            if isinstance(frame, ipc.Ready):
                self.info, self.ready = frame.info, True
                self._started.set_result(frame.info)
            else:
                self._started.set_exception(EngineClosedError(frame.message))
