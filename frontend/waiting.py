"""Waiting without polling, for three kinds of readers: a thread, a greenlet of a batch, a coroutine.

A reader that finds its value missing leaves a *waker*, a function that is called once something changed, and looks
again. In a plain thread waiting blocks the thread. Inside a `Task` - a program's body as a greenlet - it switches to
whoever runs the task, so that one thread carries as many programs as fit in memory; `Hub` is such a runner, and an
asyncio event loop another one.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from queue import SimpleQueue
from typing import Any

Waker = Callable[[], None]
Timer = Callable[[Waker, float], None]  # calls the waker after so many seconds

_current = threading.local()  # .task: the Task that this thread is running right now


class Signal:
    """Something changed: whoever waits looks again. The lock also guards the state that is looked at."""

    __slots__ = ("_wakers", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._wakers: list[Waker] | None = None

    def notify(self) -> None:
        """Wakes all who wait. Not to be called with the lock held."""
        if not self._wakers:  # who adds one now looks once more after that
            return
        with self.lock:
            wakers, self._wakers = self._wakers, None
        for wake in wakers or ():
            wake()

    def _add(self, wake: Waker) -> None:
        with self.lock:
            if self._wakers is None:
                self._wakers = [wake]
            else:
                self._wakers.append(wake)

    def _forget(self, wake: Waker) -> None:
        """Time is over for this one."""
        with self.lock, suppress(ValueError):
            (self._wakers or []).remove(wake)

    def wait_for(self, ready: Callable[[], Any], deadline: float | None, timer: Timer) -> bool:
        """Waits until `ready()`, at most until `deadline` (time.monotonic). Returns whether it is."""
        if ready():
            return True
        task: Task | None = getattr(_current, "task", None)
        while True:
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                return False
            sleep, wake = task.sleeper() if task is not None else _thread_sleeper()
            self._add(wake)
            if ready():  # it came between the two looks
                return True
            if task is not None and remaining is not None:
                timer(wake, remaining)
            sleep(-1.0 if remaining is None else remaining)
            if ready():
                return True
            if remaining is not None:
                self._forget(wake)

    async def wait_for_async(self, ready: Callable[[], Any], deadline: float | None) -> bool:
        """As `wait_for`, without blocking the event loop."""
        loop = asyncio.get_running_loop()
        while not ready():
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                return False
            changed = asyncio.Event()

            def wake(changed: asyncio.Event = changed) -> None:
                with suppress(RuntimeError):  # the loop is closed, so nobody waits
                    loop.call_soon_threadsafe(changed.set)

            self._add(wake)
            if ready():
                return True
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), remaining)
        return True


def _thread_sleeper() -> tuple[Callable[[float], Any], Waker]:
    gate = threading.Lock()
    gate.acquire()

    def wake() -> None:
        with suppress(RuntimeError):  # woken twice
            gate.release()

    return lambda timeout: gate.acquire(timeout=timeout), wake


class Task:
    """A function that runs as a greenlet and gives its thread away while it waits.

    `schedule` arranges that `resume` is called soon on the thread that runs the task. `done` is called at its end.
    `carriers` are greenlets of that thread that are at leisure: starting one costs more than a short program. Without, it has
    one for itself.
    """

    def __init__(
        self, function: Callable[[], Any], schedule: Callable[[Task], None], done: Callable[[Task], None], carriers: list[Any] | None = None
    ) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._function, self._schedule, self._done = function, schedule, done
        self._carriers = carriers
        self._context = contextvars.copy_context()
        self._carrier: Any = None  # the greenlet that runs it, from its first turn to its end
        self._over = False
        self._sleeps = self._woken = 0  # the number of its last sleep, and of the last one that it was woken from
        self._asleep = False
        self._lock = threading.Lock()

    def resume(self) -> None:
        """Goes on with the function, until it waits again or ends."""
        here = _greenlets().getcurrent()
        carrier = self._carrier
        begins = carrier is None
        if begins:
            carrier = self._carrier = self._carriers.pop() if self._carriers else _greenlets().greenlet(_carry)
        if carrier.parent is not here:
            carrier.parent = here
        outer = getattr(_current, "task", None)
        _current.task = self
        try:
            if begins:
                carrier.switch(self)
            else:
                carrier.switch()
        finally:
            _current.task = outer
        if self._over:
            self._carrier = None
            if self._carriers is None:
                carrier.switch(None)
            else:
                self._carriers.append(carrier)
            self._done(self)

    def sleeper(self) -> tuple[Callable[[float], Any], Waker]:
        """For one sleep: how to sleep, and its waker. One that was used before the task sleeps keeps it awake."""
        self._sleeps += 1
        return self._sleep, partial(self._wake, self._sleeps)

    def _sleep(self, _: float) -> None:
        with self._lock:
            if self._woken == self._sleeps:
                return
            self._asleep = True
        self._carrier.parent.switch()

    def _wake(self, number: int) -> None:
        with self._lock:
            if number != self._sleeps or self._woken == number:  # of an earlier sleep, or a second time
                return
            self._woken = number
            asleep, self._asleep = self._asleep, False
        if asleep:
            self._schedule(self)

    def run(self) -> None:
        """The whole function, on the carrier."""
        try:
            self.result = self._context.run(self._function)
        except BaseException as exc:  # handed to whoever asked for the task
            self.error = exc
        self._over = True


def _carry(task: Task | None) -> None:
    """The life of a carrier: one task after the other, each handed over by the switch that wakes it, until None comes."""
    while task is not None:
        task.run()
        task = None  # not kept while the carrier is at leisure
        task = _greenlets().getcurrent().parent.switch()


@cache
def _greenlets() -> Any:
    """The package, imported when the first task runs."""
    import greenlet

    return greenlet


def no_timer(wake: Waker, delay: float) -> None:
    """For waits outside of tasks, or without a deadline."""


class Hub:
    """Runs tasks on the calling thread: one at a time, each until it waits."""

    def __init__(self) -> None:
        self._ready: SimpleQueue[Task] = SimpleQueue()
        self._carriers: list[Any] = []
        self.turns = self.seen = 0  # how often a task went on; what a watcher last saw of it
        self.resuming = False

    def spawn(self, function: Callable[[], Any], done: Callable[[Task], None]) -> Task:
        task = Task(function, self._ready.put, done, self._carriers)
        self._ready.put(task)
        return task

    def turn(self) -> None:
        """Waits for a task that can go on and lets it go on."""
        task = self._ready.get()
        self.turns += 1
        self.resuming = True
        task.resume()
        self.resuming = False

    def close(self) -> None:
        """Ends the carriers. A greenlet that is left suspended when its thread ends is never freed, nor is what it refers to."""
        here = _greenlets().getcurrent()
        while self._carriers:
            carrier = self._carriers.pop()
            carrier.parent = here
            carrier.switch(None)


def run_all(functions: list[Callable[[], Any]]) -> list[Task]:
    """Runs functions side by side as tasks of the calling thread and returns them ended, in order."""
    outer: Task | None = getattr(_current, "task", None)
    if outer is not None:
        return _run_beside(outer, functions)
    hub, left, tasks = Hub(), len(functions), []

    def done(_: Task) -> None:
        nonlocal left
        left -= 1

    for function in functions:
        tasks.append(hub.spawn(function, done))
    while left:
        hub.turn()
    hub.close()
    return tasks


def _run_beside(outer: Task, functions: list[Callable[[], Any]]) -> list[Task]:
    """As siblings of `outer`, on whatever runs it."""
    signal, ended = Signal(), []

    def done(task: Task) -> None:
        ended.append(task)
        signal.notify()

    tasks = [Task(function, outer._schedule, done, outer._carriers) for function in functions]
    for task in tasks:
        outer._schedule(task)
    signal.wait_for(lambda: len(ended) == len(tasks), None, no_timer)
    return tasks


async def run_async(function: Callable[[], Any]) -> Any:
    """Runs `function` as a task on the running event loop; cancelling the coroutine raises CancelledError in its next wait."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def soon(task: Task) -> None:
        loop.call_soon_threadsafe(task.resume)

    task = Task(function, soon, lambda _: ended.set())
    task.resume()
    await ended.wait()
    if task.error is not None:
        raise task.error
    return task.result
