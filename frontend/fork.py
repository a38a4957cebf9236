"""The branches of a fork, and how they come together again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..runtime.errors import CancelledError, RequestError
from . import waiting
from .branch import Branch, Do, Prefix
from .steps import settle

if TYPE_CHECKING:
    from .state import ProgramState

GATHER = ("gather", "gather_variable")
CONCATENATE = ("concatenate", "concate_and_append")


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
        "concatenate" (or "concate_and_append"): that, and their texts are appended in order.
        "first": goes on with the branch that is through first; the others are cancelled.
        best(key), or "best" with `key`: goes on with the branch for which key(branch) is largest.
        The last two return the branch taken. Raises a failed branch's error, with its index in the notes.
        """
        if mode in GATHER or mode in CONCATENATE:
            self._wait_all()
            self._gather()
            if mode in CONCATENATE:
                self._source._branch.append(Do(self._concatenate))
            return None
        if mode == "first":
            return self._take(self._first())
        if isinstance(mode, best) or (mode == "best" and key is not None):
            self._wait_all()
            by: Any = mode.key if isinstance(mode, best) else key
            return self._take(max(self._states, key=by))
        known = ", ".join((*GATHER, *CONCATENATE, "first", "best(key)"))
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
                parent.ids, parent.pending, parent.began = child.ids, list(child.pending), child.began
                parent.show(grown)
            elif (own := _own_ids(child, grown)) is not None:
                head, ids = own
                parent.pending.append(head)
                parent.ids = settle(parent) + ids
                parent.pending = list(child.pending)
                parent.show(grown)
            else:  # all of it is text that has no ids yet
                parent.say(grown)

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


def _noted(error: BaseException, index: int, size: int) -> BaseException:
    note = f"in branch {index} of {size}"
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)
    return error
