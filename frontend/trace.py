"""Running a program's body on symbols instead of values, to learn its graph.

A symbol is a string, so f-strings, `+` and most string methods work on it; inside the text it stands as its name between
two marks. Where the body asks what a symbol is - `if`, `in`, `len`, a loop - the trace notes the place, answers one way,
and the other way when it is asked there again, so that loops end.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from . import ir
from .graph import CLOSE, OPEN, Graph, Node
from .roles import Speaking

if TYPE_CHECKING:
    from .program import Program

MOST_NODES = 10_000


class _Stop(Exception):
    """The graph is as large as it may get."""


class Symbol(str):
    """A value that a run will have. Asking for it is noted in the graph."""

    _tracer: Tracer
    _name: str

    def __new__(cls, tracer: Tracer, name: str) -> Symbol:
        made = super().__new__(cls, f"{OPEN}{name}{CLOSE}")
        made._tracer, made._name = tracer, name
        return made

    def _derived(self, what: str) -> Symbol:
        return Symbol(self._tracer, f"{self._name}{what}")

    def __eq__(self, other: object) -> bool:
        return self._tracer.asked(f"{self._name} == {other!r}", False)

    def __ne__(self, other: object) -> bool:
        return self._tracer.asked(f"{self._name} != {other!r}", True)

    __hash__ = str.__hash__

    def __lt__(self, other: object) -> bool:
        return self._tracer.asked(f"{self._name} < {other!r}", False)

    def __gt__(self, other: object) -> bool:
        return self._tracer.asked(f"{self._name} > {other!r}", False)

    def __le__(self, other: object) -> bool:
        return self._tracer.asked(f"{self._name} <= {other!r}", False)

    def __ge__(self, other: object) -> bool:
        return self._tracer.asked(f"{self._name} >= {other!r}", False)

    def __bool__(self) -> bool:
        return self._tracer.asked(f"bool({self._name})", True)

    def __contains__(self, item: object) -> bool:
        return self._tracer.asked(f"{item!r} in {self._name}", False)

    def startswith(self, *args: Any) -> bool:  # type: ignore[override]
        return self._tracer.asked(f"{self._name}.startswith{args!r}", False)

    def endswith(self, *args: Any) -> bool:  # type: ignore[override]
        return self._tracer.asked(f"{self._name}.endswith{args!r}", False)

    def __len__(self) -> int:
        return 1 if self._tracer.asked(f"len({self._name})", True) else 0

    def __int__(self) -> int:
        self._tracer.asked(f"int({self._name})", True)
        return 1

    def __index__(self) -> int:
        return self.__int__()

    def __float__(self) -> float:
        return float(self.__int__())

    def __iter__(self) -> Iterator[Symbol]:  # type: ignore[override]
        self._tracer.mark("loop", f"for ... in {self._name}")
        yield self._derived("[0]")

    def __getitem__(self, key: Any) -> Symbol:
        return self._derived(f"[{key!r}]")

    def split(self, *args: Any, **kwargs: Any) -> list[Any]:
        return [self._derived(".split()[0]")]

    splitlines = split


# methods whose result stands for another symbol
SAME = "strip lstrip rstrip lower upper title capitalize casefold swapcase replace removeprefix removesuffix zfill center ljust rjust expandtabs"
for _method in SAME.split():

    def _same(self: Symbol, *args: Any, _method: str = _method, **kwargs: Any) -> Symbol:
        return self._derived(f".{_method}()")

    setattr(Symbol, _method, _same)


class Tracer:
    """Collects the graph while the body runs."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.streams = 0
        self.now: TraceState | None = None
        self._asked: Counter[str] = Counter()

    def add(self, state: TraceState, kind: str, expr: ir.Expr | None = None, name: str | None = None, note: str = "") -> Node:
        if len(self.graph.nodes) >= MOST_NODES:
            raise _Stop
        node = Node(len(self.graph.nodes), kind, state.number, state.last, expr, name, note)
        self.graph.nodes.append(node)
        state.last = (node.id,)
        self.now = state
        return node

    def mark(self, kind: str, what: str) -> None:
        """Notes that the body asked for a value."""
        note = f"{what.replace(OPEN, '').replace(CLOSE, '')} at {_place()}"
        if self.now is not None and not any(node.note == note for node in self.graph.nodes):
            self.add(self.now, kind, note=note)

    def asked(self, what: str, answer: bool) -> bool:
        """Notes a question and answers it; at the same place, the other way from the third time on."""
        self.mark("branch", what)
        place = f"{what} {_place()}"
        self._asked[place] += 1
        return answer if self._asked[place] <= 2 else not answer


