"""The branches of a fork, and how they come together again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..runtime.errors import CancelledError, RequestError, UnsupportedError
from . import waiting
from .backends.base import Joining
from .branch import Branch, Do, Prefix
from .steps import settle, tokens

if TYPE_CHECKING:
    from .state import ProgramState

GATHER = ("gather", "gather_variable")
CONCATENATE = "concatenate"
APART = "concate_and_append"


@dataclass(frozen=True, slots=True)
class best:
    """Join mode: go on with the branch for which `key(state)` is the largest."""

    key: Callable[[ProgramState], Any]


class Forks:
    """States of a fork, by index or name. `forks += x` appends to all of them: an expression, a list of one each, or `lambda i: expr`."""

    def __init__(self, source: ProgramState, states: list[ProgramState], names: list[str] | None) -> None:
        self._source, self._states, self._names = source, states, names
        self._inherited = dict(states[0]._branch.variables)

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self._states)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            if self._names is None or key not in self._names:
                raise KeyError(key)
            return self._states[self._names.index(key)]
        return self._states[key]

    def __iadd__(self, other: Any) -> Forks:
        if callable(other):
            other = [other(i) for i in range(len(self))]
        if isinstance(other, (list, tuple)):
            if len(other) != len(self):
                raise ValueError(f"{len(other)} expressions for {len(self)} branches")
            for state, expr in zip(self._states, other, strict=True):
                state += expr
        else:
            for state in self._states:
                state += other
        return self

    def map(self, function: Callable[[ProgramState], Any]) -> list[Any]:
        """`function(branch)` for all branches side by side, its results in order. An error is raised with its index."""
        tasks = waiting.run_all([lambda state=state: function(state) for state in self._states])  # type: ignore[misc]
        for i, task in enumerate(tasks):
            if task.error is not None:
                raise _noted(task.error, i, len(self))
        return [task.result for task in tasks]

    def join(self, mode: Any = "gather_variable", *, key: Callable[[ProgramState], Any] | None = None) -> ProgramState | None:
        """Brings the branches together in the state they were forked from.

        "gather_variable" (or "gather"): each variable that branches set becomes a list of their values (a dict if they have names).
        "concatenate": that, and their texts are appended in order.
        "concate_and_append": the same text, encoded in parallel - each branch has attended to what was before the fork and to itself only,
        and what follows attends to all. Branches are not computed again; answers differ from those of "concatenate".
        "first": goes on with the branch that is through first; the others are cancelled.
        best(key), or "best" with `key`: goes on with the branch for which key(branch) is largest.
        The last two return the branch taken. Raises a failed branch's error, with its index in the notes.
        """
        if mode == APART and not (isinstance(backend := self._source.run.backend, Joining) and backend.joins):
            raise UnsupportedError(f"mode={mode!r}: this backend cannot join what it computed apart; choose 'concatenate'", field="mode")
        if mode in (*GATHER, CONCATENATE, APART):
            self._wait_all()
            if mode == APART:
                self._check_parts()
            self._gather()
            if mode in (CONCATENATE, APART):
                self._source._branch.append(Do(self._concatenate if mode == CONCATENATE else self._join_apart))
            return None
        if mode == "first":
            return self._take(self._first())
        if isinstance(mode, best) or (mode == "best" and key is not None):
            self._wait_all()
            by: Any = mode.key if isinstance(mode, best) else key
            return self._take(max(self._states, key=by))
        known = ", ".join((*GATHER, CONCATENATE, APART, "first", "best(key)"))
        raise RequestError(f"mode={mode!r}: choose one of {known}", field="mode")

    def _wait_all(self) -> None:
        for i, state in enumerate(self._states):
            state._branch.wait()
            self._check(i)

    def _check(self, index: int) -> None:
        branch = self._states[index]._branch
        if branch.error is not None:
            for state in self._states:
                state._branch.observed = True  # one error speaks for all
            _noted(branch.error, index, len(self))
            branch.raise_error()

    def _first(self) -> ProgramState:
        """The branch that was through first, without an error if there is one."""
        branches = [state._branch for state in self._states]
        run = self._source.run

        def winner() -> int | None:
            return next((i for i, b in enumerate(branches) if b.idle and b.error is None), None)

        run.signal.wait_for(lambda: winner() is not None or all(b.idle for b in branches), None, run.backend.defer)
        index = winner()
        if index is None:
            self._check(0)
        for i, branch in enumerate(branches):
            if i != index:
                branch.cancel(CancelledError(f"branch {index} of {len(branches)} was through first"))
        return self._states[index or 0]

    def _gather(self) -> None:
        own = [self._own_variables(state) for state in self._states]
        for name in dict.fromkeys(name for variables in own for name in variables):
            if self._names is not None:
                self._source.set_var(name, {label: v[name].value for label, v in zip(self._names, own, strict=True) if name in v})
            else:
                self._source.set_var(name, [v[name].value for v in own if name in v])
            self._source._branch.variables[name].meta = [v[name].meta for v in own if name in v]

    def _own_variables(self, state: ProgramState) -> dict[str, Any]:
        return {name: v for name, v in state._branch.variables.items() if self._inherited.get(name) is not v}

    def _concatenate(self, parent: Branch) -> None:
        for state in self._states:
            child = state._branch
            base = child.start
            grown = child.text()[len(base.text) :]
            if parent.ids == base.ids and "".join(parent.pending) == base.pending:  # nothing in between: go on with its ids
                parent.ids, parent.pending, parent.began, parent.joined = child.ids, list(child.pending), child.began, child.joined
                parent.show(grown)
            elif (own := _own_ids(child, grown)) is not None:
                head, ids = own
                parent.pending.append(head)
                moved = len(settle(parent)) - (len(child.ids) - len(ids))
                parent.joined += tuple(tuple(at + moved for at in group) for group in child.joined[len(base.joined) :])
                parent.ids += ids
                parent.pending = list(child.pending)
                parent.show(grown)
            else:  # all of it is text that has no ids yet
                parent.say(grown)

    def _check_parts(self) -> None:
        for i, state in enumerate(self._states):
            if state._branch.joined != state._branch.start.joined:
                raise UnsupportedError(f"mode={APART!r}: branch {i} was joined so itself; choose 'concatenate' for one of the two", field="mode")

    def _join_apart(self, parent: Branch) -> None:
        """The branches' own ids one after the other. The last of all is left to what follows: its row must see everything."""
        parent.ids = settle(parent) or tuple(tokens(parent, ""))
        ends = [len(parent.ids)]
        for state in self._states:
            child = state._branch
            parent.ids += _part(child)
            parent.show(child.text()[len(child.start.text) :])
            if len(parent.ids) > ends[-1]:
                ends.append(len(parent.ids))
        parent.began = parent.began or self._states[0]._branch.began
        ends[-1] -= 1
        spans = tuple(dict.fromkeys(ends))
        if len(spans) > 2:  # one part alone sees what it would see anyway
            parent.joined += (spans,)

    def _take(self, state: ProgramState) -> ProgramState:
        """The source goes on as `state` does."""
        for name, variable in self._own_variables(state).items():
            self._source._branch.variables[name] = variable
        prefix: Prefix = state._branch.prefix()
        self._source._branch.append(Do(lambda parent: parent.become(prefix)))
        return state


