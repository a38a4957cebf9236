"""Programs over a scripted backend: order of text, variables, roles, scopes, streaming, typed values."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import threading
import time
from typing import ClassVar, Literal, TypedDict

import pydantic
import pytest

import ramet
from ramet import gen, select


def run(body, backend, **options):
    return ramet.function(body).run(backend=backend, **options)


def test_text_is_the_fills_and_the_answers_in_order(fake):
    def body(s):
        s += "Q: capital of France?\nA:" + gen("a", stop="\n")
        s += "\nQ: of Italy?\nA:" + gen("b", stop="\n")
        return s["a"], s["b"]

    state = run(body, fake([" Paris", " Rome"]))
    assert state.ret_value == (" Paris", " Rome")
    assert state.text() == "Q: capital of France?\nA: Paris\nQ: of Italy?\nA: Rome"
    assert "a" in state and "c" not in state


def test_the_second_gen_is_sent_the_ids_of_the_first(fake):
    backend = fake([" Paris", " Rome"])

    def body(s):
        s += "one" + gen("a")
        s += "two" + gen("b")

    state = run(body, backend)
    first, second = backend.calls
    assert second.prompt[: len(first.prompt)] == first.prompt
    assert backend.decode(second.prompt) == "one Paristwo"
    meta = state.get_meta_info("b")
    assert meta["prompt_tokens"] == len(second.prompt)
    assert meta["cached_tokens"] == len("one Paris")
    assert meta["finish_reason"] == {"type": "stop", "matched": 257}


def test_text_fills_are_joined_before_they_are_tokenized(fake):
    backend = fake(["x"])
    encoded = []
    encode = backend.encode
    backend.encode = lambda text, **options: encoded.append(text) or encode(text, **options)

    def body(s):
        s += "a"
        s += "b"
        s += "c" + gen("x")

    run(body, backend)
    assert encoded == ["abc"]


def test_a_trimmed_stop_keeps_the_ids_before_it(fake):
    backend = fake([" Paris. And more", "x"])

    def body(s):
        s += "Q:" + gen("a", stop=". And")
        s += "!" + gen("b")

    state = run(body, backend)
    assert state["a"] == " Paris"
    assert backend.decode(backend.calls[1].prompt) == "Q: Paris!"
    assert state.get_meta_info("a")["finish_reason"] == {"type": "stop", "matched": ". And"}


def test_a_trimmed_stop_inside_a_token_retokenizes_the_rest_only():
    from ramet.frontend.answer import kept
    from ramet.runtime.protocol import FinishReason

    class Words:
        pieces: ClassVar = {1: "the", 2: " cat", 3: " sat.\n", 4: "\n"}

        def decode(self, ids):
            return "".join(self.pieces[i] for i in ids)

    assert kept(Words(), [1, 2, 3, 4], "the cat sat", FinishReason("stop", ".\n\n")) == ((1, 2), " sat")
    assert kept(Words(), [1, 2], "the cat", FinishReason("length")) == ((1, 2), "")
    assert kept(Words(), [1, 9], "the", FinishReason("stop", 9)) == ((1,), "")


def test_roles_use_the_template_of_the_backend(fake):
    backend = fake(["hello"])

    def body(s):
        s += ramet.system("Be kind.")
        with s.user():
            s += "hi"
        s += ramet.assistant(gen("a"))

    state = run(body, backend)
    assert backend.decode(backend.calls[0].prompt) == "<|system|>\nBe kind.<|end|>\n<|user|>\nhi<|end|>\n<|assistant|>\n"
    assert state.messages() == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
    ]


def test_begin_and_end_say_the_same_as_roles(fake):
    def ended(s):
        s += ramet.user("hi") + ramet.assistant("ho")

    def begun(s):
        s += ramet.user_begin() + "hi" + ramet.user_end()
        s += ramet.assistant_begin()
        s += "ho"
        s += ramet.assistant_end()

    assert run(ended, fake()).text() == run(begun, fake()).text()


def test_roles_do_not_nest(fake):
    with pytest.raises(ramet.RequestError, match="nest"):
        ramet.user(ramet.assistant("x"))

    def body(s):
        with s.user():
            s.assistant("x")

    with pytest.raises(ValueError, match="nest"):
        run(body, fake())


def test_a_message_that_is_open_is_the_last(fake):
    def body(s):
        s += ramet.user("hi") + ramet.assistant_begin() + gen("a", stop=".")

    state = run(body, fake(["so. far"]))
    assert state.messages()[-1] == {"role": "assistant", "content": "so"}


def test_var_scope_takes_all_text_inside(fake):
    def body(s):
        s += "before "
        with s.var_scope("part"):
            s += "A" + gen("x") + "B"
        s += " after"
        return s["part"]

    assert run(body, fake(["-"])).ret_value == "A-B"


def test_several_outputs_are_a_list_and_the_text_goes_on_with_the_first(fake):
    def body(s):
        s += "x" + gen("a", n=2)
        s += "!"

    state = run(body, fake([["one", "two"]]))
    assert state["a"] == ["one", "two"]
    assert state.text() == "xone!"
    assert [m["completion_tokens"] for m in state.get_meta_info("a")] == [4, 4]


def test_defaults_of_the_run_hold_where_a_gen_says_nothing(fake):
    backend = fake(["x", "y"])

    def body(s):
        s += "p" + gen("a") + gen("b", max_tokens=3, temperature=0.5, stop=["."])

    run(body, backend, max_new_tokens=7, temperature=0.25, stop="#", top_p=0.5, seed=3)
    a, b = (call.params for call in backend.calls)
    assert (a.max_new_tokens, a.temperature, a.stop, a.top_p, a.seed) == (7, 0.25, ("#",), 0.5, 3)
    assert (b.max_new_tokens, b.temperature, b.stop, b.top_p, b.seed) == (3, 0.5, (".",), 0.5, 3)


def test_bound_arguments_and_calls(fake):
    @ramet.function
    def greet(s, name, mark="!"):
        s += name + mark
        return s.text()

    backend = fake()
    assert greet.bind(mark="?").run("Bo", backend=backend).ret_value == "Bo?"
    assert greet.bind(name="Al")(backend=backend).ret_value == "Al!"
    with pytest.raises(TypeError, match="name"):
        greet.run(backend=backend)


def test_the_first_parameter_is_s():
    with pytest.raises(TypeError, match="named s"):
        ramet.function(lambda state: None)


def test_bodies_are_ordinary_functions():
    async def later(s):
        pass

    def pieces(s):
        yield s

    for body in (later, pieces):
        with pytest.raises(TypeError, match="arun"):
            ramet.function(body)


def test_none_and_numbers_are_no_text(fake):
    def nothing(s):
        s += None

    def number(s):
        s += 5

    with pytest.raises(ValueError, match="None"):
        run(nothing, fake())
    with pytest.raises(TypeError, match="int"):
        run(number, fake())


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class City(TypedDict):
    name: str
    size: int


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Person(pydantic.BaseModel):
    name: str
    age: int


@pytest.mark.parametrize(
    ("dtype", "text", "value"),
    [
        (int, "42", 42),
        (float, "-2.5", -2.5),
        (bool, "True", True),
        (str, '"a \\"b\\", c"', 'a "b", c'),
        (Literal["yes", "no"], "no", "no"),
        (Literal[1, 2], "2", 2),
        (Colour, "blue", Colour.BLUE),
        (list[int], "[1, 2]", [1, 2]),
        (City, '{"name": "Ulm", "size": 3}', {"name": "Ulm", "size": 3}),
        (list[City], '[{"name": "Ulm", "size": 3}]', [{"name": "Ulm", "size": 3}]),
        (Point, '{"x": 1, "y": 2}', Point(1, 2)),
        (Person, '{"name": "Al", "age": 3}', Person(name="Al", age=3)),
    ],
)
def test_typed_values(fake, dtype, text, value):
    state = run(lambda s: s.__iadd__("x" + ramet.gen_as("v", dtype)) and None, fake([text]))
    assert state["v"] == value and type(state["v"]) is type(value)
    assert state.text("v") == text


def test_schemas_from_anything():
    from ramet.frontend.values import schema_text

    assert schema_text('{"type": "null"}') == '{"type": "null"}'
    assert schema_text({"type": "null"}) == '{"type": "null"}'
    for hint in (Person, Point):
        assert '"additionalProperties": false' in schema_text(hint)
    for wrong in ("{", 5, {"x": object()}):
        with pytest.raises(ramet.ConstraintError):
            schema_text(wrong)


def test_streams_come_piece_by_piece(fake):
    def body(s):
        s += "Say:" + gen("a") + "." + gen("b")

    program = ramet.function(body)
    state = program.run(backend=fake(["one two three", "four"]), stream=True)
    assert list(state.text_iter("a")) == ["one", " two", " three"]
    assert list(state.text_iter("b")) == ["four"]
    assert state["b"] == "four"
    state = program.run(backend=fake(["one two", "four"]), stream=True)
    assert "".join(state.text_iter()) == "Say:one two.four" == state.text()


def test_streams_for_async(fake):
    def body(s):
        s += "Say:" + gen("a", return_logprob=True)

    async def read(backend):
        state = ramet.function(body).run(backend=backend, stream=True)
        pieces = [p async for p in state.text_async_iter("a", return_meta_data=True)]
        return state, pieces

    state, pieces = asyncio.run(read(fake(["one two"])))
    assert "".join(text for text, _ in pieces) == "one two"
    entries = [e for _, meta in pieces for e in meta.get("output_token_logprobs", [])]
    assert entries == state.get_meta_info("a")["output_token_logprobs"]
    assert pieces[-1][1]["finish_reason"] == {"type": "stop", "matched": 257}


def test_arun_leaves_the_event_loop_free(fake):
    @ramet.function
    def slow(s, i):
        s += f"{i}:" + gen("a")
        first = s["a"]
        s += gen("b")
        return first + s["b"]

    async def main(backend):
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticker = asyncio.create_task(tick())
        states = await asyncio.gather(*(slow.arun(i, backend=backend) for i in range(20)))
        ticker.cancel()
        return ticks, [s.ret_value for s in states]

    start = time.monotonic()
    ticks, values = asyncio.run(main(fake("x", latency=0.1)))
    assert values == ["xx"] * 20
    assert time.monotonic() - start < 1.0 and ticks >= 5


def test_a_streaming_arun_on_the_same_loop(fake):
    @ramet.function
    def body(s):
        s += "x" + gen("a")
        s += s["a"] + gen("b")

    async def main(backend):
        state = await body.arun(backend=backend, stream=True)
        pieces = [p async for p in state.text_async_iter("b")]
        return "".join(pieces), await state.aget("a")

    assert asyncio.run(main(fake(["one", "two three"], latency=0.01))) == ("two three", "one")


def test_states_can_be_read_from_other_threads(fake):
    def body(s):
        s += "x"
        forks = s.fork(8)
        values = [None] * 8

        def grow(i):
            forks[i].__iadd__(f"{i}" + gen("a"))
            values[i] = forks[i]["a"]

        threads = [threading.Thread(target=grow, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return values

    assert run(body, fake(lambda prompt, request: prompt[-1], latency=0.01)).ret_value == list("01234567")


def test_use_thread_false_waits_after_each_append(fake):
    def body(s):
        s += "x" + gen("a")
        assert s._branch.idle

    run(body, fake(["y"], latency=0.02), use_thread=False)


def test_select_by_choices_of_gen(fake):
    state = run(lambda s: s.__iadd__("x" + gen("a", choices=["p", "q"])) and None, fake(scores={"p": -2, "q": -1}))
    assert state["a"] == "q"


def test_reasoning_is_kept_apart(fake):
    def body(s):
        s += "x" + ramet.separate_reasoning(gen("a"), "qwen3")

    state = run(body, fake(["<think>hm, 4</think>\n\nFour."]))
    assert state["a"] == "Four."
    assert state["a_reasoning_content"] == "hm, 4"


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: gen("a", max_tokens=-1), "max_tokens"),
        (lambda: gen("a", max_tokens=1.5), "max_tokens"),
        (lambda: gen("a", temperature=float("nan")), "temperature"),
        (lambda: gen("a", temperature=-1), "temperature"),
        (lambda: gen("a", top_p=0), "top_p"),
        (lambda: gen("a", top_k=0), "top_k"),
        (lambda: gen("a", n=0), "n"),
        (lambda: gen("a", stop=[3]), "stop"),
        (lambda: gen("a", regex="("), "regex"),
        (lambda: gen("a", json_schema="{"), "json_schema"),
        (lambda: gen("a", regex="a", json_schema="{}"), "json_schema"),
        (lambda: gen("a", min_tokens=5, max_tokens=2), "min_tokens"),
        (lambda: gen("a", logit_bias={"x": 1}), "logit_bias"),
        (lambda: gen("a", finish="maybe"), "finish"),
        (lambda: gen("a", timeout=0), "timeout"),
        (lambda: gen(""), "name"),
        (lambda: select("a", []), "choices"),
        (lambda: select("a"), "choices"),
        (lambda: select("a", "abc"), "choices"),
        (lambda: select("a", ["x", 1]), "choices"),
        (lambda: select("a", ["x"], temperature=-1), "temperature"),
        (lambda: gen("a", tools=[]), "tools"),
    ],
)
def test_bad_arguments_raise_where_they_are_written(call, field):
    with pytest.raises(ramet.RequestError) as caught:
        call()
    assert caught.value.field == field


def test_pictures_are_refused_by_name():
    with pytest.raises(ramet.UnsupportedError, match="image"):
        ramet.image("x.png")
    with pytest.raises(ramet.UnsupportedError, match="video"):
        ramet.video("x.mp4", 3)
