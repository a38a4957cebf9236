"""The native family: /generate in all its shapes, /score, and the routes that look after the server."""

from __future__ import annotations

import json
import threading
import time

import httpx
import pytest
from serving import events, wait_for


def generate(http, text="say:hi", **body):
    params = body.pop("params", {})
    return http.post("/generate", json={"text": text, "sampling_params": params} | body)


def test_one_prompt(http):
    got = generate(http, "say:hello").json()
    assert got["text"] == "hello" and got["output_ids"] == [*b"hello", 257]
    meta = got["meta_info"]
    assert meta["finish_reason"] == {"type": "stop", "matched": 257} and meta["prompt_tokens"] == 10 and meta["completion_tokens"] == 6
    assert {"id", "cached_tokens", "forced_tokens", "ttft", "tpot", "e2e_latency", "num_retractions"} <= set(meta)


def test_ids_lists_and_n(http):
    assert http.post("/generate", json={"input_ids": [*b"say:ids"]}).json()["text"] == "ids"
    got = http.post("/generate", json={"text": ["say:a", "say:b"], "sampling_params": [{"n": 2}, {"max_new_tokens": 1}]}).json()
    assert [item["text"] for item in got] == ["a", "a", "b"]
    assert http.post("/generate", json={"input_ids": [[*b"say:a"], [*b"say:b"]]}).json()[1]["text"] == "b"
    assert http.put("/generate", json={"text": "say:put"}).json()["text"] == "put"


def test_a_bad_item_does_not_kill_its_batch(http):
    got = http.post("/generate", json={"text": ["say:a", "x" * 5000, "say:c"]}).json()
    assert [item["text"] for item in got] == ["a", "", "c"]
    reason = got[1]["meta_info"]["finish_reason"]
    assert reason["type"] == "abort" and reason["status_code"] == 400 and reason["param"] == "prompt"


def test_prefill_only_and_cached_tokens(http):
    first = generate(http, "a prefix to keep", params={"max_new_tokens": 0}).json()
    assert first["text"] == "" and first["meta_info"]["finish_reason"]["type"] == "length"
    assert generate(http, "a prefix to keep").json()["meta_info"]["cached_tokens"] > 0


def test_logprobs(http):
    meta = generate(http, "abc say:hé", return_logprob=True, logprob_start_len=0, top_logprobs_num=2, return_text_in_logprobs=True).json()["meta_info"]
    assert meta["input_token_logprobs"][0] == [None, 256, "<s>"] and len(meta["input_token_logprobs"]) == meta["prompt_tokens"]
    assert meta["output_token_logprobs"][0] == [-0.5, ord("h"), "h"] and meta["output_token_logprobs_length"] == 4
    assert len(meta["output_top_logprobs"][0]) == 2 and meta["input_top_logprobs"][0] is None
    assert "output_token_logprobs" not in generate(http).json()["meta_info"]


@pytest.mark.parametrize("incremental", [False, True])
def test_stream(http, incremental):
    got = events(generate(http, "slow:0.03;say:né!", stream=True, incremental=incremental))
    texts = [item["text"] for item in got]
    assert ("".join(texts) if incremental else texts[-1]) == "né!"
    assert got[-1]["meta_info"]["finish_reason"]["type"] == "stop" and got[0]["meta_info"]["finish_reason"] is None
    ids = [i for item in got for i in item["output_ids"]] if incremental else got[-1]["output_ids"]
    assert ids == [*"né!".encode(), 257]


def test_stream_of_a_batch(http):
    got = events(http.post("/generate", json={"text": ["say:one", "x" * 5000, "say:two"], "stream": True, "incremental": True}))
    texts = {i: "".join(item["text"] for item in got if item["index"] == i) for i in range(3)}
    assert texts == {0: "one", 1: "", 2: "two"}
    assert [item["meta_info"]["finish_reason"]["type"] for item in got if item["index"] == 1] == ["abort"]


def test_constraints(http):
    for params, want in (
        ({"regex": "ab"}, "ab"),
        ({"choice": ["x", "y"]}, "x"),
        ({"json_schema": '{"const": 1}'}, "1"),
        ({"json_schema": {"const": 1}}, "1"),
        ({"json_object": True}, "{}"),
        ({"json_schema": "", "regex": "", "ebnf": ""}, "hi"),
    ):
        assert generate(http, params=params).json()["text"] == want