class TraceState(Speaking):
    """Stands for a ProgramState: notes what is appended, and gives symbols for what is read."""

    def __init__(self, tracer: Tracer, number: int, last: tuple[int, ...], values: Mapping[str, Any] | None = None) -> None:
        self.tracer, self.number, self.last = tracer, number, last
        self.values: dict[str, Any] = dict(values or {})
        self.ret_value: Any = None

    def __iadd__(self, value: Any) -> TraceState:
        for leaf in ir.leaves(value):
            kind = KINDS[type(leaf)]
            name = getattr(leaf, "name", None) or getattr(leaf, "role", None)
            self.tracer.add(self, kind, leaf, name)
            if kind in ("gen", "select", "scope") and name:
                self.values[name] = Symbol(self.tracer, name)
        return self

    def __getitem__(self, name: str) -> Any:
        self.tracer.now = self
        return self.values[name]

    get_var = __getitem__

    def __setitem__(self, name: str, value: Any) -> None:
        self.values[name] = value

    set_var = __setitem__

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def call(self, name: str) -> Any:
        self.tracer.add(self, "call", name=name)
        return Symbol(self.tracer, f"{name}()")

    def fork(self, size: Any = None, position_ids_offset: Any = None, *, names: Any = None) -> TraceForks:
        count = len(names) if names is not None else 1 if size is None else int(size)
        self.tracer.add(self, "fork", name=str(count))
        states = []
        for _ in range(count):
            self.tracer.streams += 1
            states.append(TraceState(self.tracer, self.tracer.streams, self.last, self.values))
        return TraceForks(self, states, list(names) if names is not None else None)

    @contextmanager
    def copy(self, position_ids_offset: Any = None) -> Iterator[TraceState]:
        forks = self.fork(1)
        yield forks[0]
        forks.join()

    def text(self, name: str | None = None) -> Any:
        return Symbol(self.tracer, f"text({name or ''})")

    def messages(self) -> list[Any]:
        return []

    def token_ids(self) -> tuple[int, ...]:
        return ()

    def get_meta_info(self, name: str, timeout: float | None = None) -> Any:
        return Symbol(self.tracer, f"meta({name})")

    def error(self) -> None:
        return None

    def sync(self) -> None:
        pass

    def cancel(self) -> None:
        pass

    def text_iter(self, var_name: str | None = None) -> Iterator[Any]:
        yield self.text(var_name)


class TraceForks:
    """Stands for Forks."""

    def __init__(self, source: TraceState, states: list[TraceState], names: list[str] | None) -> None:
        self.source, self.states, self.names = source, states, names
        self.inherited = set(source.values)

    def __len__(self) -> int:
        return len(self.states)

    def __iter__(self) -> Iterator[TraceState]:
        return iter(self.states)

    def __getitem__(self, key: Any) -> Any:
        return self.states[self.names.index(key) if self.names is not None and isinstance(key, str) else key]

    def __iadd__(self, other: Any) -> TraceForks:
        given = [other(i) for i in range(len(self))] if callable(other) else other if isinstance(other, (list, tuple)) else [other] * len(self)
        for state, expr in zip(self.states, given, strict=True):
            state += expr
        return self

    def map(self, function: Callable[[Any], Any]) -> list[Any]:
        return [function(state) for state in self.states]

    def join(self, mode: Any = "gather_variable", *, key: Any = None) -> Any:
        source, tracer = self.source, self.source.tracer
        gathers = mode in ("gather", "gather_variable", "concatenate", "concate_and_append")
        source.last = (*source.last, *(i for state in self.states for i in state.last))
        tracer.add(source, "join", name=mode if isinstance(mode, str) else "best")
        for name in dict.fromkeys(name for state in self.states for name in state.values if name not in self.inherited):
            values = [state.values[name] for state in self.states if name in state.values]
            source.values[name] = values if gathers else values[0]
        return None if gathers else self.states[0]


KINDS = {
    ir.Text: "text",
    ir.Gen: "gen",
    ir.Select: "select",
    ir.RoleBegin: "role",
    ir.RoleEnd: "end",
    ir.ScopeBegin: "scope",
    ir.ScopeEnd: "scope_end",
}


def trace(program: Program, given: Mapping[str, Any]) -> Graph:
    """The graph of `program`; arguments that are not given (nor bound, nor have a default) are symbols."""
    graph = Graph(program.__name__, tuple(program.arg_names))
    tracer = Tracer(graph)
    state = tracer.now = TraceState(tracer, 0, ())
    arguments: dict[str, Any] = {}
    for name, parameter in list(program._signature.parameters.items())[1:]:
        known = {**program.bound, **given}
        if name in known:
            arguments[name] = known[name]
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        elif parameter.default is inspect.Parameter.empty:
            arguments[name] = Symbol(tracer, name)
    try:
        state.ret_value = program.func(state, **arguments)
    except _Stop:
        graph.stopped = f"after {MOST_NODES} nodes"
    except Exception as exc:  # the body did with a symbol what only a value can do
        graph.stopped = f"{type(exc).__name__}: {str(exc).replace(OPEN, '{').replace(CLOSE, '}')} at {_where(exc)}"
    return graph


def _place() -> str:
    """File and line in the program's body from where this was called, through a library or not."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (frame.f_code.co_filename == __file__ or "/lib/python" in frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"


def _where(exc: BaseException) -> str:
    """Where in the body an exception came from: the last line that is not of a library it called."""
    traceback, place = exc.__traceback__, "?"
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if name != __file__ and "/lib/python" not in name:
            place = f"{name.rpartition('/')[2]}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place
