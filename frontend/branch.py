"""One branch of a program: what it has said, and an ordered executor for what it will say. No thread of its own.

    append -> queue -> execute -> (text: at once | gen, select: submitted; the answer's last chunk goes on with the queue)

A node runs on the thread that appends it if nothing is before it, else on the backend's worker when the node before it
has ended. Readers wait on `signal`. The first error ends the branch: what is queued is dropped, and every variable
that was still to come holds the error.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..runtime.errors import CancelledError
from . import ir, speculate
from .generation import Generation
from .selection import Selection
from .steps import Step
from .waiting import Signal

if TYPE_CHECKING:
    from .backends.base import Backend, Line
    from .compile import Preset
    from .run import Run


class Variable:
    """A named result: its value once `done`, the pieces of its text while they come, or the error instead."""

    __slots__ = ("call", "deltas", "done", "error", "meta", "name", "owner", "pieces", "value")

    def __init__(self, name: str | None, owner: Branch) -> None:
        self.name, self.owner = name, owner
        self.done = False
        self.value: Any = None
        self.pieces: list[str] = []
        self.deltas: list[dict[str, Any]] | None = None  # meta info of each piece, if log-probabilities are wanted
        self.meta: Any = None
        self.error: BaseException | None = None
        self.call: Any = None

    def is_done(self) -> bool:
        return self.done


@dataclass(frozen=True, slots=True)
class Prefix:
    """What a branch begins with: shared by all branches of a fork, never copied."""

    ids: tuple[int, ...] = ()
    pending: str = ""  # text at the end that has no ids yet
    text: str = ""
    began: str | None = None  # how: with "text" or with "chat", whose template may open a conversation in its own way
    messages: tuple[dict[str, Any], ...] = ()
    role: str | None = None  # of the message that is open
    message: str = ""  # what it holds so far
    ahead: Any = None  # text that a remote service has written beyond what was asked
    joined: tuple[tuple[int, ...], ...] = ()  # parts of the ids that are encoded apart, as in `GenerateRequest`


NOTHING_SAID = Prefix()
NAMED = (ir.Gen, ir.Select, ir.ScopeBegin)  # nodes that give a variable

@dataclass(slots=True)
class Do(ir.Expr):
    """A step of the executor's own: `work` when its turn comes, `drop` if it never does."""

    work: Callable[[Branch], None]
    drop: Callable[[BaseException], None] = field(default=lambda error: None)


