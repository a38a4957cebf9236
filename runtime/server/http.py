"""The application: one gate in front of all routes, the error body, the routes of the two families and the page."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import time
import uuid
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..config import ServerConfig
from ..errors import RametError
from .answers import HttpError, error_response
from .service import Service

PAGE = Path(__file__).parent / "page"
PAGE_FILES = {"/": "index.html", "/page.js": "page.js", "/page.css": "page.css"}
OPEN_PATHS = frozenset({"/health"})  # answered without the key; everything else is not
WHILE_DRAINING = frozenset({"/health", "/metrics"})

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
MAX_HEADER = 32 * 1024  # bytes of a request's head

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
log = logging.getLogger("ramet.http")


class Gate:
    """Runs before every route, also those that do not exist: request id, key, drain, size and time of the body, log line."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app = app
        self.service = service
        config = service.config
        self.config = config
        self.key = _digest(config.api_key.encode()) if config.api_key is not None else None
        self.open_paths = OPEN_PATHS | (PAGE_FILES.keys() if config.public_page else frozenset())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "no websockets here"})
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.monotonic()
        request_id = _request_id(scope)
        scope["ramet.id"], scope["ramet.log"] = request_id, {}
        status = 0

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            refusal = self._refusal(scope)
            if refusal is not None:
                await error_response(refusal)(scope, receive, send_and_note)
            else:
                await self.app(scope, _Body(receive, self.config), send_and_note)
        except Exception as error:
            if status:  # too late for an error body: let the connection break, as the client must not take this for the end
                log.warning("a response broke off: %s", error, extra={"data": {"request_id": request_id}})
                raise
            await error_response(error)(scope, receive, send_and_note)
        finally:
            self._note(scope, request_id, status, time.monotonic() - started)

    def _refusal(self, scope: Scope) -> HttpError | None:
        path = scope["path"]
        if self.key is not None and not (path in self.open_paths and scope["method"] in ("GET", "HEAD")) and not self._knows_key(scope):
            return HttpError(401, "a valid API key is needed: Authorization: Bearer KEY", code="invalid_api_key")
        if self.service.draining and path not in WHILE_DRAINING:
            return HttpError(503, "the server is shutting down", code="draining")
        if sum(len(name) + len(value) + 4 for name, value in scope["headers"]) > MAX_HEADER:
            return HttpError(431, f"the headers are larger than {MAX_HEADER} bytes", code="headers_too_large")
        length = _header(scope, b"content-length")
        if length is not None and length.isdigit() and int(length) > self.config.max_body_bytes:
            return _too_large(self.config)
        return None

    def _knows_key(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1 or self.key is None:
            return False
        scheme, _, key = given[0].partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(_digest(key), self.key)  # the scheme in any case: RFC 9110, 11.1

    def _note(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
        # labels are a small set whatever is asked for: the route's template, and methods that exist
        path = getattr(scope.get("route"), "path", "unknown")
        method = scope["method"] if scope["method"] in METHODS else "other"
        self.service.metrics.http.labels(method, path, status or "broken").inc()
        if self.config.log_requests:
            data = {
                "request_id": request_id,
                "method": scope["method"][:16],
                "path": scope["raw_path"][:200].decode("latin-1"),  # as it came: no control characters
                "status": status,
                "seconds": round(seconds, 6),
                **scope["ramet.log"],
            }
            log.info("request", extra={"data": data})


class _Body:
    """`receive` with a limit on the bytes of the body and on the time it takes to arrive."""

    def __init__(self, receive: Receive, config: ServerConfig) -> None:
        self.receive = receive
        self.config = config
        self.end = time.monotonic() + config.body_timeout
        self.size = 0
        self.complete = False

    async def __call__(self) -> Message:
        if self.complete:
            return await self.receive()
        try:
            async with asyncio.timeout(max(0.0, self.end - time.monotonic())):
                message = await self.receive()
        except TimeoutError:
            raise HttpError(408, f"the body did not arrive within {self.config.body_timeout:g} s", code="body_timeout") from None
        self.size += len(message.get("body", b""))
        self.complete = message["type"] != "http.request" or not message.get("more_body", False)
        if self.size > self.config.max_body_bytes:
            raise _too_large(self.config)
        return message


def _too_large(config: ServerConfig) -> HttpError:
    return HttpError(413, f"the body is larger than {config.max_body_bytes} bytes", code="body_too_large")


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()  # so that the compared strings have one length


def _header(scope: Scope, name: bytes) -> bytes | None:
    return next((value for key, value in scope["headers"] if key == name), None)


def _request_id(scope: Scope) -> str:
    """The client's x-request-id when it is a printable word of at most 128 characters, else a new one."""
    given = (_header(scope, b"x-request-id") or b"").decode("latin-1")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def create_app(service: Service) -> FastAPI:
    """The application over a service. Every route that it has is behind the gate."""
    from . import native_api, openai_api, responses_api, sessions

    app = FastAPI(title="Ramet", docs_url=None, redoc_url=None, redirect_slashes=False, openapi_url="/openapi.json")
    app.state.service = service
    for family in (native_api, sessions, openai_api, responses_api):
        app.include_router(family.routes(service))
    for path, name in PAGE_FILES.items():
        app.add_api_route(path, _page_file(name), methods=["GET"], include_in_schema=False)

    async def on_error(request: Request, error: Exception) -> Response:
        return error_response(error)

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        words = {404: f"there is no {request.url.path[:200]} here", 405: f"{request.method} is not possible here"}
        response = error_response(HttpError(error.status_code, words.get(error.status_code, str(error.detail))))
        response.headers.update(error.headers or {})
        return response

    async def on_query_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        name = str(first["loc"][-1])
        return error_response(HttpError(400, f"{name}: {first['msg'].lower()}", param=name))

    for kind in (RametError, HttpError, TimeoutError):
        app.add_exception_handler(kind, on_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(RequestValidationError, on_query_error)
    app.add_middleware(Gate, service=service)
    if service.config.cors_origins:
        from starlette.middleware.cors import CORSMiddleware

        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(service.config.cors_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["authorization", "content-type", "x-request-id"],
            expose_headers=["x-request-id"],
        )
    return app


def _page_file(name: str) -> Any:
    async def page() -> FileResponse:
        policy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src 'self' data:"
        return FileResponse(PAGE / name, headers={"content-security-policy": policy, "cache-control": "no-cache"})

    return page
