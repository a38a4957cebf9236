"""A matcher's own moves: rollback, fork, forced text, end tokens, and budgets that always suffice."""

import json
import random
import re

import jsonschema
import numpy as np
import pytest
from constraint_tools import accepts, allowed, finish_randomly
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ramet.constrained import GrammarCompiler, GrammarError
from ramet.constrained.grammar import GrammarSource

SOURCES = [
    ("regex", r"(ab|ba|aaa)*c?"),
    ("regex", r"é{2,4}[^a]"),
    ("choice", ["true", "truely", "12"]),
    ("json_schema", {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"$ref": "#"}}}, "required": ["a"]}),
]


class Walk(RuleBasedStateMachine):
    """However a place was reached, it is the place that a fresh walk over the same bytes reaches."""

    compiler: GrammarCompiler

    @initialize(source=st.sampled_from(SOURCES))
    def begin(self, source):
        self.grammar = self.compiler.compile(*source)
        self.walks = [(self.grammar.matcher(), [])]

    @rule(data=st.data())
    def take(self, data):
        matcher, tokens = data.draw(st.sampled_from(self.walks))
        if ids := sorted(allowed(matcher)):
            token = data.draw(st.sampled_from(ids))
            assert matcher.advance(token)
            tokens.append(token)

    @rule(data=st.data())
    def refuse(self, data):
        matcher, _ = data.draw(st.sampled_from(self.walks))
        token = data.draw(st.integers(-1, len(self.grammar.vocabulary)))
        if token not in allowed(matcher):
            assert not matcher.advance(token)

    @rule(data=st.data())
    def rollback(self, data):
        matcher, tokens = data.draw(st.sampled_from(self.walks))
        n = data.draw(st.integers(0, len(tokens)))
        matcher.rollback(n)
        del tokens[len(tokens) - n :]

    @rule(data=st.data())
    def fork(self, data):
        matcher, tokens = data.draw(st.sampled_from(self.walks))
        if len(self.walks) < 4:
            self.walks.append((matcher.fork(), tokens.copy()))

    @invariant()
    def same_as_fresh(self):
        for matcher, tokens in self.walks:
            fresh = self.grammar.matcher()
            assert all(map(fresh.advance, tokens))
            assert allowed(fresh) == allowed(matcher)
            assert (fresh.accepting, fresh.finished, fresh.forced()) == (matcher.accepting, matcher.finished, matcher.forced())


def test_fork_and_rollback_equal_a_fresh_walk(small):
    Walk.compiler = small
    Walk.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
    Walk.TestCase().runTest()


def test_rollback_beyond_the_start_is_refused(small):
    matcher = small.compile("regex", "aa").matcher()
    matcher.advance(ord("a"))
    with pytest.raises(GrammarError, match="roll back 2 of 1"):
        matcher.rollback(2)


def test_a_draft_is_taken_up_to_its_first_wrong_id(small):
    matcher = small.compile("regex", "aaab").matcher()
    assert matcher.advance_tokens(np.array([97, 97, 98, 97])) == 2
    assert matcher.advance_tokens([97, 98]) == 2 and matcher.finished
    matcher.rollback(3)
    assert matcher.advance_tokens(iter([97, 97, 98])) == 3


def test_accepting_is_not_finished(small):
    matcher = small.compile("regex", "[0-9]{1,5}").matcher()
    assert matcher.advance_bytes(b"7") and matcher.accepting and not matcher.finished
    assert small.vocabulary.eos_ids <= allowed(matcher)
    assert matcher.advance_bytes(b"7777") and matcher.finished
    assert matcher.fork().advance(min(small.vocabulary.eos_ids))


