"""Choosing: which tokens are scored, and the rules that compare them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ramet
from ramet import gen, select


def run(body, backend, **options):
    return ramet.function(body).run(backend=backend, **options)


class Merging(ramet.Fake):
    """Its tokenizer takes runs of letters as one token, so an option can merge with the text before it."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.words, self.texts = {}, {}

    def encode(self, text, *, add_special=False):
        import re

        ids = []
        for piece in re.findall(r" ?[a-z]+|.|\n", text):
            self.words.setdefault(piece, 1000 + len(self.words))
            self.texts[self.words[piece]] = piece
            ids.append(self.words[piece])
        return ids

    def decode(self, ids):
        return "".join(self.texts.get(i, "") for i in ids)


CASES = [
    ("Answer:", [" Yes", " Yes, but", " No"]),
    ("", ["a", "aa", "b"]),
    ("x ", ["y", "z"]),
    ("foo", ["bar", "bard"]),
    ("Pick:", ["item-1", "item-10", "item-2"]),
    ("Face:", ["🙂", "🙃", "no\nface"]),
    ("One:", ["only"]),
    ("Same:", ["p", "p", "q"]),
    ("Empty:", ["", "x"]),
    ("Empty:", [""]),
]


@pytest.mark.parametrize("kind", [ramet.Fake, Merging])
@pytest.mark.parametrize(("prompt", "options"), CASES)
def test_the_result_is_always_one_of_the_options(kind, prompt, options):
    backend = kind(logits=lambda ids: {i: ((i * 7 + sum(ids)) % 13) / 3 for i in range(1400)})
    try:
        answers = []
        for _ in range(2):
            state = run(lambda s: (s.__iadd__(prompt) if prompt else s).__iadd__(select("c", options)) and None, backend)
            assert state["c"] in options
            assert state.text() == prompt + state["c"]
            assert backend.decode(state.token_ids()) == prompt + state["c"]
            answers.append((state["c"], state.get_meta_info("c")["scores"]))
        assert answers[0] == answers[1]
    finally:
        backend.shutdown()


def test_scores_are_sums_from_the_first_token_that_differs(fake):
    backend = Merging(logits=lambda ids: {i: ((i * 7 + sum(ids)) % 13) / 3 for i in range(1000, 1040)})
    state = run(lambda s: s.__iadd__("say: foo" + select("c", ["bar", "bard", " x"])) and None, backend)
    (request,) = backend.calls
    assert backend.decode(request.prompt) == "say:"  # " foo" becomes " foobar", so the word is scored with all three
    assert [backend.decode(o) for o in request.options] == [" foobar", " foobard", " foo x"]

    def logprob(ids, token):
        logits = backend._logits(tuple(ids))
        return logits[token] - math.log(sum(map(math.exp, logits.values())))

    for option, row in zip(request.options, state.get_meta_info("c")["input_token_logprobs"], strict=True):
        ids = list(request.prompt)
        for token, (score, scored, _) in zip(option, row, strict=True):
            assert scored == token and score == pytest.approx(logprob(ids, token))
            ids.append(token)
    backend.shutdown()


def test_one_request_for_all_options(fake):
    backend = fake(scores={"a": -3, "b": -1, "c": -2})
    state = run(lambda s: s.__iadd__("x" + select("v", ["a", "b", "c"])) and None, backend)
    assert state["v"] == "b" and len(backend.calls) == 1
    meta = state.get_meta_info("v")
    assert meta["margin"] == 1.0 and sum(meta["distribution"]) == pytest.approx(1.0)
    assert meta["distribution"].index(max(meta["distribution"])) == 1


def test_the_state_goes_on_from_the_chosen_option(fake):
    backend = fake(["!"], scores={"a": -1, "b": -2})
    state = run(lambda s: s.__iadd__("x" + select("v", ["a", "b"]) + "?" + gen("g")) and None, backend)
    assert backend.decode(backend.calls[-1].prompt) == "xa?" and state["g"] == "!"


def test_temperature_draws_from_the_distribution(fake):
    backend = fake(scores={"a": math.log(0.75), "b": math.log(0.25)})

    def body(s, seed):
        s += "x" + select("v", ["a", "b"], temperature=1.0, seed=seed)

    drawn = [ramet.function(body).run(seed_, backend=backend)["v"] for seed_ in range(200)]
    assert 130 <= drawn.count("a") <= 170
    assert drawn == [ramet.function(body).run(seed_, backend=backend)["v"] for seed_ in range(200)]


def test_rules():
    rows = {"long": [(-0.1, 1, None), (-4.0, 2, None)], "short": [(-1.0, 3, None)]}

    def chosen(method, alone=None):
        return method(
            choices=list(rows),
            normalized_prompt_logprobs=[-2.05, -1.0],
            input_token_logprobs=list(rows.values()),
            output_token_logprobs=[],
            unconditional_token_logprobs=alone,
        )

    assert chosen(ramet.token_length_normalized).decision == "short"
    greedy = chosen(ramet.greedy_token_selection)
    assert greedy.decision == "long" and greedy.meta_info["greedy_logprob_matrix"] == [[-0.1, -4.0], [-1.0, -1.0]]
    alone = [[(-3.0, 1, None), (-5.0, 2, None)], [(-1.5, 3, None)]]
    likely = chosen(ramet.unconditional_likelihood_normalized, alone)
    assert likely.decision == "long"  # it gains 1.95 a token, the other 0.5
    assert likely.meta_info["normalized_unconditional_prompt_logprobs"] == pytest.approx([1.95, 0.5])


def test_the_unconditional_rule_scores_the_options_alone(fake):
    backend = fake(scores=lambda prompt, option: {"x": {"a": -2, "b": -2}, "": {"a": -1, "b": -5}}[prompt][option])
    method = ramet.unconditional_likelihood_normalized
    assert run(lambda s: s.__iadd__("x" + select("v", ["a", "b"], choices_method=method)) and None, backend)["v"] == "b"
    assert len(backend.calls) == 2


def test_a_rule_of_ones_own(fake):
    class Last(ramet.ChoicesSamplingMethod):
        def __call__(self, *, choices, **scores):
            return ramet.ChoicesDecision(choices[-1], {"mine": len(scores["input_token_logprobs"])})

    state = run(lambda s: s.__iadd__("x" + select("v", ["a", "b"], choices_method=Last())) and None, fake())
    assert state["v"] == "b" and state.get_meta_info("v")["mine"] == 2


def test_a_rule_that_fails_is_raised(fake):
    def broken(**scores):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(lambda s: s.__iadd__("x" + select("v", ["a"], choices_method=broken)) and None, fake())


@settings(max_examples=40, deadline=None)
@given(st.text("abc :", max_size=6), st.lists(st.text("abc ", max_size=4), min_size=1, max_size=5))
def test_any_prompt_and_options(prompt, options):
    backend = Merging(logits=lambda ids: {i: ((i * 5 + len(ids)) % 11) / 2 for i in range(1400)})
    try:
        state = run(lambda s: (s.__iadd__(prompt) if prompt else s).__iadd__(select("c", options)) and None, backend)
        assert state["c"] in options and state.text() == prompt + state["c"]
    finally:
        backend.shutdown()
