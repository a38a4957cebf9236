"""One run of a program: what all its branches share, and how it ends."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple, cast

from ..runtime.errors import CancelledError, DeadlineError
from . import ir
from .backends.base import Backend, Keeping, Line
from .branch import Branch
from .chat_template import ChatFormat
from .waiting import Signal

_inside: ContextVar[Run | None] = ContextVar("ramet_run", default=None)  # whose body is running here
_PROCESS, _runs = uuid.uuid4().hex[:12], itertools.count()  # for request ids that no other process has
COUNTED = ("prompt_tokens", "cached_tokens", "forced_tokens", "completion_tokens")


class Event(NamedTuple):
    """A step of a run: kind "gen", "select" or "fork", the branch and the one it was forked from, seconds from the start."""

    kind: str
    branch: int
    parent: int | None
    name: str | None
    begun: float
    ended: float
    meta: Any


@cache
def _keeps(kind: type) -> bool:
    """Whether backends of this class keep states; looking at a protocol's methods takes longer than a short run."""
    return issubclass(kind, Keeping)


def _expire(run: Run | None, timeout: float) -> None:
    if run is not None:
        run.stop(DeadlineError(f"the run took longer than its timeout of {timeout} s"))


class Run:
    """Backend, defaults and fate of one run. `streams`: its text is read by others while its body runs."""

    stopped: BaseException | None = None  # why no more work is taken
    ended = False  # the body has returned or raised
    value: Any = None  # what the body returned
    loop: asyncio.AbstractEventLoop | None = None  # that the body runs on, if it does
    task: asyncio.Task[Any] | None = None  # that performs the body, if it streams there

    def __init__(
        self,
        backend: Backend,
        chat: ChatFormat,
        defaults: Mapping[str, Any] = ir.NOTHING,
        logprobs: ir.Logprobs = ir.NO_LOGPROBS,
        *,
        timeout: float | None = None,
        streams: bool = False,
        inline: bool = False,
        spec_tokens: int | None = None,
    ) -> None:
        self.backend, self.chat, self.defaults, self.logprobs = backend, chat, defaults, logprobs
        self.streams, self.inline, self.spec_tokens = streams, inline, spec_tokens
        self.signal = Signal()
        self._starter = threading.get_ident()
        self.events: list[Event] = []  # what was generated and chosen, and which branches began, for pictures
        self._busy: dict[Branch, int] = {}
        self._failed: list[Branch] = []
        self._begun, self._branches = time.monotonic(), itertools.count()
        self._id, self._count = f"{_PROCESS}-{next(_runs)}", itertools.count()
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._lines: list[Line] = []  # that a backend keeps for the branches
        self.root = Branch(self)
        if _keeps(type(backend)):
            self.keep(self.root, cast(Keeping, backend).line())
        if timeout is not None:
            run = weakref.ref(self)  # a run that is over need not be kept until then
            backend.defer(lambda: _expire(run(), timeout), timeout)

    @property
    def totals(self) -> dict[str, int]:
        """What the requests that have ended cost: how many they were, and the sums of their token counts."""
        totals = dict.fromkeys(("requests", *COUNTED), 0)
        for event in list(self.events):
            if event.kind != "fork":
                totals["requests"] += 1
                for meta in event.meta if isinstance(event.meta, list) else [event.meta]:
                    for key in COUNTED:
                        totals[key] += meta[key]
        return totals

    # ---- asked by branches ----

    def keep(self, branch: Branch, line: Line) -> None:
        """The branch's requests go by `line` from now on, which is closed when the run has ended."""
        branch.line = line
        self._lines.append(line)

    def next_rid(self) -> str:
        return f"{self._id}-{next(self._count)}"

    def remaining(self, timeout: float | None) -> float | None:
        """Seconds that a request may take: its own timeout, or what is left of the run's if that is less."""
        if self._deadline is None:
            return timeout
        left = max(0.001, self._deadline - time.monotonic())
        return left if timeout is None else min(left, timeout)

    def entered(self, branch: Branch) -> None:
        """The branch has work now. Called with its lock held, as `left` may be; the two count against each other."""
        self._shift(branch, 1)

    def left(self, branch: Branch) -> None:
        self._shift(branch, -1)
        self.signal.notify()

    def failed(self, branch: Branch) -> None:
        with self.signal.lock:
            self._failed.append(branch)

    def note(self, kind: str, branch: Branch, name: str | None, begun: float, meta: Any = None) -> None:
        """Keeps a step that ended now."""
        self.events.append(Event(kind, branch.number, branch.parent, name, begun - self._begun, time.monotonic() - self._begun, meta))

    def number(self) -> int:
        """For a branch: which of the run's it is."""
        return next(self._branches)

    def _shift(self, branch: Branch, by: int) -> None:
        with self.signal.lock:
            count = self._busy.pop(branch, 0) + by
            if count:
                self._busy[branch] = count

    def watched(self) -> bool:
        """Whether the caller is who started a streaming run, outside of its body: such a one may wait for the body."""
        return self.streams and threading.get_ident() == self._starter and _inside.get() is not self and self.loop is None

    def blocks_loop(self) -> bool:
        """Whether waiting here would keep the body from going on: it runs on this thread's event loop."""
        return self.loop is not None and threading.get_ident() == self._starter and _inside.get() is not self

    # ---- its end ----

    def perform(self, body: Callable[[], Any]) -> Any:
        """Runs the body to its end, with all branches; raises what went wrong, the body's own error first."""
        token = _inside.set(self)
        try:
            value = body()
            self.root.flush()
            self.signal.wait_for(lambda: not self._busy, None, self.backend.defer)
        except BaseException as exc:
            self.stop(exc)
            raise
        finally:
            _inside.reset(token)
            self.ended = True
            for line in self._lines:
                line.close()
            self._lines.clear()
            self.root._announce()
        self._raise_unseen()
        return value

    def stop(self, error: BaseException | None = None) -> None:
        """Takes no more work and ends what is under way with `error`."""
        if self.ended and not self._busy:
            return
        error = error or CancelledError("the run was cancelled")
        with self.signal.lock:
            self.stopped = self.stopped or error
            busy = list(self._busy)
        for branch in busy:
            branch.cancel(error)
        self.root.fail(error)

    def _raise_unseen(self) -> None:
        self.root.raise_error()
        for branch in self._failed:
            if not branch.observed:
                branch.raise_error()
