"""The OpenAI family through OpenAI's own client, and the rows of faults that other servers had in it."""

from __future__ import annotations

import json
from typing import Literal

import httpx
import openai
import pytest
from pydantic import BaseModel
from serving import events


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


def user(text):
    return [{"role": "user", "content": text}]


# ---- chat


def test_create(client):
    got = client.chat.completions.create(model="fake", messages=user("say:hello there"))
    assert got.choices[0].message.content == "hello there" and got.choices[0].finish_reason == "stop"
    assert got.usage.completion_tokens == 12 and got.usage.total_tokens == got.usage.prompt_tokens + 12
    again = client.chat.completions.create(model="fake", messages=user("say:hello there"))
    assert again.usage.prompt_tokens_details.cached_tokens == again.usage.prompt_tokens - 1


def test_a_stream_equals_its_twin(client):
    text = "né 漢字 🧑‍🚀🫠 ok"
    whole = client.chat.completions.create(model="fake", messages=user("say:" + text)).choices[0]
    chunks = list(client.chat.completions.create(model="fake", messages=user("say:" + text), stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    pieces = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(pieces) == whole.message.content == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == len(text.encode()) + 1
    assert all(c.usage is None for c in chunks[:-1])


def test_a_cut_inside_a_character(client):
    got = client.chat.completions.create(model="fake", messages=user("say:né"), max_tokens=2)
    assert got.choices[0].message.content == "n\ufffd" and got.choices[0].finish_reason == "length"
    stream = client.chat.completions.create(model="fake", messages=user("say:né"), max_tokens=2, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in stream) == "n\ufffd"


@pytest.mark.parametrize(
    "stop, want, finish",
    [
        (["ENDING"], "alpha END-beta\nEN ", "stop"),
        (["ENDING", "\n"], "alpha END-beta", "stop"),
        (["\nX"], "alpha END-beta\nEN ENDING gamma", "stop"),
        ("alpha", "", "stop"),
        (["user"], "alpha END-beta\nEN ENDING gamma", "stop"),
    ],
)
def test_stop(client, stop, want, finish):
    ask = {"model": "fake", "messages": user(r"say:alpha END-beta\nEN ENDING gamma"), "stop": stop}
    got = client.chat.completions.create(**ask).choices[0]
    assert (got.message.content, got.finish_reason) == (want, finish)
    assert "".join(c.choices[0].delta.content or "" for c in client.chat.completions.create(**ask, stream=True)) == want


def test_a_held_stop_prefix_is_flushed_at_the_limit(client):
    got = client.chat.completions.create(model="fake", messages=user("say:alpha EN"), stop=["ENDING"], max_tokens=8).choices[0]
    assert (got.message.content, got.finish_reason) == ("alpha EN", "length")


def test_n_choices(client):
    ask = {"model": "fake", "messages": user("tell"), "n": 3, "seed": 7, "max_tokens": 24, "temperature": 1.0}
    first, second = (client.chat.completions.create(**ask) for _ in range(2))
    texts = [c.message.content for c in first.choices]
    assert [c.index for c in first.choices] == [0, 1, 2] and len(set(texts)) > 1
    assert texts == [c.message.content for c in second.choices]
    assert first.usage.completion_tokens == 72 and first.usage.prompt_tokens < 40
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(**ask, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


def test_logprobs(client):
    got = client.chat.completions.create(model="fake", messages=user("say:naïve 🫠 okSTOP"), logprobs=True, top_logprobs=5, stop=["STOP"])
    content = got.choices[0].logprobs.content
    assert b"".join(bytes(item.bytes) for item in content).decode() == got.choices[0].message.content == "naïve 🫠 ok"
    for item in content:
        values = [top.logprob for top in item.top_logprobs]
        assert len(values) == 5 and values == sorted(values, reverse=True) and item.logprob <= 0
    without = client.chat.completions.create(model="fake", messages=user("say:ab"), logprobs=True, top_logprobs=0)
    assert [item.top_logprobs for item in without.choices[0].logprobs.content] == [[], []]
    stream = client.chat.completions.create(model="fake", messages=user("say:naïve 🫠 okSTOP"), logprobs=True, stop=["STOP"], stream=True)
    joined = b"".join(bytes(item.bytes) for c in stream for choice in c.choices if choice.logprobs for item in choice.logprobs.content)
    assert joined.decode() == "naïve 🫠 ok"


class Verdict(BaseModel):
    note: str
    score: int
    kind: Literal["good", "bad"]


def test_parse(client):
    got = client.chat.completions.parse(model="fake", messages=user("judge"), response_format=Verdict)
    assert got.choices[0].message.parsed == Verdict(note="x", score=1, kind="good")


@pytest.mark.parametrize(
    "extra, want",
    [
        ({"regex": "abc"}, "abc"),
        ({"choice": ["yes", "no"]}, "yes"),
        ({"json_schema": {"const": 5}}, "5"),
        ({"min_p": 0.1, "top_k": 5}, "hi"),
        ({"priority": 3, "cache_salt": "s", "deadline": 20, "ttft_target": 500, "tpot_target": 20.5}, "hi"),
        ({"chat_template_kwargs": {"a": 1}}, "hi"),
    ],
)
def test_extensions(client, extra, want):
    got = client.chat.completions.create(model="fake", messages=user("say:hi"), extra_body=extra)
    assert got.choices[0].message.content == want


def test_message_shapes(client):
    tools = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    got = client.chat.completions.create(
        model="fake",
        messages=[
            {"role": "developer", "content": [{"type": "text", "text": "be"}, {"type": "text", "text": "kind"}]},
            {"role": "user", "content": "call"},
            {"role": "assistant", "content": None, "tool_calls": [tools]},
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
            {"role": "user", "content": "say:done"},
        ],
    )
    assert got.choices[0].message.content == "done"


def test_continue_final_message(client, http):
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "Sure, say:yes"}]
    got = http.post("/v1/apply-template", json={"messages": messages, "continue_final_message": True}).json()["prompt"]
    assert got.endswith("[assistant]Sure, say:yes")
    chat = client.chat.completions.create(model="fake", messages=messages, extra_body={"continue_final_message": True})
    assert chat.choices[0].message.content == "yes"


# ---- tools

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}


