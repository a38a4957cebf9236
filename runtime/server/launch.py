"""`ramet serve`: from options to a running server, and its orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..config import ServerConfig
from ..errors import ConfigError, EngineClosedError, RametError
from . import ipc, logs
from .http import MAX_HEADER, create_app
from .parts import factory
from .service import Service
from .supervisor import Supervisor
from .worker import Spec

log = logging.getLogger("ramet.server")


def serve(config: ServerConfig) -> int:
    """Serves until SIGTERM or SIGINT; the exit status. What cannot start says so in one line on stderr."""
    logs.configure(config.log_level, process="http", style=config.log_format)
    try:
        with bind(config.host, config.port) as listener:
            return asyncio.run(_Running(config, listener).run())
    except RametError as error:
        print(f"ramet serve: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet. Raises ConfigError when the address cannot be had."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except BaseException:
            listener.close()
            raise
        return listener
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port or --host") from error


class _Running:
    """One server from start to end."""

    def __init__(self, config: ServerConfig, listener: socket.socket) -> None:
        self.config = config
        self.listener = listener
        self.status = 0
        self.server: _Server | None = None
        self.starting: asyncio.Task[Service] | None = None
        self.supervisor: Supervisor | None = None

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        try:
            self.starting = asyncio.create_task(self._start())
            try:
                service = await self.starting
            except asyncio.CancelledError:
                return 0  # asked to end while it started
            self.server = _Server(self._uvicorn_config(service), service)
            if not self.status:
                host, port = self.listener.getsockname()[:2]
                url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
                self.listener.listen(2048)  # who reads the line below and calls at once is not refused
                log.info("serving", extra={"data": {"url": url, "model": service.model_name}})
                gc.collect()
                gc.freeze()  # modules and the vocabulary stay: no collection need look at them while streams wait
                watching = asyncio.create_task(service.watch_lag(), name="lag")
                await self.server.serve(sockets=[self.listener])
                watching.cancel()
            service.close()
            return self.status
        finally:
            if self.supervisor is not None:
                await self.supervisor.stop(60.0 if self.config.engine.cache_dir else 5.0)  # seconds: it may have KV to write

    async def _start(self) -> Service:
        """The engine process and the tokenizer, at the same time. Raises the worker's own words as EngineClosedError."""
        engine = self.config.engine
        opening = asyncio.create_task(asyncio.to_thread(factory(self.config.factory).open_tokenizer, engine))
        opening.add_done_callback(lambda task: task.cancelled() or task.exception())  # the worker's words come first
        try:
            service = Service(self.config)
            self.supervisor = Supervisor(service.client, self._spec, restarts=self.config.worker_restarts, on_end=self._on_end)
            await self.supervisor.start()
            service.tokenizer = await opening
            return service
        except BaseException:
            opening.cancel()
            raise

    def _spec(self, endpoints: ipc.Endpoints) -> Spec:
        config = self.config
        return Spec(
            config.factory,
            config.engine,
            endpoints.requests,
            endpoints.replies,
            config.log_level,
            config.log_format,
            config.watchdog_timeout,
        )

    def _uvicorn_config(self, service: Service) -> uvicorn.Config:
        return uvicorn.Config(
            create_app(service),
            http=_timed(self.config.body_timeout),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            h11_max_incomplete_event_size=MAX_HEADER,
            timeout_graceful_shutdown=round(self.config.drain_timeout) + 2,
        )

    def _on_signal(self) -> None:
        if self.server is None:
            if self.starting is not None:
                self.starting.cancel()
            self.status = self.status or 0
        elif self.server.should_exit:
            self.server.force_exit = True  # asked twice
        else:
            log.info("draining", extra={"data": {"limit": self.config.drain_timeout}})
            self.server.drain()

    def _on_end(self, reason: str) -> None:
        log.error("the server ends: %s", reason)
        self.status = 1
        if self.server is not None:
            self.server.drain()


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: what runs may end, nothing new begins."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def drain(self) -> None:
        """Lets what runs end, for `drain_timeout` seconds; then it ends with an error."""
        self.service.draining = True
        self.should_exit = True
        late = EngineClosedError("the server is shutting down")
        asyncio.get_running_loop().call_later(self.service.config.drain_timeout, self.service.client.fail_open, late)


def _timed(limit: float) -> type[H11Protocol]:
    """uvicorn's protocol, with a limit on the seconds that the head of a request may take."""

    class Timed(H11Protocol):
        timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.timer = self.loop.call_later(limit, transport.close)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop()
            elif self.timer is None:
                self.timer = self.loop.call_later(limit, self.transport.close)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _stop(self) -> None:
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None

    return Timed
