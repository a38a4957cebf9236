"""The compiled automaton against the plain one, on random terms: same masks, same forced text, same distance."""

from fractions import Fraction

import pytest
from constraint_tools import allowed, finish_randomly, small_vocabulary
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.constrained import GrammarCompiler, GrammarError, Limits
from ramet.constrained.compiler import Grammar
from ramet.constrained.decimals import LESS, compare, multiple
from ramet.constrained.engines import python, ramet_native
from ramet.constrained.grammar import (
    ANY_STRING,
    EMPTY,
    GrammarSource,
    alt,
    both,
    chars,
    complement,
    json_string,
    lit,
    minus,
    pick,
    ref,
    rep,
    seq,
)  # fmt: skip
from ramet.constrained.schema.numbers import INTEGER, NUMBER

VOCABULARY = small_vocabulary()
BOUNDS = st.sampled_from([(0, None), (1, None), (0, 1), (2, 3), (0, 4), (3, 3)])

REGULAR = st.recursive(
    st.one_of(
        st.text(st.sampled_from('ab"\\é漢\n1'), max_size=3).map(lit),
        st.sampled_from([chars([(97, 98)]), chars([(0x20, 0x10FFFF)]), chars([(0x3A, 0x7FF), (0x10000, 0x10400)]), EMPTY]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: seq(*parts)),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: alt(*parts)),
        st.tuples(inner, BOUNDS).map(lambda pair: rep(pair[0], *pair[1])),
        st.tuples(inner, inner).map(lambda pair: both(pair[0], alt(pair[1], seq(pair[1], ANY_STRING)))),
        st.tuples(inner, inner).map(lambda pair: minus(*pair)),
        inner.map(complement),
    ),
    max_leaves=6,
)
NUMERALS = [both(NUMBER, compare(Fraction(23, 2), LESS)), both(INTEGER, multiple(Fraction(12)))]
TERMS = st.recursive(
    st.one_of(REGULAR, REGULAR.map(json_string), st.sampled_from([*NUMERALS, *map(complement, NUMERALS)]), st.just(seq(lit("["), ref("inner"), lit("]")))),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: seq(*parts)),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: alt(*parts)),
        st.tuples(inner, BOUNDS).map(lambda pair: rep(pair[0], *pair[1])),
        st.tuples(st.lists(st.tuples(inner.map(lambda term: seq(lit("k"), term)), st.booleans()), min_size=1, max_size=3), st.integers(0, 2)).map(
            lambda pair: pick(pair[0], lit(","), lit("x"), pair[1], pair[1] + 2)
        ),
    ),
    max_leaves=4,
)


def both_engines(source):
    made = []
    for engine in (python, ramet_native):
        try:
            automaton = engine.build(VOCABULARY, "own", "", source, Limits())
        except GrammarError:
            made.append(None)
        else:
            made.append(Grammar("own", "", VOCABULARY, automaton).matcher())
    return made


@settings(max_examples=60, deadline=None)
@given(TERMS, TERMS, st.data())
def test_engines_agree(start, inner, data):
    plain, native = both_engines(GrammarSource({"start": start, "inner": alt(lit("1"), seq(lit("a"), inner))}))
    assert (plain is None) == (native is None)
    if plain is None:
        return
    for _ in range(5):
        ids = allowed(plain)
        assert ids == allowed(native)
        assert (plain.accepting, plain.finished, plain.live_bytes()) == (native.accepting, native.finished, native.live_bytes())
        assert plain.forced() == native.forced()
        assert plain.need == native.need
        ids -= VOCABULARY.eos_ids
        if not ids:
            return
        longest_first = sorted(ids, key=lambda i: (-len(VOCABULARY.token_bytes[i]), i))
        token = data.draw(st.sampled_from(longest_first))
        assert plain.advance(token) and native.advance(token)


@settings(max_examples=40, deadline=None)
@given(TERMS, st.data())
def test_budgets_agree_with_what_follows(start, data):
    """An id is allowed under a budget exactly if one token fewer suffices after it."""
    _, matcher = both_engines(GrammarSource({"start": start, "inner": lit("1")}))
    if matcher is None or matcher.need is None:
        return
    budget = matcher.need + data.draw(st.integers(0, 4))
    for token in sorted(allowed(matcher) - VOCABULARY.eos_ids)[:60]:
        after = matcher.fork()
        assert after.advance(token)
        assert (token in allowed(matcher, budget)) == (after.need is not None and after.need < budget)


@settings(max_examples=60, deadline=None)
@given(TERMS, st.integers(0, 12), st.randoms(use_true_random=False))
def test_every_budget_that_suffices_is_kept(start, more, random):
    _, matcher = both_engines(GrammarSource({"start": start, "inner": lit("1")}))
    if matcher is None or matcher.need is None:
        return
    text = finish_randomly(matcher.fork(), matcher.need + more, random.choice)
    assert text is not None and matcher.advance_bytes(text) and matcher.accepting


def test_without_a_compiler_the_plain_peer_answers(monkeypatch):
    from ramet.runtime.native import NativeUnavailable

    def none():
        raise NativeUnavailable("no C++ compiler")

    monkeypatch.setattr(ramet_native, "library", none)
    with pytest.warns(RuntimeWarning, match="no C\\+\\+ compiler"):
        matcher = GrammarCompiler(VOCABULARY).compile("regex", "ab|12").matcher()
    assert {VOCABULARY.token_bytes[i] for i in allowed(matcher)} == {b"a", b"ab", b"1", b"12"}
