"""Keywords about values of any kind: type, enum, const, and those that join schemas."""
from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any, cast

from .document import Literal
from .facts import ANY_KIND, BOOLEAN, NULL, NUMBER, STRING, NumberFacts, ValuedFacts, exact, kind_of
from .state import DENY, ENFORCE, NOT_INTEGER, NOT_VALUES, Choice, State, children, denies, enforces, type_bits

if TYPE_CHECKING:
    from .logic import Solver


@enforces("type")
def _(solver: Solver, state: State, number: int, value: Any) -> bool | None:
    names = value if isinstance(value, list) else (value,)
    if not type_bits(value) & state.facts.kind:
        return False
    if isinstance(state.facts, NumberFacts) and "number" not in names:
        return state.facts.be_integral(True)
    return None


@denies("type")
def _(solver: Solver, number: int, kind: int, value: Any) -> Choice:
    names = value if isinstance(value, list) else (value,)
    return [[solver.made(number, {NOT_INTEGER: True})]] if kind == NUMBER and "number" not in names else []


@enforces(NOT_INTEGER, NUMBER)
def _(solver: Solver, state: State, number: int, value: Any) -> bool | None:
    return cast(NumberFacts, state.facts).be_integral(False)


MAX_SUBSETS = 5
"""The longest anyOf whose sets of true alternatives are told apart, where what was evaluated is asked for."""


def value_keys(values: list[Any], kind: int) -> dict[Any, Any]:
    """The scalars of one kind among `values`, by a key that is equal exactly when they are."""
    return {exact(value) if kind == NUMBER else value: value for value in values if kind_of(value) == kind}


@enforces("enum")
def _enum(solver: Solver, state: State, number: int, value: list[Any]) -> bool | None:
    kind = state.facts.kind
    if kind in (BOOLEAN, NUMBER, STRING):
        known = solver.listed.get((number, kind))
        if known is None:
            known = solver.listed[number, kind] = value_keys(value, kind)
        cast(ValuedFacts, state.facts).among(known)
    elif kind == NULL:
        return None in value
    else:
        ways = [[solver.value_literal(number, item)] for item in value if kind_of(item) == kind]
        if not ways:
            return False
        state.choices.append(ways)
    return None


@enforces("const")
def _(solver: Solver, state: State, number: int, value: Any) -> bool | None:
    if state.facts.kind != kind_of(value):
        return False
    if isinstance(state.facts, ValuedFacts):
        state.facts.among(value_keys([value], state.facts.kind))
        return None
    return state.facts.kind == NULL or solver.assume(state, solver.value_literal(number, value))


@denies("enum")
def _not_enum(solver: Solver, number: int, kind: int, value: list[Any]) -> Choice:
    if kind in (BOOLEAN, NUMBER, STRING):
        return [[solver.made(number, {NOT_VALUES: frozenset(value_keys(value, kind))})]]
    if kind == NULL:
        return [] if None in value else [[]]
    return [[solver.value_literal(number, item) ^ 1 for item in value if kind_of(item) == kind]]


@denies("const")
def _(solver: Solver, number: int, kind: int, value: Any) -> Choice:
    return _not_enum(solver, number, kind, [value])


@enforces(NOT_VALUES, BOOLEAN | NUMBER | STRING)
def _(solver: Solver, state: State, number: int, value: frozenset[Any]) -> None:
    cast(ValuedFacts, state.facts).exclude(value)


# ---- joining schemas --------------------------------------------------------------------------------------------------------------


@enforces("$ref")
def _(solver: Solver, state: State, number: int, value: str) -> bool:
    return solver.assume(state, solver.document.target(number, value))


@denies("$ref")
def _not_ref(solver: Solver, number: int, kind: int, value: str) -> Choice:
    return [[solver.document.target(number, value) ^ 1]]


ENFORCE["$dynamicRef"] = ENFORCE["$recursiveRef"] = ENFORCE["$ref"]
DENY["$dynamicRef"] = DENY["$recursiveRef"] = DENY["$ref"]


