"""What remote backends share: an event loop on a thread for calls under way, and answers handed over on a worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from ...runtime.errors import CancelledError, EngineClosedError
from .base import Worker


class Calls:
    """Coroutines by request id, run on one thread; what they deliver is passed on in order on another.

    No thread per call: a thousand requests under way are a thousand coroutines.
    """

    def __init__(self, name: str) -> None:
        self.worker = Worker(f"{name}-worker")
        self._loop = asyncio.new_event_loop()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"{name}-calls", daemon=True)
        self._thread.start()

    def start(self, rid: str, work: Callable[[], Coroutine[Any, Any, None]], failed: Callable[[Exception], None]) -> None:
        """Runs `work()`; an exception in it, or its cancellation, is passed to `failed` on the worker."""
        if self._closed:
            raise EngineClosedError("the backend was shut down")
        self._loop.call_soon_threadsafe(self._begin, rid, work, failed)

    def abort(self, rid: str) -> None:
        """Cancels a call."""

        def cancel() -> None:
            task = self._tasks.get(rid)
            if task is not None:
                task.cancel()

        if not self._closed:
            self._loop.call_soon_threadsafe(cancel)

    def call(self, work: Callable[[], None]) -> None:
        """Runs something short on the loop, soon; after `close` it is dropped. Takes no lock, so that finalizers may call it."""
        if not self._closed:
            try:
                self._loop.call_soon_threadsafe(work)
            except RuntimeError:  # closed meanwhile
                pass

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Runs one coroutine on the loop and waits for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Cancels all calls, which then fail with EngineClosedError, runs `last` and ends the threads."""
        if self._closed:
            return
        self._closed = True

        async def end() -> None:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await last()
            await self._loop.shutdown_asyncgens()

        self.run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.worker.close()

    def _begin(self, rid: str, work: Callable[[], Coroutine[Any, Any, None]], failed: Callable[[Exception], None]) -> None:
        async def guarded() -> None:
            try:
                await work()
            except asyncio.CancelledError:
                error: Exception = EngineClosedError("the backend was shut down") if self._closed else CancelledError("the request was aborted")
                self.worker.post(lambda: failed(error))
            except Exception as exc:
                caught = exc
                self.worker.post(lambda: failed(caught))
            finally:
                self._tasks.pop(rid, None)

        self._tasks[rid] = self._loop.create_task(guarded())
