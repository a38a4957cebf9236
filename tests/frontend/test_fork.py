"""Branches: what they share, how they join."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ramet
from ramet import gen, select


def run(body, backend, **options):
    return ramet.function(body).run(backend=backend, **options)


def last_word(prompt, request):
    return prompt.split(":")[-1]


def test_join_gathers_new_variables(fake):
    def body(s):
        s += "root" + gen("kept")
        forks = s.fork(3)
        forks += lambda i: f":{i}" + gen("note")
        forks.join()
        s += " end"
        return s["note"], s["kept"], [f["note"] for f in forks], len(s.get_meta_info("note"))

    state = run(body, fake(lambda p, r: "k" if p == "root" else last_word(p, r)))
    assert state.ret_value == (["0", "1", "2"], "k", ["0", "1", "2"], 3)
    assert state.text() == "rootk end"


def test_a_second_round_gathers_again(fake):
    def body(s):
        s += "x"
        rounds = []
        for r in range(2):
            forks = s.fork(2)
            forks += lambda i, r=r: f":{r}{i}" + gen("note")
            forks.join()
            rounds.append(s["note"])
        return rounds

    assert run(body, fake(last_word)).ret_value == [["00", "01"], ["10", "11"]]


def test_forks_do_not_wait_and_share_the_prefix(fake):
    backend = fake(last_word, latency=0.02)

    def body(s):
        s += "start:" + "word " * 200 + "q:" + gen("a")
        forks = s.fork(4)  # the generation is still under way
        forks += lambda i: f":{i}" + gen("b")
        return [f["b"] for f in forks]

    assert run(body, backend).ret_value == list("0123")
    first, *rest = backend.calls
    assert all(call.prompt[: len(first.prompt)] == first.prompt for call in rest)


def test_nested_forks_and_forks_before_any_text(fake):
    def body(s):
        outer = s.fork(2)
        outer += lambda i: f"{i}"
        inner = [f.fork(2) for f in outer]
        for forks in inner:
            forks += lambda j: f":{j}" + gen("leaf")
            forks.join()
        outer.join()
        return s["leaf"]

    assert run(body, fake(last_word)).ret_value == [["0", "1"], ["0", "1"]]


def test_a_fork_inside_a_role(fake):
    backend = fake(["x", "y"])

    def body(s):
        s += ramet.user("pick")
        with s.assistant():
            s += "I say "
            forks = s.fork(2)
            forks += gen("a")
            forks.join("concatenate")
        return forks[0].messages()[-1]

    state = run(body, backend)
    assert state.ret_value == {"role": "assistant", "content": "I say x"}
    assert state.messages()[-1] == {"role": "assistant", "content": "I say xI say y".replace("I say y", "y")}


def test_forks_by_name(fake):
    def body(s):
        s += "x"
        forks = s.fork(names=["clear", "true"])
        forks["clear"].__iadd__(":c" + gen("mark"))
        forks["true"].__iadd__(":t" + gen("mark"))
        forks.join()
        return s["mark"]

    assert run(body, fake(last_word)).ret_value == {"clear": "c", "true": "t"}


def test_appending_lists(fake):
    def body(s):
        forks = s.fork(2)
        forks += ["a", "b"]
        forks += "!"
        with pytest.raises(ValueError, match="3 expressions for 2"):
            forks += ["a", "b", "c"]
        return [f.text() for f in forks]

    assert run(body, fake()).ret_value == ["a!", "b!"]


@pytest.mark.parametrize("mode", ["concatenate", "concate_and_append"])
def test_join_by_concatenation(fake, mode):
    backend = fake(lambda p, r: "end" if p.endswith("?") else last_word(p, r))

    def body(s):
        s += "x"
        forks = s.fork(3)
        forks += lambda i: f":{i}" + gen("n") + ";"
        forks.join(mode)
        s += "?" + gen("m")
        return s["n"], s["m"]

    state = run(body, backend)
    assert state.ret_value == (["0", "1", "2"], "end")
    assert state.text() == "x:00;:11;:22;?end"
    assert backend.decode(backend.calls[-1].prompt) == "x:00;:11;:22;?"


def test_join_first_cancels_the_rest(fake):
    def body(s):
        s += "x"
        forks = s.fork(3)
        for i, f in enumerate(forks):
            f += f":{i}"
            for _ in range(3 if i != 1 else 1):
                f += gen("n")
        winner = forks.join("first")
        assert winner is forks[1] and isinstance(forks[0].error(), ramet.CancelledError)
        s += "!"
        return s["n"]

    state = run(body, fake(lambda p, r: p[-1], latency=0.03))
    assert state.ret_value == "1"
    assert state.text() == "x:11!"


def test_join_best_goes_on_with_the_best(fake):
    def body(s):
        s += "x"
        forks = s.fork(3)
        forks += lambda i: f":{'bca'[i]}" + gen("n")
        assert forks.join(ramet.best(lambda f: f["n"])) is forks[1]
        s += "!"
        return s["n"]

    state = run(body, fake(last_word))
    assert state.ret_value == "c" and state.text() == "x:cc!"
    with pytest.raises(ramet.RequestError, match="mode"):
        run(lambda s: s.fork(2).join("nonsense"), fake())


def test_map_runs_side_by_side(fake):
    import time

    def body(s):
        s += "x"

        def grow(f):
            f += "1" + gen("a")
            f += f["a"] + gen("b")
            return f["b"]

        start = time.monotonic()
        values = s.fork(10).map(grow)
        return values, time.monotonic() - start

    values, seconds = run(body, fake("y", latency=0.05)).ret_value
    assert values == ["y"] * 10 and seconds < 0.4


def test_copy_leaves_the_state_alone(fake):
    def body(s):
        s += "x"
        with s.copy() as c:
            c += "y" + gen("a")
        s += "z"
        return s["a"]

    state = run(body, fake(["1"]))
    assert state.ret_value == ["1"] and state.text() == "xz"


@pytest.mark.parametrize(
    "options", [{"size": 0}, {"size": 1.5}, {"names": ["a", "a"]}, {"size": 2, "names": ["a"]}, {"size": 1, "position_ids_offset": [1]}]
)
def test_bad_forks(fake, options):
    with pytest.raises(ramet.RequestError):
        run(lambda s: s.fork(**options), fake())


steps = st.lists(
    st.one_of(
        st.tuples(st.just("text"), st.integers(0, 9), st.sampled_from(["a", "b ", "\n", "é"])),
        st.tuples(st.just("gen"), st.integers(0, 9), st.just("")),
        st.tuples(st.just("fork"), st.integers(0, 9), st.integers(1, 3)),
    ),
    max_size=20,
)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_any_tree_of_branches_says_what_a_text_tree_says(steps):
    """Against the simplest model of a state: a string that grows."""
    backend = ramet.Fake(lambda prompt, request: f"<{len(prompt) % 7}>")

    def body(s):
        branches, texts = [s], ["^"]
        s += "^"
        for kind, at, what in steps:
            i = at % len(branches)
            if kind == "text":
                branches[i] += what
                texts[i] += what
            elif kind == "gen":
                branches[i] += gen("g")
                texts[i] += f"<{len(texts[i]) % 7}>"
            else:
                branches.extend(branches[i].fork(what))
                texts.extend([texts[i]] * what)
        for branch, text in zip(branches, texts, strict=True):
            assert branch.text() == text
            assert backend.decode(branch.token_ids()) == text

    try:
        ramet.function(body).run(backend=backend)
    finally:
        backend.shutdown()


class Merging(ramet.Fake):
    """A tokenizer in which "ab" is one token, 300."""

    def encode(self, text, *, add_special=False):
        return [300 if piece == "ab" else ord(piece) for piece in re.findall("ab|.", text)]

    def decode(self, ids):
        return "".join("ab" if i == 300 else chr(i) for i in ids if i != 257)


def test_concatenated_branches_whose_text_merged_with_the_prefix():
    def body(s):
        s += "xa"
        forks = s.fork(2)
        forks += "b" + gen("v")
        forks.join("concatenate")

    with Merging([[ord("c"), 257], [ord("a"), ord("b"), 257]]) as backend:
        state = ramet.function(body).run(backend=backend)
        assert state.text() == "xabc" + "bab"
        assert state.token_ids() == (ord("x"), 300, ord("c"), ord("b"), ord("a"), ord("b"))  # "ab" as it was generated, in two


def test_branches_joined_apart_keep_their_ids_and_say_which_they_are(fake):
    backend = fake(lambda p, r: "end" if p.endswith("?") else last_word(p, r), scores={"yes": -1.0, "no": -2.0}, bos=True)

    def body(s):
        s += "x y"
        forks = s.fork(3)
        forks += lambda i: f":{i}" + gen("n") + ";"
        forks.join("concate_and_append")
        s += "?" + gen("m")
        more = s.fork(2)
        more += lambda i: "ab"[i] + gen("n")
        s += " so " + select("choice", ["yes", "no"])
        more.join("concate_and_append")
        s += "!" + gen("last")

    state = run(body, backend)
    text = state.text()
    assert text.startswith("x y:00;:11;:22;?end so yes")
    assert backend.decode(state.token_ids()) == text
    first = (4, 8, 12, 15)  # after the beginning-of-text id; what follows has the last id, too
    spans = {backend.decode(call.prompt): call.joined for call in backend.calls}
    assert spans["x y:00;:11;:22;?"] == spans["x y:00;:11;:22;?enda"] == (first,)
    assert spans["x y:00;:11;:22;?end so "] == (first,)
    start = 1 + len("x y:00;:11;:22;?end so yes")
    size = (len(text) - len("!") - len(state["last"]) + 1 - start) // 2
    assert backend.calls[-1].joined == (first, (start, start + size, start + 2 * size - 1))
    assert all(call.joined == () for call in backend.calls[:3])


def test_branches_joined_apart_whose_text_merged_with_the_prefix():
    def body(s):
        s += "xa"
        forks = s.fork(2)
        forks += "b" + gen("v")
        forks.join("concate_and_append")
        s += "." + gen("w")

    with Merging([[ord("c"), 257], [ord("a"), ord("b"), 257], [257]]) as backend:
        state = ramet.function(body).run(backend=backend)
        assert state.text() == "xabcbab."
        assert state.token_ids() == tuple(map(ord, "xabc")) + (ord("b"), 300, ord("."))  # the prefix alone has no "ab": parts are cut behind it
        assert backend.calls[-1].joined == ((2, 4, 5),)


def test_a_branch_that_was_joined_apart_is_no_part_of_such_a_join(fake):
    def body(s):
        s += "x"
        forks = s.fork(2)
        for f in forks:
            inner = f.fork(2)
            inner += ["aa", "bb"]
            inner.join("concate_and_append")
        with pytest.raises(ramet.UnsupportedError, match="branch 0 was joined so itself"):
            forks.join("concate_and_append")
        forks.join("concatenate")
        s += "?" + gen("m")

    backend = fake("end")
    assert run(body, backend).text() == "xaabbaabb?end"
    assert backend.calls[-1].joined == ((1, 3, 4), (5, 7, 8))


def test_branches_with_nothing_or_little_to_join_are_plain(fake):
    def body(s):
        forks = s.fork(3)
        branch = forks[1]
        branch += "abc"
        forks.join("concate_and_append")
        s += "?" + gen("m")

    backend = fake("end")
    assert run(body, backend).text() == "abc?end"
    assert backend.calls[-1].joined == ()