@pytest.mark.parametrize("choice, name", [("required", "get_weather"), ({"type": "function", "function": {"name": "get_time"}}, "get_time")])
@pytest.mark.parametrize("stream", [False, True])
def test_forced_calls(client, choice, name, stream):
    ask = {"model": "fake", "messages": user("weather?"), "tools": [WEATHER, TIME], "tool_choice": choice}
    if stream:
        calls, finish = joined(client.chat.completions.create(**ask, stream=True))
    else:
        got = client.chat.completions.create(**ask).choices[0]
        assert got.message.content is None
        calls, finish = [(c.id, c.function.name, c.function.arguments) for c in got.message.tool_calls], got.finish_reason
    assert finish == "tool_calls" and [c[1] for c in calls] == [name] and calls[0][0].startswith("call_")
    assert json.loads(calls[0][2]) == ({"city": "x", "days": 1} if name == "get_weather" else {})


def joined(stream):
    calls, finish = {}, None
    for chunk in stream:
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                entry = calls.setdefault(call.index, ["", "", ""])
                entry[0] += call.id or ""
                entry[1] += call.function.name or ""
                entry[2] += call.function.arguments or ""
    return [tuple(calls[i]) for i in sorted(calls)], finish


@pytest.mark.parametrize("stream", [False, True])
def test_auto_calls_when_the_model_opens_one(client, stream):
    ask = {"model": "fake", "messages": user("say:Let me see. <tool_call>{..."), "tools": [WEATHER]}
    if stream:
        chunks = list(client.chat.completions.create(**ask, stream=True))
        calls, finish = joined(chunks)
        text = "".join(c.choices[0].delta.content or "" for c in chunks)
    else:
        got = client.chat.completions.create(**ask).choices[0]
        calls, finish, text = (
            [(c.id, c.function.name, c.function.arguments) for c in got.message.tool_calls],
            got.finish_reason,
            got.message.content,
        )
    assert finish == "tool_calls" and text == "Let me see. " and json.loads(calls[0][2]) == {"city": "x", "days": 1}


