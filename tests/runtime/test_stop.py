"""Stop strings and regexes over text in pieces (how it is cut must never matter)."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.errors import RequestError
from ramet.runtime.stop import WINDOW, StopScanner

FORCED = "alpha END-beta\nEN ENDING gamma"


def scan(scanner: StopScanner, pieces: list[str]) -> tuple[str, str | None]:
    out = ""
    for piece in pieces:
        emitted, matched = scanner.push(piece)
        out += emitted
        if matched is not None:
            return out, matched
    return out + scanner.flush(), None


def cut(text: str, size: int) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(
    ("stops", "text", "matched"),
    [
        (["ENDING"], "alpha END-beta\nEN ", "ENDING"),
        (["ENDING", "\n"], "alpha END-beta", "\n"),
        (["\nX"], FORCED, None),
        (["alpha"], "", "alpha"),
        (["gamma!"], FORCED, None),
        (["a END", "END"], "alph", "a END"),
    ],
)
def test_stop_strings(stops, text, matched, size):
    assert scan(StopScanner(stops), cut(FORCED, size)) == (text, matched)


def test_nothing_of_a_possible_stop_is_shown_too_early():
    scanner = StopScanner(["ENDING"])
    assert scanner.push("x END") == ("x ", None)
    assert scanner.push("-") == ("END-", None)
    assert scanner.push("EN") == ("", None)
    assert scanner.flush() == "EN"
    assert scanner.flush() == ""


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_regex(size):
    assert scan(StopScanner([], [r"\nE\w D?", r"EN[A-Z]+"]), cut(FORCED, size)) == ("alpha ", "END")
    assert scan(StopScanner([], [r"END(?!-)"]), cut(FORCED + "END", size))[1] == "END"
    assert scan(StopScanner(["beta"], [r"\d+"]), cut(FORCED, size)) == ("alpha END-", "beta")
    assert scan(StopScanner([], [r"^gamma", r"[0-9]{3}"]), cut(FORCED + " 12 3456", size)) == (FORCED + " 12 ", "345")


def test_regex_holds_back_only_what_may_match():
    scanner = StopScanner([], [r"\d\d:\d\d"])
    assert scanner.push("at 1") == ("at ", None)
    assert scanner.push("7") == ("", None)
    assert scanner.push(" o'clock") == ("17 o'clock", None)
    assert scanner.push(" 17:0") == (" ", None)
    assert scanner.push("0") == ("", "17:00")


def test_regex_never_holds_back_more_than_its_window():
    scanner = StopScanner([], [r"a.*b"])
    out = "".join(scanner.push("a" + "x" * 9)[0] for _ in range(100))
    assert 1000 - len(out) < WINDOW
    emitted, matched = scanner.push("b")  # the nearest "a" that is not given out yet begins the match
    assert matched is not None and len(matched) <= WINDOW
    assert out + emitted + matched == ("a" + "x" * 9) * 100 + "b"


@pytest.mark.parametrize(("stops", "regexes", "field"), [([""], [], "stop"), ([], ["("], "stop_regex"), ([], ["a*"], "stop_regex")])
def test_bad_stops_are_refused(stops, regexes, field):
    with pytest.raises(RequestError) as caught:
        StopScanner(stops, regexes)
    assert caught.value.field == field


def test_a_regex_that_explodes_is_stopped():
    scanner = StopScanner([], [r"(a|aa|a?)+(a|aa)+$b"])
    with pytest.raises(RequestError, match="takes too long"):
        scanner.push("a" * 200 + "c")


text = st.text(alphabet="ab\n", max_size=40)


@given(text, st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=3), st.lists(st.integers(1, 40)))
def test_pieces_do_not_matter(whole, stops, cuts):
    pieces = [whole[i:j] for i, j in zip([0, *sorted(cuts)], [*sorted(cuts), len(whole)], strict=True)]
    expected = scan(StopScanner(stops), list(whole))
    assert scan(StopScanner(stops), pieces) == expected
    ends = [(whole.find(s) + len(s), whole.find(s), s) for s in stops if s in whole]  # the first complete one, by brute force
    assert expected == ((whole[: min(ends)[1]], min(ends)[2]) if ends else (whole, None))


@given(text, st.sampled_from(["a+b", "ab|ba", "(?<=b)a", "a\nb?", "[^a]{3}", "b$"]), st.integers(1, 7))
def test_pieces_do_not_matter_for_regexes(whole, source, size):
    ends = [end for end in range(1, len(whole) + 1) if re.search(source, whole[:end])]
    found = re.search(source, whole[: ends[0]]) if ends else None
    expected = (whole[: found.start()], found.group()) if found else (whole, None)
    assert scan(StopScanner([], [source]), cut(whole, size)) == expected