@pytest.mark.parametrize(
    ("kind", "source", "before", "forced"),
    [
        ("regex", "颜色:(红色|红褐|绿)", "", "颜色:"),  # 红 and 绿 share a byte, which is not shown
        ("regex", "颜色:(红色|红褐|绿)", "颜色:红", ""),
        ("regex", "a{1000}b", "", "a" * 1000 + "b"),
        ("regex", "ab(cd)?", "", "ab"),  # accepting: the model may stop
        ("regex", "yes|yes, sure", "", "yes"),
        ("regex", "[0-9]{2}x", "1", ""),
        ("regex", "[0-9]{2}x", "12", "x"),
        ("choice", ["name: x", "name: y"], "", "name: "),
        ("json_schema", {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}, "", '{"city": "'),
        ("json_schema", {"type": "integer"}, "1", ""),  # more digits are a choice
    ],
)
def test_forced_text(small, kind, source, before, forced):
    matcher = small.compile(kind, source).matcher()
    assert matcher.advance_bytes(before.encode())
    assert matcher.forced().decode() == forced
    assert matcher.advance_bytes(matcher.forced())


SCHEMAS = [
    {"type": "object", "properties": {"a": {"type": "string", "minLength": 3}, "b": {"type": "array", "items": {"type": "number"}, "minItems": 2}},
     "required": ["a", "b"], "additionalProperties": False},
    {"type": "object", "properties": {"v": {"enum": [1, "two", None]}, "kids": {"type": "array", "items": {"$ref": "#"}}}, "required": ["v"]},
    {"anyOf": [{"type": "string", "pattern": "^[ab]{4,}$"}, {"const": {"k": [True]}}]},
    {"type": "array", "items": {"type": "string", "format": "date"}, "minItems": 1},
    {},
]  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS)
def test_documents_are_whole_at_every_budget(small, schema):
    grammar = small.compile("json_schema", schema)
    least = grammar.min_tokens
    choose = random.Random(7)
    for budget in [*range(least, least + 12), *[least + choose.randrange(60) for _ in range(40)]]:
        text = finish_randomly(grammar.matcher(), budget, choose.choice)
        assert text is not None, budget
        jsonschema.validate(json.loads(text), schema)


def test_documents_are_whole_with_the_real_vocabulary(real):
    grammar = real.compile("json_schema", SCHEMAS[0])
    choose = random.Random(11)
    for budget in [grammar.min_tokens + choose.randrange(25) for _ in range(15)]:
        text = finish_randomly(grammar.matcher(), budget, choose.choice)
        assert text is not None
        jsonschema.validate(json.loads(text), SCHEMAS[0])


@pytest.mark.parametrize("pattern", ["(ab|ba){3,}c", "a|aaab*a", "(a*b){2}é", "[^a]{2,}", "[^a]*😀?"])
def test_matches_are_whole_at_every_budget(small, pattern):
    grammar = small.compile("regex", pattern)
    choose = random.Random(5)
    for budget in range(grammar.min_tokens, grammar.min_tokens + 15):
        text = finish_randomly(grammar.matcher(), budget, choose.choice)
        assert text is not None and re.fullmatch(pattern, text.decode())


def test_a_budget_below_the_least_leaves_nothing(small):
    grammar = small.compile("regex", "[0-9]{6}")
    assert grammar.min_tokens == 3  # 00 00 00
    assert allowed(grammar.matcher(), 2) == set()
    assert small.compile("regex", "a?").min_tokens == 1  # the end token alone
    assert small.compile("regex", "a").min_tokens == 1  # nothing can follow: no end token needed


def test_end_token_counts_where_the_text_could_go_on(small):
    matcher = small.compile("regex", "a+").matcher()
    assert matcher.need == 2
    assert matcher.advance(ord("a")) and matcher.need == 1
    assert allowed(matcher, 1) == small.vocabulary.eos_ids


def test_source_with_rules_of_its_own(small):
    """Terms can be used without any of the kinds."""
    from ramet.constrained.engines.ramet_native import build
    from ramet.constrained.grammar import alt, lit, ref, seq

    rules = {"list": seq(lit("("), alt(lit(""), ref("list"), seq(ref("list"), lit(","), ref("list"))), lit(")"))}
    automaton = build(small.vocabulary, "own", "", GrammarSource(rules, "list"), small.limits)
    state = automaton.advance_bytes(automaton.start, b"((()),((),()))")
    assert automaton.accepting(state) and automaton.finished(state)
    assert automaton.advance_bytes(automaton.start, b"(,") == -1


def test_accepts_only_whole_documents(small):
    assert accepts(small.compile("regex", "ab"), "ab")
    assert not accepts(small.compile("regex", "ab"), "a")
