"""Graphs of programs, programs compiled from them, and pictures of both."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

import ramet
from ramet import gen, select

SHOTS = "Q: 1+1?\nA: 2\n" * 40


@ramet.function
def review(s, essay, tone="kind"):
    s += ramet.system("You judge essays.") + ramet.user(f"Essay:\n{essay}\nTone: {tone}")
    forks = s.fork(2)
    for f, what in zip(forks, ["clarity", "style"], strict=True):
        f += ramet.user(f"Judge the {what}.") + ramet.assistant(gen("note", max_tokens=60))
    forks.join()
    s += "Notes: " + "; ".join(s["note"]) + "\nGrade:" + select("grade", ["A", "B"])
    return s["grade"]


def test_the_graph_of_a_program():
    graph = review.trace()
    assert [n.kind for n in graph.stream(0)] == ["role", "text", "end", "role", "text", "end", "fork", "join", "text", "select"]
    assert [n.label for n in graph.stream(2)] == [
        "role user",
        "'Judge the style.'",
        "end user",
        "role assistant",
        "gen('note')",
        "end assistant",
    ]
    assert "'Essay:\\n{essay}\\nTone: kind'" in str(graph)
    assert "'Notes: {note}; {note}\\nGrade:'" in str(graph)
    assert graph.is_static and graph.streams == 3
    join = next(n for n in graph.nodes if n.kind == "join")
    assert len(join.before) == 3


def test_arguments_that_are_given_are_values():
    assert "'Essay:\\nmine\\nTone: kind'" in str(review.trace(essay="mine"))
    assert "'Essay:\\nmine\\nTone: kind'" in str(review.bind(essay="mine").trace())


def test_places_that_depend_on_data_are_marked():
    @ramet.function
    def agent(s, task, steps):
        s += task.strip().upper()
        for step in steps:
            s += step
        while s.text() != "done":
            s += gen("act", stop="\n")
            if "finish" in s["act"] or s["act"].startswith("stop"):
                break
            s += "again" if int(s["act"]) > 3 else "more"
        return s["act"]

    graph = agent.trace()
    notes = [n.note for n in graph.nodes if n.kind in ("branch", "loop")]
    assert any("'finish' in act at test_trace.py" in note for note in notes)
    assert any(note.startswith("for ... in steps") for note in notes)
    assert not graph.is_static and graph.stopped is None


def test_a_trace_that_cannot_go_on_says_where():
    @ramet.function
    def parse(s, text):
        s += text + gen("v")
        s += json.loads(s["v"])["x"]

    graph = parse.trace()
    assert graph.stopped.startswith("JSONDecodeError") and "test_trace.py" in graph.stopped
    assert [n.kind for n in graph.nodes[:2]] == ["text", "gen"]


def test_a_loop_without_end_is_cut():
    @ramet.function
    def forever(s):
        while True:
            s += "x"

    assert "10000 nodes" in forever.trace().stopped


@ramet.function
def shots(s, question, more=""):
    s += SHOTS
    s += f"Q: {question}\nA:" + gen("a", stop="\n")
    return s["a"]


def answer(prompt, request):
    return " yes" if prompt.endswith("A:") else "?"


def test_a_compiled_program_says_the_same(fake):
    plain, backend = fake(answer), fake(answer)
    compiled = shots.compile(backend)
    assert compiled.prefix_tokens > len(SHOTS) - 10
    assert len(backend.calls) == 1 and backend.calls[0].params.max_new_tokens == 0
    for question in ("one?", "two?"):
        a, b = shots.run(question, backend=plain), compiled.run(question)
        assert a.text() == b.text() and a.ret_value == b.ret_value
        assert plain.calls[-1].prompt == backend.calls[-1].prompt
        assert b.get_meta_info("a")["cached_tokens"] >= compiled.prefix_tokens


def test_a_compiled_program_does_not_tokenize_its_beginning_again(fake):
    backend = fake(answer)
    compiled = shots.compile(backend)
    lengths = []
    encode = backend.encode
    backend.encode = lambda text, **options: lengths.append(len(text)) or encode(text, **options)
    compiled.run("one?")
    assert sum(lengths) < 60


@pytest.mark.parametrize("roles", [True, False])
def test_a_body_that_leaves_the_traced_way(fake, roles):
    @ramet.function
    def body(s, kind):
        if kind == "odd":
            s += ramet.system("Odd.") if roles else "Odd "
        s += (ramet.system("Even.") + ramet.user("x")) if roles and kind != "odd" else "Then "
        return s.text()

    for kind in ("odd", "even"):
        assert body.compile(fake()).run(kind).ret_value == body.run(kind, backend=fake()).ret_value


def test_a_body_that_reads_in_the_middle_of_its_beginning(fake):
    @ramet.function
    def body(s):
        s += "one "
        first = s.text()
        s += ramet.user("two")
        return first, s.text(), s.messages()

    assert body.compile(fake()).run().ret_value == body.run(backend=fake()).ret_value


def test_a_fork_in_the_beginning(fake):
    @ramet.function
    def body(s, x):
        s += "start"
        forks = s.fork(2)
        forks += lambda i: f"{i}{x}" + gen("v")
        forks.join()
        return s["v"]

    assert body.compile(fake("ok")).run("!").ret_value == ["ok", "ok"]


def test_batches_run_in_the_order_of_their_beginnings(fake):
    backend = fake(answer)

    @ramet.function
    def ask(s, document, question):
        s += f"{document}\nQ: {question}\nA:" + gen("a")
        return document, question

    items = [(f"doc {i % 3}", f"q{i}") for i in range(9)]
    states = ask.compile(backend).run_batch(items, num_threads=1)
    assert [s.ret_value for s in states] == items
    prompts = [backend.decode(c.prompt) for c in backend.calls]
    assert prompts == sorted(prompts)


def test_cache_computes_the_constant_beginning(fake):
    backend = fake(answer)
    tokens = shots.cache(backend)
    state = shots.run("one?", backend=backend)
    assert state.get_meta_info("a")["cached_tokens"] >= tokens > 0


def test_pictures(fake, tmp_path):
    picture = review.draw()
    ET.fromstring(picture._repr_svg_())
    assert "{essay}" in picture.svg
    state = review.run("An essay <&> \x00.", backend=fake(["fine", "good"], scores={"A": -1, "B": -2}))
    drawn = state.draw()
    ET.fromstring(drawn.svg)
    assert "branch 1" in drawn.svg and "note" in drawn.svg and "3 requests" in drawn.svg
    drawn.save(tmp_path / "run.svg")
    assert (tmp_path / "run.svg").read_text() == drawn.svg


def test_a_question_before_the_first_step_is_marked():
    @ramet.function
    def body(s, kind):
        if kind == "short":
            s += "Be brief."
        s += "Go on:" + gen("a")

    graph = body.trace()
    assert [node.kind for node in graph.nodes] == ["branch", "text", "gen"] and not graph.is_static
    assert "kind == 'short'" in graph.nodes[0].note