def test_auto_without_a_call_and_none(client):
    for choice in ("auto", "none"):
        got = client.chat.completions.create(model="fake", messages=user("say:no need"), tools=[WEATHER], tool_choice=choice).choices[0]
        assert got.message.content == "no need" and got.message.tool_calls is None and got.finish_reason == "stop"


def test_tools_are_told_to_the_model(http):
    text = http.post("/v1/apply-template", json={"messages": user("q"), "tools": [WEATHER]}).json()["prompt"]
    assert text.startswith("[system]") and '"get_weather"' in text


def test_n_turns_with_tools(client):
    got = client.chat.completions.create(model="fake", messages=user("q"), tools=[WEATHER], tool_choice="required", n=2)
    assert [json.loads(c.message.tool_calls[0].function.arguments)["days"] for c in got.choices] == [1, 1]


@pytest.mark.parametrize(
    "change, param",
    [
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "strng"}}}},
                    }
                ]
            },
            "tools[0].function.parameters",
        ),
        ({"tools": [{"type": "function", "function": {"name": "two words"}}]}, "tools[0].function.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "nope"}}}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [WEATHER], "response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]}, "tools[0].function.parameters"),
        ({"parallel_tool_calls": True}, "parallel_tool_calls"),
        ({"functions": [{"name": "f"}]}, "functions"),
    ],
)
def test_wrong_tools(http, change, param):
    refused(http.post("/v1/chat/completions", json={"messages": user("q")} | change), param)


# ---- completions


def test_completion(client):
    got = client.completions.create(model="fake", prompt=["say:one", "say:two"], n=2)
    assert [(c.index, c.text) for c in got.choices] == [(0, "one"), (1, "one"), (2, "two"), (3, "two")]
    assert got.usage.prompt_tokens == 16 and got.usage.completion_tokens == 16
    assert client.completions.create(model="fake", prompt="x").choices[0].finish_reason == "length"
    assert client.completions.create(model="fake", prompt=[*b"say:ids"]).choices[0].text == "ids"


def test_completion_echo_and_logprobs(client):
    got = client.completions.create(model="fake", prompt="é say:né", echo=True, logprobs=2, n=2)
    for choice in got.choices:
        probs = choice.logprobs
        assert choice.text == "é say:néné"
        assert probs.tokens[0] == "<s>" and probs.token_logprobs[0] is None and probs.top_logprobs[0] is None
        assert probs.text_offset == [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 7, 8, 9, 9]
        assert all(len(top) == 2 for top in probs.top_logprobs[1:])


