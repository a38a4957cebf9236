"""What each keyword accepts and refuses, spelled out; test_json_schema_random.py compares with a validator."""
from __future__ import annotations

import json
import socket
import time
from typing import Any

import pytest

from ramet.constrained.errors import GrammarError, LimitError
from ramet.constrained.json_schema import compile_schema

from .schema_helpers import Language

PLACE = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}, "required": ["x", "y"]}
TREE = {
    "$ref": "#/$defs/tree",
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {"n": {"type": "integer"}, "sub": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
            "required": ["n"],
            "additionalProperties": False,
        }
    },
}

CASES: list[tuple[Any, list[str], list[str]]] = [
    # strings: lengths in code points, patterns on the decoded value, every legal escape
    ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', r'"\n\""', '"日本"', '"😀😀"', r'"\ud83d\ude00x"', r'"\u0041b"'],
     ['"a"', '"abcd"', '"😀"', '"a\tb"', r'"\x41b"', r'"\ud83dab"', '"ab', r'"\ude00\ud83d"']),
    ({"type": "string", "pattern": "^a|z$"}, ['"ab"', '"bz"', '"a"'], ['"ba"', '""', '"zb"']),
    ({"type": "string", "pattern": r"^\d{2,}$", "maxLength": 3}, ['"12"', '"123"'], ['"1"', '"1234"', '"12\\n"', '"1a"']),
    ({"type": "string", "pattern": "^[^\"]+\"$"}, [r'"a\""', r'"a\u0022"'], ['"a"', '"a"""']),
    ({"type": "string", "not": {"pattern": "secret"}, "maxLength": 8}, ['"secre"', '""'], ['"a secret"', '"toolongtext"']),
    # numbers: by value
    ({"type": "number", "minimum": -1.5, "exclusiveMaximum": 2}, ["-1.5", "-1.50", "1.999", "0", "-0.2"],
     ["2", "2.0", "-1.51", "-2", "-0", "1e0", "01", "."]),
    ({"type": "number", "minimum": 5, "exclusiveMinimum": True}, ["5.1", "6"], ["5", "5.0"]),
    ({"type": "number", "multipleOf": 0.25}, ["0.25", "1.5", "-3", "2.750"], ["0.3", "0.255", "0.26"]),
    ({"type": "integer", "multipleOf": 12, "minimum": 1}, ["12", "24", "120"], ["0", "6", "-12", "13"]),
    ({"type": "number"}, ["-0", "1e5", "1E-2", "0.10"], ["+1", ".5", "1.", "NaN", "Infinity", "--1", "1e"]),
    ({"type": "integer", "not": {"enum": [3, 5]}}, ["4", "-3", "35"], ["3", "5"]),
    ({"type": "number", "not": {"type": "integer"}}, ["0.5", "-2.25"], ["1", "1.0", "-3"]),
    ({"type": "integer", "multipleOf": 12_345, "maximum": 100_000}, ["12345", "98760", "0", "-24690"], ["12346", "111105", "12345.0"]),
    ({"type": "integer", "multipleOf": 300_000, "minimum": 0, "maximum": 1_000_000}, ["0", "300000", "900000"], ["1", "30000", "1200000", "-300000"]),
    ({"multipleOf": 65_536, "exclusiveMinimum": -65_536, "maximum": 10**6}, ["0", "65536", "983040"], ["-65536", "1048576", "65535"]),
    ({"type": ["number", "null"], "not": {"multipleOf": 0.5}}, ["0.25", "-7.1"], ["0.5", "3", "0", "null"]),
    # plain schemas without a type, with several, with bounds
    ({"properties": {"a": {"type": "integer"}}, "additionalProperties": False}, ['{"a": 1}', "{}", "[1]", '"x"', "null", "1.5"], ['{"a": "x"}', '{"b": 1}']),
    ({"type": ["array", "object", "null"], "items": {"type": "integer"}, "required": ["a"], "properties": {"a": True}},
     ["[1]", "[]", '{"a": 0}', "null"], ['["x"]', "{}", "1", '"x"']),
    ({"type": "array", "items": {"type": ["integer", "number", "boolean"]}, "minItems": 1, "maxItems": 2},
     ["[1.5]", "[true, 2]"], ["[]", "[1, 2, 3]", '["x"]']),
    ({"type": "array", "items": {"type": "null"}, "maxItems": 0}, ["[]"], ["[null]"]),
    ({"type": ["string", "null"], "enum": ["a", None, True, "a"]}, ['"a"', "null"], ["true", '"b"']),
    ({"const": "a\u00e9"}, ['"a\u00e9"'], ['"a"']),
    ({"enum": [1.0, "a", None]}, ["1.0", "1", '"a"', "null"], ["2", '"b"', "1.5"]),
    # objects: names, counts, what is not declared
    (PLACE, ['{"x": 1, "y": 2}', '{"x": 1, "y": 2, "z": [1]}'], ['{"y": 2, "x": 1}', '{"x": 1}', '{"x": 1, "y": 2, "x": 3}']),
    ({**PLACE, "required": ["y", "x"]}, ['{"x": 1, "y": 2}', '{"y": 2, "x": 1}'], ['{"x": 1}']),
    ({**PLACE, "required": ["y"]}, ['{"y": 2, "x": 1}', '{"x": 1, "z": 0, "y": 2}', '{"y": 2}'],
     ['{"x": 1}', "{}", '{"y": 1, "y": 2}', '{"y": 1, "\\u0079": 2}']),
    ({**PLACE, "required": [], "additionalProperties": {"type": "null"}}, ['{"z": null}', '{"xx": null, "x": 1}', "{}"], ['{"z": 1}', '{"x": null}']),
    ({"type": "object", "patternProperties": {"^n_": {"type": "number"}, "s$": {"maximum": 3}}, "additionalProperties": False},
     ['{"n_a": 7, "xs": 1}', '{"n_s": 2}', '{"xs": "any"}'], ['{"a": 1}', '{"n_a": "x"}', '{"n_s": 4}', '{"n_s": "x"}']),
    ({"type": "object", "propertyNames": {"pattern": "^[a-c]+$", "maxLength": 2}}, ['{"ab": 1}', "{}"], ['{"abc": 1}', '{"d": 1}']),
    ({"type": "object", "properties": {"a": True, "b": True, "c": True}, "minProperties": 2, "maxProperties": 2, "additionalProperties": False},
     ['{"a": 1, "b": 2}', '{"c": 1, "a": 2}'], ['{"a": 1}', '{"a": 1, "b": 2, "c": 3}', "{}"]),
    ({"type": "object", "properties": {"a": True, "b": True}, "minProperties": 2, "maxProperties": 3},
     ['{"x": 1, "a": 2}', '{"b": 1, "a": 2, "c": 3}', '{"x": 1, "x": 1, "b": 2}'], ['{"x": 1, "x": 2}', '{"a": 1}', '{"a": 1, "b": 2, "c": 3, "d": 4}']),
    ({"type": "object", "dependentRequired": {"card": ["zip"]}, "properties": {"card": {"const": 1}, "zip": {"const": 2}}, "additionalProperties": False},
     ['{"card": 1, "zip": 2}', '{"zip": 2}', "{}"], ['{"card": 1}']),
    ({"type": "object", "dependencies": {"a": {"required": ["b"]}, "c": ["d"]}}, ['{"a": 1, "b": 2}', '{"c": 1, "d": 2}'], ['{"a": 1}', '{"c": 1}']),
    ({"type": "object", "not": {"required": ["a"]}}, ['{"b": 1}', "{}"], ['{"a": 1}', '{"b": 1, "a": 2}']),
    ({"type": "object", "allOf": [{"properties": {"a": {"const": 1}}}, {"required": ["a"]}], "unevaluatedProperties": False},
     ['{"a": 1}'], ['{"a": 1, "b": 2}', "{}"]),
    # names that must be there though none is declared, among others, and no more than so many
    ({"type": "object", "properties": {"x": {"type": "null"}}, "required": ["x"], "maxProperties": 3, "allOf": [
        {"not": {"patternProperties": {"^a": {"not": {"const": 1}}}}}, {"not": {"patternProperties": {"z$": {"not": {"const": 1}}}}}]},
     ['{"x": null, "a": 1, "z": 1}', '{"az": 1, "x": null}', '{"q": 5, "x": null, "az": 1}', '{"z": 1, "ab": 1, "x": null}'],
     ['{"x": null, "a": 1}', '{"az": 1}', '{"x": null, "a": 2, "z": 1}', '{"x": null, "q": 1, "a": 1, "z": 1}']),
    # arrays
    ({"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "items": {"const": 3}, "maxItems": 4},
     ["[]", "[1]", "[1, 2, 3, 3]"], ["[2]", "[1, 3]", "[1, 2, 3, 3, 3]", "[1,2]"]),
    ({"type": "array", "items": [{"const": 1}], "additionalItems": False}, ["[1]", "[]"], ["[1, 1]"]),
    ({"type": "array", "contains": {"const": 1}, "minContains": 2, "maxContains": 2, "maxItems": 3}, ["[1, 1]", "[1, 0, 1]"],
     ["[1]", "[1, 1, 1]", "[0, 1, 0, 1]"]),
    ({"type": "array", "items": {"enum": [1, 2, "x"]}, "uniqueItems": True, "minItems": 2}, ['[2, "x"]', '["x", 1, 2]'], ["[1, 1]", "[1]", "[3, 1]"]),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 1000, "maxItems": 100_000}, ["[" + ", ".join(["7"] * 1000) + "]"],
     ["[" + ", ".join(["7"] * 999) + "]"]),
    ({"type": "array", "items": {"type": "string", "maxLength": 0}, "uniqueItems": True}, ["[]", '[""]'], ['["", ""]', '["a"]']),
    # joining
    ({"type": "object", "required": ["t"], "allOf": [{"properties": {"n": {"type": "integer"}}}, {"oneOf": [
        {"properties": {"t": {"enum": ["a"]}, "x": {"const": 1}}}, {"properties": {"t": {"enum": ["b"]}, "x": {"const": 2}}}]}]},
     ['{"t": "a", "x": 1}', '{"n": 3, "t": "b"}', '{"x": 2, "t": "b"}'], ['{"t": "a", "x": 2}', '{"t": "c"}', '{"x": 1}', '{"t": "a", "n": "x"}']),
    ({"oneOf": [{"properties": {"t": {"const": "a"}}}, {"properties": {"t": {"const": "b"}}, "required": ["t"]}]},
     ['{"t": "a"}', '{"t": "b"}', "{}"], ['{"t": "c"}']),
    ({"type": "string", "enum": ["abc", "xyz", "ab"], "allOf": [{"pattern": "^a"}, {"minLength": 3}]}, ['"abc"'], ['"ab"', '"xyz"']),
    ({"type": "string", "oneOf": [{"pattern": "on"}, {"pattern": "off"}]}, ['"on"', '"xoffx"', '"online"'], ['"on off"', '"x"']),
    ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, ["1", "2.5", '"x"'], ["3", "1.5"]),
    ({"oneOf": [{"type": "object", "required": ["a"]}, {"type": "object", "required": ["b"]}]}, ['{"a": 1}', '{"b": 1, "c": 2}'],
     ['{"a": 1, "b": 2}', "{}"]),
    ({"anyOf": [{"const": "a"}, {"const": "b"}, {"const": "c"}], "not": {"const": "b"}}, ['"a"', '"c"'], ['"b"', '"d"']),
    ({"type": "object", "properties": {"kind": {"enum": ["a", "b"]}, "v": True}, "required": ["kind", "v"],
      "if": {"properties": {"kind": {"const": "a"}}}, "then": {"properties": {"v": {"type": "string"}}}, "else": {"properties": {"v": {"type": "null"}}}},
     ['{"kind": "a", "v": "x"}', '{"kind": "b", "v": null}'], ['{"kind": "a", "v": null}', '{"kind": "b", "v": "x"}']),
    ({"const": {"a": [1, {"b": None}]}}, ['{"a": [1, {"b": null}]}'], ['{"a": [1, {}]}', '{"a": [1]}', "{}"]),
    ({"not": {"const": [1]}, "type": "array", "items": {"const": 1}}, ["[]", "[1, 1]"], ["[1]"]),
    ({"$ref": "#/$defs/s", "maxLength": 2, "$defs": {"s": {"type": "string"}}}, ['"ab"'], ['"abc"', "1"]),
    (True, ["1", '"a"', '{"a": [null]}', "[]"], ["", "{", "[1,]"]),
    ({"type": "array", "uniqueItems": True, "items": {"enum": [0, False, 1, True]}}, ["[0, false]", "[true, 1, 0]"], ["[0, 0]", "[true, true]"]),
    ({"type": "array", "uniqueItems": True, "items": {"anyOf": [{"enum": [1, 2]}, {"enum": [2, 3]}]}}, ["[3, 1, 2]"], ["[2, 2]"]),
    ({"type": "array", "uniqueItems": True, "items": {"type": "integer", "minimum": 1, "exclusiveMaximum": 4, "not": {"const": 2}}},
     ["[]", "[3, 1]"], ["[1, 1]", "[2]", "[4]"]),
    # references
    (TREE, ['{"n": 1}', '{"n": 1, "sub": [{"n": 2, "sub": []}, {"n": 3}]}'], ['{"sub": []}', '{"n": 1, "sub": [{}]}']),
    ({"$ref": "#/$defs/a~1b%25~0", "$defs": {"a/b%~": {"type": "boolean"}}}, ["true"], ["1"]),
    ({"$ref": "#here", "$defs": {"x": {"$anchor": "here", "type": "null"}}}, ["null"], ["1"]),
    ({"$ref": "item.json", "$id": "http://a.b/root.json", "$defs": {"x": {"$id": "item.json", "$ref": "#/$defs/y", "$defs": {"y": {"const": 1}}}}},
     ["1"], ["2"]),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/s", "maxLength": 1, "definitions": {"s": {"type": "string"}}},
     ['"abc"'], ["1"]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "accepted", "refused"), CASES, ids=[json.dumps(case[0])[:60] for case in CASES])
