"""Keywords about objects, and the unevaluated ones of both."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ..grammar import Term
from .document import Held, Literal
from .facts import ARRAY, OBJECT, ArrayFacts, Names, ObjectFacts
from .state import SOME_PROPERTY, UNDECLARED, Choice, State, denies, enforces

if TYPE_CHECKING:
    from .logic import Solver


@enforces("properties", OBJECT)
def _(solver: Solver, state: State, number: int, value: dict[str, Any]) -> None:
    known = solver.properties.get(number)
    if known is None:
        known = solver.properties[number] = {}
        for name, schema in value.items():
            literal = solver.child(number, schema, "properties", name)
            known[name] = (literal,) if literal else ()
    cast(ObjectFacts, state.facts).declare(known)


@denies("properties", OBJECT)
def _(solver: Solver, number: int, kind: int, value: dict[str, Any]) -> Choice:
    required = solver.document.schemas[number].get("required", ())
    ways: Choice = []
    for name, schema in value.items():
        if literal := solver.child(number, schema, "properties", name):
            way: dict[Any, Any] = {"properties": {name: Held(literal ^ 1)}}
            if name not in required:  # where it is required, its absence violates the schema too: the two ways are one
                way["required"] = [name]
            ways.append([solver.made(number, way)])
    return ways


@enforces("required", OBJECT)
def _(solver: Solver, state: State, number: int, value: list[str]) -> None:
    cast(ObjectFacts, state.facts).require(value)


@denies("required", OBJECT)
def _(solver: Solver, number: int, kind: int, value: list[str]) -> Choice:
    properties = solver.document.schemas[number].get("properties", {})
    absent = [name for name in value if not solver.child(number, properties.get(name, True), "properties", name)]
    return [[solver.made(number, {"properties": {name: False}})] for name in absent]


@enforces("patternProperties", OBJECT)
def _(solver: Solver, state: State, number: int, value: dict[str, Any]) -> None:
    facts = cast(ObjectFacts, state.facts)
    for pattern, schema in value.items():
        term = solver.pattern_or_refuse(pattern, number, "patternProperties")
        if term is None:
            continue
        literal = solver.child(number, schema, "patternProperties", pattern)
        if (names := _listed_names(term)) is None:
            facts.rule(Names((pattern,)), literal)
        facts.declare(dict.fromkeys(names or (), (literal,) if literal else ()))


def _listed_names(term: Term) -> list[str] | None:
    """The names that a pattern such as ^(a|b)$ lists."""
    if term.op == "words":
        return list(term.args)
    options = term.args if term.op == "alt" else (term,)
    return [option.args[0] for option in options] if all(option.op == "lit" for option in options) else None


@denies("patternProperties", OBJECT)
def _(solver: Solver, number: int, kind: int, value: dict[str, Any]) -> Choice:
    ways: Choice = []
    for pattern, schema in value.items():
        solver.pattern(pattern, number, "patternProperties")
        if literal := solver.child(number, schema, "patternProperties", pattern):
            ways.append([solver.made(number, {SOME_PROPERTY: (Names((pattern,)), literal ^ 1)})])
    return ways


def _additional(solver: Solver, number: int) -> Names:
    """The names that `additionalProperties` of schema `number` speaks of."""
    if number in solver.additional:
        return solver.additional[number]
    schema = solver.document.schemas[number]
    names, patterns = set(schema.get("properties", ())), list[str]()
    for pattern in schema.get("patternProperties", ()):
        if (term := solver.pattern_or_refuse(pattern, number, "patternProperties")) is None:
            continue
        if (listed := _listed_names(term)) is None:
            patterns.append(pattern)
        names.update(listed or ())
    found = solver.additional[number] = Names((), tuple(patterns), frozenset(names))
    return found


@enforces("additionalProperties", OBJECT)
def _(solver: Solver, state: State, number: int, value: Any) -> None:
    if literal := solver.child(number, value, "additionalProperties"):
        cast(ObjectFacts, state.facts).rule(_additional(solver, number), literal)


@denies("additionalProperties", OBJECT)
def _(solver: Solver, number: int, kind: int, value: Any) -> Choice:
    if literal := solver.child(number, value, "additionalProperties"):
        return [[solver.made(number, {SOME_PROPERTY: (_additional(solver, number), literal ^ 1)})]]
    return []


@enforces("propertyNames", OBJECT)
def _(solver: Solver, state: State, number: int, value: Any) -> None:
    facts = cast(ObjectFacts, state.facts)
    literal = solver.child(number, value, "propertyNames")
    if literal and literal not in facts.names:
        facts.names, facts.changed = facts.names | {literal}, True


@denies("propertyNames", OBJECT)
def _(solver: Solver, number: int, kind: int, value: Any) -> Choice:
    if literal := solver.child(number, value, "propertyNames"):
        return [[solver.made(number, {SOME_PROPERTY: (Names(literals=frozenset((literal ^ 1,))), 0)})]]
    return []


@enforces(SOME_PROPERTY, OBJECT)
def _(solver: Solver, state: State, number: int, value: tuple[Names, Literal]) -> None:
    cast(ObjectFacts, state.facts).witness(*value)


@enforces(UNDECLARED, OBJECT)
def _(solver: Solver, state: State, number: int, value: tuple[Names, Literal]) -> None:
    facts = cast(ObjectFacts, state.facts)
    facts.undeclared_witnesses, facts.changed = (*facts.undeclared_witnesses, value), True


@enforces("unevaluatedProperties", OBJECT)
@enforces("unevaluatedItems", ARRAY)
def _(solver: Solver, state: State, number: int, value: Any) -> None:
    facts = cast(ArrayFacts | ObjectFacts, state.facts)
    keyword = "unevaluatedItems" if facts.kind == ARRAY else "unevaluatedProperties"
    if literal := solver.child(number, value, keyword):
        facts.unevaluated, facts.changed = (*facts.unevaluated, (number, literal)), True


@denies("unevaluatedProperties", OBJECT)
@denies("unevaluatedItems", ARRAY)
def _(solver: Solver, number: int, kind: int, value: Any) -> Choice:
    keyword = "unevaluatedItems" if kind == ARRAY else "unevaluatedProperties"
    if solver.child(number, value, keyword):
        solver.document.refuse(keyword, solver.document.place(number), "cannot be negated (by not, oneOf or if)")
    return []


def _dependency(keyword: str) -> None:
    """dependentRequired (lists of names), dependentSchemas, and the older keyword that takes both."""

    @enforces(keyword, OBJECT)
    def _(solver: Solver, state: State, number: int, value: dict[str, Any]) -> None:
        for name, needed in value.items():
            absent = solver.made(number, {"properties": {name: False}}, ("no", name))
            if isinstance(needed, list):
                state.choices.append([[absent], [solver.made(number, {"required": [name, *needed]}, ("all", name, *needed))]])
            elif literal := solver.child(number, needed, keyword, name):
                state.choices.append([[absent], [solver.made(number, {"required": [name]}, ("all", name)), literal]])

    @denies(keyword, OBJECT)
    def _(solver: Solver, number: int, kind: int, value: dict[str, Any]) -> Choice:
        ways: Choice = []
        for name, needed in value.items():
            if isinstance(needed, list):
                ways += [[solver.made(number, {"required": [name], "properties": {other: False}})] for other in needed]
            else:
                ways.append([solver.made(number, {"required": [name]}), solver.child(number, needed, keyword, name) ^ 1])
        return ways


for _keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
    _dependency(_keyword)
