"""Whatever is sent to whatever route that the app itself describes: no 5xx, and the same worker afterwards."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

junk = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def strategy(schema: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """Values of a JSON Schema as pydantic writes them, now and then something else in their place."""
    if not isinstance(schema, dict) or not schema or depth > 5:
        return junk
    if "anyOf" in schema or "oneOf" in schema:
        return st.one_of([strategy(item, depth) for item in schema.get("anyOf") or schema["oneOf"]])
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema.get("type")
    if kind == "object":
        return objects(schema, depth)
    low, high = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum", schema.get("exclusiveMaximum"))
    simple: dict[Any, st.SearchStrategy[Any]] = {
        "null": st.none(),
        "boolean": st.booleans(),
        "string": st.text(max_size=12) | st.just("say:x"),
        "integer": st.integers(int(low) if low is not None else -5, int(high) if high is not None else 40),
        "number": st.floats(low if low is not None else -3, high if high is not None else 3, allow_nan=False),
        "array": st.lists(strategy(schema.get("items", {}), depth + 1), max_size=3),
    }
    return simple.get(kind, junk)


def objects(schema: dict[str, Any], depth: int) -> st.SearchStrategy[Any]:
    """An object with what it must have and a few other fields; at the top, each field is now and then junk."""
    fields = {name: strategy(inner, depth + 1) for name, inner in schema.get("properties", {}).items()}
    if depth == 0:
        fields = {name: now_and_then_junk(made) for name, made in fields.items()}
    required = {name: fields.pop(name) for name in schema.get("required", []) if name in fields}
    if not fields:
        return st.fixed_dictionaries(required)
    some = st.lists(st.sampled_from(sorted(fields)), max_size=4, unique=True)
    return some.flatmap(lambda names: st.fixed_dictionaries(required | {name: fields[name] for name in names}))


def now_and_then_junk(made: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 11).flatmap(lambda dice: junk if dice == 0 else made)


def sensible(schema: dict[str, Any], body: Any) -> Any:
    """The body with a prompt where it lacks one, and few tokens asked for."""
    names = schema.get("properties", {})
    if isinstance(body, dict):
        if "text" in names and not {"text", "input_ids"} & body.keys():
            body["text"] = "say:x"
        for name in ("max_tokens", "max_output_tokens"):
            if name in names:
                body.setdefault(name, 5)
        if isinstance(body.setdefault("sampling_params", {}) if "sampling_params" in names else None, dict):
            body["sampling_params"].setdefault("max_new_tokens", 5)
    return body


@pytest.fixture(scope="module")
def operations(served):
    with served.client() as client:
        document = client.get("/openapi.json").json()
    found = []
    for path, item in document["paths"].items():
        if path == "/batch":  # never ends
            continue
        for method, operation in item.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            found.append((method, path, body))
    assert len(found) > 35 and sum(body is not None for _, _, body in found) > 15
    return found


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_route_answers_with_5xx(served, operations, data):
    method, path, schema = data.draw(st.sampled_from(operations))
    path = path.replace("{name}", data.draw(st.sampled_from(["x", "a b", "%2e%2e", "é"]))).replace("{model}", data.draw(st.sampled_from(["fake", "x/y"])))
    content = None
    if schema is not None:
        content = json.dumps(sensible(schema, data.draw(strategy(schema)))).encode()
    if method in ("post", "put") and data.draw(st.integers(0, 9)) == 0:
        content = data.draw(st.binary(max_size=40))
    with served.client() as client:
        response = client.request(method, path, content=content)
    assert response.status_code < 500 or response.json()["error"]["code"] in ("too_many_sessions",), (
        method,
        path,
        content,
        response.text[:500],
    )
    if response.status_code >= 400:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_the_worker_is_the_same(served):
    with served.client() as client:
        assert client.get("/health_generate").status_code == 200
    assert '"level": "error"' not in served.log, [line for line in served.lines() if line["level"] == "error"][:3]