@pytest.mark.parametrize(
    "body, param",
    [
        ({}, "text"),
        ({"text": "a", "input_ids": [1]}, "text"),
        ({"text": []}, None),
        ({"text": ["a"] * 300}, "text"),
        ({"text": ["a", "b"], "rid": ["x"]}, "rid"),
        ({"text": ["a", "b"], "rid": ["x", "x"]}, "rid"),
        ({"text": "a", "image_data": "x"}, "image_data"),
        ({"text": "a", "lora_path": "x"}, "lora_path"),
        ({"text": "a", "session_id": "x"}, "session_id"),
        ({"text": "a", "nonsense": 1}, "nonsense"),
        ({"text": "a", "cache_salt": "x", "extra_key": "y"}, "extra_key"),
        ({"text": "a", "sampling_params": 5}, "sampling_params"),
        ({"input_ids": [1.5]}, "input_ids[0]"),
        ({"input_ids": [99999]}, "prompt"),
        ({"text": "a", "deadline": -1}, "deadline"),
        ({"text": "a", "ttft_target": 0}, "ttft_target"),
        ({"text": "a", "tpot_target": "x"}, "tpot_target"),
        ({"text": "abcde", "joined": [[1, 2, 3]]}, "joined"),
        ({"input_ids": [1, 2, 3, 4], "joined": [[1, 2, 4]]}, "joined"),
        ({"input_ids": [[1, 2], [3, 4]], "joined": [[0, 1]]}, "joined"),
        ({"input_ids": [1, 2, 3, 4], "joined": [[1, 2.5]]}, "joined[0][1]"),
        ({"text": ["a"], "sampling_params": [{}, {}]}, "sampling_params"),
        ({"text": "a", "stream": "yes"}, "stream"),
    ],
)
def test_wrong_bodies(http, body, param):
    response = http.post("/generate", json=body)
    if param is None:
        assert response.json() == []
    else:
        assert response.status_code == 400 and response.json()["error"]["param"] == param, response.text


@pytest.mark.parametrize(
    "params, param",
    [
        ({"regex": "a", "choice": ["b"]}, "regex"),
        ({"regex": "("}, "regex"),
        ({"temperature": -1}, "temperature"),
        ({"max_new_tokens": -1}, "max_new_tokens"),
        ({"n": 1000}, "n"),
        ({"n": 0}, "n"),
        ({"structural_tag": "x"}, "structural_tag"),
        ({"beam_width": 4}, "beam_width"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 40}, "stop"),
        ({"stop_regex": "("}, "stop_regex"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"9999": 1}}, "logit_bias"),
        ({"seed": 1, "sampling_seed": 1}, "sampling_seed"),
        ({"min_new_tokens": 9, "max_new_tokens": 3}, "min_new_tokens"),
        ({"temprature": 1}, "temprature"),
    ],
)
def test_wrong_params(http, params, param):
    response = generate(http, params=params)
    assert response.status_code == 400 and (response.json()["error"]["param"] or "").removeprefix("sampling_params.") == param, response.text


def test_neutral_values_of_absent_fields_pass(http):
    body = {"image_data": None, "return_hidden_states": False, "session_params": None, "lora_path": None}
    params = {"spaces_between_special_tokens": True, "custom_params": None, "temperature": None, "stop": None}
    assert generate(http, params=params, **body).json()["text"] == "hi"


def test_score(http):
    got = http.post("/score", json={"text": "Answer:", "options": ["a", "bb"]}).json()
    assert got["option_ids"] == [[97], [98, 98]] and got["scores"] == pytest.approx([-0.97, -1.96])
    assert http.post("/score", json={"input_ids": [1, 2], "options": [[3]]}).json()["logprobs"] == [[pytest.approx(-0.03)]]
    for body, param in (
        ({"text": "a", "options": []}, "options"),
        ({"options": ["a"]}, "text"),
        ({"text": "a", "options": [1]}, "options[0]"),
    ):
        response = http.post("/score", json=body)
        assert response.status_code == 400 and response.json()["error"]["param"].startswith(param), response.text


def test_duplicate_ids(served, http):
    """The second of two requests with one id is refused; the first is not disturbed."""
    answers = []
    first = threading.Thread(target=lambda: answers.append(generate(http, "slow:0.02;say:" + "x" * 20, rid="twin").json()))
    first.start()
    wait_for(lambda: http.get("/loads").json()["open_requests"] == 1)
    second = generate(http, rid="twin")
    first.join()
    assert second.status_code == 400 and second.json()["error"]["param"] == "rid"
    assert answers[0]["text"] == "x" * 20 and answers[0]["meta_info"]["id"] == "twin"


