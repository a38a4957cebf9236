"""Terms are normalised when they are made, so equal languages are mostly equal terms."""

import pytest

from ramet.constrained import GrammarError
from ramet.constrained.grammar import (
    ANY_CHAR,
    ANY_STRING,
    EMPTY,
    NOTHING,
    alt,
    both,
    chars,
    complement,
    json_string,
    lit,
    minus,
    ref,
    rep,
    seq,
    words,
)  # fmt: skip


def test_sequences_are_flat_and_join_literals():
    assert seq(lit("a"), seq(lit(b"b"), EMPTY), lit("c")) == lit("abc")
    assert seq(lit("a"), NOTHING) is NOTHING
    assert seq() is EMPTY


def test_choices_drop_doubles_and_join_characters():
    assert alt(lit("a"), lit("b"), chars([(99, 100)])) == chars([(97, 100)])
    assert alt(lit("ab"), alt(lit("ab"), NOTHING)) == lit("ab")
    assert alt() is NOTHING


def test_classes_are_sorted_and_hold_no_surrogates():
    assert chars([(5, 9), (0, 4)]) == chars([(0, 9)])
    assert chars([(0, 0x10FFFF)]) == ANY_CHAR
    assert chars([(0xD800, 0xDFFF)]) is NOTHING


@pytest.mark.parametrize(
    ("term", "same"),
    [
        (rep(rep(lit("a"), 1000, 1000), 1000, 1000), rep(lit("a"), 1_000_000, 1_000_000)),
        (rep(rep(lit("a"), 0, 100), 0, 100), rep(lit("a"), 0, 10_000)),
        (rep(rep(lit("a"), 1, None), 0, None), rep(lit("a"))),
        (rep(rep(lit("a"), 1, 2), 3, 4), rep(lit("a"), 3, 8)),
        (rep(EMPTY, 3, 5), EMPTY),
        (rep(NOTHING, 0, 5), EMPTY),
        (rep(NOTHING, 1, 5), NOTHING),
    ],
)
def test_repeats_of_repeats_are_one_counter(term, same):
    assert term == same


def test_repeats_with_gaps_stay_nested():
    assert rep(rep(lit("a"), 2, 2), 0, 3).args[0].op == "rep"  # 0, 2, 4, 6: not 0 to 6
    assert rep(rep(lit("a"), 5, 6), 1, 2).args[0].op == "rep"  # 5, 6, 10, 11, 12


def test_set_algebra():
    assert complement(complement(lit("a"))) == lit("a")
    assert both(ANY_STRING, lit("a")) == lit("a")
    assert both() == ANY_STRING
    assert minus(lit("a"), ANY_STRING) is NOTHING


def test_words_are_the_literals_they_list():
    assert words(["a"]) == lit("a") and words([]) == NOTHING and words(["b", "b"]) == lit("b")
    assert words(["", "ab", "c"]) == alt(EMPTY, words(["ab", "c"]))
    with pytest.raises(GrammarError):
        words(["a", "\ud800"])


@pytest.mark.parametrize(
    "make",
    [
        lambda: lit(b"\xff"), lambda: lit("\ud800"), lambda: rep(lit("a"), 3, 2), lambda: rep(lit("a"), -1), lambda: rep(lit("a"), 2**40),
        lambda: both(ref("r"), lit("a")), lambda: complement(seq(lit("a"), ref("r"))), lambda: json_string(ref("r")), lambda: chars([(9, 5)]),
    ],
)  # fmt: skip
def test_refusals(make):
    with pytest.raises(GrammarError):
        make()
