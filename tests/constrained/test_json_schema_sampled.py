"""Documents written under random schemas, within random budgets: each parses, validates and is finished in time."""
from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from constraint_tools import finish_randomly
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ramet.constrained.errors import GrammarError

from .test_json_schema_random import SCHEMAS

FIXED: list[Any] = [
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy"]}, "c": {"type": "boolean"}}, "required": ["b"], "minProperties": 2},
    {"type": "array", "contains": {"const": 7}, "items": {"type": "integer"}, "minItems": 2, "maxItems": 4},
    {"type": "array", "items": {"enum": ["a", "bb", "ccc", 1, None]}, "uniqueItems": True, "minItems": 3},
    {"type": "object", "additionalProperties": {"type": "number", "multipleOf": 0.5}, "minProperties": 1, "propertyNames": {"pattern": "^[a-c]{1,3}$"}},
    {"oneOf": [{"type": "object", "required": ["a"]}, {"type": "object", "required": ["b"]}], "maxProperties": 3},
    {"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": 2}}},
    {"type": "string", "format": "date-time"}, {"type": "string", "pattern": "^a.*z$", "minLength": 4, "maxLength": 9},
    {"type": "integer", "minimum": 13, "maximum": 131, "not": {"multipleOf": 7}}, {"not": {"type": ["object", "array"]}},
]  # fmt: skip


def written(small: Any, schema: Any, budget: int, seed: int) -> Any:
    """A document sampled at random with `budget` tokens more than the least that do."""
    grammar = small.compile("json_schema", schema)
    text = finish_randomly(grammar.matcher(), grammar.min_tokens + budget, random.Random(seed).choice)
    assert text is not None, "the budget ran out"
    return json.loads(text)



@pytest.mark.parametrize("schema", FIXED, ids=[json.dumps(schema)[:50] for schema in FIXED])
def test_fixed(small: Any, schema: Any) -> None:
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    for seed in range(40):
        validator.validate(written(small, schema, seed % 20, seed))


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(SCHEMAS, st.integers(0, 40), st.integers(0, 10))
def test_random(small: Any, schema: Any, budget: int, seed: int) -> None:
    try:
        value = written(small, schema, budget, seed)
    except GrammarError:
        assume(False)
    jsonschema.Draft202012Validator(schema).validate(value)
