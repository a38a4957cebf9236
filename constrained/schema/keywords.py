"""Each keyword twice: what it asserts (ENFORCE) and how a value may violate it (DENY).

The opposite of a keyword is written as the schemas, one of which must then hold, most in JSON Schema's own words: the opposite of
`minLength: 3` is `maxLength: 2`. What JSON Schema has no word for has a key that no JSON text can hold, a tuple.
"""
from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import combinations
from typing import Any, cast

from .. import formats
from ..grammar import Term
from .document import FALSE, Held, Literal
from .facts import (
    ANY_KIND, ARRAY, BOOLEAN, NULL, NUMBER, OBJECT, STRING,
    ArrayFacts, Names, NumberFacts, ObjectFacts, StringFacts, ValuedFacts, Witness, kind_of,
)  # fmt: skip
from .logic import UNDECLARED, Choice, Solver, State, type_bits

NOT_INTEGER = ("not", "integer")
NOT_MULTIPLE = ("not", "multipleOf")
NOT_PATTERN = ("not", "pattern")
NOT_FORMAT = ("not", "format")
NOT_VALUES = ("not", "enum")
SOME_ITEM = ("some", "items")
SOME_PROPERTY = ("some", "properties")

Enforcer = Callable[[Solver, State, int, Any], bool | None]
Denier = Callable[[Solver, int, int, Any], Choice]
ENFORCE: dict[Any, tuple[int, Enforcer]] = {}
DENY: dict[Any, tuple[int, Denier]] = {}
MAX_SUBSETS = 5


def enforces(keyword: Any, kinds: int = ANY_KIND) -> Callable[[Enforcer], Enforcer]:
    def register(function: Enforcer) -> Enforcer:
        ENFORCE[keyword] = (kinds, function)
        return function

    return register


def denies(keyword: Any, kinds: int = ANY_KIND) -> Callable[[Denier], Denier]:
    def register(function: Denier) -> Denier:
        DENY[keyword] = (kinds, function)
        return function

    return register


def exact(value: int | float) -> Fraction:
    """A JSON number by its decimal digits: 0.1 is one tenth."""
    return Fraction(value) if isinstance(value, int) else Fraction(repr(value))


# ---- any kind ---------------------------------------------------------------------------------------------------------------------


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


def value_keys(values: list[Any], kind: int) -> dict[Any, Any]:
    """The scalars of one kind among `values`, by a key that is equal exactly when they are."""
    return {exact(value) if kind == NUMBER else value: value for value in values if kind_of(value) == kind}


@enforces("enum")
def _enum(solver: Solver, state: State, number: int, value: list[Any]) -> bool | None:
    kind = state.facts.kind
    if kind in (BOOLEAN, NUMBER, STRING):
        cast(ValuedFacts, state.facts).among(value_keys(value, kind))
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
    return _enum(solver, state, number, [value])


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
        solver.document.refuse(keyword, solver.document.places[number], "is a keyword of draft-03 alone, and that draft is not supported")


for _keyword in ("extends", "disallow", "divisibleBy"):
    _draft_3(_keyword)


def _children(solver: Solver, number: int, keyword: str, value: list[Any]) -> list[Literal]:
    return [solver.child(number, schema, keyword, i) for i, schema in enumerate(value)]


@enforces("allOf")
def _(solver: Solver, state: State, number: int, value: list[Any]) -> bool:
    return all(solver.assume(state, literal) for literal in _children(solver, number, "allOf", value))


@denies("allOf")
def _(solver: Solver, number: int, kind: int, value: list[Any]) -> Choice:
    return [[literal ^ 1] for literal in _children(solver, number, "allOf", value)]


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
            others = _children(solver, number, keyword, value)
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
    return [[literal ^ 1 for literal in _children(solver, number, "anyOf", value)]]


@enforces("oneOf")
def _(solver: Solver, state: State, number: int, value: list[Any]) -> None:
    state.choices.append(solver.exactly_one(joined_alternatives(solver, number, "oneOf")))


@denies("oneOf")
def _(solver: Solver, number: int, kind: int, value: list[Any]) -> Choice:
    literals = _children(solver, number, "oneOf", value)
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


# ---- numbers ----------------------------------------------------------------------------------------------------------------------


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


# ---- strings ----------------------------------------------------------------------------------------------------------------------


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


# ---- sizes ------------------------------------------------------------------------------------------------------------------------


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


# ---- arrays -----------------------------------------------------------------------------------------------------------------------


def _first_items(schema: dict[Any, Any]) -> tuple[str, list[Any], str]:
    """(keyword, schemas of the first items, keyword of the others), in the spelling of 2020-12 or of the drafts before."""
    if isinstance(schema.get("items"), list):
        return "items", schema["items"], "additionalItems"
    return "prefixItems", schema.get("prefixItems", []), "items"


