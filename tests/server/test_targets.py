"""Targets and spans on their way through the server: what the engine behind it makes of them."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from serving import Served


@pytest.fixture(scope="module")
def real():
    """The real engine, on a fake model."""
    served = Served("--model-path", "fake", factory="loop_factory", environment={"PYTHONPATH": str(Path(__file__).parents[1])})
    with httpx.Client(base_url=served.url, timeout=60) as client:
        yield client
    served.end()


ROUTES = {
    "/generate": {"text": "some words", "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}},
    "/v1/completions": {"prompt": "some words", "max_tokens": 3, "ignore_eos": True},
    "/session": {"text": "some words", "generate": {"sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}},
}


@pytest.mark.parametrize("target", ["ttft_target", "tpot_target"])
@pytest.mark.parametrize("route", ROUTES)
def test_targets_reach_the_engine_in_milliseconds(real, route, target):
    for value, met in ((1e6, 1), (1e-6, 0)):
        before = real.get("/server_info").json()["goodput"]
        body = dict(ROUTES[route])
        if "generate" in body:
            body["generate"] = body["generate"] | {target: value}
        else:
            body[target] = value
        response = real.post(route, json=body)
        assert response.status_code == 200, response.text
        after = real.get("/server_info").json()["goodput"]
        assert (after["with_targets"] - before["with_targets"], after["met"] - before["met"]) == (1, met)


def test_joined_parts_are_computed_once(real):
    prefix, a, b = [1, 2, 3], list(range(10, 30)), list(range(40, 70))

    def ask(*parts):
        ids, ends = list(prefix), [len(prefix)]
        for part in parts:
            ids += part
            ends.append(len(ids))
        body = {"input_ids": [*ids, 9, 8], "joined": [ends], "sampling_params": {"max_new_tokens": 2}}
        return real.post("/generate", json=body).json()["meta_info"]

    first, second = ask(a, b), ask(b, a)
    assert (first["prompt_tokens"], first["cached_tokens"]) == (55, 0)
    assert (second["prompt_tokens"], second["cached_tokens"]) == (55, 53)
    body = {"input_ids": [*prefix, *a, *b, 9], "joined": [[3, 23, 53]], "options": [[5], [6, 7]]}
    assert real.post("/score", json=body).json()["meta_info"]["cached_tokens"] >= 53
