"""What a program's body works with: a state that text and generations are appended to, and the branches of a fork."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..runtime.errors import RequestError
from .branch import Branch, Do, Variable
from .roles import Speaking
from .steps import settle_most

if TYPE_CHECKING:
    from .fork import Forks
    from .run import Run


class ProgramState(Speaking):
    """The growing text of one branch, kept as token ids.

    `s += expr` queues and returns at once; `s["name"]` waits for that value. An error ends the branch and is raised,
    the original object, where something is read from it.
    """

    def __init__(self, branch: Branch) -> None:
        self._branch = branch

    @property
    def ret_value(self) -> Any:
        """What the body returned; None before its end, and for a fork."""
        return self.run.value if self._branch is self.run.root else None

    @property
    def run(self) -> Run:
        """The run that this state belongs to."""
        return self._branch.run

    # ---- writing ----

    def __iadd__(self, value: Any) -> ProgramState:
        self._branch.append(value)
        if self.run.inline:
            self.sync()
        return self

    def __setitem__(self, name: str, value: Any) -> None:
        self.set_var(name, value)

    def set_var(self, name: str, value: Any) -> None:
        """Sets a variable to a value of the program's own."""
        self._branch.set_value(name, value)

    def call(self, name: str) -> Any:
        """Runs the tool that `gen(name, tools=...)` chose, appends what it returned as a tool message, and returns it."""
        from .tools import run_call

        return run_call(self, name)

    # ---- branching ----

    def fork(self, size: int | None = None, position_ids_offset: Any = None, *, names: Sequence[str] | None = None) -> Forks:
        """Branches that go on from here on their own. Nothing is copied, computed or waited for.

        `names` instead of `size`: branches by name, and a join that gathers dicts.
        """
        from .fork import Forks

        if position_ids_offset is not None:
            raise RequestError("position_ids_offset: positions follow from the tokens; leave it out", field="position_ids_offset")
        labels = list(names) if names is not None else None
        if labels is not None and (len(set(labels)) < len(labels) or size not in (None, len(labels))):
            raise RequestError(f"names={labels!r}: distinct names are needed, as many as size", field="names")
        count = len(labels) if labels is not None else 1 if size is None else size
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise RequestError(f"size={count!r}: at least one branch is needed", field="size")
        branch = self._branch
        children = [branch.fork() for _ in range(count)]

        def start(parent: Branch) -> None:
            settle_most(parent)
            prefix = parent.prefix()
            now = time.monotonic()
            if parent.line is not None:
                for child in children:
                    parent.run.keep(child, parent.line.fork(prefix.ids))
            for child in children:
                parent.run.note("fork", child, None, now)
                child.start_from(prefix)

        def drop(error: BaseException) -> None:
            for child in children:
                child.inherit(error)

        branch.append(Do(start, drop))
        return Forks(self, [ProgramState(child) for child in children], labels)

    @contextmanager
    def copy(self, position_ids_offset: Any = None) -> Iterator[ProgramState]:
        """`with s.copy() as c:` - a branch of its own, joined at the end."""
        forks = self.fork(1, position_ids_offset)
        yield forks[0]
        forks.join()

    # ---- reading ----

    def __getitem__(self, name: str) -> Any:
        return self.get_var(name)

    def get_var(self, name: str) -> Any:
        """The value of a variable; waits for it. Raises the branch's error, or KeyError if nothing sets the name."""
        return self._done(name).value

    def get_meta_info(self, name: str, timeout: float | None = None) -> Any:
        """Token counts, times, finish reason and log-probabilities behind a variable; a list if n > 1.

        Raises TimeoutError if it is not there after `timeout` seconds.
        """
        return self._done(name, timeout).meta

    async def aget(self, name: str) -> Any:
        """`s[name]` for `await`, where a streaming run is under way on the same event loop."""
        branch = self._branch
        await branch.signal.wait_for_async(lambda: name in branch.variables or self.run.ended or branch.error, None)
        variable = branch.variables.get(name)
        if variable is not None:
            await variable.owner.signal.wait_for_async(variable.is_done, None)
        return self.get_var(name)

    def __contains__(self, name: str) -> bool:
        return name in self._branch.variables

    def text(self, name: str | None = None) -> str:
        """All text so far, once everything appended is there; with a name, the text behind that variable."""
        if name is not None:
            return "".join(self._done(name).pieces)
        self.sync()
        return self._branch.text()

    def messages(self) -> list[dict[str, Any]]:
        """The conversation so far, as {"role", "content"}; a message that is still open is its last."""
        self.sync()
        branch = self._branch
        opened = [] if branch.role is None else [{"role": branch.role, "content": "".join(branch.message)}]
        return [*map(dict, branch.messages), *opened]

    def token_ids(self) -> tuple[int, ...]:
        """The ids that the state is kept in; text that was not needed yet is tokenized for it."""
        self.sync()
        from .steps import tokens

        return self._branch.ids + tuple(tokens(self._branch, "".join(self._branch.pending)))

    def sync(self) -> None:
        """Waits for everything appended. Raises the error if one of it failed."""
        self._wait_end()
        self._branch.wait()
        self._branch.raise_error()

    def error(self) -> BaseException | None:
        """The error that ended the branch, once everything appended is there, or None."""
        self._wait_end()
        self._branch.wait()
        self._branch.observed = True
        return self._branch.error

    def cancel(self) -> None:
        """Ends this branch and what was forked from it; reading from them raises CancelledError."""
        if self._branch is self.run.root:
            self.run.stop()
        else:
            self._branch.cancel()

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """Text as it comes: of one variable, or of the whole state until the program ends. Raises the branch's error."""
        reader = _Reader(self._branch, var_name)
        while True:
            self._branch.stream.wait_for(reader.ready, None, self.run.backend.defer)
            yield from (piece for piece, _ in reader.take() if piece)
            if reader.over:
                return

    async def text_async_iter(self, var_name: str | None = None, return_meta_data: bool = False) -> AsyncIterator[Any]:
        """As `text_iter`, for `async for`; with `return_meta_data`, pairs of text and meta info (complete in the last)."""
        reader = _Reader(self._branch, var_name)
        while True:
            await self._branch.stream.wait_for_async(reader.ready, None)
            for piece, meta in reader.take():
                if return_meta_data and (piece or meta):
                    yield piece, meta
                elif piece:
                    yield piece
            if reader.over:
                return

    def draw(self) -> Any:
        """The run so far as a picture of its branches, with times and token counts (SVG, shown by notebooks)."""
        from .draw import draw_run

        return draw_run(self.run)

    def __repr__(self) -> str:
        return f"ProgramState({self._branch.text()})"

    def _wait_end(self) -> None:
        """The one who started a streaming run waits for its body, too."""
        run = self.run
        if run.watched():
            run.root.signal.wait_for(lambda: run.ended, None, run.backend.defer)

    def _done(self, name: str, timeout: float | None = None) -> Variable:
        deadline = None if timeout is None else time.monotonic() + timeout
        variable = find(self._branch, name, deadline)
        if not variable.done and self.run.blocks_loop():
            raise RuntimeError(f"reading {name!r} here would block the event loop that the program runs on; use await state.aget({name!r})")
        if not variable.owner.signal.wait_for(variable.is_done, deadline, self.run.backend.defer):
            raise TimeoutError(f"{name!r} was not there after {timeout} s")
        if variable.error is not None:
            variable.owner.raise_error()
            raise variable.error
        return variable