def test_abort(served, http):
    answers = []
    threads = [threading.Thread(target=lambda i=i: answers.append(generate(http, "slow:0.1;say:" + "x" * 100, rid=f"ab-{i}"))) for i in range(2)]
    for thread in threads:
        thread.start()
    wait_for(lambda: http.get("/loads").json()["open_requests"] == 2)
    assert http.post("/abort_request", json={"rid": "ab-"}).json() == {"aborted": 2}
    for thread in threads:
        thread.join()
    assert {a.status_code for a in answers} == {409}
    assert http.post("/abort_request", json={"abort_all": True}).json() == {"aborted": 0}
    assert http.post("/abort_request", json={}).status_code == 400


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_aborts_its_request(served, stream):
    with served.client() as watcher:
        with served.client() as client:
            body = {"text": "slow:0.2;say:" + "x" * 500, "stream": stream, "sampling_params": {"max_new_tokens": 500}}
            if stream:
                with client.stream("POST", "/generate", json=body) as response:
                    next(response.iter_lines())
            else:
                with pytest.raises(httpx.TimeoutException):
                    client.post("/generate", json=body, timeout=0.5)
        wait_for(lambda: watcher.get("/loads").json()["open_requests"] == 0, 3)
        wait_for(lambda: watcher.get("/loads").json()["running"] == 0, 3)


def test_deadline(http):
    started = time.monotonic()
    response = generate(http, "slow:0.1;say:" + "x" * 100, deadline=0.3)
    assert response.status_code == 504 and response.json()["error"]["code"] == "deadline_exceeded" and time.monotonic() - started < 3


def test_flush(served, http):
    generate(http, "flush me")
    thread = threading.Thread(target=lambda: generate(http, "slow:0.05;say:" + "x" * 10))
    thread.start()
    wait_for(lambda: http.get("/loads").json()["open_requests"] == 1)
    assert http.post("/flush_cache").status_code == 409
    assert http.get("/flush_cache", params={"timeout": 10}).json() == {"flushed": True}
    thread.join()
    assert generate(http, "flush me").json()["meta_info"]["cached_tokens"] == 0
    assert http.post("/flush_cache?timeout=-1").status_code == 400 and http.post("/flush_cache?timeout=x").status_code == 400


def test_pin(http):
    assert http.post("/pin", json={"text": "ab", "ttl": 5}).json() == {"tokens": 3, "pinned": 3, "ttl": 5}
    assert http.post("/unpin", json={"text": "ab"}).json() == {"unpinned": True}
    assert http.post("/unpin", json={"text": "ab"}).json() == {"unpinned": False}
    assert http.post("/pin", json={"text": "ab", "ttl": 0}).json()["error"]["param"] == "ttl"


def test_info(http):
    assert http.get("/model_info").json()["model_path"] == http.get("/get_model_info").json()["model_path"] == "fake"
    info = http.get("/server_info").json()
    assert info["context_length"] == 2048 and info["max_sessions"] == 50 and info["load"]["pool"]["slots"] == 4096
    assert http.get("/health").json() == {"status": "ok"} and http.get("/health_generate").status_code == 200
    generate(http, "in the tree")
    tree = http.get("/tree", params={"depth": 3, "min_tokens": 2}).json()
    assert any(child["text"] == "in the tree" for child in tree["roots"][0]["children"])
    assert http.get("/tree?depth=x").json()["error"]["param"] == "depth" and http.get("/tree?depth=0").status_code == 400
    assert http.post("/encode").json()["error"]["code"] == "unsupported"


def test_metrics(http):
    before = values(http)
    generate(http, "say:four", rid="m")
    after = values(http)
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown["ramet:prompt_tokens_total"] == 9 and grown["ramet:generation_tokens_total"] == 5
    assert grown['ramet:num_requests_total{finish_reason="stop"}'] == 1
    assert grown["ramet:time_to_first_token_seconds_count"] == grown["ramet:queue_time_seconds_count"] == grown["ramet:e2e_request_latency_seconds_count"] == 1
    assert grown['ramet:http_requests_total{method="POST",path="/generate",status="200"}'] == 1
    assert after["ramet:max_total_num_tokens"] == 4096 and {
        "ramet:num_running_reqs",
        "ramet:num_queue_reqs",
        "ramet:cache_hit_rate",
        "ramet:evicted_tokens_total",
        "ramet:num_retracted_requests_total",
    } <= set(after)
    http.get("/no/such/path/1")
    http.request("BREW", "/no/such/path/2")
    assert not any("/no/such" in name or "BREW" in name for name in values(http))