def _draft_3(keyword: str) -> None:
    @enforces(keyword)
    def _(solver: Solver, state: State, number: int, value: Any) -> None:
        solver.document.refuse(keyword, solver.document.place(number), "is a keyword of draft-03 alone, and that draft is not supported")


for _keyword in ("extends", "disallow", "divisibleBy"):
    _draft_3(_keyword)


@enforces("allOf")
def _(solver: Solver, state: State, number: int, value: list[Any]) -> bool:
    return all(solver.assume(state, literal) for literal in children(solver, number, "allOf", value))


@denies("allOf")
def _(solver: Solver, number: int, kind: int, value: list[Any]) -> Choice:
    return [[literal ^ 1] for literal in children(solver, number, "allOf", value)]


def joined_alternatives(solver: Solver, number: int, keyword: str) -> list[Literal]:
    """The alternatives of anyOf or oneOf in schema `number`, with those that only list strings (a const each, very often) made one."""
    if (number, keyword) not in solver.joined:
        value, listed, others = solver.document.schemas[number][keyword], list[str](), list[Literal]()
        for i, schema in enumerate(value):
            known = solver.keywords(schema) if isinstance(schema, dict) and len(value) > 2 else ()
            if known and known <= _LISTS and ("const" in schema) != ("enum" in schema):
                bits = type_bits(schema["type"]) if "type" in schema else ANY_KIND
                values = [schema["const"]] if "const" in schema else schema["enum"]
                if all(type(item) is str for item in values) and bits & STRING:
                    listed += values
                    continue
            others.append(solver.child(number, schema, keyword, i))
        if listed and (keyword == "anyOf" or len(set(listed)) == len(listed)):
            others.append(solver.made(number, {"type": "string", "enum": listed}))
        elif listed:
            others = children(solver, number, keyword, value)
        solver.joined[number, keyword] = others
    return solver.joined[number, keyword]


_LISTS = {"type", "enum", "const"}


@enforces("anyOf")
def _(solver: Solver, state: State, number: int, value: list[Any]) -> None:
    literals = joined_alternatives(solver, number, "anyOf")
    if solver.annotates and len(literals) <= MAX_SUBSETS:  # what each true alternative evaluates counts, not that of one alone
        state.choices.append([list(some) for n in range(1, len(literals) + 1) for some in combinations(literals, n)])
    elif 0 not in literals:
        state.choices.append([[literal] for literal in literals])


@denies("anyOf")
def _(solver: Solver, number: int, kind: int, value: list[Any]) -> Choice:
    return [[literal ^ 1 for literal in children(solver, number, "anyOf", value)]]


@enforces("oneOf")
def _(solver: Solver, state: State, number: int, value: list[Any]) -> None:
    state.unions.append(joined_alternatives(solver, number, "oneOf"))


@denies("oneOf")
def _(solver: Solver, number: int, kind: int, value: list[Any]) -> Choice:
    literals = children(solver, number, "oneOf", value)
    return [[literal ^ 1 for literal in literals], *[[a, b] for a, b in combinations(literals, 2)]]


@enforces("not")
def _(solver: Solver, state: State, number: int, value: Any) -> bool:
    return solver.assume(state, solver.child(number, value, "not") ^ 1)


@denies("not")
def _(solver: Solver, number: int, kind: int, value: Any) -> Choice:
    return [[solver.child(number, value, "not")]]


def _branches(solver: Solver, number: int) -> tuple[Literal, Literal]:
    schema = solver.document.schemas[number]
    return tuple(solver.child(number, schema[key], key) if key in schema else 0 for key in ("then", "else"))  # type: ignore[return-value]


@enforces("if")
def _(solver: Solver, state: State, number: int, value: Any) -> None:
    condition, (then, otherwise) = solver.child(number, value, "if"), _branches(solver, number)
    if then or otherwise or solver.annotates:
        state.choices.append([[condition, then], [condition ^ 1, otherwise]])


@denies("if")
def _(solver: Solver, number: int, kind: int, value: Any) -> Choice:
    condition, (then, otherwise) = solver.child(number, value, "if"), _branches(solver, number)
    return [[condition, then ^ 1], [condition ^ 1, otherwise ^ 1]]
