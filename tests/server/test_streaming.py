"""Options that change how a stream is cut, or how long a request may take."""

from __future__ import annotations

import pytest
from serving import events

TEXT = "né 漢字 🧑‍🚀 END-beta\\nEN of a longer answer STOP more"
WANT = "né 漢字 🧑‍🚀 END-beta\nEN of a longer answer "


@pytest.fixture(scope="module")
def server():
    from serving import Served

    made = Served("--model-path", "fake", "--stream-interval", "5", "--incremental-streaming-output", "--request-timeout", "1.5")
    assert made.url
    yield made
    made.end()


@pytest.mark.parametrize("interval", [1, 5])
@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions"])
def test_every_cut_gives_the_same_text(served, server, interval, path):
    prompt = f"slow:0.002;say:{TEXT}"
    bodies = {
        "/generate": {"text": prompt, "incremental": True, "sampling_params": {"stop": "STOP"}, "return_logprob": True},
        "/v1/completions": {"prompt": prompt, "max_tokens": 200, "stop": "STOP", "logprobs": 1},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": prompt}], "stop": "STOP", "logprobs": True},
    }
    with (server if interval == 5 else served).client() as client:
        got = events(client.post(path, json=bodies[path] | {"stream": True}))
    if path == "/generate":
        pieces = [item["text"] for item in got]
        tokens = sum(len(item["meta_info"]["output_token_logprobs"]) for item in got)
        assert tokens == len(WANT.encode()) + 4
    elif path == "/v1/completions":
        pieces = [item["choices"][0]["text"] for item in got]
        tokens = sum(len((item["choices"][0]["logprobs"] or {"tokens": []})["tokens"]) for item in got)
        assert tokens == len(WANT.encode())
    else:
        pieces = [item["choices"][0]["delta"].get("content", "") for item in got]
        assert sum(len((item["choices"][0]["logprobs"] or {"content": []})["content"]) for item in got) == len(WANT.encode())
    assert "".join(pieces) == WANT and not any("\ufffd" in piece for piece in pieces)
    if interval == 5:
        assert len(pieces) < len(WANT.encode()) / 3


def test_generate_streams_deltas_by_default_here(server):
    with server.client() as client:
        got = events(client.post("/generate", json={"text": "slow:0.01;say:abcdefghijkl", "stream": True}))
    assert len(got) > 1 and "".join(item["text"] for item in got) == "abcdefghijkl"


@pytest.mark.parametrize("deadline", [None, 20])
def test_the_servers_own_deadline(server, deadline):
    with server.client() as client:
        response = client.post("/generate", json={"text": "slow:0.1;say:" + "x" * 100, "deadline": deadline})
    assert response.status_code == 504 and response.json()["error"]["code"] == "deadline_exceeded"