def test_language(schema: Any, accepted: list[str], refused: list[str]) -> None:
    language = Language(schema)
    assert [text for text in accepted if text not in language] == []
    assert [text for text in refused if text in language] == []


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "strng"}, "type"), ({"type": ["string", 5]}, "type"), ({"properties": []}, "properties"), ({"required": "a"}, "required"),
        ({"enum": {}}, "enum"), ({"minLength": "3"}, "minLength"), ({"minItems": -1}, "minItems"), ({"multipleOf": 0}, "multipleOf"),
        ({"type": "object", "properties": {"a": {"anyOf": []}}}, "anyOf"), ({"items": 5}, "items"), ({"pattern": 5}, "pattern"),
        ({"$ref": "#/$defs/nope"}, "$ref"), ({"$ref": "https://127.0.0.1:9/x.json"}, "$ref"), ({"$ref": "#"}, "$ref"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "$ref"),
        ({"anyOf": [{"$ref": "#"}, {"type": "string"}]}, "$ref"), ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "not": {"uniqueItems": True}}, "uniqueItems"), ({"extends": {}}, "extends"),
        ({"type": "object", "minProperties": 2}, "minProperties"),
        ({"type": "string", "pattern": "(a)\\1"}, "'pattern'"), ({"type": "object", "patternProperties": {"\\b": True}}, "'patternProperties'"),
        ({"type": "integer", "multipleOf": 10**17 + 3}, "multiples"), ({"$defs": 5, "title": "#"}, "$defs"),
        ({"const": float("nan")}, "const"), ({"enum": [1, {"a": [float("inf")]}]}, "enum"),
        ({"prefixItems": [True, {"$ref": "#/prefixItems/-1"}]}, "$ref"),
    ],
)  # fmt: skip
def test_refusals_name_keyword_and_place(monkeypatch: pytest.MonkeyPatch, schema: Any, keyword: str) -> None:
    def no_network(*_: object) -> None:
        raise AssertionError("nothing is fetched")

    monkeypatch.setattr(socket, "socket", no_network)
    with pytest.raises(GrammarError) as caught:
        compile_schema({"type": "object", "required": ["v"], "properties": {"v": schema}} if "#" not in str(schema) else schema)
    assert keyword in str(caught.value)
    assert "#" in str(schema) or "/properties/v" in caught.value.place, caught.value.place


