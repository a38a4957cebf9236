"""A server with --cache-dir, ended and started again: the first request finds its prompt where the last server left it."""
from __future__ import annotations

import re

from serving import Served, wait_for
from typer.testing import CliRunner

from ramet.frontend.backends.local import Runtime
from ramet.runtime.cli import app

REAL = "ramet.runtime.server.parts"
PROMPT = "The quick brown fox jumps over the lazy dog, and " * 30


def test_a_restarted_server_is_warm_and_says_why(embedded_model, tmp_path):
    answers = []
    for turn in range(2):
        server = Served("--cache-dir", str(tmp_path / "kv"), "--max-total-tokens", "2048", factory=REAL)
        try:
            with server.client() as http:
                if turn:
                    explained = http.post("/tree/explain", json={"text": PROMPT}).json()
                    assert explained["cached"] == 0 and explained["below"] > 300
                sampling = {"max_new_tokens": 8, "temperature": 0}
                answers.append(http.post("/generate", json={"text": PROMPT, "sampling_params": sampling}).json())
                explained = http.post("/tree/explain", json={"text": PROMPT + "purple"}).json()
                assert explained["cached"] > 300 and "purple" in explained["asked_text"]
                if turn:
                    wait_for(lambda: re.search(r"ramet:loaded_tokens_total [1-9]", http.get("/metrics").text))  # said with the next beat
                    tenants_do_not_share(http)
                drawn = CliRunner().invoke(app, ["tree", server.url])
                assert drawn.exit_code == 0 and "The quick brown fox" in drawn.stdout
        finally:
            assert server.end() == 0, server.log[-2000:]
    cold, warm = answers
    assert warm["text"] == cold["text"]
    prompt_tokens = warm["meta_info"]["prompt_tokens"]
    assert cold["meta_info"]["cached_tokens"] == 0 and warm["meta_info"]["cached_tokens"] >= prompt_tokens - 17


def tenants_do_not_share(http):
    text = "Nobody else may see this prompt, nor how long it took to read it. " * 3
    messages = [{"role": "user", "content": text}]
    ask = {
        "/generate": {"text": text, "sampling_params": {"max_new_tokens": 1}},
        "/v1/completions": {"model": "smollm2-135m", "prompt": text, "max_tokens": 1},
        "/v1/chat/completions": {"model": "smollm2-135m", "messages": messages, "max_tokens": 1},
        "/v1/responses": {"model": "smollm2-135m", "input": text, "max_output_tokens": 16},
    }
    for path, body in ask.items():
        cached = []
        for tenant in ("a" + path, "a" + path, "b" + path):
            answer = http.post(path, json=body | {"tenant": tenant}).json()
            usage = answer.get("usage") or answer["meta_info"]
            details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or usage
            cached.append(details["cached_tokens"])
        assert cached[0] == cached[2] == 0 and cached[1] > 30, (path, cached)
    pin = {"text": text + "Pinned.", "tenant": "c"}
    assert http.post("/pin", json=pin).json()["pinned"] > 30
    assert http.post("/unpin", json=pin | {"tenant": "d"}).json() == {"unpinned": False} and http.post("/unpin", json=pin).json() == {"unpinned": True}
    explained = http.post("/tree/explain", json={"text": text, "tenant": "a/generate"}).json()
    assert explained["cached"] == explained["tokens"]


def test_a_runtime_too(embedded_model, tmp_path):
    options = {"cache_dir": str(tmp_path), "max_total_tokens": 2048}
    with Runtime(**options) as first:
        cold = first.generate(PROMPT, {"max_new_tokens": 4, "temperature": 0})
    with Runtime(**options) as second:
        warm = second.generate(PROMPT, {"max_new_tokens": 4, "temperature": 0})
    assert warm["text"] == cold["text"] and warm["meta_info"]["cached_tokens"] > 300
    with Runtime(**options, kernels="reference") as other:  # KV of other kernels is another model's
        assert other.generate(PROMPT[:200], {"max_new_tokens": 1})["meta_info"]["cached_tokens"] == 0