class Branch:
    """See the top of the file. All public methods may be called from any thread."""

    def __init__(self, run: Run, variables: dict[str, Variable] | None = None, *, forked_from: Branch | None = None) -> None:
        """`forked_from`: a fork runs nothing until `start_from` gives it its prefix."""
        waiting = forked_from is not None
        self.run = run
        self.line: Line | None = None  # what the backend keeps of this branch, if it keeps states
        self.number = run.number()
        self.parent = forked_from.number if forked_from is not None else None
        self.signal = Signal()  # something ended
        self.stream = Signal()  # a piece of text came
        self.variables: dict[str, Variable] = dict(variables or {})
        self.error: BaseException | None = None
        self.observed = False  # the error was shown to the program
        self.rid: str | None = None  # of the request in flight
        self.preset: Preset | None = None  # of a compiled program: its constant beginning
        self._children: weakref.WeakSet[Branch] | None = None  # those forked from it; most branches have none
        self._traceback: TracebackType | None = None
        self._current: Variable | None = None  # of the node that is being run; a later one may have taken its name
        self._queue: deque[tuple[ir.Expr, Variable | None]] = deque()
        self._busy = waiting
        self._scopes: list[tuple[str, int]] = []
        if waiting:
            run.entered(self)
        self._begin(NOTHING_SAID)

    def _begin(self, prefix: Prefix) -> None:
        self.ids, self.began, self.role, self.ahead, self.joined = prefix.ids, prefix.began, prefix.role, prefix.ahead, prefix.joined
        self.pending: list[str] = [prefix.pending] if prefix.pending else []
        self.pieces: list[str] = [prefix.text] if prefix.text else []
        self.messages: list[dict[str, Any]] = list(prefix.messages)
        self.message: list[str] = [prefix.message] if prefix.message else []
        self._held = ""  # white space at the end of a message so far, for templates that strip it
        self.start = prefix

    def start_from(self, prefix: Prefix) -> None:
        """Gives a fork its prefix; it runs what has been appended meanwhile."""
        self._begin(prefix)
        self._drive()

    def fork(self) -> Branch:
        """A branch that goes on from here, once `start_from` gives it its prefix."""
        child = Branch(self.run, self.variables, forked_from=self)
        self._children = weakref.WeakSet() if self._children is None else self._children
        self._children.add(child)
        return child

    def become(self, prefix: Prefix) -> None:
        """Goes on from the end of another branch of the same fork."""
        start, pieces = self.start, self.pieces  # readers of the stream keep their place
        grown = prefix.text[len(self.text()) :]
        self._begin(prefix)
        self.start, self.pieces = start, [*pieces, grown]

    # ---- writing ----

    def append(self, value: Any) -> None:
        """Queues an expression; runs it here and now as far as nothing is before it."""
        leaves = ir.leaves(value)
        if self.preset is not None:
            leaves = self.preset.pass_on(leaves)
        self._enqueue(leaves)

    def flush(self) -> None:
        """Says what a preset holds back; before anything is read from the branch."""
        if self.preset is not None and (held := self.preset.rest()):
            self._enqueue(held)

    def _enqueue(self, leaves: list[ir.Expr]) -> None:
        entries = [(leaf, Variable(leaf.name, self) if isinstance(leaf, NAMED) else None) for leaf in leaves]
        if self.run.stopped is not None:
            self.fail(self.run.stopped)
        with self.signal.lock:
            for _, variable in entries:
                if variable is not None and variable.name is not None:
                    self.variables[variable.name] = variable
            error = self.error
            if error is None:
                self._queue.extend(entries)
                idle, self._busy = not self._busy, True
                if idle:
                    self.run.entered(self)
        if error is not None:
            self._drop(entries, error)
            return
        if self.run.streams:
            self._announce()
        if self.run.stopped is not None:  # stopped meanwhile, maybe without having seen this branch at work
            self.cancel(self.run.stopped)
        elif idle:
            self._drive()

    def say(self, text: str) -> None:
        """Takes in text that is part of the state from now on."""
        if text:
            self.began = self.began or "text"
            if self.ahead is not None:
                speculate.consume(self, text)
            self.pending.append(text)
            self.show(text)

    def _fill(self, text: str) -> None:
        """Takes in a fill. Where the template strips contents, space at their ends is left out, as it would leave it out."""
        if self.role is not None and self.run.chat.strips:
            text = self._held + text if self.message else text.lstrip()
            body = text.rstrip()
            self._held, text = text[len(body) :], body
        self.say(text)

    def _release(self) -> None:
        """Something follows the last fill, so the space at its end counts."""
        held, self._held = self._held, ""
        self.say(held)

    def show(self, text: str) -> None:
        self.pieces.append(text)
        if self.role is not None:
            self.message.append(text)

    def fail(self, error: BaseException) -> None:
        """Ends the branch with `error`, unless it has one already."""
        with self.signal.lock:
            if self.error is not None:
                return
            self.error, self._traceback = error, error.__traceback__
            entries = list(self._queue)
            self._queue.clear()
            busy, self._busy, self.rid = self._busy, False, None
            for variable in (*self.variables.values(), self._current):
                if variable is not None and variable.owner is self and not variable.done:
                    variable.error, variable.done = error, True
        self._drop(entries, error)
        self.run.failed(self)
        if busy:
            self.run.left(self)
        self._announce()

    def cancel(self, error: BaseException | None = None) -> None:
        """Ends the branch and those forked from it, and frees what their requests hold."""
        rid = self.rid
        self.observed = True
        self.fail(error or CancelledError("the branch was cancelled"))
        if rid is not None:
            self.run.backend.abort(rid)
        for child in list(self._children or ()):
            child.cancel(error)

    def inherit(self, error: BaseException) -> None:
        """Ends a fork with the error of the branch it would have begun from; it is that branch's error to show."""
        self.observed = True
        self.fail(error)

    def set_value(self, name: str, value: Any) -> None:
        """Sets a variable that nothing has to be waited for."""
        variable = Variable(name, self)
        variable.value, variable.done = value, True
        self.variables[name] = variable

    def raise_error(self) -> None:
        """Raises the error that ended the branch, if one did, with its original traceback."""
        if self.error is not None:
            self.observed = True
            raise self.error.with_traceback(self._traceback)

    # ---- reading ----

    @property
    def asks(self) -> Backend | Line:
        """Where its requests go."""
        return self.line or self.run.backend

    @property
    def idle(self) -> bool:
        return not self._busy

    def wait(self) -> None:
        """Until everything appended has been said or has failed."""
        self.flush()
        self.signal.wait_for(lambda: not self._busy, None, self.run.backend.defer)

    def text(self) -> str:
        return "".join(self.pieces)

    def prefix(self) -> Prefix:
        """The state as forks begin with it."""
        pending = "".join(self.pending)
        self.pending[:] = [pending] if pending else []
        text = self.text()
        return Prefix(self.ids, pending, text, self.began, tuple(self.messages), self.role, "".join(self.message), self.ahead, self.joined)

    # ---- the executor ----

    def _drive(self) -> None:
        """Runs queued nodes until the queue is empty or a node waits for the backend."""
        while True:
            with self.signal.lock:
                if self.error is not None:
                    return
                if not self._queue:
                    self._busy, self.rid = False, None
                    break
                node, variable = self._queue.popleft()
                self._current = variable
            try:
                step = self._execute(node, variable)
            except Exception as exc:
                self._fail_at(node, variable, exc)
                return
            except BaseException as exc:  # KeyboardInterrupt in the user's own thread: it is theirs
                self._fail_at(node, variable, exc)
                raise
            if step is not None:
                if step.park():
                    return
                self._announce()  # its answer was there at once
        self.run.left(self)
        self._announce()

    def _fail_at(self, node: ir.Expr, variable: Variable | None, exc: BaseException) -> None:
        self.fail(exc)
        self._drop([(node, variable)], exc)
        self._announce()

    def go_on(self) -> None:
        """After the node in flight has ended, on the backend's thread: what follows runs on its worker."""
        if self._queue:
            self._announce()
            self.run.backend.defer(self._drive)
        else:
            self._drive()

    def _execute(self, node: ir.Expr, variable: Variable | None) -> Step | None:
        if self._held and not isinstance(node, (ir.Text, ir.RoleEnd)):
            self._release()
        if isinstance(node, ir.Text):
            self._fill(node.text)
        elif isinstance(node, ir.Gen):
            return Generation(self, node, variable).submit()  # type: ignore[arg-type]
        elif isinstance(node, ir.Select):
            return Selection(self, node, variable).submit()  # type: ignore[arg-type]
        elif isinstance(node, ir.RoleBegin):
            self._open_role(node)
        elif isinstance(node, ir.RoleEnd):
            self._close_role(node.role)
        elif isinstance(node, ir.ScopeBegin):
            self._scopes.append((node.name, len(self.text())))
        elif isinstance(node, ir.ScopeEnd):
            self._close_scope(node.name)
        elif isinstance(node, Do):
            node.work(self)
        else:
            raise TypeError(f"a state cannot run {type(node).__name__}")
        if self.run.streams:
            self.stream.notify()
        return None

    def _open_role(self, node: ir.RoleBegin) -> None:
        if self.role is not None:
            raise ValueError(f"a {node.role} message inside a {self.role} message: roles do not nest")
        prefix = self._around(node.role, node.generates)[0]
        self.began = self.began or "chat"
        speculate.consume(self, prefix)
        self.pending.append(prefix)
        self.pieces.append(prefix)
        self.role, self.message = node.role, []

    def _close_role(self, role: str) -> None:
        if self.role != role:
            raise ValueError(f"the end of a {role} message, but " + (f"a {self.role} message is open" if self.role else "none is open"))
        suffix = self._around(role, True)[1]
        self.messages.append({"role": role, "content": "".join(self.message)})
        self.role, self._held = None, ""
        self.say(suffix)

    def _around(self, role: str, generates: bool) -> tuple[str, str]:
        before = tuple(m["role"] for m in self.messages)
        if not before and self.began == "text":  # after plain text: as in the middle of a conversation
            before = ("user",) if role == "assistant" else ("user", "assistant")
        return self.run.chat.around(before, role, generates)

    def _close_scope(self, name: str) -> None:
        if not self._scopes or self._scopes[-1][0] != name:
            raise ValueError(f"the end of variable scope {name!r}, which is not the open one")
        _, start = self._scopes.pop()
        variable = self.variables[name]
        variable.value = self.text()[start:]
        variable.pieces, variable.done = [variable.value], True
        self._announce()

    def _drop(self, entries: list[tuple[ir.Expr, Variable | None]], error: BaseException) -> None:
        for node, variable in entries:
            if variable is not None and not variable.done:
                variable.error, variable.done = error, True
            if isinstance(node, Do):
                node.drop(error)
        if entries:
            self._announce()

    def _announce(self) -> None:
        self.signal.notify()
        self.stream.notify()
