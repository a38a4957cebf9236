"""What needs an engine but no real model: sentencepiece's spaces, rows that are taken back, passes that take long."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from serving import Served, events, wait_for
from vocabularies import write_sentencepiece

import ramet
from ramet import gen

TESTS = Path(__file__).parents[1]


def start(*options: str) -> Served:
    path = os.pathsep.join(map(str, (TESTS, TESTS / "server")))
    return Served(*options, factory="small_factory", environment={"PYTHONPATH": path})


@pytest.fixture(scope="module")
def spm(tmp_path_factory):
    server = start("--model-path", str(write_sentencepiece(tmp_path_factory.mktemp("spm") / "v.gguf")))
    yield server
    server.end()


LITERAL = " lead  two   three\n\tindent trailing "


@pytest.mark.parametrize("prompt", ["Hello", "Hello ", "", " ", "\n"])
@pytest.mark.parametrize("jump", [True, False])
def test_sentencepiece_keeps_every_space(spm, prompt, jump):
    params = {"regex": re.escape(LITERAL), "max_new_tokens": 200, "jump_forward": jump}
    with spm.client() as http:
        whole = http.post("/generate", json={"text": prompt, "sampling_params": params}).json()
        shown = LITERAL if prompt else LITERAL[1:]  # at the very beginning of a text the space belongs to the first word, by sentencepiece's rule
        assert whole["text"] == shown
        pieces = events(http.post("/generate", json={"text": prompt, "sampling_params": params, "stream": True, "incremental": True}))
        assert "".join(piece["text"] for piece in pieces) == shown
        ids = http.post("/tokenize", json={"prompt": prompt, "add_special_tokens": True}).json()["tokens"]
        assert http.post("/detokenize", json={"tokens": ids + whole["output_ids"]}).json()["text"] == prompt + shown


def test_two_gens_of_a_program_on_sentencepiece(spm):
    @ramet.function
    def program(s):
        s += "hello " + gen("a", regex=re.escape(LITERAL), max_tokens=200) + " and" + gen("b", regex=re.escape("  hello two"), max_tokens=60)

    with ramet.RuntimeEndpoint(spm.url) as backend:
        state = program.run(backend=backend)
        assert state.text() == "hello " + LITERAL + " and" + "  hello two"
        assert backend.decode(state.token_ids()) == state.text()


def test_rows_that_are_taken_back_keep_what_is_theirs():
    """Masks, penalties, seeds and bias stay with their requests while others end, and while some are retracted for want of room."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}, "required": ["a", "b"], "additionalProperties": False}
    greedy = {"temperature": 0, "max_new_tokens": 40, "ignore_eos": True}
    asks = [
        greedy,
        {"regex": "[0-9]{8}", "max_new_tokens": 20},
        {"json_schema": schema, "max_new_tokens": 60},
        {"choice": ["yes", "no"], "max_new_tokens": 8},
        {"temperature": 1, "seed": 3, "logit_bias": {"65": 4, "66": -4}, "max_new_tokens": 40, "ignore_eos": True},
        greedy | {"frequency_penalty": 1.5, "max_new_tokens": 60},
        greedy | {"max_new_tokens": 70},
    ]
    server = start("--model-path", "slow-0", "--max-total-tokens", "144", "--context-length", "128", "--schedule-conservativeness", "0")
    try:
        with server.client() as http, ThreadPoolExecutor(len(asks)) as pool:

            def one(i: int, wait: float = 0.0) -> dict:
                time.sleep(wait)
                return http.post("/generate", json={"text": f"Row {i} of them:", "sampling_params": asks[i]}).json()

            alone = [one(i)["output_ids"] for i in range(len(asks))]
            taken_back = 0
            for repeat in range(8):
                got = list(pool.map(one, range(len(asks)), [0.007 * ((i * 3 + repeat) % 7) for i in range(len(asks))]))
                taken_back += sum(each["meta_info"]["num_retractions"] for each in got)
                for i in (0, 4, 5, 6):
                    assert got[i]["output_ids"] == alone[i], i
                assert re.fullmatch("[0-9]{8}", got[1]["text"]) and got[3]["text"] in ("yes", "no")
                assert set(json.loads(got[2]["text"])) == {"a", "b"}
            assert taken_back > 0  # else this showed nothing

            def whole() -> bool:
                slots = http.get("/loads").json()["pool"]
                return slots["free"] + slots["evictable"] == slots["slots"]

            wait_for(whole)
    finally:
        server.end()


def test_health_during_a_long_prefill():
    """Probes answer at once, all the time, and are no load: nothing of them is left to do when the pass is over."""
    server = start("--model-path", "slow-3")
    try:
        with server.client() as http:
            asking = threading.Thread(target=httpx.post, args=(server.url + "/generate",), kwargs={"json": {"text": "x" * 60}, "timeout": 60})
            begun = time.monotonic()
            asking.start()
            probes = 0
            while asking.is_alive():
                before = time.monotonic()
                assert http.get("/health").status_code == 200
                assert time.monotonic() - before < 2
                probes += 1
                time.sleep(0.25)
            assert time.monotonic() - begun > 3 and probes > 4
            assert http.get("/loads").json()["steps"] < 130 and http.get("/loads").json()["open_requests"] == 0
    finally:
        server.end()
