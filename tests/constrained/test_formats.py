"""The formats that are enforced: what they hold, and that negated they let no valid string through."""
from __future__ import annotations

import datetime
import ipaddress
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.constrained import formats
from ramet.constrained.schema.match import matches

from .schema_helpers import Language

CASES: dict[str, tuple[list[str], list[str]]] = {
    "date": (["2024-02-29", "2000-02-29", "1999-12-31"], ["2023-02-29", "1900-02-29", "2024-13-01", "2024-00-10", "2024-1-1", "2024-04-31"]),
    "time": (["12:00:00Z", "12:00:00.123+05:30", "23:59:59z"], ["12:00:00", "24:00:00Z", "12:00Z", "12:60:00Z"]),
    "date-time": (["2022-01-01T12:00:00Z", "2022-01-01t12:00:00.5-08:00"], ["2022-01-01 12:00:00Z", "2022-01-01T12:00:00", "now"]),
    "duration": (["P1D", "PT5M", "P3W", "P1Y2M3DT4H5M6S"], ["P", "PT", "1D", "P1Y2D", "PT1H1S", "P1D2M"]),
    "email": (["a@b.co", "john.doe+x@example.com", "o'x@localhost"], ["a", "@b", "a@", "a b@c.d", ".a@b", "a..b@c", "a@-b.c"]),
    "hostname": (["a", "example.com", "a-b.c", "x" * 63], ["-a", "a..b", "a_b", "a" * 64, ".".join(["a" * 63] * 4) + ".a", ""]),
    "ipv4": (["1.2.3.4", "255.255.255.255"], ["256.1.1.1", "1.2.3", "01.2.3.4", "1.2.3.4.5"]),
    "ipv6": (["::", "::1", "1::", "2001:db8::ff00:42:8329", "::ffff:1.2.3.4", "1:2:3:4:5:6:7::"], [":", "1::2::3", "12345::", "1:2:3:4:5:6:7:8:9"]),
    "uuid": (["123e4567-e89b-12d3-a456-426614174000"], ["123e4567e89b12d3a456426614174000", "x"]),
    "uri": (["http://a.b/c?d=e#f", "mailto:a@b.c", "urn:x:y", "http://[::1]:80/"], ["not a uri", "/a", "//a", "http://a b", "1a:b", "http://a/%zz"]),
    "uri-reference": (["/a", "//a", "", "?x", "#y", "a/b:c", "http://x"], [" ", "a b", "%zz", "\\"]),
    "iri": (["http://ü.de/ä"], ["ü", "http://a b"]),
    "uri-template": (["http://x/{a}/{b*}{?q,r:3}", "a"], ["{", "{}", "a b", "{a"]),
    "json-pointer": (["", "/a/b", "/~0~1"], ["a", "/~", "/~2"]),
    "relative-json-pointer": (["0", "1/a", "2#"], ["", "a", "-1", "01/a", "/a"]),
    "regex": (["^a+$", "(x|y)*", "a{2,3}", r"\d+\.\d*", "(?:a|b)?", "", "[^\"]*", "((a)(b))", "(?=a)b"], ["*", "(", "a)", "[", "a{3,2}", "a**", "\\", "[z-a]"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_format(name: str) -> None:
    valid, invalid = CASES[name]
    language, outside = Language({"type": "string", "format": name}), Language({"type": "string", "not": {"format": name}}) if name != "regex" else None
    assert [text for text in valid if json.dumps(text, ensure_ascii=False) not in language] == []
    assert [text for text in invalid if json.dumps(text, ensure_ascii=False) in language] == []
    assert outside is None or [text for text in valid if json.dumps(text, ensure_ascii=False) in outside] == []


def test_every_name_has_a_term() -> None:
    assert all(formats.term(name) is not None and formats.widest(name) is not None for name in formats.NAMES)
    assert formats.term("colour") is None


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.datetimes(timezones=st.just(datetime.UTC)), st.ip_addresses(), st.uuids())
def test_what_the_standard_library_writes(moment: datetime.datetime, address: ipaddress.IPv4Address | ipaddress.IPv6Address, uuid: object) -> None:
    text = moment.isoformat()
    assert matches(formats.term("date-time"), text)  # type: ignore[arg-type]
    assert matches(formats.term(f"ipv{address.version}"), str(address))  # type: ignore[arg-type]
    assert matches(formats.term("uuid"), str(uuid))  # type: ignore[arg-type]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.from_regex(r"\A(?:[ab.]|\\d|\[[a-c^-]{0,3}\]|\((?:\?:)?[ab|]*\)){0,4}(?:[*+?]|\{\d,?\d?\})?\Z"))
def test_a_regex_that_is_accepted_compiles(text: str) -> None:
    if matches(formats.term("regex"), text):  # type: ignore[arg-type]
        re.compile(text)


@pytest.mark.parametrize("year", [1, 4, 100, 400, 1900, 1996, 2000, 2023, 2024, 9999])
def test_every_day_of_a_year(year: int) -> None:
    term = formats.term("date")
    for month in range(14):
        for day in range(33):
            try:
                datetime.date(year, month, day)
            except ValueError:
                right = False
            else:
                right = True
            assert matches(term, f"{year:04}-{month:02}-{day:02}") is right  # type: ignore[arg-type]
