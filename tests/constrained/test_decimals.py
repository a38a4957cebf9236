"""Numerals by value: comparisons and multiples against exact arithmetic, in both engines."""

from decimal import Decimal
from fractions import Fraction

import pytest
from constraint_tools import small_vocabulary
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.constrained import LimitError, Limits
from ramet.constrained.decimals import EQUAL, LESS, MORE, accepts, compare, multiple, step
from ramet.constrained.engines import python, ramet_native
from ramet.constrained.grammar import ANY_STRING, GrammarSource, alt, both
from ramet.constrained.schema.facts import NumberFacts
from ramet.constrained.schema.numbers import INTEGER, NUMBER, term

VOCABULARY = small_vocabulary()
DECIMALS = st.builds(lambda n, places: Fraction(n, 10**places), st.integers(-2500, 2500), st.integers(0, 3))
STEPS = st.one_of(st.integers(1, 400).map(Fraction), st.builds(Fraction, st.integers(1, 300), st.sampled_from([10, 100, 4, 1000])))
NUMERALS = st.from_regex(r"-?(0|[1-9][0-9]{0,4})(\.[0-9]{1,4})?", fullmatch=True)


def numeral(value, more=""):
    text = format(Decimal(value.numerator) / Decimal(value.denominator), "f")
    return text + (("" if "." in text else ".") + more if more else "")


def verdicts(source, text):
    """What each engine says of one text, and of whether it may go on."""
    found = []
    for engine in (python, ramet_native):
        automaton = engine.build(VOCABULARY, "own", "", source, Limits())
        state = automaton.advance_bytes(automaton.start, text.encode())
        found.append(state != -1 and automaton.accepting(state))
    return found


@settings(max_examples=200, deadline=None)
@given(DECIMALS, st.sampled_from([LESS, EQUAL, MORE, LESS | EQUAL, EQUAL | MORE, LESS | MORE]), st.data())
def test_comparisons(bound, wanted, data):
    text = data.draw(st.one_of(NUMERALS, DECIMALS.map(numeral), st.sampled_from([numeral(bound), numeral(bound, "0"), numeral(bound, "01")])))
    if text.startswith("-") and not float(text):
        return
    value = Fraction(text)
    holds = bool(wanted & (LESS if value < bound else EQUAL if value == bound else MORE))
    assert verdicts(GrammarSource({"start": both(NUMBER, compare(bound, wanted))}), text) == [holds, holds]


@settings(max_examples=200, deadline=None)
@given(STEPS, st.booleans(), st.data())
def test_multiples(size, wanted, data):
    text = data.draw(st.one_of(NUMERALS, st.integers(-999, 999).map(lambda n: numeral(n * size)), st.integers(0, 99).map(lambda n: numeral(n * size, "0"))))
    holds = (Fraction(text) % size == 0) is wanted
    assert verdicts(GrammarSource({"start": both(NUMBER, multiple(size, wanted))}), text) == [holds, holds]


@settings(max_examples=100, deadline=None)
@given(st.one_of(st.builds(compare, DECIMALS, st.integers(1, 7)), st.builds(multiple, STEPS, st.booleans())), st.text("-.0123456789a", max_size=9))
def test_engines_agree_on_any_text(start, text):
    """Also on what is no numeral."""
    expected = start
    for character in text:
        expected = step(expected, character) if expected.op in ("compare", "multiple") else expected
    holds = accepts(expected) if expected.op in ("compare", "multiple") else expected == ANY_STRING
    assert verdicts(GrammarSource({"start": alt(start, both(start, INTEGER))}), text) == [holds, holds]


@pytest.mark.parametrize("size", [7919, 10**9 + 7, 10**12, Fraction(1, 10**9)])
def test_large_and_small_steps(size):
    facts = NumberFacts()
    facts.multiple_of(Fraction(size))
    facts.above(Fraction(0), True)
    source = GrammarSource({"start": term(facts)})
    native = ramet_native.build(VOCABULARY, "own", "", source, Limits())
    for n in (1, 12, 10**6 + 1):
        text = numeral(n * Fraction(size))
        assert native.accepting(native.advance_bytes(native.start, text.encode()))
        other = numeral(n * Fraction(size) + Fraction(size) / 2)
        state = native.advance_bytes(native.start, other.encode())
        assert state == -1 or not native.accepting(state)


def test_a_step_of_too_many_digits_is_refused():
    with pytest.raises(LimitError, match="digits"):
        multiple(Fraction(10**18 + 1))


@settings(max_examples=200, deadline=None)
@given(DECIMALS, DECIMALS, STEPS, st.booleans(), st.booleans())
def test_impossible_facts_are_those_without_a_value(least, most, size, open_least, open_most):
    facts = NumberFacts()
    facts.above(least, open_least)
    facts.below(most, open_most)
    facts.multiple_of(size)
    first = -(-least // size)
    values = [n * size for n in range(first, first + 9) if facts.admits(n * size)] if least <= most else []
    assert facts.impossible is (not values)
