"""pick(): members in any order, against a look at every list; and how far each state is from the end."""
from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from ramet.constrained import GrammarCompiler, Vocabulary
from ramet.constrained.engines import get_engine
from ramet.constrained.errors import GrammarError
from ramet.constrained.grammar import NOTHING, GrammarSource, lit, pick, ref, seq

_COMPILER = GrammarCompiler(Vocabulary([bytes([b]) for b in range(256)] + [None], [256]))


def automaton(term):
    _, build = get_engine("json_schema", None)
    source = GrammarSource({"start": seq(lit("{"), term, lit("}")), "x": lit("x")})
    return build(_COMPILER.vocabulary, "json_schema", "", source, _COMPILER.limits)


def right(members: Sequence[str], items: Sequence[tuple[str, bool]], lo: int, hi: int | None) -> bool:
    return (
        all(members.count(name) <= 1 and (members.count(name) or not required) for name, required in items)
        and len(set(members)) >= lo
        and (hi is None or len(members) <= hi)
    )


ITEMS = [
    [], [("aa", True)], [("aa", False)], [("a", True), ("bbb", False)], [("a", False), ("bb", True), ("c", False)],
    [("a", True), ("b", True)], [("ab", False), ("ac", False)],
]  # fmt: skip


@pytest.mark.parametrize("items", ITEMS, ids=str)
@pytest.mark.parametrize("extra", [False, True])
@pytest.mark.parametrize("lo", [0, 1, 2, 3])
def test_every_list(items, extra, lo) -> None:
    names = [name for name, _ in items] + ["x"] * extra
    for hi in (None, 0, 1, 2, 3, 4):
        valid = [m for n in range(6) for m in itertools.product(names, repeat=n) if right(m, items, lo, hi)]
        try:
            made = automaton(pick([(lit(name), required) for name, required in items], lit(","), ref("x") if extra else NOTHING, lo, hi))
        except GrammarError:
            assert not valid
            continue
        texts = {"{" + ",".join(members) + "}" for members in valid}
        assert made.need(made.start) == min(map(len, texts))
        for n in range(6):
            for members in itertools.product(names, repeat=n):
                text = "{" + ",".join(members) + "}"
                state = made.advance_bytes(made.start, text.encode())
                assert (state != -1 and made.accepting(state)) is (text in texts), (text, hi)


@pytest.mark.parametrize("hi", [None, 3])
def test_the_distance_is_that_of_the_shortest_end(hi) -> None:
    items = [("aaaa", False), ("b", True), ("cc", False)]
    made = automaton(pick([(lit(name), required) for name, required in items], lit(","), ref("x"), 2, hi))
    texts = [
        "{" + ",".join(members) + "}" for n in range(5) for members in itertools.product(["aaaa", "b", "cc", "x"], repeat=n)
        if right(members, items, 2, hi)
    ]  # fmt: skip
    prefixes = {text[:n] for text in texts for n in range(len(text) + 1)}
    for prefix in sorted(prefixes, key=len):
        if len(prefix) > 8:  # the texts listed might not hold its shortest end
            continue
        state = made.advance_bytes(made.start, prefix.encode())
        assert made.need(state) == min(len(text) - len(prefix) for text in texts if text.startswith(prefix)), prefix


def test_a_thousand_items_are_no_expansion() -> None:
    made = automaton(pick([(lit(f"item{n:04}"), False) for n in range(1000)], lit(",")))
    assert made.advance_bytes(made.start, b"{item0999,item0000,item0500}") != -1
    assert made.advance_bytes(made.start, b"{item0999,item0999") == -1
