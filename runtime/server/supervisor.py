"""Starts the engine process, watches it, and says so when it dies: within seconds, whether it was killed, stopped or stuck."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ..errors import EngineClosedError
from . import ipc
from .client import EngineClient
from .worker import Spec

TICK = 0.25  # seconds between two looks at the worker
SILENCE = 3.0  # seconds without a beat after which the worker counts as dead

log = logging.getLogger("ramet.supervisor")


class Supervisor:
    """One worker at a time. `on_end` is called with a sentence when it died and is not started again."""

    def __init__(self, client: EngineClient, spec: Callable[[ipc.Endpoints], Spec], *, restarts: int, on_end: Callable[[str], None]) -> None:
        self.client = client
        self.make_spec = spec
        self.restarts = restarts
        self.on_end = on_end
        self.process: asyncio.subprocess.Process | None = None
        self._endpoints: ipc.Endpoints | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts a worker and waits until its engine is open. Raises EngineClosedError with the worker's own words."""
        await self._launch()
        self._watch = asyncio.create_task(self._watch_over(), name="supervisor")

    async def stop(self, grace: float = 5.0) -> None:
        """Closes the worker: asked first, killed after `grace` seconds."""
        if self._watch is not None:
            self._watch.cancel()
        if self.process is not None and self.process.returncode is None:
            self.client.stop()
            try:
                await asyncio.wait_for(self.process.wait(), grace)
            except TimeoutError:
                log.warning("the worker did not leave within %g s; killing it", grace)
        await self._clean("the server is shutting down")

    async def _launch(self) -> None:
        self._endpoints = ipc.Endpoints()
        started = await self.client.attach(self._endpoints)
        environment = {name: value for name, value in os.environ.items() if name != "RAMET_API_KEY"}
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "ramet.runtime.server.worker", stdin=asyncio.subprocess.PIPE, stdout=2, env=environment
        )
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(self.make_spec(self._endpoints)) + b"\n")
        exited = asyncio.ensure_future(self.process.wait())
        either: list[asyncio.Future[Any]] = [started, exited]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not started.done():
                await asyncio.wait({started}, timeout=0.2)  # its last words may still be on their way
            if not started.done():
                started.cancel()
                raise EngineClosedError(f"the engine process left with status {self.process.returncode} before it was ready")
            started.result()
        except BaseException:
            await self._clean("the engine could not be started")
            raise
        finally:
            exited.cancel()

    async def _watch_over(self) -> None:
        while True:
            reason = await self._death()
            log.error("%s", reason)
            await self._clean(reason)
            if self.restarts <= 0:
                self.on_end(reason)
                return
            self.restarts -= 1
            try:
                await self._launch()
                log.warning("the engine process was started again")
            except Exception as error:
                self.on_end(f"{reason}; starting it again failed: {error}")
                return

    async def _death(self) -> str:
        """Waits until the worker is dead; how it died.

        Silence is counted in ticks of this process, so that a machine that slept or stalled as a whole accuses nobody; nor does
        a tick count in which the worker would have run, but was given no processor."""
        assert self.process is not None
        silent, seen = 0.0, self.client.last_beat
        starved = _Starvation(self.process.pid)
        while True:
            before = time.monotonic()
            try:
                await asyncio.wait_for(self.process.wait(), TICK)
                return f"the engine process ended with status {self.process.returncode}"
            except TimeoutError:
                pass
            if self.client.last_beat != seen:
                silent, seen = 0.0, self.client.last_beat
            elif not starved.since_last():
                silent += min(time.monotonic() - before, 2 * TICK)
            if silent > SILENCE:
                return f"the engine process has not answered for {SILENCE:g} s"

    async def _clean(self, reason: str) -> None:
        await self.client.detach(EngineClosedError(reason))
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        if self._endpoints is not None:
            self._endpoints.remove()
            self._endpoints = None


class _Starvation:
    """Whether a process waits for a processor, and got none since the last look. Never where /proc is not there to say."""

    def __init__(self, pid: int) -> None:
        self.threads = Path(f"/proc/{pid}/task")
        self.spent = -1

    def since_last(self) -> bool:
        try:
            stats = [(thread / "stat").read_text().rsplit(")", 1)[1].split() for thread in self.threads.iterdir()]
        except OSError:  # it, or one of its threads, has just ended
            return False
        before, self.spent = self.spent, sum(int(fields[11]) + int(fields[12]) for fields in stats)
        return before == self.spent and any(fields[0] == "R" for fields in stats)
