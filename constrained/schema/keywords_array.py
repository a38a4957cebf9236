"""Keywords about arrays."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from .document import FALSE, Held, Literal
from .facts import ARRAY, ArrayFacts, Witness
from .state import SOME_ITEM, Choice, State, children, denies, enforces

if TYPE_CHECKING:
    from .logic import Solver


def _first_items(schema: dict[Any, Any]) -> tuple[str, list[Any], str]:
    """(keyword, schemas of the first items, keyword of the others), in the spelling of 2020-12 or of the drafts before."""
    if isinstance(schema.get("items"), list):
        return "items", schema["items"], "additionalItems"
    return "prefixItems", schema.get("prefixItems", []), "items"


@enforces("items", ARRAY)
def _items(solver: Solver, state: State, number: int, value: Any) -> None:
    schema = solver.document.schemas[number]
    keyword, first, others = _first_items(schema)
    literals = tuple(children(solver, number, keyword, first))
    cast(ArrayFacts, state.facts).each(literals, solver.child(number, schema.get(others, True), others))


@denies("items", ARRAY)
def _not_items(solver: Solver, number: int, kind: int, value: Any) -> Choice:
    schema = solver.document.schemas[number]
    keyword, first, others = _first_items(schema)
    ways: Choice = []
    for i, literal in enumerate(children(solver, number, keyword, first)):
        if literal:
            made = {"prefixItems": [True] * i + [Held(literal ^ 1)], "minItems": i + 1}
            ways.append([solver.made(number, made)])
    if rest := solver.child(number, schema.get(others, True), others):
        ways.append([solver.made(number, {SOME_ITEM: Witness(rest ^ 1, start=len(first))})])
    return ways


@enforces("prefixItems", ARRAY)
def _(solver: Solver, state: State, number: int, value: Any) -> None:
    if "items" not in solver.document.schemas[number]:
        _items(solver, state, number, value)


@denies("prefixItems", ARRAY)
def _(solver: Solver, number: int, kind: int, value: Any) -> Choice:
    return [] if "items" in solver.document.schemas[number] else _not_items(solver, number, kind, value)


def _contained(solver: Solver, number: int) -> tuple[Literal, int, int | None]:
    schema = solver.document.schemas[number]
    most = schema.get("maxContains")
    return solver.child(number, schema["contains"], "contains"), int(schema.get("minContains", 1)), None if most is None else int(most)


@enforces("contains", ARRAY)
def _(solver: Solver, state: State, number: int, value: Any) -> bool | None:
    facts = cast(ArrayFacts, state.facts)
    literal, lo, hi = _contained(solver, number)
    if literal == 0:
        facts.at_least(lo)
        if hi is not None:
            facts.at_most(hi)
    elif hi == 0:
        facts.each((), literal ^ 1)
        return lo == 0
    elif hi is not None and lo > hi:
        return False
    elif lo or hi is not None:
        facts.witness(Witness(literal, lo, hi))
    return None


@denies("contains", ARRAY)
def _(solver: Solver, number: int, kind: int, value: Any) -> Choice:
    literal, lo, hi = _contained(solver, number)
    ways: Choice = []
    if lo:
        ways.append([solver.made(number, {"contains": Held(literal), "minContains": 0, "maxContains": lo - 1})])
    if hi is not None:
        ways.append([solver.made(number, {"contains": Held(literal), "minContains": hi + 1})])
    return ways


@enforces(SOME_ITEM, ARRAY)
def _(solver: Solver, state: State, number: int, value: Witness) -> None:
    facts = cast(ArrayFacts, state.facts)
    if value.literal == FALSE:
        facts.at_least(value.start + 1)  # not "no more items": one more
    facts.witness(value)


@enforces("uniqueItems", ARRAY)
def _(solver: Solver, state: State, number: int, value: bool) -> None:
    facts = cast(ArrayFacts, state.facts)
    if value and not facts.unique:
        facts.unique, facts.changed = True, True


@denies("uniqueItems", ARRAY)
def _(solver: Solver, number: int, kind: int, value: bool) -> Choice:
    if value:
        solver.document.refuse("uniqueItems", solver.document.place(number), "cannot be negated (by not, oneOf or if)")
    return []
