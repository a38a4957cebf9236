"""How an answer leaves: OpenAI's error body and status codes, server-sent events, and what happens when the client leaves first."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..errors import (
    CancelledError,
    ConfigError,
    DeadlineError,
    EngineClosedError,
    EngineError,
    QueueFullError,
    RequestError,
    UnsupportedError,
)

log = logging.getLogger("ramet.http")
T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


class HttpError(Exception):
    """An answer that is decided at the HTTP border: a status, a code and a sentence."""

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param


def describe(error: BaseException) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers for an error. One that nobody foresaw is logged and shown as "internal error" only."""
    status, code, param, headers = 500, None, None, {}
    message = str(error)
    if isinstance(error, HttpError):
        status, code, param = error.status, error.code, error.param
        if status in (408, 413):
            headers = {"connection": "close"}  # the rest of the body is not wanted
        elif status == 503:
            headers = {"retry-after": "5"}
    elif isinstance(error, UnsupportedError):
        status, code, param = 400, "unsupported", error.field
    elif isinstance(error, RequestError):
        status, param = 400, error.field
    elif isinstance(error, ConfigError):
        status = 400
    elif isinstance(error, QueueFullError):
        status, code, headers = 503, "queue_full", {"retry-after": str(max(1, round(error.retry_after)))}
    elif isinstance(error, EngineClosedError):
        status, code, headers = 503, "engine_unavailable", {"retry-after": "5"}
    elif isinstance(error, DeadlineError):
        status, code = 504, "deadline_exceeded"
    elif isinstance(error, CancelledError):
        status, code = 409, "aborted"
    elif isinstance(error, EngineError):
        code = "engine_error"
    elif isinstance(error, TimeoutError):
        status, code, message = 504, "timeout", "the engine did not answer in time"
    else:
        log.error("unforeseen error in a handler", exc_info=error)
        message = "internal error; the server's log has the details"
    kind = {401: "authentication_error", 404: "not_found_error"}.get(status, "invalid_request_error" if status < 500 else "server_error")
    return status, {"error": {"message": message, "type": kind, "param": param, "code": code}}, headers


class Json(Response):
    """A value as JSON, by msgspec."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return _encode(content)


def error_response(error: BaseException) -> Json:
    status, body, headers = describe(error)
    return Json(body, status, headers)


def event(data: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + _encode(data) + b"\n\n"


async def gone(receive: Receive) -> None:
    """Returns when the client has closed its side; the body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def first_of(work: Awaitable[T], receive: Receive) -> T:
    """The result of `work`, unless the client leaves before: then `work` is cancelled and HttpError 499 raised."""
    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(gone(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise HttpError(499, "the client closed the connection", code="client_closed")
    finally:
        watch.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


async def answer(request: Request, work: Awaitable[Any]) -> Response:
    """A JSON response of the result of `work`, which is cancelled when the client leaves."""
    result = await first_of(work, request.receive)
    return result if isinstance(result, Response) else Json(result)


class EventStream(Response):
    """Server-sent events from an iterator of encoded events.

    The status line waits for the first event, so that a request refused at the door is a plain error response. A later error
    is a last event with an error body; then the connection closes. When the client leaves, or does not read for `stall`
    seconds, the iterator is closed, which aborts its requests."""

    def __init__(self, events: AsyncGenerator[bytes, None], *, stall: float) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"})
        self.events = events
        self.stall = stall

    def render(self, content: Any) -> bytes:
        raise NotImplementedError

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await first_of(self._pump(scope, receive, send), receive)
        except HttpError as error:
            if error.status != 499:
                raise

    async def _pump(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self.events) as events:
            try:
                first = await anext(events)
            except Exception as error:
                await error_response(error)(scope, receive, send)
                return
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._send(send, first)
            try:
                async for data in events:
                    await self._send(send, data)
            except Exception as error:
                if isinstance(error, _Stalled):
                    raise
                await self._send(send, event(describe(error)[1]))
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, data: bytes) -> None:
        try:
            async with asyncio.timeout(self.stall):
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except TimeoutError:
            raise _Stalled(f"the client did not read for {self.stall:g} s") from None


class _Stalled(Exception):
    """The reader of a stream is too slow; the server closes the connection."""


async def merge(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """The items of several iterators as they come. The first error ends all of them."""
    if len(sources) == 1:
        async with aclosing(sources[0]) as only:
            async for item in only:
                yield item
        return
    queue: asyncio.Queue[tuple[bool, Any]] = asyncio.Queue()

    async def feed(source: AsyncGenerator[T, None]) -> None:
        async with aclosing(source) as items:
            async for item in items:
                queue.put_nowait((True, item))

    def ended(task: asyncio.Task[None]) -> None:
        queue.put_nowait((False, None if task.cancelled() else task.exception()))

    tasks = [asyncio.create_task(feed(source)) for source in sources]
    for task in tasks:
        task.add_done_callback(ended)
    try:
        left = len(tasks)
        while left:
            is_item, value = await queue.get()
            if is_item:
                yield value
                continue
            if value is not None:
                raise value
            left -= 1
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