def find(branch: Branch, name: str, deadline: float | None = None) -> Variable:
    """The variable, set or to come. Raises the branch's error or KeyError if nothing sets it."""
    run = branch.run
    if run.watched():
        branch.signal.wait_for(lambda: name in branch.variables or run.ended or branch.error, deadline, run.backend.defer)
    variable = branch.variables.get(name)
    if variable is None:
        branch.raise_error()
        raise KeyError(name)
    return variable


class _Reader:
    """How far one reader has come in the text of a branch or of one of its variables."""

    def __init__(self, branch: Branch, name: str | None) -> None:
        self.branch, self.name = branch, name
        self.at, self.over, self._told = 0, False, False

    def ready(self) -> bool:
        return self._pieces_left() or self._ended()

    def take(self) -> list[tuple[str, dict[str, Any]]]:
        """Text and meta info of what came since the last look. At the end it sets `over`, or raises the error."""
        ended = self._ended()  # before the pieces are looked at: what comes later is for the next look
        variable = self._variable()
        pieces = self.branch.pieces if self.name is None else variable.pieces if variable is not None else []
        metas = (variable.deltas if variable is not None else None) or []
        fresh = [(pieces[i], metas[i] if i < len(metas) else {}) for i in range(self.at, len(pieces))]
        self.at += len(fresh)
        if not ended:
            return fresh
        if not fresh:
            self._raise()
            self.over = True
        if variable is not None and isinstance(variable.meta, dict) and not self._told:  # the whole account goes with the last piece
            self._told = True
            piece, meta = fresh.pop() if fresh else ("", {})
            fresh.append((piece, {**{k: v for k, v in variable.meta.items() if not k.endswith("logprobs")}, **meta}))
        return fresh

    def _raise(self) -> None:
        variable = self._variable()
        if variable is not None:
            if variable.error is not None:
                variable.owner.raise_error()
            return
        self.branch.raise_error()
        if self.name is not None:
            raise KeyError(self.name)

    def _variable(self) -> Variable | None:
        return self.branch.variables.get(self.name) if self.name is not None else None

    def _pieces_left(self) -> bool:
        if self.name is None:
            return len(self.branch.pieces) > self.at
        variable = self._variable()
        return variable is not None and len(variable.pieces) > self.at

    def _ended(self) -> bool:
        if self.name is None:
            return self.branch.error is not None or (self.branch.run.ended and self.branch.idle)
        variable = self._variable()
        return variable.done if variable is not None else self.branch.error is not None or self.branch.run.ended
