"""Random schemas and instances against the jsonschema package: accepted exactly when valid."""
from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ramet.constrained.errors import GrammarError, LimitError

from .schema_helpers import Language

NAMES = st.sampled_from(["a", "b", "ab", "x"])
TEXTS = st.sampled_from(["", "a", "b", "ab", "aab", "xyz", 'q"', "é", "😀😀"])
PATTERNS = st.sampled_from(["^a", "b$", "^a+b?$", "a|x", "^.$", "^[^a]*$"])
NUMBERS = st.one_of(st.integers(-12, 12), st.sampled_from([0.5, -2.5, 1.25, 7.75, -0.1]))
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
VALUES = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)), max_leaves=5
)
SIZES = st.integers(0, 3)


def some(**keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any of the keywords, each or not."""
    return st.fixed_dictionaries({}, optional=keywords)


ATOMS = st.one_of(
    st.booleans(),
    some(type=st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object", ["string", "null"], ["integer", "array"]])),
    st.builds(lambda values: {"enum": values}, st.lists(VALUES, min_size=1, max_size=3)),
    st.builds(lambda value: {"const": value}, VALUES),
    some(type=st.just("string"), minLength=SIZES, maxLength=SIZES, pattern=PATTERNS),
    some(minimum=NUMBERS, maximum=NUMBERS, exclusiveMinimum=NUMBERS, exclusiveMaximum=NUMBERS, multipleOf=st.sampled_from([1, 2, 3, 0.5, 2.5])),
)


def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    lists = st.lists(NAMES, unique=True, max_size=2)
    return st.one_of(
        some(
            type=st.just("object"), properties=st.dictionaries(NAMES, inner, max_size=3), required=lists,
            additionalProperties=inner, patternProperties=st.dictionaries(PATTERNS, inner, max_size=2),
            minProperties=SIZES, maxProperties=SIZES, propertyNames=inner,
        ),
        some(properties=st.dictionaries(NAMES, inner, max_size=2), dependentRequired=st.dictionaries(NAMES, lists, max_size=2),
             dependentSchemas=st.dictionaries(NAMES, inner, max_size=1)),
        some(type=st.just("array"), items=inner, prefixItems=several, minItems=SIZES, maxItems=SIZES),
        some(type=st.just("array"), contains=inner, minContains=st.integers(0, 2), maxContains=SIZES, items=inner),
        some(anyOf=several, type=st.sampled_from(["string", "object", "array", "integer"])),
        some(oneOf=several, properties=st.dictionaries(NAMES, inner, max_size=2)),
        some(allOf=several, required=lists),
        st.builds(lambda schema: {"not": schema}, inner),
        some(**{"if": inner, "then": inner, "else": inner}),
    )  # fmt: skip


SCHEMAS = st.recursive(ATOMS, grown, max_leaves=6)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much], derandomize=True)
@given(SCHEMAS, st.lists(VALUES, min_size=1, max_size=6))
def test_accepts_exactly_the_valid(schema: Any, values: list[Any]) -> None:
    valid = [jsonschema.Draft202012Validator(schema).is_valid(value) for value in values]
    try:
        language = Language(schema)
    except LimitError:
        assume(False)
    except GrammarError as error:
        assume("minProperties" not in str(error))  # the one keyword here that may be refused; else there is no document
        assert not any(valid)
        return
    for value, right in zip(values, valid, strict=True):
        assert language.holds(value) is right, value


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(st.lists(ATOMS, min_size=1, max_size=3), st.lists(VALUES, min_size=1, max_size=6))
def test_not_is_the_complement(schemas: list[Any], values: list[Any]) -> None:
    schema = {"anyOf": schemas}
    try:
        inside, outside = Language(schema), Language({"not": schema})
    except GrammarError:
        assume(False)
    for value in values:
        assert inside.holds(value) is not outside.holds(value), value


@pytest.mark.parametrize("bounds", [(-7, 12), (3, 12), (-12, -3), (0, 0), (-100, 99), (10, 1000), (-1, 1), (99, 101), (-20, 0), (7, 70)])
def test_every_integer_near_the_bounds(bounds: tuple[int, int]) -> None:
    low, high = bounds
    language = Language({"type": "integer", "minimum": low, "maximum": high})
    least = Language({"type": "integer", "exclusiveMinimum": low, "multipleOf": 7})
    for n in range(-200, 1201):
        assert (str(n) in language) is (low <= n <= high), n
        assert (str(n) in least) is (n > low and n % 7 == 0), n
    assert f"0{max(high, 1)}" not in language and "-" not in language and "" not in language