@pytest.mark.parametrize("schema", [5, "[]", "null", '{"type": "str', '{"const": "\\ud800"}', [1], None, {"const": "\ud800"}, {"a": float}])
def test_what_is_no_schema_is_said_to_be_none(schema: Any) -> None:
    with pytest.raises(GrammarError):
        compile_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        False, {"not": {}}, {"type": "string", "enum": [1]}, {"type": "integer", "minimum": 3, "maximum": 2}, 
        {"type": "string", "pattern": "^a$", "minLength": 3},
        {"type": "object", "required": ["a"], "properties": {"a": False}}, {"allOf": [{"type": "string"}, {"type": "null"}]}, {"enum": []},
        {"type": "array", "minItems": 3, "uniqueItems": True, "items": {"enum": [1, 2]}}, {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2},
        {"type": "object", "properties": {"n": {"$ref": "#"}}, "required": ["n"]}, {"oneOf": [{"type": "string"}, {"type": "string"}], "type": "string"},
        {"type": "array", "contains": {"type": "string"}, "items": {"type": "integer"}}, {"type": "object", "minProperties": 2, "maxProperties": 1},
    ],
)  # fmt: skip
def test_unsatisfiable_schemas_are_errors(schema: Any) -> None:
    with pytest.raises(GrammarError, match="unsatisfiable|no document"):
        Language(schema)


