"""What is too large is refused with a clear error, soon; what only looks large is not."""

import random
import threading
import time

import numpy as np
import pytest
from constraint_tools import allowed, small_vocabulary

from ramet.constrained import GrammarCompiler, GrammarError, LimitError, Limits

HARD = [
    "(a{1000}){1000}", "((a{0,100}){0,100}){0,100}", "(a|b)*a(a|b){20}", "(.*,){25}x", "[a-z]{2,20000}", '(?:[^"]*coder){3}[^"]{0,300}',
    "((a?){50}){50}b", "(a*)*(b*)*c", "(.{0,500}x){20}", "(?!.*aa)(?!.*bb)(?!.*cc)[a-d]{1,400}", "([^,]{1,100},){1,1000}", "(x+x+)+y",
]  # fmt: skip


@pytest.mark.parametrize("pattern", HARD)
def test_repetition_does_not_blow_up(real, pattern):
    began = time.perf_counter()
    grammar = real.compile("regex", pattern)
    matcher = grammar.matcher()
    for _ in range(4):
        ids = allowed(matcher) - real.vocabulary.eos_ids
        if not ids or not matcher.advance(max(ids)):
            break
    assert time.perf_counter() - began < 3
    assert grammar.bytes < 50 << 20


def test_counters_need_no_copies(small):
    grammar = small.compile("json_schema", {"type": "array", "maxItems": 10_000, "items": {"type": "string", "maxLength": 100_000}})
    matcher = grammar.matcher()
    assert matcher.advance_bytes(b'["' + b"a" * 50_000 + b'", "b"')
    far = allowed(matcher)
    assert matcher.advance_bytes(b', "c"')
    assert allowed(matcher) == far
    assert matcher.advance_bytes(b', ""' * 9_997)
    assert not matcher.fork().advance_bytes(b",") and matcher.advance_bytes(b"]") and matcher.finished


def test_memory_limit_of_one_grammar():
    compiler = GrammarCompiler(small_vocabulary(), limits=Limits(grammar_bytes=1 << 20))
    matcher = compiler.compile("regex", "(a|b)*a(a|b){16}").matcher()
    coin = random.Random(3)
    with pytest.raises(LimitError, match="limit"):
        for _ in range(60_000):
            matcher.advance(ord(coin.choice("ab")))


@pytest.mark.parametrize(
    ("kind", "source"),
    [("regex", 5), ("regex", "a\0b"), ("regex", "a\ud800"), ("json_object", {"type": "string"}),
     ("regex", "(" * 10_000), ("regex", "(" * 120 + "a" + ")" * 120 + "\\b"),
     ("choice", []), ("choice", [1]), ("choice", "x"),
     ("regex", "[ab]c?" * 16_000), ("regex", "[ab]c?" * 100_000),
     ("lark", "not a grammar"), ("ebnf", "also = not"), ("lark", {"a": 1}), ("regex", "a" * (5 << 20)), ("json_schema", {1: object()})],
)  # fmt: skip
def test_bad_sources(small, kind, source):
    began = time.perf_counter()
    with pytest.raises(GrammarError):
        small.compile(kind, source)
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize("source", ["a" * 50_000, "[a-z]" * 8_000, "|".join(f"w{i}" for i in range(10_000)), "(" * 140 + "a" + ")" * 140])
def test_long_sources(small, source):
    began = time.perf_counter()
    matcher = small.compile("regex", source).matcher()
    assert allowed(matcher) and matcher.need
    assert time.perf_counter() - began < 5


def test_many_choices(small):
    began = time.perf_counter()
    grammar = small.compile("choice", [f"{i:05}" for i in range(20_000)])
    matcher = grammar.matcher()
    assert allowed(matcher) == {ord("0"), ord("1"), small.vocabulary.token_bytes.index(b"00"), small.vocabulary.token_bytes.index(b"12")}
    assert matcher.advance_bytes(b"1999") and matcher.need == 1
    assert time.perf_counter() - began < 2


def test_failures_and_grammars_are_remembered():
    compiler = GrammarCompiler(small_vocabulary())
    assert compiler.compile("regex", "a+") is compiler.compile("regex", "a+")
    assert compiler.compile("choice", ["a", "b"]) is compiler.compile("choice", '["a", "b"]')
    errors = []
    for _ in range(2):
        with pytest.raises(GrammarError) as caught:
            compiler.compile("regex", "(")
        errors.append(caught.value)
    assert errors[0] is not errors[1] and str(errors[0]) == str(errors[1]) and errors[0].place == errors[1].place