@enforces("items", ARRAY)
def _items(solver: Solver, state: State, number: int, value: Any) -> None:
    schema = solver.document.schemas[number]
    keyword, first, others = _first_items(schema)
    literals = tuple(_children(solver, number, keyword, first))
    cast(ArrayFacts, state.facts).each(literals, solver.child(number, schema.get(others, True), others))


@denies("items", ARRAY)
def _not_items(solver: Solver, number: int, kind: int, value: Any) -> Choice:
    schema = solver.document.schemas[number]
    keyword, first, others = _first_items(schema)
    ways: Choice = []
    for i, literal in enumerate(_children(solver, number, keyword, first)):
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
        solver.document.refuse("uniqueItems", solver.document.places[number], "cannot be negated (by not, oneOf or if)")
    return []


# ---- objects ----------------------------------------------------------------------------------------------------------------------


@enforces("properties", OBJECT)
def _(solver: Solver, state: State, number: int, value: dict[str, Any]) -> None:
    facts = cast(ObjectFacts, state.facts)
    for name, schema in value.items():
        facts.declare(name, solver.child(number, schema, "properties", name))


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
    facts = cast(ObjectFacts, state.facts)
    for name in value:
        facts.require(name)


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
        for name in names or ():
            facts.declare(name, literal)


def _listed_names(term: Term) -> list[str] | None:
    """The names that a pattern such as ^(a|b)$ lists."""
    options = term.args if term.op == "alt" else (term,)
    return [option.args[0] for option in options] if all(option.op == "lit" for option in options) else None


@denies("patternProperties", OBJECT)
def _(solver: Solver, number: int, kind: int, value: dict[str, Any]) -> Choice:
    ways: Choice = []
    for pattern, schema in value.items():
        solver.pattern(pattern, number)
        if literal := solver.child(number, schema, "patternProperties", pattern):
            ways.append([solver.made(number, {SOME_PROPERTY: (Names((pattern,)), literal ^ 1)})])
    return ways


def _additional(solver: Solver, number: int) -> Names:
    """The names that `additionalProperties` of schema `number` speaks of."""
    schema = solver.document.schemas[number]
    names, patterns = set(schema.get("properties", ())), list[str]()
    for pattern in schema.get("patternProperties", ()):
        if (term := solver.pattern_or_refuse(pattern, number, "patternProperties")) is None:
            continue
        if (listed := _listed_names(term)) is None:
            patterns.append(pattern)
        names.update(listed or ())
    return Names((), tuple(patterns), frozenset(names))


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
        solver.document.refuse(keyword, solver.document.places[number], "cannot be negated (by not, oneOf or if)")
    return []


@enforces("dependentRequired", OBJECT)
def _dependent_names(solver: Solver, state: State, number: int, value: dict[str, list[str]]) -> None:
    for name, others in value.items():
        if others:
            absent = solver.made(number, {"properties": {name: False}}, ("no", name))
            state.choices.append([[absent], [solver.made(number, {"required": [name, *others]}, ("with", name))]])


@denies("dependentRequired", OBJECT)
def _not_dependent_names(solver: Solver, number: int, kind: int, value: dict[str, list[str]]) -> Choice:
    return [
        [solver.made(number, {"required": [name], "properties": {other: False}})] for name, others in value.items() for other in others
    ]


@enforces("dependentSchemas", OBJECT)
def _dependent_schemas(solver: Solver, state: State, number: int, value: dict[str, Any], keyword: str = "dependentSchemas") -> None:
    for name, schema in value.items():
        if literal := solver.child(number, schema, keyword, name):
            absent = solver.made(number, {"properties": {name: False}}, ("no", name))
            state.choices.append([[absent], [solver.made(number, {"required": [name]}, ("some", name)), literal]])


@denies("dependentSchemas", OBJECT)
def _not_dependent_schemas(solver: Solver, number: int, kind: int, value: dict[str, Any], keyword: str = "dependentSchemas") -> Choice:
    return [
        [solver.made(number, {"required": [name]}), solver.child(number, schema, keyword, name) ^ 1] for name, schema in value.items()
    ]


def _split(value: dict[str, Any]) -> tuple[dict[str, list[str]], dict[str, Any]]:
    lists = {name: item for name, item in value.items() if isinstance(item, list)}
    return lists, {name: item for name, item in value.items() if name not in lists}


@enforces("dependencies", OBJECT)
def _(solver: Solver, state: State, number: int, value: dict[str, Any]) -> None:
    lists, schemas = _split(value)
    _dependent_names(solver, state, number, lists)
    _dependent_schemas(solver, state, number, schemas, "dependencies")


@denies("dependencies", OBJECT)
def _(solver: Solver, number: int, kind: int, value: dict[str, Any]) -> Choice:
    lists, schemas = _split(value)
    return _not_dependent_names(solver, number, kind, lists) + _not_dependent_schemas(solver, number, kind, schemas, "dependencies")
