"""unevaluatedProperties and unevaluatedItems: what the schemas that hold at the same place have looked at.

Asked when a branch of the search has made all its choices: then the schemas that hold are known, and the keyword reduces to what
additionalProperties and items say.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .document import FALSE, Held, Literal
from .facts import ArrayFacts, Names, ObjectFacts

if TYPE_CHECKING:
    from .logic import Solver
    from .state import State


def settle(solver: Solver, state: State) -> None:
    """Turns the unevaluated* keywords of a state without choices into rules about the other properties and items."""
    facts = state.facts
    if isinstance(facts, ObjectFacts):
        waiting, facts.unevaluated = facts.unevaluated, ()
        for number, literal in waiting:
            _properties(solver, state, facts, number, literal)
    elif isinstance(facts, ArrayFacts):
        waiting, facts.unevaluated = facts.unevaluated, ()
        for number, literal in waiting:
            _items(solver, state, facts, number, literal)


def _properties(solver: Solver, state: State, facts: ObjectFacts, number: int, literal: Literal) -> None:
    names, patterns = set[str](), list[str]()
    for schema, own in _holding(solver, state, number):
        if "additionalProperties" in schema or "unevaluatedProperties" in schema and not own:
            return
        names |= schema.get("properties", {}).keys()
        for pattern in schema.get("patternProperties", ()):
            solver.pattern(pattern, number, "patternProperties")
            patterns.append(pattern)
    facts.rule(Names((), tuple(patterns), frozenset(names)), literal)


def _items(solver: Solver, state: State, facts: ArrayFacts, number: int, literal: Literal) -> None:
    first, contained = 0, list[Literal]()
    for schema, own in _holding(solver, state, number):
        if isinstance(schema.get("items"), list):
            first = max(first, len(schema["items"]))
        elif "items" in schema:
            return
        if "additionalItems" in schema and isinstance(schema.get("items"), list) or "unevaluatedItems" in schema and not own:
            return
        first = max(first, len(schema.get("prefixItems", ())))
        if "contains" in schema:
            contained.append(solver.child(number, schema["contains"], "contains"))
    if contained:
        options = [Held(option) for option in (*contained, literal) if option != FALSE]
        literal = solver.made(number, {"anyOf": options}, ("evaluated", *options)) if 0 not in options else 0
    facts.each((0,) * first, literal)


def _holding(solver: Solver, state: State, start: int) -> Iterator[tuple[dict[Any, Any], bool]]:
    """The schemas that hold at the place of schema `start` and belong to it, itself (True) first."""
    todo, seen = [start], {start}
    while todo:
        number = todo.pop()
        schema = solver.document.schemas[number]
        yield schema, number == start
        for literal in _applied(solver, number, schema):
            if literal in state.seen and literal >> 1 not in seen and not literal & 1:
                seen.add(literal >> 1)
                todo.append(literal >> 1)


def _applied(solver: Solver, number: int, schema: dict[Any, Any]) -> Iterator[Literal]:
    for keyword in ("allOf", "anyOf", "oneOf"):
        for i, item in enumerate(schema.get(keyword, ())):
            yield solver.child(number, item, keyword, i)
    for keyword in ("if", "then", "else"):
        if keyword in schema:
            yield solver.child(number, schema[keyword], keyword)
    for keyword in ("dependentSchemas", "dependencies"):
        for name, item in schema.get(keyword, {}).items():
            if not isinstance(item, list):
                yield solver.child(number, item, keyword, name)
    for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
        if keyword in schema:
            yield solver.document.target(number, schema[keyword])
