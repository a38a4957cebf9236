"""The shape that each keyword's value must have, and which keywords hold schemas."""
from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from types import NoneType
from typing import Any

TYPES = frozenset(("null", "boolean", "object", "array", "number", "string", "integer"))

REFERENCES = frozenset(("$ref", "$dynamicRef", "$recursiveRef"))
MAPS = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"))
DATA = frozenset(("enum", "const", "default", "example", "examples"))
"""Keywords whose value is data: nothing in it is a schema."""
IN_PLACE = REFERENCES | {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"}
"""Keywords that apply schemas to the same value."""


def _type(value: Any) -> str | None:
    if type(value) is str and value in TYPES:
        return None
    names = value if isinstance(value, list) and value else [value]
    if all(isinstance(name, str) and name in TYPES for name in names):
        return None
    return f"must be one or a list of {', '.join(sorted(TYPES))}"


def _schema(value: Any) -> str | None:
    return None if isinstance(value, dict | bool) else "must be a schema"


def _schemas(value: Any) -> str | None:
    if isinstance(value, list) and value and all(isinstance(item, dict | bool) for item in value):
        return None
    return "must be a list of at least one schema"


def _items(value: Any) -> str | None:
    if isinstance(value, list):
        return None if all(isinstance(item, dict | bool) for item in value) else "must be a schema or a list of schemas"
    return _schema(value)


def _map(value: Any) -> str | None:
    if isinstance(value, dict):
        for item in value.values():
            if type(item) is not dict and not isinstance(item, bool):
                break
        else:
            return None
    return "must be an object of schemas"


def _dependencies(value: Any) -> str | None:
    if isinstance(value, dict) and all(isinstance(item, dict | bool) or _names(item) is None for item in value.values()):
        return None
    return "must be an object of schemas and lists of names"


def _name_lists(value: Any) -> str | None:
    if isinstance(value, dict) and all(_names(item) is None for item in value.values()):
        return None
    return "must be an object of lists of names"


def _names(value: Any) -> str | None:
    return None if isinstance(value, list) and all(isinstance(item, str) for item in value) else "must be a list of names"


def _count(value: Any) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return None
    return None if isinstance(value, float) and value >= 0 and value.is_integer() else "must be a whole number, 0 or more"


def _number(value: Any) -> str | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and value == value and abs(value) != float("inf"):
        return None
    return "must be a number"


def _exclusive(value: Any) -> str | None:
    return None if isinstance(value, bool) else _number(value) and "must be a number (or, as in draft-04, a boolean)"


def _positive(value: Any) -> str | None:
    return _number(value) or (None if value > 0 else "must be more than 0")


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) else "must be a string"


_PLAIN = frozenset((str, int, bool, NoneType))


def _is_json(value: Any) -> bool:
    """Whether no number in a parsed value is infinite or not a number: Python reads and writes these, JSON has no way to."""
    if isinstance(value, float):
        return isfinite(value)
    parts = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
    return _PLAIN.issuperset(map(type, parts)) or all(map(_is_json, parts))


def _enum(value: Any) -> str | None:
    if not isinstance(value, list):
        return "must be a list of values"
    return _const(value)


def _const(value: Any) -> str | None:
    return None if _is_json(value) else "must be of finite numbers"


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


CHECKS: dict[Any, Callable[[Any], str | None]] = {
    "type": _type, "enum": _enum, "const": _const, "$ref": _text, "$dynamicRef": _text, "$recursiveRef": _text,
    "allOf": _schemas, "anyOf": _schemas, "oneOf": _schemas, "not": _schema, "if": _schema, "then": _schema, "else": _schema,
    "properties": _map, "patternProperties": _map, "additionalProperties": _schema, "unevaluatedProperties": _schema,
    "propertyNames": _schema, "required": _names, "dependencies": _dependencies, "dependentSchemas": _map,
    "dependentRequired": _name_lists, "minProperties": _count, "maxProperties": _count,
    "items": _items, "prefixItems": _schemas, "additionalItems": _schema, "unevaluatedItems": _schema, "contains": _schema,
    "minItems": _count, "maxItems": _count, "minContains": _count, "maxContains": _count, "uniqueItems": _flag,
    "minLength": _count, "maxLength": _count, "pattern": _text, "format": _text,
    "minimum": _number, "maximum": _number, "exclusiveMinimum": _exclusive, "exclusiveMaximum": _exclusive, "multipleOf": _positive,
}  # fmt: skip
"""By keyword: what is wrong with a value, or None. The names missing here are annotations to us."""