def test_cache_is_bounded_in_bytes():
    compiler = GrammarCompiler(small_vocabulary(), limits=Limits(cache_bytes=200_000))
    first = compiler.compile("regex", "a{3}")
    for i in range(300):
        matcher = compiler.compile("regex", f"[a-z]{{{i + 1}}}x").matcher()
        matcher.advance_bytes(b"abc")
    assert compiler.compile("regex", "a{3}") is not first
    assert compiler.held_bytes <= 200_000


def test_a_grammar_worn_by_use_is_begun_anew():
    """A popular grammar never fails its users because of what others wrote with it."""
    compiler = GrammarCompiler(small_vocabulary(), limits=Limits(grammar_bytes=4 << 20))
    first, coin = compiler.compile("regex", "(a|b)*a(a|b){16}"), random.Random(3)
    for _ in range(60):
        matcher = compiler.compile("regex", "(a|b)*a(a|b){16}").matcher()
        assert all(matcher.advance(ord(coin.choice("ab"))) for _ in range(800))
    assert compiler.compile("regex", "(a|b)*a(a|b){16}") is not first


def test_store_is_renewed_when_it_is_full():
    compiler = GrammarCompiler(small_vocabulary(), limits=Limits(store_bytes=100_000))
    kept = compiler.compile("regex", "[a-c]+")
    before = allowed(kept.matcher())
    for i in range(200):
        allowed(compiler.compile("regex", f"[a-z]{{2}}{'.' * i}|x{i}").matcher())
    assert allowed(kept.matcher()) == before
    assert compiler.compile("regex", "[0-9]").automaton.sizes[2] < 400_000


def test_one_grammar_from_many_threads(small):
    """States made at the same time are the same states."""
    grammar = small.compile("json_object", None)
    text = b'{"k": [1, {"x": "' + "é".encode() * 20 + b'"}, null, true, -1.5e3], "z": {}}'
    masks: list[list[bytes]] = [[] for _ in range(4)]

    def walk(out):
        row = np.zeros(small.vocabulary.words, np.int32)
        for _ in range(5):
            matcher = grammar.matcher()
            for byte in text:
                matcher.fill(row)
                out.append(row.tobytes())
                assert matcher.advance(byte)

    threads = [threading.Thread(target=walk, args=(out,)) for out in masks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(masks[0]) == 5 * len(text) and all(out == masks[0] for out in masks)


def test_a_hard_compile_leaves_other_threads_running():
    """The gap between two fills of another request stays small while the worst constraints compile on the same store."""
    compiler, stop, gaps = GrammarCompiler(small_vocabulary()), threading.Event(), []
    primes = (3, 5, 7, 11, 13, 17, 19, 23)  # the shortest match is as long as their product
    worst = ["".join(f"(?=(a{{{p}}})*$)" for p in primes) + end for end in ("a+", "a+|a+b")]

    def stream():
        matcher, row = compiler.compile("json_object", None).matcher(), np.zeros(compiler.vocabulary.words, np.int32)
        text = iter(b'{"k": ["' + b"abc " * 100_000)
        while not stop.is_set():
            began = time.perf_counter()
            matcher.fill(row)
            matcher.advance(next(text))
            gaps.append(time.perf_counter() - began)
            time.sleep(0.002)

    thread = threading.Thread(target=stream)
    thread.start()
    try:
        for pattern in [*worst, *HARD]:
            try:
                allowed(compiler.compile("regex", pattern).matcher())
            except LimitError:
                assert pattern in worst
    finally:
        stop.set()
        thread.join()
    assert len(gaps) > 50 and sorted(gaps)[-2] < 0.3


def test_grammars_that_share_terms_from_many_threads():
    """Calls that rest in the middle of their work leave nothing half made for the others."""
    patterns = [rf"(?=.*{c}.*{d})(?!.*{d}{d})[a-e]{{3,{n}}}" for c in "abc" for d in "cde" for n in (8, 9)]
    alone = {}
    for pattern in patterns:
        matcher = GrammarCompiler(small_vocabulary()).compile("regex", pattern).matcher()
        alone[pattern] = [allowed(matcher), matcher.need, matcher.advance(ord("a")) and allowed(matcher)]
    compiler = GrammarCompiler(small_vocabulary())
    together: list[dict] = [{} for _ in range(4)]

    def walk(out, seed):
        for pattern in random.Random(seed).sample(patterns, len(patterns)):
            matcher = compiler.compile("regex", pattern).matcher()
            out[pattern] = [allowed(matcher), matcher.need, matcher.advance(ord("a")) and allowed(matcher)]

    threads = [threading.Thread(target=walk, args=(out, i)) for i, out in enumerate(together)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(out == alone for out in together)
