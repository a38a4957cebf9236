"""The report behind `ramet check`."""
from __future__ import annotations

import json

import jsonschema
import pytest

from ramet.constrained.check import check

PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string", "minLength": 2}, "n": {"type": "integer", "minimum": 3}, "zip": {"type": "string", "format": "zip"}},
    "required": ["city", "n", "zip"],
    "description": "a place",
}  # fmt: skip


def test_says_what_is_enforced_and_what_is_not() -> None:
    report = check(PLACE)
    assert report.ok and report.forced == '{"city": "'
    assert {"minLength", "minimum", "required", "properties"} <= set(report.enforced)
    assert report.ignored == ["description", "format 'zip'"] and "zip" in report.warnings[0] and "format" not in report.enforced
    assert check({"type": "integer", "format": "int32"}).ignored == ["format 'int32'"]
    assert check({"type": "object", "properties": {"a": {"type": "string", "pattern": "\\b"}}}).enforced == ["properties", "type"]
    jsonschema.validate(json.loads(report.shortest), PLACE)
    assert len(report.shortest) == len('{"city": "ab", "n": 3, "zip": ""}')


def test_names_the_first_byte_that_may_not_come() -> None:
    text = '{"city": "日本", "n": 2}'
    report = check(PLACE, text=text)
    assert not report.ok and report.text is not None
    assert report.text.at == len(text.encode()) - 1 and report.text.allowed == "0-9"
    cut = check(PLACE, text='{"city": "ab"')
    assert cut.text is not None and not cut.text.accepted and "not complete" in cut.text.message and cut.text.allowed == ","
    assert check(PLACE, text='{"city": "ab", "n": 31, "zip": "x"}').ok


def test_lists_all_that_cannot_be_enforced() -> None:
    schema = {"type": "array", "uniqueItems": True, "items": {"type": "string", "pattern": "(a)\\1"}}
    report = check(schema)
    assert not report.ok and len(report.refused) == 2 and "uniqueItems" not in report.enforced
    assert check(schema, lenient=True).ok
    assert any("uniqueItems" in line for line in report.lines())


@pytest.mark.parametrize("source", [{"properties": []}, "{", 5, {"type": "array", "items": {"$ref": "#/nope"}}, False])
def test_bad_schemas_are_reported_not_raised(source: object) -> None:
    report = check(source)
    assert not report.ok and report.error and report.lines()


def test_other_kinds() -> None:
    assert check(r"\d{3}-[a-z]+", kind="regex", text="123-ab").ok
    assert check(r"\d{3}-[a-z]+", kind="regex", text="123-aB").text.at == 5  # type: ignore[union-attr]
    assert check(["yes", "yeah"], kind="choice").forced == "ye"
    assert not check("(", kind="regex").ok
    long = check({"type": "string", "minLength": 5000})
    assert not long.shortest_whole and len("\n".join(long.lines())) < 2000
