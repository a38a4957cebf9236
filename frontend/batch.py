"""Many runs of one program at once, without a thread for each.

A body is a greenlet: while it waits for a value, its thread runs other bodies. One thread is enough for bodies that wait for
the model only; where they block in code of their own (a web request, say), more threads are added. Nothing is held for items
that have not begun.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from ..runtime.errors import CancelledError, RequestError
from .collector import seldom
from .waiting import Hub, Signal, Task, no_timer

if TYPE_CHECKING:
    from .program import Program
    from .state import ProgramState

AT_ONCE = 512  # programs under way; more only fill the engine's queue
KEPT = 1024  # states that a generator keeps for a slow taker
MOST_THREADS = 16
Show = Callable[[int, Mapping[str, int]], None]  # called with how many items have ended, and the sums of their token counts
PATIENCE = 0.02  # seconds after which a thread that has not come back from a body counts as held up


def run_batch(
    program: Program,
    items: Sequence[Any],
    options: Mapping[str, Any],
    num_threads: int | str,
    progress_bar: bool,
    generator_style: bool,
    on_error: str,
    order: Sequence[int] | None,
) -> list[ProgramState] | Iterator[ProgramState]:
    """See `Program.run_batch`."""
    from .program import check_options

    if on_error not in ("raise", "return"):
        raise RequestError(f'on_error={on_error!r}: "raise" or "return"', field="on_error")
    if num_threads != "auto" and (not isinstance(num_threads, int) or isinstance(num_threads, bool) or num_threads < 1):
        raise RequestError(f'num_threads={num_threads!r}: at least 1, or "auto"', field="num_threads")
    for name in ("stream", "use_thread"):
        if name in options:
            raise RequestError(f"{name}: not for run_batch", field=name)
    calls = [arguments_of(program, item, i) for i, item in enumerate(items)]
    settings = program._settings(check_options(options))
    at_once = min(AT_ONCE if num_threads == "auto" else int(num_threads), max(1, len(calls)))
    if order is not None and sorted(order) != list(range(len(calls))):
        raise RequestError("order: each index of an item once", field="order")
    ahead = at_once + KEPT if generator_style and order is None else len(calls)  # who takes states slowly holds the batch up
    batch = Batch(
        lambda i: program._make(settings, (), calls[i]),
        order or range(len(calls)),
        at_once,
        ahead,
        fail_fast=on_error == "raise",
        progress_bar=progress_bar,
    )
    if not generator_style:
        return batch.all_states()
    batch.begin()
    return batch.states()


class Batch:
    """Items under way and their results. `prepare(i)` gives a state and the function that runs its body to the end.

    It begins with one thread. Each time all threads are found inside of bodies that have not waited for long, and items are
    left to begin, another one is started, up to `MOST_THREADS`.
    """

    def __init__(
        self,
        prepare: Callable[[int], tuple[ProgramState, Callable[[], Any]]],
        order: Sequence[int],
        at_once: int,
        ahead: int,
        *,
        fail_fast: bool,
        progress_bar: bool,
    ) -> None:
        self._prepare, self._order, self._size = prepare, order, len(order)
        self._fail_fast, self._progress_bar = fail_fast, progress_bar
        self._at_once, self._ahead = at_once, ahead  # how many may be under way, and begun before the first of them was taken
        self._signal = Signal()
        self._next = self._ended = self._given = self._under_way = 0
        self._hubs: list[Hub] = []
        self._threads: list[threading.Thread] = []
        self._running: dict[int, ProgramState] = {}
        self._results: dict[int, tuple[ProgramState | None, BaseException | None]] = {}
        self._failed: int | None = None  # the first item by index that failed
        self._stopped = False
        self._one_by_one = True  # whether the caller waits for the next state, not for all of them
        self._totals = dict.fromkeys(("prompt_tokens", "cached_tokens", "completion_tokens"), 0)

    def states(self) -> Iterator[ProgramState]:
        """States in the order of items. An error, or closing the iterator, cancels what is under way."""
        with self._at_work() as show:
            for i in range(self._size):
                self._wait(lambda i=i: self._decided(i) is not None, show)  # type: ignore[misc]
                result = self._result(self._decided(i))
                self._given = i + 1
                yield result

    def all_states(self) -> list[ProgramState]:
        """As `states`. The caller sleeps until all are there, rather than be woken for each."""
        self._one_by_one = False
        with self._at_work() as show:
            self.begin()
            self._wait(self._over, show)
            return [self._result(self._decided(i)) for i in range(self._size)]

    @contextmanager
    def _at_work(self) -> Iterator[Show]:
        """With what shows the progress; in the end nothing is left under way."""
        try:
            show_nothing = nullcontext(lambda ended, totals: None)
            with seldom(), _progress(self._size) if self._progress_bar else show_nothing as show:
                yield show
        finally:
            self._stop()
            for thread in self._threads:
                thread.join(timeout=2.0)  # one that sits in the user's own code ends with it

    def _wait(self, ready: Callable[[], bool], show: Show) -> None:
        while not self._signal.wait_for(ready, time.monotonic() + PATIENCE, no_timer):
            show(self._ended, self._totals)
            self._help()
        show(self._ended, self._totals)

    def _over(self) -> bool:
        """Whether nothing is left to wait for."""
        return self._ended == self._size or (self._fail_fast and self._failed is not None)

    def begin(self) -> None:
        """Starts the first thread."""
        if self._size:
            self._start()

    def _decided(self, i: int) -> int | None:
        """The item that can be given out in the turn of `i`: itself, or one that failed and so ends the batch."""
        return i if i in self._results else self._failed if self._fail_fast else None

    def _result(self, i: int | None) -> ProgramState:
        assert i is not None
        state, error = self._results.pop(i)
        if error is not None and (self._fail_fast or state is None):
            error.add_note(f"in item {i} of a run_batch of {self._size}")
            raise error
        assert state is not None
        return state

    def _help(self) -> None:
        """Starts another thread if all are held up and there is something to begin."""
        hubs = list(self._hubs)
        turns = [hub.turns for hub in hubs]
        held_up = all(hub.resuming and hub.seen == turn for hub, turn in zip(hubs, turns, strict=True))
        for hub, turn in zip(hubs, turns, strict=True):
            hub.seen = turn
        if held_up and len(hubs) < MOST_THREADS and self._room():
            self._start()

    def _start(self) -> None:
        hub = Hub()
        thread = threading.Thread(target=self._work, args=(hub,), name=f"ramet-batch-{len(self._threads)}", daemon=True)
        self._hubs.append(hub)
        self._threads.append(thread)
        thread.start()

    def _work(self, hub: Hub) -> None:
        """A thread of the batch: runs its programs in turn, and begins another one when there is room."""
        mine = 0

        def ended(_: Task) -> None:
            nonlocal mine
            mine -= 1

        while True:
            i = self._take()
            if i is not None:
                mine += 1
                hub.spawn(lambda i=i: self._perform(i), ended)  # type: ignore[misc]
            elif not mine:
                self._hubs.remove(hub)
                hub.close()
                return
            hub.turn()

    def _take(self) -> int | None:
        if self._next == self._size:  # as for most of the time
            return None
        with self._signal.lock:
            if not self._room():
                return None
            self._next += 1
            self._under_way += 1
            return self._order[self._next - 1]

    def _room(self) -> bool:
        """Whether another item may begin."""
        return not self._stopped and self._next < min(self._size, self._given + self._ahead) and self._under_way < self._at_once

    def _perform(self, i: int) -> None:
        state, error = None, None
        try:
            state, body = self._prepare(i)
            with self._signal.lock:
                self._running[i] = state
                stopped = self._stopped
            if stopped:
                state.run.stop()
            body()
        except BaseException as exc:  # delivered at the item's index
            error = exc
        with self._signal.lock:
            self._running.pop(i, None)
            self._results[i] = state, error
            self._ended += 1
            self._under_way -= 1
            if error is not None:
                self._failed = i if self._failed is None else min(i, self._failed)
            wanted = self._decided(self._given) is not None if self._one_by_one else self._over()
            if state is not None and self._progress_bar:
                totals = state.run.totals
                for key in self._totals:
                    self._totals[key] += totals[key]
        if wanted:  # the taker looks at the others when it comes to them
            self._signal.notify()

    def _stop(self) -> None:
        with self._signal.lock:
            self._stopped = True
            running = list(self._running.values())
        for state in running:
            state.run.stop(CancelledError("the batch was ended"))


@contextmanager
def _progress(size: int) -> Iterator[Show]:
    """A bar with the rate of programs and of tokens, and the share of prompt tokens found cached."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("programs"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
    start = time.monotonic()
    with Progress(*columns) as bar:
        task = bar.add_task("programs", total=size, rate="")

        def show(ended: int, totals: Mapping[str, int]) -> None:
            seconds = max(1e-6, time.monotonic() - start)
            hits = totals["cached_tokens"] / max(1, totals["prompt_tokens"])
            rate = f"{ended / seconds:.1f}/s, {totals['completion_tokens'] / seconds:.0f} tokens/s, {hits:.0%} of prompt tokens cached"
            bar.update(task, completed=ended, rate=rate)

        yield show


def arguments_of(program: Program, item: Any, index: int) -> dict[str, Any]:
    """The item as keyword arguments. Raises RequestError if it does not fit the program."""
    if isinstance(item, Mapping):
        return dict(item)
    if not isinstance(item, (tuple, list)):
        raise RequestError(f"item {index} of batch_kwargs: a dict or tuple of arguments is needed, not {item!r}", field="batch_kwargs")
    names = [name for name in program.arg_names if name not in program.bound]
    if len(item) > len(names):
        raise RequestError(f"item {index} of batch_kwargs: {len(item)} arguments for {', '.join(names) or 'none'}", field="batch_kwargs")
    return dict(zip(names, item, strict=False))