def nested(levels: int, wrap: Any) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(levels):
        schema = wrap(schema)
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        nested(5000, lambda inner: {"type": "array", "items": inner}), nested(10_000, lambda inner: {"allOf": [inner]}),
        '{"items":' * 10_000 + "{}" + "}" * 10_000, {"enum": ["x" * 1000 + str(i) for i in range(2000)]},
    ],
    ids=["items", "allOf", "text", "2 MB"],
)  # fmt: skip
def test_limits_answer_at_once(schema: Any) -> None:
    start = time.perf_counter()
    with pytest.raises(LimitError):
        compile_schema(schema)
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize("step", [300_000, 65_536, 999_999])
def test_many_multiples_of_a_large_step_between_bounds_are_refused_when_compiled(step: int) -> None:
    number = {"type": "integer", "minimum": 0, "maximum": 10**12, "multipleOf": step}
    with pytest.raises(LimitError, match=f"multiples of {step} .*/properties/n"):
        compile_schema({"type": "object", "properties": {"n": number}, "required": ["n"]})


@pytest.mark.parametrize("step", [10**6, 12_345])
def test_powers_of_ten_and_smaller_steps_are_not(step: int) -> None:
    language = Language({"type": "integer", "minimum": 0, "maximum": 10**8, "multipleOf": step})
    assert str(3 * step) in language and str(3 * step + 1) not in language