def test_completion_stream(client):
    ask = {"model": "fake", "prompt": ["say:né one", "say:two"], "echo": True, "logprobs": 1}
    whole = client.completions.create(**ask)
    texts, offsets = ["", ""], [[], []]
    for chunk in client.completions.create(**ask, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            offsets[choice.index] += choice.logprobs.text_offset if choice.logprobs else []
    assert texts == [c.text for c in whole.choices] and offsets == [c.logprobs.text_offset for c in whole.choices]


def test_prefill_only(client):
    got = client.completions.create(model="fake", prompt="abc", max_tokens=0, echo=True)
    assert got.choices[0].text == "abc" and got.choices[0].finish_reason == "length" and got.usage.completion_tokens == 0


# ---- models and text


def test_models(client, http):
    assert [m.id for m in client.models.list()] == ["fake"] and client.models.retrieve("fake").id == "fake"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4", messages=user("x"))
    with pytest.raises(openai.BadRequestError, match="embeddings"):
        client.embeddings.create(model="fake", input="x")


def test_tokenize(http):
    got = http.post("/tokenize", json={"prompt": "né", "return_token_strs": True}).json()
    assert got["tokens"] == [256, *"né".encode()] and got["count"] == 4 and got["token_strs"][0] == "<s>"
    assert http.post("/v1/tokenize", json={"prompt": "a", "add_special_tokens": False}).json()["tokens"] == [97]
    assert http.post("/detokenize", json={"tokens": got["tokens"]}).json()["text"] == "né"
    refused(http.post("/detokenize", json={"tokens": [99999]}), "tokens")
    messages = http.post("/tokenize", json={"messages": user("hi")}).json()["tokens"]
    assert bytes(messages[1:]) == b"[user]hi\n[assistant]"


# ---- responses


def test_responses(client):
    got = client.responses.create(model="fake", input="say:hello", instructions="be kind")
    assert got.output_text == "hello" and got.status == "completed" and got.usage.output_tokens == 6
    cut = client.responses.create(model="fake", input=[{"role": "user", "content": "say:hello"}], max_output_tokens=2)
    assert cut.output_text == "he" and cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"
    parsed = client.responses.parse(model="fake", input="judge", text_format=Verdict)
    assert parsed.output_parsed == Verdict(note="x", score=1, kind="good")


def test_responses_tools_and_stream(client):
    tool = {"type": "function", **WEATHER["function"]}
    got = client.responses.create(model="fake", input="q", tools=[tool], tool_choice="required")
    assert got.output[0].type == "function_call" and json.loads(got.output[0].arguments) == {"city": "x", "days": 1}
    again = client.responses.create(
        model="fake",
        tools=[tool],
        input=[
            {"role": "user", "content": "q"},
            got.output[0].model_dump(exclude={"id", "status"}, exclude_none=True),
            {"type": "function_call_output", "call_id": got.output[0].call_id, "output": "say:rain"},
        ],
    )
    assert again.output_text == "rain"
    with client.responses.stream(model="fake", input="say:hé <tool_call>", tools=[tool]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_text == "hé " and final.output[1].name == "get_weather"
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 2


@pytest.mark.parametrize(
    "change, param",
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "r"}, "previous_response_id"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://127.0.0.1:1/"}]}]}, "input[0].content[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, None),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_wrong_responses(http, change, param):
    response = http.post("/v1/responses", json={"input": "x"} | change)
    assert response.status_code == 400 and response.json()["error"]["type"] == "invalid_request_error"
    assert param is None or response.json()["error"]["param"] == param, response.text


# ---- refusals: never 500, always the field


def refused(response: httpx.Response, param: str | None, status: int = 400) -> None:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
    assert error["param"] == param, response.text


OK_FORMATS = [None, {"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "x", "schema": True}}]
BAD_SCHEMAS = [
    {"type": "strng"},
    {"type": ["string", 5]},
    {"properties": []},
    {"required": "a"},
    {"type": "string", "pattern": "("},
    {"type": "string", "enum": {}},
    False,
    [],
    "x",
    5,
    None,
]
BAD_FORMATS = [
    {"type": "json_schema"},
    {"type": "json_schema", "json_schema": {"name": "x"}},
    {"type": "xml"},
    {},
    "json",
    5,
    {"type": "json_object", "schema": {}},
    *({"type": "json_schema", "json_schema": {"name": "x", "schema": s}} for s in BAD_SCHEMAS),
]


@pytest.mark.parametrize("form", OK_FORMATS, ids=str)
def test_right_formats(http, form):
    assert http.post("/v1/chat/completions", json={"messages": user("say:{}"), "response_format": form}).status_code == 200


@pytest.mark.parametrize("form", BAD_FORMATS, ids=str)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_wrong_formats(http, form, path):
    prompt = {"messages": user("x")} if "chat" in path else {"prompt": "x"}
    response = http.post(path, json=prompt | {"response_format": form})
    assert response.status_code == 400 and (response.json()["error"]["param"] or "").startswith("response_format"), response.text


CHAT_REFUSED = [
    ("logit_bias", {"999999": 5}),
    ("logit_bias", {"-1": 5}),
    ("logit_bias", {"abc": 1}),
    ("logit_bias", {"5": 1000}),
    ("logit_bias", {"5": None}),
    ("top_logprobs", 21),
    ("top_logprobs", -1),
    ("top_logprobs", 10**9),
    ("top_logprobs", 2),
    ("n", 0),
    ("n", -1),
    ("n", 5_000_000),
    ("temperature", -1),
    ("temperature", 3),
    ("temperature", "hot"),
    ("top_p", -0.1),
    ("top_p", 1.5),
    ("top_k", -5),
    ("top_k", 0),
    ("max_tokens", -1),
    ("max_tokens", 2.5),
    ("max_tokens", "x"),
    ("stop", list("abcde")),
    ("stop", [""]),
    ("stop", [1]),
    ("seed", 2**70),
    ("seed", 1.5),
    ("presence_penalty", 5),
    ("messages", []),
    ("model", ""),
    ("stream_options", {"include_usage": True}),
    ("regex", "("),
    ("stop_regex", "("),
    ("lora_path", "x"),
    ("nonsense", 1),
    ("rid", ""),
    ("deadline", 0),
    ("ttft_target", 0),
    ("tpot_target", "x"),
    ("chat_template", "{{ 1 }}"),
    ("store", True),
    ("messages", [{"role": "king", "content": "x"}]),
    ("best_of", 2),
    ("min_tokens", -1),
    ("stop_token_ids", [10**9]),
]


@pytest.mark.parametrize("name, value", CHAT_REFUSED, ids=str)
def test_out_of_range(http, name, value):
    response = http.post("/v1/chat/completions", json={"messages": user("say:hi")} | {name: value})
    param = response.json()["error"]["param"] or ""
    assert response.status_code == 400 and param.split(".")[0].split("[")[0] == name, response.text


def test_out_of_range_elsewhere(http):
    both = {"messages": user("x"), "max_tokens": 5, "max_completion_tokens": 5}
    assert http.post("/v1/chat/completions", json=both).status_code == 400
    for prompt in ([-1], [999999999], [[]], [], "x" * 5000, [["a"]], {"a": 1}, None, [True]):
        response = http.post("/v1/completions", json={"prompt": prompt})
        assert response.status_code == 400 and response.json()["error"]["param"].startswith("prompt"), response.text
    assert http.post("/v1/completions", json={"prompt": "x", "logprobs": 6}).json()["error"]["param"] == "logprobs"
    for body in (
        b"[]",
        b"{",
        b"\xff\xfe",
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        b"",
        b'"x"',
        b'{"temperature": 1e999}',
        b"[" * 100_000,
    ):
        response = http.post("/v1/chat/completions", content=body)
        assert response.status_code == 400 and response.json()["error"]["type"] == "invalid_request_error", response.text


@pytest.mark.parametrize(
    "extra",
    [
        {"logit_bias": {}},
        {"stop": []},
        {"stop": None},
        {"logprobs": True, "top_logprobs": 0},
        {"temperature": 0},
        {"user": "me"},
        {"top_p": 0},
        {"metadata": {"a": "b"}, "store": False, "service_tier": "auto"},
        {"n": None, "seed": None, "tools": None},
    ],
    ids=str,
)
def test_fine(http, extra):
    assert http.post("/v1/chat/completions", json={"messages": user("say:hi")} | extra).json()["choices"][0]["message"]["content"] == "hi"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/"}},
        {"type": "image_url", "image_url": {"url": "file:///etc/hostname"}},
        {"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}},
        {"type": "text"},
    ],
)
def test_media_is_refused_before_any_fetch(http, part):
    response = http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": [part]}]})
    assert response.status_code == 400 and response.json()["error"]["param"].startswith("messages[0].content[0]"), response.text


def test_the_templates_own_refusal(http):
    refused(http.post("/v1/chat/completions", json={"messages": [*user("x"), {"role": "system", "content": "late"}]}), "messages")


def test_an_error_inside_a_stream_is_an_event(served, http):
    import threading

    body = {"messages": user("slow:0.05;say:" + "x" * 100), "stream": True, "rid": "doomed"}
    timer = threading.Timer(0.5, lambda: http.post("/abort_request", json={"rid": "doomed"}))
    timer.start()
    with served.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = [line for line in response.iter_lines() if line]
    timer.join()
    assert response.status_code == 200 and json.loads(lines[-1][6:])["error"]["code"] == "aborted"


def test_stream_events_are_well_formed(http):
    got = events(http.post("/v1/chat/completions", json={"messages": user("say:hi"), "stream": True}))
    assert {item["id"] for item in got} == {got[0]["id"]} and all(item["object"] == "chat.completion.chunk" for item in got)
