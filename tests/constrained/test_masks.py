"""mask(state) = the ids whose raw bytes lead to a live state, and the end tokens exactly where accepting."""

import random

import numpy as np
import pytest
from constraint_tools import allowed, small_vocabulary

from ramet.constrained import GrammarCompiler, GrammarError, Vocabulary

ANY_JSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}, "tags": {"type": "array", "items": {"enum": ["a", "bb"]}}}}
GRAMMARS = [
    ("regex", r"[a-z]{2,8}(-[0-9]+)*|é+\.漢?"),
    ("regex", r"(?!true).{3,}"),
    ("choice", ["yes", "yes, sure", "ja", "日本語", "日光"]),
    ("json_object", None),
    ("json_schema", ANY_JSON),
    ("json_schema", {"type": "array", "items": {"type": "string", "pattern": "^[A-Z]{1,3}[0-9]*$"}, "maxItems": 3}),
    ("json_schema", {"type": "string", "minLength": 2, "maxLength": 40, "pattern": "a.*b"}),
    ("json_schema", {"type": "string", "format": "date-time"}),
    ("json_schema", {"type": "number", "minimum": -3, "maximum": 21.5}),
]


def test_toy_vocabulary():
    """All shorter tokens of a forced word stay allowed (kind c of faults: mask and acceptance disagree)."""
    texts = [b"t", b"te", b"tes", b"test", b"e", b"es", b"st", b"s", b"x", None]
    matcher = GrammarCompiler(Vocabulary(texts, [9])).compile("regex", "test").matcher()
    assert allowed(matcher) == {0, 1, 2, 3}
    matcher.advance(0)
    assert allowed(matcher) == {4, 5}
    matcher.rollback(1)
    matcher.advance(2)
    assert allowed(matcher) == {0}
    matcher.advance(0)
    assert allowed(matcher) == {9}
    assert matcher.accepting and matcher.finished
    matcher.advance(9)
    assert allowed(matcher) == set()


def by_bytes(matcher):
    """The mask by definition: each token walked on its own."""
    vocabulary = matcher.grammar.vocabulary
    walker = matcher.fork()
    found = set()
    for token, text in enumerate(vocabulary.token_bytes):
        if text and walker.advance_bytes(text):
            walker.rollback(1)
            found.add(token)
    return found | (set(vocabulary.eos_ids) if matcher.accepting else set())


@pytest.mark.parametrize(("kind", "source"), GRAMMARS)
def test_whole_vocabulary_on_random_paths(real, kind, source):
    grammar = real.compile(kind, source)
    choose = random.Random(f"{kind}{source}")
    for _ in range(3):
        matcher = grammar.matcher()
        for _ in range(8):
            ids = allowed(matcher)
            assert ids == by_bytes(matcher)
            if not ids - real.vocabulary.eos_ids:
                break
            assert matcher.advance(choose.choice(sorted(ids - real.vocabulary.eos_ids)))


def test_special_ids_are_never_allowed_by_their_text():
    texts = [b"a", b"</s>", None, b"<"]
    matcher = GrammarCompiler(Vocabulary(texts, [1])).compile("regex", "a|</s>|<b").matcher()
    assert allowed(matcher) == {0, 3}  # id 1 ends a text, whatever it is called
    assert not matcher.advance(1) and not matcher.advance(2)


def test_a_forced_word_leaves_every_token_of_it_in_other_engines():
    texts = [b"t", b"te", b"tes", b"test", b"e", b"es", b"st", b"s", b"x", b"test!", b"test?", None]
    matcher = GrammarCompiler(Vocabulary(texts, [11])).compile("lark", 'start: "test" /[!x]/').matcher()
    assert allowed(matcher) == {0, 1, 2, 3, 9}
    matcher.advance(1)
    assert allowed(matcher) == {6, 7}


@pytest.mark.parametrize("kind", ["ebnf", "lark"])
def test_other_engines_keep_the_same_contract(small, kind):
    source = 'root ::= "a" ("b" | "12")+' if kind == "ebnf" else 'start: "a" ("b" | "12")+'
    matcher = small.compile(kind, source).matcher()
    words = dict(enumerate(small.vocabulary.token_bytes))
    assert {words[i] for i in allowed(matcher)} == {b"a", b"ab"}
    assert matcher.forced() == b"a" and matcher.need is None
    assert matcher.advance_bytes(b"ab") and matcher.accepting and not matcher.finished
    assert {words[i] for i in allowed(matcher)} == {b"b", b"1", b"12", b"ba"} - {b"ba"} | {None}
    assert not matcher.advance(ord("z"))
    assert matcher.advance(ord("1")) and not matcher.accepting
    matcher.rollback(1)
    assert matcher.accepting


def test_outlines_core_agrees_where_it_is_exact(small):
    for pattern in (r"[a-c]{2,5}x?", r"ab+|12", r"[0-9]{1,3}"):
        own, other = small.compile("regex", pattern).matcher(), small.compile("regex", pattern, engine="outlines-core").matcher()
        for token in (ord("a"), ord("b"), ord("1"), ord("2")):
            assert allowed(own) == allowed(other)
            assert own.advance(token) == other.advance(token)
            assert own.accepting == other.accepting


def test_unknown_names_list_the_choices(small):
    with pytest.raises(GrammarError, match="choose from ramet, python, llguidance, outlines-core"):
        small.compile("regex", "a", engine="nope")
    with pytest.raises(GrammarError, match="json_schema, regex, choice"):
        small.compile("yaml", "a")


@pytest.mark.parametrize("bad", [np.zeros(1, np.int32), np.zeros(99, np.int64), np.zeros((9, 9), np.int32), np.zeros(99, np.int32)[::2]])
def test_bad_rows_are_refused(small, bad):
    with pytest.raises(GrammarError, match="mask_row"):
        small.compile("regex", "a").matcher().fill(bad)


def test_a_longer_row_is_cleared_behind_the_vocabulary(small):
    row = np.full(small.vocabulary.words + 3, -1, np.int32)
    small.compile("regex", "a").matcher().fill(row)
    assert row[-3:].tolist() == [0, 0, 0] and row[ord("a") // 32] == 1 << ord("a") % 32


def test_vocabulary_of_every_byte_is_shared():
    first, second = small_vocabulary(), small_vocabulary()
    assert first.token_bytes == second.token_bytes and first.words == 9