def _own_ids(child: Branch, grown: str) -> tuple[str, tuple[int, ...]] | None:
    """The ids of what a fork has said, and the text before them: none, or the end of a token that began in the text it was forked from.

    What was generated keeps its ids so. None if there are none.
    """
    base = child.start
    ids, whole, decode = child.ids[len(base.ids) :], base.pending + grown, child.run.backend.decode
    for count in range(len(ids)):
        text = decode(ids[:count])
        if len(text) >= len(base.pending) and whole.startswith(text):
            return text[len(base.pending) :], ids[count:]
    return None


def _part(child: Branch) -> tuple[int, ...]:
    """The ids of what a fork has said, its text to the end; those that were generated, unless a token reaches back before the fork."""
    base, backend = child.start, child.run.backend
    ids = (child.ids + tuple(tokens(child, "".join(child.pending))))[len(base.ids) :]
    if not base.ids:  # what a tokenizer puts before all text is no part's
        lead = tuple(backend.encode("", add_special=True))
        ids = ids[len(lead) :] if ids[: len(lead)] == lead else ids
    for count in range(len(ids) + 1):
        head = backend.decode(ids[:count])
        if head == base.pending:
            return ids[count:]
        if len(head) > len(base.pending):
            break
    return tuple(backend.encode(child.text()[len(base.text) :]))


def _noted(error: BaseException, index: int, size: int) -> BaseException:
    note = f"in branch {index} of {size}"
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)
    return error
