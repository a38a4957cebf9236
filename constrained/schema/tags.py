"""What tells the members of a union of objects apart: a property that lists other strings in one than in another."""
from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any

from .document import Literal

if TYPE_CHECKING:
    from .logic import Solver

Listed = dict[str, frozenset[str]]
"""The strings that a property may be, by name."""


Tags = tuple[Listed, set[str]]
"""What a schema lists, and which properties it requires, as far as that is plain to see."""


def apart(solver: Solver, a: Literal, b: Literal, required: Container[str] = ()) -> bool:
    """Whether no object that has the `required` properties satisfies both, because they list other strings for one of its properties."""
    (listed, needed), (others, also_needed) = tags(solver, a), tags(solver, b)
    for name, values in listed.items():
        if name in others and (name in needed or name in also_needed or name in required) and values.isdisjoint(others[name]):
            return True
    return False


def tags(solver: Solver, literal: Literal) -> Tags:
    """Those of one literal. Kept by the solver."""
    known = solver.tags.get(literal)
    if known is None:
        known = solver.tags[literal] = {}, set()  # so that recursion ends
        if not literal & 1:
            _collect(solver, literal >> 1, *known)
    return known


def _collect(solver: Solver, number: int, listed: Listed, needed: set[str]) -> None:
    schema = solver.document.schemas[number]
    inner = [solver.child(number, part, "allOf", i) for i, part in enumerate(schema.get("allOf", ()))]
    if "$ref" in schema:
        inner.append(solver.document.target(number, schema["$ref"]))
    for part in inner:
        more, also_needed = tags(solver, part)
        listed |= more
        needed |= also_needed
    needed.update(schema.get("required", ()))
    for name, value in schema.get("properties", {}).items():
        if values := _strings(value):
            listed[name] = values


def _strings(schema: Any) -> frozenset[str] | None:
    if type(schema) is not dict or not ("const" in schema or "enum" in schema):
        return None
    values = [schema["const"]] if "const" in schema else schema["enum"]
    return frozenset(values) if type(values) is list and all(type(item) is str for item in values) else None
