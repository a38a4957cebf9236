"""What a program says, as data: frozen nodes that `+` joins into a sequence. Nothing here runs anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from ..runtime.protocol import Constraint

RoleName = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = ("system", "user", "assistant", "tool")
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Expr:
    """Anything that can be appended to a state. `a + b` makes a sequence, strings count as text."""

    __slots__ = ()

    def __add__(self, other: Expr | str) -> Seq:
        return Seq(_parts(self) + _parts(other))

    def __radd__(self, other: Expr | str) -> Seq:
        return Seq(_parts(other) + _parts(self))


@dataclass(frozen=True, slots=True, eq=False)
class Text(Expr):
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Seq(Expr):
    items: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Which log-probabilities of a `Gen` are wanted; names as in `gen`."""

    wanted: bool = False
    start: int = -1
    top: int = 0
    with_text: bool = False


NO_LOGPROBS = Logprobs()


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call: its name, what it does, and the JSON schema of its arguments."""

    name: str
    function: Callable[..., Any]
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Gen(Expr):
    """One generation. `params` holds only the `SamplingParams` fields that this call sets; the run gives the others."""

    name: str | None = None
    params: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    constraint: Constraint | None = None
    read: Callable[[str], Any] | None = None  # the value behind the text; None: the text itself
    logprobs: Logprobs = NO_LOGPROBS
    priority: int = 0
    cache_salt: str = ""
    timeout: float | None = None  # seconds
    tools: tuple[Tool, ...] = ()
    thinking: tuple[str, str] | None = None  # the marks between which reasoning stands, kept apart from the answer


@dataclass(frozen=True, slots=True, eq=False)
class Select(Expr):
    """A choice among texts, scored under the state. `method` is a rule of `choices.py`."""

    name: str | None
    choices: tuple[str, ...]
    temperature: float = 0.0
    method: Any = None
    seed: int | None = None
    read: Callable[[str], Any] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RoleBegin(Expr):
    role: str
    generates: bool = True  # whether the model writes (part of) the message


@dataclass(frozen=True, slots=True, eq=False)
class RoleEnd(Expr):
    role: str


@dataclass(frozen=True, slots=True, eq=False)
class Role(Expr):
    role: str
    body: Expr


@dataclass(frozen=True, slots=True, eq=False)
class ScopeBegin(Expr):
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class ScopeEnd(Expr):
    name: str


def expr(value: Any) -> Expr:
    """`value` as an expression. Raises ValueError for None and TypeError for what is neither text nor expression."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, str):
        return Text(value)
    if value is None:
        raise ValueError("None cannot be appended to a state; did a function forget to return its expression?")
    raise TypeError(f"a state takes text, gen(...), select(...) or a role, not {type(value).__name__}; use str(...) for its text")


def leaves(value: Any) -> list[Expr]:
    """The parts of an expression in order, with sequences opened and roles turned into their begin and end."""
    node = expr(value)
    if not isinstance(node, (Seq, Role)):
        return [node]
    out: list[Expr] = []
    if isinstance(node, Seq):
        for item in node.items:
            if isinstance(item, (Seq, Role)):
                out += leaves(item)
            else:
                out.append(item)
        return out
    body = leaves(node.body)
    generates = any(isinstance(part, (Gen, Select)) for part in body)
    return [RoleBegin(node.role, generates), *body, RoleEnd(node.role)]


def _parts(value: Expr | str) -> tuple[Expr, ...]:
    return value.items if isinstance(value, Seq) else (expr(value),)
