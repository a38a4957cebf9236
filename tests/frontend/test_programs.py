"""Programs of the kinds that people bring from SGLang, on a script and on the embedded model."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from typing import Literal

import pytest

import ramet as sgl  # as such programs import it


@pytest.fixture(scope="module")
def embedded(embedded_model):
    with sgl.Runtime(str(embedded_model.path), max_total_tokens=8192) as runtime:
        yield runtime


def scripted(prompt, request):
    """An answer for any of the programs below."""
    constraint = request.params.constraint
    if constraint is None:
        return " So it is.\nQ: and then?" if request.params.n == 1 else [" one.", " two."]
    if constraint.kind == "choice":
        return json.loads(constraint.source)[0]
    if constraint.kind == "regex":
        known = (" Search[tea]", "192.168.0.1", "42", "-1.5", "10", "Ada Ruiz was born in 1901.")
        return next(text for text in known if re.fullmatch(constraint.source, text))
    return json.dumps(instance(json.loads(constraint.source)))


def instance(schema):
    if "anyOf" in schema:
        return instance(schema["anyOf"][0])
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    if schema["type"] == "object":
        return {name: instance(sub) for name, sub in schema["properties"].items()}
    return {"string": "tea", "integer": 3, "boolean": True, "array": [], "number": 1.5}[schema["type"]]


@pytest.fixture(params=["script", "model"])
def backend(request):
    if request.param == "model":
        sgl.set_default_backend(request.getfixturevalue("embedded"))
        yield request.param
    else:
        with sgl.Fake(scripted, scores=lambda prompt, option: -len(option) / 7) as fake:
            sgl.set_default_backend(fake)
            yield request.param
    sgl.set_default_backend(None)


def test_few_shot_qa(backend):
    @sgl.function
    def few_shot(s, question):
        s += "Q: What is the capital of France?\nA: Paris\nQ: Of Germany?\nA: Berlin\n"
        s += "Q: " + question + "\nA:" + sgl.gen("answer", stop="\n", temperature=0, max_tokens=12)

    state = few_shot.run(question="Of Italy?")
    assert state["answer"] and "\n" not in state["answer"] and len(state.messages()) == 0
    states = few_shot.run_batch([{"question": "Of Italy?"}, {"question": "Of Spain?"}])
    assert len(states) == 2 and all("\n" not in s["answer"] for s in states)


def test_multi_turn_chat(backend):
    @sgl.function
    def turns(s):
        s += sgl.system("You are brief.")
        s += sgl.user("Name a colour.")
        s += sgl.assistant(sgl.gen("one", max_tokens=8, stop="."))
        s += sgl.user_begin() + "Another." + sgl.user_end()
        with s.assistant():
            s += sgl.gen("two", max_tokens=8, stop=".")

    state = turns.run(temperature=0)
    assert [m["role"] for m in state.messages()] == ["system", "user", "assistant", "user", "assistant"]
    assert state.get_meta_info("two")["cached_tokens"] > 0 and state.error() is None


def test_select_decides_control_flow(backend):
    @sgl.function
    def true_or_false(s, statement):
        s += "Decide whether the statement is true or false.\nStatement: The sun is cold.\nAnswer: false\n"
        s += f"Statement: {statement}\nAnswer:" + sgl.select("answer", [" true", " false"])
        s += " because" if s["answer"] == " true" else " since"
        s += sgl.gen("why", max_tokens=6, temperature=0)

    state = true_or_false.run("Water is wet.")
    assert state["answer"] in (" true", " false")
    for method in (sgl.token_length_normalized, sgl.greedy_token_selection, sgl.unconditional_likelihood_normalized):
        state = sgl.function(
            lambda s, method=method: s.__iadd__("2+2=" + sgl.gen("v", choices=["4", "5"], choices_method=method)) and None
        ).run()
        assert state["v"] in ("4", "5") and len(state.get_meta_info("v")["distribution"]) == 2


def test_decoding_of_integers_and_types(backend):
    @sgl.function
    def decode(s):
        s += "The answer to 6*7 is " + sgl.gen_int("n", max_tokens=4)
        s += "\nA number: " + sgl.gen("f", dtype=float, max_tokens=8) + "\nTrue? " + sgl.gen("b", dtype=bool)
        s += "\nIn quotes: " + sgl.gen_string("t", max_tokens=12)

    state = decode.run(temperature=0.5, seed=1)
    assert [type(state[v]) for v in ("n", "f", "b", "t")] == [int, float, bool, str]
    assert state.text("n").strip().lstrip("+-").isdigit()


def test_decoding_by_regex(backend):
    address = r"((25[0-5]|2[0-4]\d|[01]?\d\d?)\.){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)"

    @sgl.function
    def decode(s):
        s += "Q: The IP address of the router?\nA: " + sgl.gen("ip", regex=address, temperature=0, max_tokens=20)
        return s["ip"]

    assert re.fullmatch(address, decode.run().ret_value)


def test_decoding_of_json(backend):
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "tall": {"type": "boolean"},
        },
        "required": ["name", "age", "tall"],
        "additionalProperties": False,
    }

    @sgl.function
    def decode(s):
        s += "Describe a wizard in JSON: " + sgl.gen("wizard", max_tokens=64, json_schema=json.dumps(schema), temperature=0)

    state = decode.run()
    assert set(json.loads(state["wizard"])) == {"name", "age", "tall"}
    if backend == "model":
        assert state.get_meta_info("wizard")["forced_tokens"] > 5


def test_expert_answer(backend):
    @sgl.function
    def expert(s, question):
        s += (
            "Question: " + question + "\nA good person to answer is" + sgl.gen("expert", max_tokens=8, stop=["?", ".", "\n"], temperature=0)
        )
        s += ".\nAccording to" + s["expert"] + "," + sgl.gen("answer", max_tokens=8, stop="\n", temperature=0)

    state = expert.run("How do bees fly?")
    assert f"According to{state['expert']}," in state.text()


def test_tool_use(backend):
    def look_up(word: str) -> str:
        "Finds a word."
        return f"{word} is a plant"

    @sgl.function
    def agent(s, question):
        s += sgl.system(sgl.describe([look_up])) + sgl.user(question)
        s += sgl.assistant(sgl.gen("call", tools=[look_up], max_tokens=48, temperature=0))
        observation = s.call("call")
        s += sgl.assistant(sgl.gen("answer", max_tokens=6, temperature=0))
        return observation

    state = agent.run("What is tea?")
    assert state["call"].name == "look_up" and state.ret_value.endswith("is a plant")
    assert state.messages()[3]["content"] == state.ret_value


def test_react(backend):
    @sgl.function
    def react(s, question):
        s += f"Question: {question}\n"
        for i in range(2):
            s += f"Thought {i}:" + sgl.gen("thought", stop="\n", max_tokens=10, temperature=0)
            s += f"\nAction {i}:" + sgl.gen("action", regex=r" (Search|Finish)\[[a-z ]{1,12}\]", max_tokens=16, temperature=0)
            s += "\nObservation: nothing\n"
        return s["action"]

    assert re.fullmatch(r" (Search|Finish)\[[a-z ]{1,12}\]", react.run("Who?").ret_value)


def test_parallel_decoding(backend):
    @sgl.function
    def parallel(s, topic):
        s += f"Write about {topic}.\n"
        forks = s.fork(3)
        forks += lambda i: f"Paragraph {i}:" + sgl.gen("part", max_tokens=8, stop=".", temperature=0) + "."
        forks.join()
        s += "In short: " + " ".join(s["part"]) + sgl.gen("end", max_tokens=4, temperature=0)

    state = parallel.run("tea")
    assert len(state["part"]) == 3 and state.text().count("In short") == 1


def test_parallel_encoding(backend):
    @sgl.function
    def encode(s, facts):
        s += "Facts:\n"
        forks = s.fork(len(facts))
        forks += [f"- {fact}\n" for fact in facts]
        forks.join("concate_and_append")
        s += "So:" + sgl.gen("so", max_tokens=5, temperature=0)

    state = encode.run(["Tea is hot.", "Ice is cold."])
    assert state.text().startswith("Facts:\n- Tea is hot.\n- Ice is cold.\nSo:")


def test_streams(backend):
    @sgl.function
    def write(s):
        s += "A short story:" + sgl.gen("story", max_tokens=12, temperature=0) + "The end."

    state = write.run(stream=True)
    assert "".join(state.text_iter("story")) == state["story"]
    assert "".join(write.run(stream=True).text_iter()) == state.text()


def test_streams_with_logprobs(backend):
    @sgl.function
    def write(s):
        s += "A short story:" + sgl.gen("story", max_tokens=8, temperature=0, return_logprob=True, return_text_in_logprobs=True)

    async def read():
        state = write.run(stream=True)
        return state, [pair async for pair in state.text_async_iter("story", return_meta_data=True)]

    state, pairs = asyncio.run(read())
    rows = [row for _, meta in pairs for row in meta.get("output_token_logprobs", ())]
    assert "".join(text for text, _ in pairs) == state["story"]
    assert rows == state.get_meta_info("story")["output_token_logprobs"] and all(row[0] <= 0 for row in rows)
    assert pairs[-1][1]["completion_tokens"] == len(rows)


def test_completions_of_several(backend):
    state = sgl.function(lambda s: s.__iadd__("Once" + sgl.gen("v", n=2, max_tokens=6)) and None).run(seed=3)
    assert len(state["v"]) == 2


def test_min_tokens(backend):
    @sgl.function
    def long(s):
        s += sgl.user("Say yes.") + sgl.assistant(sgl.gen("v", min_tokens=12, max_tokens=14, temperature=0))

    if backend == "model":
        assert long.run().get_meta_info("v")["completion_tokens"] >= 12


@dataclasses.dataclass
class Grade:
    letter: Literal["A", "B"]
    points: int


def test_typed_values(backend):
    @sgl.function
    def grade(s):
        s += (
            "Grade as JSON: "
            + sgl.gen_as("grade", Grade, max_tokens=40, temperature=0)
            + " in short "
            + sgl.gen_as("letter", Literal["A", "B"])
        )

    state = grade.run()
    assert isinstance(state["grade"], Grade) and state["letter"] in ("A", "B")


def test_errors_and_the_next_run(backend):
    @sgl.function
    def bad(s):
        s += (
            "x"
            + sgl.gen("a", max_tokens=4)
            + sgl.gen("b", json_schema={"type": "string", "noSuchKeyword": 1, "$ref": "#/nowhere"}, max_tokens=5)
        )
        return s["b"]

    if backend == "model":
        with pytest.raises(sgl.ConstraintError):
            bad.run()
    assert sgl.function(lambda s: s.__iadd__("fine" + sgl.gen("v", max_tokens=2)) and None).run()["v"] is not None


def test_ids_are_those_of_the_models_template(embedded):
    messages = [
        {"role": "user", "content": "  Name a colour.\n"},
        {"role": "assistant", "content": "Blue."},
        {"role": "user", "content": "Encore <|im_start|> ü?"},
    ]

    @sgl.function
    def chat(s):
        for m in messages:
            getattr(s, m["role"])(m["content"])
        s += sgl.assistant_begin()

    tokenizer = embedded.get_tokenizer()
    assert list(chat.run(backend=embedded).token_ids()) == tokenizer.encode_chat(messages, add_generation_prompt=True)
