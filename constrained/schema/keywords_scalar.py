"""Keywords about numbers and strings, and the sizes of strings, arrays and objects."""
from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any, cast

from .. import formats
from .facts import ARRAY, NUMBER, OBJECT, STRING, NumberFacts, StringFacts, exact
from .state import NOT_FORMAT, NOT_MULTIPLE, NOT_PATTERN, Choice, State, denies, enforces

if TYPE_CHECKING:
    from .logic import Solver


def _bound(keyword: str, exclusive: str, set_bound: Callable[[NumberFacts, Fraction, bool], None], opposite: str) -> None:
    """`minimum` and `maximum` with their exclusive forms, the draft-04 booleans among them."""

    @enforces(keyword, NUMBER)
    def _(solver: Solver, state: State, number: int, value: Any) -> None:
        open_ = solver.document.schemas[number].get(exclusive) is True
        set_bound(cast(NumberFacts, state.facts), exact(value), open_)

    @denies(keyword, NUMBER)
    def _(solver: Solver, number: int, kind: int, value: Any) -> Choice:
        open_ = solver.document.schemas[number].get(exclusive) is True
        return [[solver.made(number, {opposite if open_ else "exclusive" + opposite.capitalize(): value})]]

    @enforces(exclusive, NUMBER)
    def _(solver: Solver, state: State, number: int, value: Any) -> None:
        if not isinstance(value, bool):
            set_bound(cast(NumberFacts, state.facts), exact(value), True)

    @denies(exclusive, NUMBER)
    def _(solver: Solver, number: int, kind: int, value: Any) -> Choice:
        return [] if isinstance(value, bool) else [[solver.made(number, {opposite: value})]]


_bound("minimum", "exclusiveMinimum", NumberFacts.above, "maximum")
_bound("maximum", "exclusiveMaximum", NumberFacts.below, "minimum")


@enforces("multipleOf", NUMBER)
def _(solver: Solver, state: State, number: int, value: Any) -> None:
    cast(NumberFacts, state.facts).multiple_of(exact(value))


@denies("multipleOf", NUMBER)
def _(solver: Solver, number: int, kind: int, value: Any) -> Choice:
    return [[solver.made(number, {NOT_MULTIPLE: value})]]


@enforces(NOT_MULTIPLE, NUMBER)
def _(solver: Solver, state: State, number: int, value: Any) -> None:
    cast(NumberFacts, state.facts).multiple_of(exact(value), yes=False)


@enforces("pattern", STRING)
def _(solver: Solver, state: State, number: int, value: str) -> None:
    term = solver.pattern_or_refuse(value, number, "pattern")
    if term is not None:
        cast(StringFacts, state.facts).match(term)


@denies("pattern", STRING)
def _(solver: Solver, number: int, kind: int, value: str) -> Choice:
    return [[solver.made(number, {NOT_PATTERN: value})]]


@enforces(NOT_PATTERN, STRING)
def _(solver: Solver, state: State, number: int, value: str) -> None:
    cast(StringFacts, state.facts).match(solver.pattern(value, number), yes=False)


@enforces("format", STRING)
def _(solver: Solver, state: State, number: int, value: str) -> None:
    term = formats.term(value)
    if term is None:
        solver.document.warn(f"format {value!r} is not known: an annotation, not enforced")
    else:
        cast(StringFacts, state.facts).match(term)


@denies("format", STRING)
def _(solver: Solver, number: int, kind: int, value: str) -> Choice:
    return [[solver.made(number, {NOT_FORMAT: value})]] if formats.term(value) is not None else []


@enforces(NOT_FORMAT, STRING)
def _(solver: Solver, state: State, number: int, value: str) -> None:
    cast(StringFacts, state.facts).match(formats.widest(value), yes=False)


def _size(kind: int, least: str, most: str) -> None:
    @enforces(least, kind)
    def _(solver: Solver, state: State, number: int, value: Any) -> None:
        state.facts.at_least(int(value))

    @denies(least, kind)
    def _(solver: Solver, number: int, kind: int, value: Any) -> Choice:
        return [[solver.made(number, {most: int(value) - 1})]] if value > 0 else []

    @enforces(most, kind)
    def _(solver: Solver, state: State, number: int, value: Any) -> None:
        state.facts.at_most(int(value))

    @denies(most, kind)
    def _(solver: Solver, number: int, kind: int, value: Any) -> Choice:
        return [[solver.made(number, {least: int(value) + 1})]]


_size(STRING, "minLength", "maxLength")
_size(ARRAY, "minItems", "maxItems")
_size(OBJECT, "minProperties", "maxProperties")