def test_many_properties_of_one_definition_stay_linear() -> None:
    def seconds(n: int) -> float:
        schema = {"type": "object", "properties": {f"p{i}": {"$ref": "#/$defs/d"} for i in range(n)}, "$defs": {"d": PLACE}}
        times = []
        for _ in range(3):
            start = time.process_time()
            compile_schema(schema)
            times.append(time.process_time() - start)
        return min(times)

    seconds(10)
    assert seconds(1200) < 12 * max(seconds(300), 0.002)


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("json", '{"x": 1, "y": [2, 3], "z": {}}'), ("compact", '{"x":1,"y":[2,3],"z":{}}'),
        ("pretty", json.dumps({"x": 1, "y": [2, 3], "z": {}}, indent=2)), ("flexible", '{ "x":1 ,\n\t"y" : [ 2,3 ],"z":{ } }'),
    ],
)  # fmt: skip
def test_whitespace_styles(style: str, text: str) -> None:
    schema = {"type": "object", "properties": {"x": True, "y": True, "z": {"type": "object"}}, "required": ["x", "y", "z"]}
    styles = {name: text in Language(schema, whitespace=name) for name in ("json", "compact", "pretty", "flexible")}
    assert styles[style] and styles["json"] == (style == "json") and styles["compact"] == (style == "compact")
    assert '{"x":' + " " * 40 + "1" not in Language(schema, whitespace="flexible")
    with pytest.raises(GrammarError, match="json, compact, pretty, flexible"):
        compile_schema(schema, whitespace="loose")
    with pytest.raises(GrammarError, match="flexible"):
        Language(schema, whitespace=["json"])


def test_forced_text_is_what_every_document_holds() -> None:
    assert Language(PLACE).forced() == '{"x": '
    assert Language({**PLACE, "required": ["x"]}).forced() == '{"'
    assert Language({"const": {"a": "b"}}).forced() == '{"a": "b"}'


def test_lenient_says_what_it_leaves_out() -> None:
    language = Language({"type": "array", "items": {"type": "string", "pattern": "(a)\\1"}, "uniqueItems": True}, lenient=True)
    assert '["b", "b"]' in language
    assert [word for word in ("uniqueItems", "pattern") if not any(word in warning for warning in language.grammar.warnings)] == []


def test_unknown_formats_are_annotations_and_listed() -> None:
    language = Language({"type": "string", "format": "colour"})
    assert '"anything"' in language and "colour" in language.grammar.warnings[0]
