"""What the search works on, and the table of keywords that the handlers enter themselves in.

The opposite of a keyword is written as the schemas, one of which must then hold, most in JSON Schema's own words: the opposite of
`minLength: 3` is `maxLength: 2`. What JSON Schema has no word for has a key that no JSON text can hold, a tuple.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .document import Literal
from .facts import ANY_KIND, ARRAY, BOOLEAN, NULL, NUMBER, OBJECT, STRING, Facts

if TYPE_CHECKING:
    from .logic import Solver

Alternative = list[Literal]
Choice = list[Alternative]

NOT_INTEGER = ("not", "integer")
NOT_MULTIPLE = ("not", "multipleOf")
NOT_PATTERN = ("not", "pattern")
NOT_FORMAT = ("not", "format")
NOT_VALUES = ("not", "enum")
SOME_ITEM = ("some", "items")
SOME_PROPERTY = ("some", "properties")
UNDECLARED = ("some", "undeclared")


class State:
    """A conjunction on the way to facts: literals assumed, literals yet to assume, choices yet to make, and unions of which exactly one
    member is to hold. Mutable; forked at choices, when no union is left."""

    __slots__ = ("choices", "facts", "seen", "todo", "unions")

    def __init__(self, facts: Facts, seen: set[Literal], todo: list[Literal], choices: list[Choice]) -> None:
        self.facts, self.seen, self.todo, self.choices = facts, seen, todo, choices
        self.unions: list[list[Literal]] = []

    def fork(self, also: Alternative, choices: list[Choice]) -> State:
        return State(self.facts.fork(), self.seen.copy(), list(also), choices)


Enforcer = Callable[["Solver", State, int, Any], bool | None]
"""Adds what a keyword of a schema (by number) with that value asserts. False: it contradicts what is known."""
Denier = Callable[["Solver", int, int, Any], Choice]
"""The ways in which a value of one kind may violate the keyword."""
ENFORCE: dict[Any, tuple[int, Enforcer]] = {}
DENY: dict[Any, tuple[int, Denier]] = {}


def enforces(keyword: Any, kinds: int = ANY_KIND) -> Callable[[Enforcer], Enforcer]:
    """Enters a function as what `keyword` asserts about values of `kinds`."""

    def register(function: Enforcer) -> Enforcer:
        ENFORCE[keyword] = (kinds, function)
        return function

    return register


def denies(keyword: Any, kinds: int = ANY_KIND) -> Callable[[Denier], Denier]:
    """Enters a function as how values of `kinds` violate `keyword`."""

    def register(function: Denier) -> Denier:
        DENY[keyword] = (kinds, function)
        return function

    return register


BITS = {"null": NULL, "boolean": BOOLEAN, "number": NUMBER, "integer": NUMBER, "string": STRING, "array": ARRAY, "object": OBJECT}


def type_bits(names: str | list[str]) -> int:
    """The kinds that a `type` names."""
    if isinstance(names, str):
        return BITS[names]
    bits = 0
    for name in names:
        bits |= BITS[name]
    return bits


def children(solver: Solver, number: int, keyword: str, value: list[Any]) -> list[Literal]:
    """The literals of a list of schemas inside schema `number`."""
    return [solver.child(number, schema, keyword, i) for i, schema in enumerate(value)]