def values(http):
    lines = [line.rsplit(" ", 1) for line in http.get("/metrics").text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def test_log_lines_and_request_ids(served, http):
    response = http.post("/v1/completions", json={"prompt": "say:secret words", "user": "me"}, headers={"x-request-id": "trace-1"})
    assert response.headers["x-request-id"] == "trace-1"
    line = wait_for(lambda: [x for x in served.lines() if x.get("request_id") == "trace-1"])[0]
    assert line["status"] == 200 and line["path"] == "/v1/completions" and line["user"] == "me" and line["level"] == "info" and line["seconds"] >= 0
    assert "secret words" not in served.log
    made = http.get("/health").headers["x-request-id"]
    assert len(made) == 32
    assert http.get("/health", headers={"x-request-id": "y" * 500}).headers["x-request-id"] != "y" * 500


def test_what_cannot_fit_is_refused_before_it_is_encoded(http):
    """Millions of tokens cost nobody else anything: the engine never hears of them."""
    text, ids = "a " * 2_000_000, [97] * 1_000_000
    asks = [
        ("/generate", {"text": text}, "text"),
        ("/generate", {"input_ids": ids}, "input_ids"),
        ("/generate", {"input_ids": ids[:5000]}, "input_ids"),
        ("/v1/completions", {"prompt": text}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}, "messages"),
        ("/score", {"text": text, "options": ["a"]}, "text"),
        ("/session", {"text": text}, "text"),
        ("/pin", {"input_ids": ids}, "input_ids"),
    ]
    for path, body, param in asks:
        began = time.monotonic()
        response = http.post(path, json=body)
        assert response.status_code == 400 and response.json()["error"]["param"] == param, (path, response.text[:200])
        assert time.monotonic() - began < 20  # 0.3 s on a quiet machine
    assert http.get("/health").status_code == 200


def test_a_large_body_is_refused_before_it_is_taken_apart(served, http):
    """So many ids, or whatever it is, cannot be of use here; nobody else waits while that is found out."""
    numbers = b"[" + b"1," * 7_000_000 + b"1]"
    for field, path in (("input_ids", "/generate"), ("nonsense", "/generate"), ("messages", "/v1/chat/completions"), ("tokens", "/detokenize")):
        response = http.post(path, content=b'{"%s": %s}' % (field.encode(), numbers))
        assert response.status_code == 400 and response.json()["error"]["param"] == field, field
        assert ("unknown field" in response.json()["error"]["message"]) == (field == "nonsense")
    crowd = [{"role": "user", "content": ""}] * 3000
    assert "more messages than" in http.post("/v1/chat/completions", json={"model": "fake", "messages": crowd}).json()["error"]["message"]
    quoted = [{"role": "user", "content": '"role"' * 3000}]
    assert "characters" in http.post("/v1/chat/completions", json={"model": "fake", "messages": quoted}).json()["error"]["message"]
    commas = http.post("/generate", json={"text": "," * 1_000_000}).json()["error"]
    assert "1000000 characters cannot fit" in commas["message"]
    assert http.post("/generate", json={"text": ["say:ok" + "," * 20] * 256 + ["x"]}).json()["error"]["message"].startswith("257 prompts")


def test_the_batch_as_events(served, http):
    """What runs, as it changes; the stream ends when nobody reads it."""
    with served.client() as client, client.stream("GET", "/batch") as response:
        lines = (json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: "))
        assert next(lines)["requests"] == []
        asking = threading.Thread(target=http.post, args=("/generate",), kwargs={"json": {"text": "slow:0.05;say:" + "x" * 30}})
        asking.start()
        rows, counts = next(lines)["requests"], []
        while rows or not counts:
            counts += [row["output_tokens"] for row in rows]
            rows = next(lines)["requests"]
        assert len(counts) > 2 and counts == sorted(counts)
        asking.join()


def test_streams_say_what_the_prompt_was_from_the_first_event_on(http):
    for incremental in (True, False):
        body = {"text": "slow:0.05;say:abc", "stream": True, "incremental": incremental, "sampling_params": {"max_new_tokens": 9}}
        metas = [e["meta_info"] for e in events(http.post("/generate", json=body))]
        assert len(metas) > 1 and {meta["prompt_tokens"] for meta in metas} == {18}
        assert [meta["completion_tokens"] for meta in metas] == sorted(meta["completion_tokens"] for meta in metas)
