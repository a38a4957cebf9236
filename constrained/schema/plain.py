"""Plain schemas: most of all, and what the general way would write of them, at a fraction of its cost.

Nothing here asks the solver what a schema means. Each function knows a few keywords, and leaves a schema with any other to the general way.
"""
from __future__ import annotations

from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any

from ..grammar import ANY_STRING, MAX_REPEAT, NOTHING, Term, alt, json_string, lit, seq, words
from . import numbers
from .facts import ANY_KIND, ARRAY, NUMBER, OBJECT, STRING, kind_of
from .keywords import ENFORCE
from .lists import picked, repeated
from .state import type_bits

if TYPE_CHECKING:
    from .emit import Emitter

QUOTE = lit('"')
ANY_TEXT = seq(QUOTE, json_string(ANY_STRING), QUOTE)
SCALARS: dict[Any, Term] = {
    "null": lit("null"),
    "boolean": alt(lit("true"), lit("false")),
    "integer": numbers.INTEGER,
    "number": numbers.NUMBER,
    "string": ANY_TEXT,
}
_WRITTEN: dict[Any, str] = {None: "null", True: "true", False: "false"}
_BEYOND_TYPE = ENFORCE.keys() - {"type"}
_BEYOND_LISTS = ENFORCE.keys() - {"type", "enum", "const"}
_BEYOND_LARGE = ENFORCE.keys() - {"type", "properties", "required", "additionalProperties", "items", "minItems", "maxItems"}


def scalar(schema: dict[Any, Any]) -> Term | None:
    """The term of a schema that only names scalar types. The schema need not be checked yet."""
    kind = schema.get("type")
    if kind is None or not _BEYOND_TYPE.isdisjoint(schema):
        return None
    if type(kind) is str:
        return SCALARS.get(kind)
    if type(kind) is not list or not kind or not all(type(name) is str and name in SCALARS for name in kind):
        return None
    return alt(*[term for name, term in SCALARS.items() if name in kind and not (name == "integer" and "number" in kind)])


def listed(schema: dict[Any, Any]) -> Term | None:
    """The term of a schema that only lists values, strings, booleans and null among them."""
    if ("enum" in schema) is ("const" in schema) or not _BEYOND_LISTS.isdisjoint(schema):
        return None
    kinds, texts = type_bits(schema["type"]) if "type" in schema else ANY_KIND, []
    for value in schema["enum"] if "enum" in schema else (schema["const"],):
        kind = kind_of(value)
        if kind > STRING or kind == NUMBER:
            return None
        if kind & kinds:
            texts.append(encode_basestring(value) if kind == STRING else _WRITTEN[value])
    return words(texts)


def is_large(schema: dict[Any, Any]) -> bool:
    """Whether `large` may know a schema that has a type, which is an object, an array or both."""
    kind = schema.get("type")
    if kind is None or not _BEYOND_LARGE.isdisjoint(schema):
        return False
    return kind == "object" or kind == "array" or not type_bits(kind) & ~(ARRAY | OBJECT)


def large(emitter: Emitter, number: int, schema: dict[Any, Any], depth: int) -> Term | None:
    """The term of a schema of objects, arrays and maybe scalars with no keyword but the usual ones."""
    if not _BEYOND_LARGE.isdisjoint(schema):
        return None
    names = schema.get("type", list(SCALARS))
    if names == "object":
        return _object(emitter, number, schema, depth)
    kinds = type_bits(names) if "type" in schema else ANY_KIND
    parts: list[Term] = []
    if kinds & OBJECT:
        term = _object(emitter, number, schema, depth)
        if term is None:
            return None
        parts.append(term)
    if kinds & ARRAY:
        term = _array(emitter, number, schema, depth)
        if term is None:
            return None
        parts.append(term)
    if kinds & ~(ARRAY | OBJECT):
        parts += [term for name, term in SCALARS.items() if name in names and not (name == "integer" and "number" in names)]
    return alt(*parts) if len(parts) > 1 else parts[0]


def _object(emitter: Emitter, number: int, schema: dict[str, Any], depth: int) -> Term | None:
    inner, needed, others = emitter.style.deeper(depth), dict[str, Term](), list[Term]()
    properties, required = schema.get("properties", {}), schema.get("required", ())
    for name, child in properties.items():
        term = emitter.member(name, emitter.child(number, child, inner, "properties", name))
        if term.op == "nothing":
            return None
        if name in required:
            needed[name] = term
        else:
            others.append(term)
    for name in required:
        if name not in properties:
            return None
    extra, more = NOTHING, schema.get("additionalProperties", True)
    if more is not False:
        extra = emitter.named(emitter.undeclared(frozenset(properties)), emitter.child(number, more, inner, "additionalProperties"))
    body = picked(needed, others, extra, emitter.style.item(depth), 0, None, required)
    return emitter.style.enclose("{}", body, not required, depth)


def _array(emitter: Emitter, number: int, schema: dict[str, Any], depth: int) -> Term | None:
    if type(schema.get("items")) is list:
        return None
    lo, hi = int(schema.get("minItems", 0)), schema.get("maxItems")
    hi = None if hi is None or hi > MAX_REPEAT else int(hi)
    item = emitter.child(number, schema.get("items", True), emitter.style.deeper(depth), "items")
    if item.op == "nothing" or hi is not None and lo > hi:
        return None
    key = (id(item), lo, hi, depth)
    known = emitter.lists.get(key)
    if known is None:
        body = repeated(item, emitter.style.item(depth), lo, hi, started=False)
        known = emitter.lists[key] = emitter.style.enclose("[]", body, lo == 0, depth), item  # which is kept alive, and so its id its own
    return known[0]
