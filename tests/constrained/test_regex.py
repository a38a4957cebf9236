"""The dialect: what is honoured agrees with Python's `re`, what is not is refused with its place."""

import re

import pytest
from constraint_tools import accepts, allowed
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.constrained import GrammarError
from ramet.constrained.grammar import GrammarSource
from ramet.constrained.regex import from_regex

CASES = [
    ("(?!no)[a-z]{2,4}", ["yes", "nay", "on", "noo"[1:]], ["no", "not", "none"]),
    ("[a-z]+(?<!x)", ["ab", "xa"], ["ax", "x"]),
    ("[a-z]+(?<=ing)", ["going", "ing"], ["go"]),
    ("(?:cat(?= s)|cat|dog)", ["cat", "dog"], ["cats", "cat s", "dog "]),
    ("(?=.*[0-9])(?=.*[a-z]).{3,5}", ["a1b", "1aaaa"], ["a1", "aaa", "111", "a1aaaa"]),
    ("[0-9]{1,5}", ["7", "77777"], ["", "777777", "7a"]),
    ("(ha)*", ["", "ha", "hahaha"], ["h", "hah"]),
    ("yes|yes, sure", ["yes", "yes, sure"], ["yes,", "yes, sur"]),
    ("[a-z]{2,2000}", ["ab", "z" * 2000], ["a", "a" * 2001]),
    ("颜色:(红色|红褐|绿)", ["颜色:红色", "颜色:红褐", "颜色:绿"], ["颜色:红", "颜色:绿色"]),
    (r"^\A(a|^b)$", ["a", "b"], ["ab"]),
    (r"(?i)straße|[a-c]+", ["STRAßE", "aBc"], ["d"]),
    (r"(?s:.)-.", ["\n-a", "a-a"], ["a-\n"]),
    (r"[^\d\s]+", ["ab", "é"], ["a1", "a b", "٣"]),
    (r"(?!\w|\S\d).{1,2}", ["-", "--"], ["a", "é", "-1", "-٣"]),
    (r"(?!\W)(?!(?!\w)b)..", ["ab", "a-"], ["-a", "éa"]),
    (r"[]a-]+", ["]-a"], ["b"]),
    (r"[\w\W]+", ["é日a \n\xa0"], [""]),
    (r"[^\s\S]|a", ["a"], ["\xa0", " "]),
    (r"a{,2}b{2,}c{2}x{y}", ["bbccx{y}", "aabbbccx{y}"], ["aaabbccx{y}"]),
    (r"(?P<n>a)(?<m>b)(?#note)\x41\u0042", ["abAB"], ["ab"]),
    (r"😀{2}|\U0001F600", ["😀😀", "😀"], ["😀😀😀"]),
]


@pytest.mark.parametrize(("pattern", "yes", "no"), CASES)
def test_dialect(small, pattern, yes, no):
    grammar = small.compile("regex", pattern)
    assert [text for text in yes if not accepts(grammar, text)] == []
    assert [text for text in no if accepts(grammar, text)] == []


SEARCHES = [
    ("^ab|cd$", ["abzz", "zzcd", "ab", "cd"], ["zabz", "xcdx", ""]),
    ("[0-9]{2}", ["ab12cd", "42"], ["a1b2", ""]),
    ("^ab$", ["ab"], ["ab\n", "xab"]),
    ("(^|,)x(,|$)", ["x", "a,x", "x,a", "a,x,a"], ["ax", "xa"]),
    ("^(?!foo)[a-z]+$", ["bar", "fo"], ["foo", "food"]),
    ("^(?=.*\\d)(?=.*[A-Z]).{4,}$", ["aA1b"], ["aa1b", "A1"]),
    ("^$", [""], ["a"]),
    ("", ["", "anything"], []),
    (r"\S", ["x", "\n x"], ["  ", "", "\t", "\ufeff"]),
    (r"^\p{Lu}\P{L}$", ["A1", "É-"], ["a1", "AA"]),
    ("^[^]$", ["\n", "a"], [""]),
    (r"^a\/b\-c$", ["a/b-c"], ["a\\/b-c"]),
]


@pytest.mark.parametrize(("pattern", "yes", "no"), SEARCHES)
def test_search(small, pattern, yes, no):
    from ramet.constrained.engines.python import PythonAutomaton

    automaton = PythonAutomaton(small.vocabulary, GrammarSource({"start": from_regex(pattern, search=True)}))

    def found(text):
        state = automaton.advance_bytes(automaton.start, text.encode())
        return state != -1 and automaton.accepting(state)

    assert [text for text in yes if not found(text)] == []
    assert [text for text in no if found(text)] == []


@pytest.mark.parametrize(
    "pattern",
    ["z**", "(", "[", ")", "a{3,1}", "*a", "\\", "(?P<n>a", "[z-a]", "a{99999999999}", "(?<", "(?", "a)b", "[[:alpha:]", r"(a)\1", r"\bfoo",
     "a*^b", "a$b", "a++", "(?>a)", "(?P=n)", "(?(1)a|b)", "((?=a)b)+c", "(?x)a", r"\Qa", "[a-\\d]", r"\p{L}", r"\u12", "(?P<n>a)(?P<n>b)", "a\0"],
)  # fmt: skip
def test_refused_by_name(small, pattern):
    with pytest.raises(GrammarError) as caught:
        small.compile("regex", pattern)
    assert "position" in str(caught.value)


def test_a_regex_that_matches_nothing_is_refused(small):
    with pytest.raises(GrammarError, match="no document"):
        small.compile("regex", "a(?=b)")


_LETTER = st.sampled_from(["a", "b", "é", "漢", ".", "[ab]", "[^a]", r"\d", r"\w", r"\W", "0", r"\n"])
PATTERNS = st.recursive(
    _LETTER,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,2}?", "{2,}"])).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
        st.tuples(st.sampled_from(["(?=", "(?!"]), inner, inner).map(lambda parts: f"{parts[0]}{parts[1]}){parts[2]}"),
    ),
    max_leaves=6,
)
TEXTS = st.text(st.sampled_from("abé漢0\n ٣"), max_size=6)


@settings(max_examples=250, deadline=None)
@given(PATTERNS, st.lists(TEXTS, min_size=1, max_size=8))
def test_agrees_with_re(small, pattern, texts):
    try:
        grammar = small.compile("regex", pattern)
    except GrammarError:
        return  # a lookahead inside a group, or one that leaves nothing
    for text in texts:
        expected = re.fullmatch(pattern, text) is not None
        if any(name in pattern for name in (r"\d", r"\w", r"\W")):  # ASCII here, Unicode there: never more than Python takes
            assert expected or not accepts(grammar, text)
        else:
            assert accepts(grammar, text) == expected, (pattern, text)


@settings(max_examples=100, deadline=None)
@given(PATTERNS, st.data())
def test_samples_match_in_re(small, pattern, data):
    try:
        matcher = small.compile("regex", pattern).matcher()
    except GrammarError:
        return
    out = b""
    for left in range(12 + (matcher.need or 0), 0, -1):
        if matcher.finished:
            break
        token = data.draw(st.sampled_from(sorted(allowed(matcher, left))))
        assert matcher.advance(token)
        if token in small.vocabulary.eos_ids:
            break
        out += small.vocabulary.token_bytes[token]
    assert matcher.accepting
    assert re.fullmatch(pattern, out.decode()), (pattern, out)
