"""The server on the embedded model: OpenAI's client, and faults that need a real tokenizer, grammar and scheduler."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import httpx
import jsonschema
import openai
import pytest
from pydantic import BaseModel
from serving import Served, events, wait_for

REAL = "ramet.runtime.server.parts"


@pytest.fixture(scope="module")
def real(embedded_model):
    server = Served("--context-length", "2048", "--max-total-tokens", "8192", factory=REAL)
    assert server.url
    yield server
    server.end()


@pytest.fixture(scope="module")
def client(real):
    with openai.OpenAI(base_url=real.url + "/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture
def http(real):
    with real.client() as made:
        yield made


def user(text):
    return [{"role": "user", "content": text}]


def test_chat_and_its_stream(client):
    ask = {"model": "smollm2-135m", "messages": user("Say hello."), "temperature": 0, "max_tokens": 12}
    whole = client.chat.completions.create(**ask)
    text = "".join(c.choices[0].delta.content or "" for c in client.chat.completions.create(**ask, stream=True))
    assert text == whole.choices[0].message.content != ""
    again = client.chat.completions.create(**ask)
    assert again.usage.prompt_tokens_details.cached_tokens == again.usage.prompt_tokens - 1 and again.choices[0].message.content == text


class City(BaseModel):
    name: str
    size: Literal["small", "large"]
    founded: int


def test_parse(client):
    got = client.chat.completions.parse(model="smollm2-135m", messages=user("Describe Rome."), response_format=City, temperature=0, max_tokens=80)
    assert isinstance(got.choices[0].message.parsed, City) and got.choices[0].finish_reason == "stop"
    assert got.usage.completion_tokens_details.model_extra["forced_tokens"] > 0


@pytest.mark.parametrize("stream", [False, True])
def test_tools_always_parse(client, stream):
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    tools = [
        {"type": "function", "function": {"name": "forecast", "parameters": schema}},
        {"type": "function", "function": {"name": "now"}},
    ]
    ask = {
        "model": "smollm2-135m",
        "messages": user("Weather in Oslo for 3 days?"),
        "tools": tools,
        "tool_choice": "required",
        "temperature": 1.0,
        "seed": 5,
        "max_tokens": 200,
    }
    if stream:
        calls: dict[int, list[str]] = {}
        for chunk in client.chat.completions.create(**ask, stream=True):
            for call in chunk.choices[0].delta.tool_calls or []:
                entry = calls.setdefault(call.index, ["", ""])
                entry[0] += call.function.name or ""
                entry[1] += call.function.arguments or ""
        found = [tuple(calls[i]) for i in sorted(calls)]
    else:
        got = client.chat.completions.create(**ask).choices[0]
        assert got.finish_reason in ("tool_calls", "length")
        found = [(c.function.name, c.function.arguments) for c in got.message.tool_calls]
    assert found
    for name, arguments in found:
        jsonschema.validate(json.loads(arguments), schema if name == "forecast" else {"type": "object", "maxProperties": 0})


def test_logprobs(client):
    text = "naïve 🫠 ok"
    ask = {"model": "smollm2-135m", "messages": user("x"), "logprobs": True, "top_logprobs": 5, "n": 2, "max_tokens": 40}
    got = client.chat.completions.create(**ask, extra_body={"regex": re.escape(text).replace("\\ ", " ")})
    for choice in got.choices:
        content = choice.logprobs.content
        assert choice.message.content == text and b"".join(bytes(item.bytes) for item in content).decode() == text
        for item in content:
            values = [top.logprob for top in item.top_logprobs]
            assert len(values) == 5 and values == sorted(values, reverse=True) and -9999 <= item.logprob <= 0
    greedy = client.chat.completions.create(model="smollm2-135m", messages=user("Hi"), logprobs=True, top_logprobs=2, temperature=0, max_tokens=6)
    assert all(item.token == item.top_logprobs[0].token for item in greedy.choices[0].logprobs.content)
    plain = client.completions.create(model="smollm2-135m", prompt="One two three", echo=True, logprobs=5, max_tokens=4, temperature=0).choices[0]
    assert plain.logprobs.token_logprobs[0] is None and all(len(top) == 5 for top in plain.logprobs.top_logprobs[1:])
    for token, offset in zip(plain.logprobs.tokens, plain.logprobs.text_offset, strict=True):
        assert plain.text[offset : offset + len(token)] == token


def literal(http, text, **body):
    """The model is made to say `text`."""
    params = {"regex": re.escape(text).replace("\\ ", " ").replace("\\\n", "\\n"), "max_new_tokens": 100} | body.pop("params", {})
    return http.post("/generate", json={"text": "x", "sampling_params": params, **body})


@pytest.mark.parametrize("text", ["né 漢字 🧑‍🚀🫠 ok", " lead  two   three\n\tindent trailing "])
@pytest.mark.parametrize("jump", [True, False])
def test_streams_show_whole_characters_and_every_space(http, text, jump):
    whole = literal(http, text, params={"jump_forward": jump}).json()
    pieces = [item["text"] for item in events(literal(http, text, stream=True, incremental=True, params={"jump_forward": jump}))]
    assert "".join(pieces) == whole["text"] == text and not any("\ufffd" in piece for piece in pieces)
    assert http.post("/detokenize", json={"tokens": whole["output_ids"]}).json()["text"] == text


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_prompt_that_ends_inside_a_character(http, size):
    ids = http.post("/tokenize", json={"prompt": "ab", "add_special_tokens": False}).json()["tokens"]
    emoji = http.post("/tokenize", json={"prompt": "🫠", "add_special_tokens": False}).json()["tokens"][:size]
    got = http.post("/generate", json={"input_ids": ids + emoji, "sampling_params": {"max_new_tokens": 6, "temperature": 0}}).json()
    streamed = events(http.post("/generate", json={"input_ids": ids + emoji, "stream": True, "sampling_params": {"max_new_tokens": 6, "temperature": 0}}))
    assert streamed[-1]["text"] == got["text"] and not got["text"].startswith("ab")


@pytest.mark.parametrize(
    "stop, want, finish",
    [
        (["ENDING"], "alpha END-beta\nEN ", "stop"),
        (["ENDING", "\n"], "alpha END-beta", "stop"),
        (["\nX"], "alpha END-beta\nEN ENDING gamma", "stop"),
        (["alpha"], "", "stop"),
    ],
)
@pytest.mark.parametrize("jump", [True, False])
def test_stop(http, stop, want, finish, jump):
    ask = {"params": {"stop": stop, "jump_forward": jump, "finish": "free"}}
    got = literal(http, "alpha END-beta\nEN ENDING gamma", **ask).json()
    assert (got["text"], got["meta_info"]["finish_reason"]["type"]) == (want, finish)
    pieces = events(literal(http, "alpha END-beta\nEN ENDING gamma", stream=True, incremental=True, **ask))
    assert "".join(item["text"] for item in pieces) == want


def test_n_and_seeds(client):
    for extra in ({}, {"extra_body": {"regex": "[a-z]{4,12}"}}):
        ask = {"model": "smollm2-135m", "messages": user("A word?"), "n": 3, "seed": 7, "temperature": 1.0, "max_tokens": 24, **extra}
        first, second = (client.chat.completions.create(**ask) for _ in range(2))
        texts = [c.message.content for c in first.choices]
        assert [c.index for c in first.choices] == [0, 1, 2] and len(set(texts)) > 1 and texts == [c.message.content for c in second.choices]
        assert not extra or all(re.fullmatch("[a-z]{4,12}", text) for text in texts)


def test_rows_keep_their_own_constraints(http):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer", "maximum": 99, "minimum": 0}},
        "required": ["a"],
        "additionalProperties": False,
    }
    asks = [
        {"temperature": 0, "max_new_tokens": 24},
        {"regex": "[0-9]{8}"},
        {"json_schema": schema},
        {"choice": ["yes", "no"]},
        {"temperature": 1.0, "seed": 3, "logit_bias": {"260": 5}, "max_new_tokens": 24},
    ]

    def ask(params):
        with httpx.Client(base_url=str(http.base_url), timeout=60) as own:
            return own.post("/generate", json={"text": "Count with me:", "sampling_params": params}).json()["text"]

    solo = [ask(asks[0]), ask(asks[4])]
    with ThreadPoolExecutor(5) as pool:
        for _ in range(2):
            plain, digits, doc, choice, drawn = pool.map(ask, asks)
            assert [plain, drawn] == solo and re.fullmatch("[0-9]{8}", digits) and choice in ("yes", "no")
            jsonschema.validate(json.loads(doc), schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "strng"},
        {"type": ["string", 5]},
        {"properties": []},
        {"required": "a"},
        {"type": "string", "pattern": "("},
        {"enum": {}},
        {"type": "string", "minLength": "3"},
        False,
        {"$ref": "#"},
        {"$ref": "https://127.0.0.1:9/x.json"},
    ],
)
def test_broken_schemas(real, http, schema):
    before = real.worker_pid()
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": schema}}}}
    fine_inside = schema is False or schema == {"$ref": "#"}  # a property that may not be there; the object itself again
    for body in ({"response_format": form}, *([] if fine_inside else [{"tools": [tool]}])):
        response = http.post("/v1/chat/completions", json={"messages": user("x"), "max_tokens": 5} | body)
        assert response.status_code == 400 and response.json()["error"]["type"] == "invalid_request_error", response.text
        assert response.json()["error"]["param"] in ("response_format", "tools[0].function.parameters")
    assert real.worker_pid() == before


@pytest.mark.parametrize(
    "params, param",
    [
        ({"logit_bias": {"999999": 5}}, "logit_bias"),
        ({"stop_token_ids": [10**8]}, "stop_token_ids"),
        ({"regex": "(?P<a>x)(?P=a)"}, "regex"),
        ({"lark": "start: nope"}, "lark"),
    ],
)
def test_refusals(http, params, param):
    response = http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2} | params)
    assert response.status_code == 400 and response.json()["error"]["param"] == param, response.text


def test_one_token(http):
    for params in ({}, {"n": 2}, {"regex": "[a-z]{3,9}"}):
        got = http.post("/generate", json={"text": "Hi", "stream": True, "sampling_params": {"max_new_tokens": 1, "temperature": 0.5, **params}})
        last = [item for item in events(got) if item["meta_info"]["finish_reason"]]
        assert all(item["meta_info"]["completion_tokens"] == 1 for item in last) and len(last) == params.get("n", 1)


def test_a_slow_grammar_and_a_long_prefill_hold_nobody_up(http, real):
    """While a large prompt is computed and a grammar that explodes is compiled, health answers and others go on."""
    words = "word " * 1900
    with ThreadPoolExecutor(3) as pool:
        prefill = pool.submit(lambda: httpx.post(real.url + "/generate", json={"text": words, "sampling_params": {"max_new_tokens": 1}}, timeout=120))
        grammar = pool.submit(
            lambda: httpx.post(
                real.url + "/generate",
                json={"text": "x", "sampling_params": {"regex": "(a|b)*a(a|b){20}", "max_new_tokens": 2}},
                timeout=120,
            )
        )
        for _ in range(5):
            began = time.monotonic()
            assert http.get("/health").status_code == 200 and time.monotonic() - began < 1
            time.sleep(0.1)
        assert prefill.result().status_code == 200 and grammar.result().status_code in (200, 400)


def test_sessions_recompute_nothing(http):
    name = http.post("/session", json={"text": "A list of ten animals: cat, dog,"}).json()["session_id"]
    first = http.post(f"/session/{name}/generate", json={"sampling_params": {"max_new_tokens": 10, "temperature": 0, "ignore_eos": True}}).json()
    second = http.post(f"/session/{name}/generate", json={"append": " and", "sampling_params": {"max_new_tokens": 5, "temperature": 0}}).json()
    assert second["meta_info"]["cached_tokens"] >= first["tokens"] - 1
    assert http.post("/flush_cache?timeout=10").status_code == 200


def test_requests_that_never_fit(embedded_model):
    """A context of 2048 and a pool of 512: what cannot fit is refused at once, what can ends."""
    server = Served("--context-length", "2048", "--max-total-tokens", "512", "--max-running-requests", "1", factory=REAL)
    try:
        with server.client() as http:
            ids = [5] * 700
            began = time.monotonic()
            too_long = http.post("/generate", json={"input_ids": ids})
            assert too_long.status_code == 400 and too_long.json()["error"]["param"] == "prompt" and time.monotonic() - began < 2
            fits = http.post("/generate", json={"input_ids": ids[:10], "sampling_params": {"max_new_tokens": 20, "n": 2}})
            assert len(fits.json()) == 2
            whole = http.post(
                "/generate",
                json={"input_ids": ids[:500], "sampling_params": {"max_new_tokens": 2000, "ignore_eos": True, "temperature": 0}},
            ).json()
            assert whole["meta_info"]["finish_reason"]["type"] == "length" and whole["meta_info"]["completion_tokens"] == 13
            aborted_streams(http, server.url, rounds=6)
            pins_survive(http)
    finally:
        server.end()


def pins_survive(http):
    prefix = {"input_ids": list(range(1000, 1100))}
    assert http.post("/pin", json=prefix | {"ttl": 60}).json()["pinned"] == 100
    for i in range(3):
        http.post("/generate", json={"input_ids": [2000 + i] * 300, "sampling_params": {"max_new_tokens": 1}})
    again = http.post("/generate", json={"input_ids": [*prefix["input_ids"], 5], "sampling_params": {"max_new_tokens": 1}}).json()
    assert again["meta_info"]["cached_tokens"] == 100
    wait_for(lambda: http.get("/loads").json()["pinned_tokens"] == 100, 3)
    assert http.post("/unpin", json=prefix).json() == {"unpinned": True}


def aborted_streams(http, url, rounds):
    """Streams that are left after 0, 1 or 5 pieces; then no slot is missing, and a prompt that needs nearly all of them fits."""
    draw = random.Random(1)

    def leave(prompt, pieces):
        body = {"input_ids": prompt, "stream": True, "sampling_params": {"max_new_tokens": 30, "ignore_eos": True}}
        with httpx.Client(base_url=url, timeout=30) as own, own.stream("POST", "/generate", json=body) as response:
            lines = response.iter_lines()
            for _ in range(pieces):
                next(lines)

    base = [draw.randrange(1000, 2000) for _ in range(60)]
    for _ in range(rounds):
        prompts = [[*base[: draw.randrange(1, 60)], draw.randrange(1000, 2000)] for _ in range(4)]
        threads = [threading.Thread(target=leave, args=(p, draw.choice((0, 1, 5)))) for p in prompts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def at_rest():  # one that was left before it was read may come, and be aborted, after the others
        loads = http.get("/loads").json()
        pool = loads["pool"]
        return loads["running"] == loads["waiting"] == 0 and pool["free"] + pool["evictable"] == pool["slots"] == 512

    wait_for(at_rest, 10)
    assert http.post("/flush_cache").json() == {"flushed": True}
    wait_for(lambda: http.get("/loads").json()["pool"]["free"] == 512, 5)
    assert http.post("/generate", json={"input_ids": [7] * 505, "sampling_params": {"max_new_tokens": 2}}).status_code == 200


def test_crowds_get_their_own_text(real):
    """Many streams at once, some left early: each that ends equals its twin without a stream."""
    draw = random.Random(2)
    prompts = [f"{i}. The animal that likes the number {i} is" for i in range(12)]
    params = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}

    def whole(prompt):
        return httpx.post(real.url + "/generate", json={"text": prompt, "sampling_params": params}, timeout=60).json()["text"]

    def stream(job):
        prompt, pieces = job
        text = ""
        with (
            httpx.Client(base_url=real.url, timeout=60) as own,
            own.stream("POST", "/generate", json={"text": prompt, "stream": True, "incremental": True, "sampling_params": params}) as response,
        ):
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    text += json.loads(line[6:])["text"]
                    pieces -= 1
                    if pieces == 0:
                        return None
        return text

    jobs = [(prompt, draw.choice((-1, -1, 2))) for prompt in prompts for _ in range(2)]
    with ThreadPoolExecutor(24) as pool:
        streamed = list(pool.map(stream, jobs))
        twins = dict(zip(prompts, pool.map(whole, prompts), strict=True))
    assert sum(text is None for text in streamed) > 2
    assert all(text is None or text == twins[prompt] for (prompt, _), text in zip(jobs, streamed, strict=True))


def test_a_program_on_the_server(real):
    import ramet

    @ramet.function
    def judge(s, essay):
        s += ramet.system("You judge essays.") + ramet.user("Essay: " + essay)
        forks = s.fork(2)
        for fork, what in zip(forks, ("clarity", "style"), strict=True):
            fork += ramet.user(f"Judge the {what}.") + ramet.assistant(ramet.gen("note", max_tokens=8))
        forks.join()
        s += ramet.user("Good?") + ramet.assistant(ramet.select("verdict", choices=["yes", "no"]))
        return s["note"]

    with ramet.RuntimeEndpoint(real.url) as backend:
        state = judge.run(essay="Once upon a time.", backend=backend, temperature=0)
        assert len(state.ret_value) == 2 and state["verdict"] in ("yes", "no")
        assert backend.flush_cache() in (True, False)


@pytest.mark.parametrize("extra, pattern", [({"lark": 'start: "a" | "b" N\nN: /[0-9]{2}/'}, "a|b[0-9]{2}"), ({"ebnf": 'root ::= "yes" | "no"'}, "yes|no")])
def test_context_free_grammars(client, extra, pattern):
    got = client.completions.create(model="smollm2-135m", prompt="Hi", max_tokens=9, extra_body=extra)
    assert re.fullmatch(pattern, got.choices[0].text) and got.choices[0].finish_reason == "stop"


def test_whitespace_cannot_run_away(http):
    """Every token of whitespace is preferred; the document ends all the same."""
    size = http.get("/server_info").json()["vocab_size"]
    texts = http.post("/detokenize", json={"tokens": [198]}).json()
    assert texts["text"] == "\n" and size > 1000
    schema = {
        "type": "object",
        "properties": {"k": {"type": "integer"}, "l": {"type": "array", "items": {"type": "integer"}, "maxItems": 2}},
        "required": ["k", "l"],
        "additionalProperties": False,
    }
    params = {"json_schema": schema, "whitespace": "flexible", "max_new_tokens": 200, "temperature": 0, "logit_bias": {"198": 100, "216": 100, "197": 100}}
    got = http.post("/generate", json={"text": "JSON:", "sampling_params": params}).json()
    assert got["meta_info"]["finish_reason"]["type"] == "stop" and not re.search(r"\s{40}", got["text"])
    jsonschema.validate(json.loads(got["text"]), schema)


EXPLOSIVE = [
    {"regex": "(a{1000}){1000}"},
    {"regex": "((a{0,100}){0,100}){0,100}"},
    {"regex": "(a|b)*a(a|b){20}"},
    {"regex": "(.*,){25}x"},
    {"regex": '(?:[^"]*coder){3}[^"]{0,300}'},
    {"json_schema": {"type": "array", "maxItems": 10000, "items": {"type": "string", "maxLength": 1000}}},
    {"json_schema": {"type": "string", "enum": [f"{i:04d}" for i in range(10000)], "maxLength": 4}},
]


def test_other_streams_go_on_while_grammars_explode(real, http):
    gaps: list[float] = []
    over = threading.Event()

    def plain() -> None:
        body = {"text": "Once", "stream": True, "sampling_params": {"max_new_tokens": 200, "ignore_eos": True}}
        while not over.is_set():
            with real.client() as own, own.stream("POST", "/generate", json=body) as response:
                last = 0.0
                for line in response.iter_lines():
                    if line.startswith("data: {"):
                        now = time.monotonic()
                        gaps.append(now - last if last else 0.0)
                        last = now

    thread = threading.Thread(target=plain)
    thread.start()
    wait_for(lambda: len(gaps) > 5, 30)
    for params in EXPLOSIVE:
        began = time.monotonic()
        response = http.post("/generate", json={"text": "x", "sampling_params": params | {"max_new_tokens": 20, "finish": "free"}})
        assert response.status_code in (200, 400) and time.monotonic() - began < 15, params
    over.set()
    thread.join()
    assert max(gaps) < 2, sorted(gaps)[-5:]  # 0.1 s on a quiet machine


def test_a_stop_whose_bytes_lie_in_several_tokens(http):
    ask = {"params": {"stop": ["🫠"], "finish": "free"}}
    got = literal(http, "ab 🫠 cd", **ask).json()
    assert got["text"] == "ab " and got["meta_info"]["finish_reason"] == {"type": "stop", "matched": "🫠"}
    assert "".join(item["text"] for item in events(literal(http, "ab 🫠 cd", stream=True, incremental=True, **ask))) == "ab "


def test_an_answer_cut_inside_a_character(http):
    """Wherever the limit falls, the stream says what the whole answer says, with at most one U+FFFD, at its end."""
    whole = literal(http, "🧑‍🚀🫠").json()
    for limit in range(1, len(whole["output_ids"])):
        ask = {"params": {"max_new_tokens": limit, "finish": "free", "jump_forward": False, "temperature": 0}}
        text = literal(http, "🧑‍🚀🫠", **ask).json()["text"]
        pieces = [item["text"] for item in events(literal(http, "🧑‍🚀🫠", stream=True, incremental=True, **ask))]
        assert "".join(pieces) == text and "\ufffd" not in text[:-1], (limit, pieces)
