"""One set of programs over every backend: the engine in this process, a server by its own and by OpenAI's API, and a script."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

import httpx
import pytest
from fakes import fake_engine
from serving import Served, wait_for

import ramet
from ramet import gen, select
from ramet.runtime.loop import EngineLoop

TESTS = Path(__file__).parents[1]


def serve(model):
    path = os.pathsep.join(map(str, (TESTS, TESTS / "server")))
    served = Served("--model-path", model, factory="loop_factory", environment={"PYTHONPATH": path})
    yield served.url
    served.end()


@pytest.fixture(scope="module")
def server():
    yield from serve("fake")


@pytest.fixture(scope="module")
def letters():
    """A server whose model writes letters only: text is all that crosses OpenAI's API, so it must say which ids it was."""
    yield from serve("letters")


@pytest.fixture(params=["local", "http", "fake", "openai"])
def backend(request):
    if request.param == "local":
        opened = ramet.Runtime.on(EngineLoop(fake_engine(4096, 2048)))
    elif request.param == "http":
        opened = ramet.RuntimeEndpoint(request.getfixturevalue("server"))
    elif request.param == "openai":
        url = request.getfixturevalue("letters") + "/v1"
        opened = ramet.OpenAI("letters", is_chat_model=False, base_url=url, api_key="none", extensions=True)
        run(lambda s: s.__iadd__("x" + gen("a")) and None, opened)  # the client has a thread of its own from its first call on
    else:
        opened = ramet.Fake(logits=lambda ids: {i: ((i * 31 + len(ids) * 7 + sum(ids[-3:])) % 97) / 7 for i in range(257)})
    before = threading.active_count()
    yield opened
    wait_for(lambda: threading.active_count() <= before, 5)
    opened.shutdown()


def run(body, backend, **options):
    return ramet.function(body).run(backend=backend, temperature=0, max_new_tokens=8, **options)


def test_two_gens_and_what_was_cached(backend):
    def body(s):
        s += "The first prompt of all:" + gen("a", ignore_eos=True)
        s += "\nand more:" + gen("b", ignore_eos=True)

    state = run(body, backend)
    first, second = state.get_meta_info("a"), state.get_meta_info("b")
    assert first["completion_tokens"] == second["completion_tokens"] == 8
    assert second["prompt_tokens"] == first["prompt_tokens"] + 8 + len("\nand more:")
    assert second["cached_tokens"] >= first["prompt_tokens"] + 8 - 1
    assert state.text().startswith("The first prompt of all:") and state.text().endswith(state["b"])
    again = run(body, backend)
    assert (again["a"], again["b"]) == (state["a"], state["b"])
    assert {"ttft", "tpot", "e2e_latency", "forced_tokens", "finish_reason", "id"} <= set(second)


def test_forks_share_and_differ(backend):
    def body(s):
        s += "A common beginning for all of them. " * 4
        forks = s.fork(4)
        forks += lambda i: f"{i}:" + gen("v", ignore_eos=True)
        forks.join()
        return s["v"], [f.get_meta_info("v")["cached_tokens"] for f in forks]

    values, cached = run(body, backend).ret_value
    assert len(values) == 4 and len(set(values)) > 1
    assert sorted(cached)[1] > 100  # all but the first find the beginning


def test_concatenated_branches_keep_the_ids_that_were_generated(backend):
    def body(s):
        s += "Three, one after the other:"
        forks = s.fork(3)
        forks += lambda i: f" {i})" * (i > 0) + gen("v", ignore_eos=True)
        base = len("Three, one after the other:")
        forks.join("concatenate")
        s += "." + gen("w", ignore_eos=True)
        return [f.token_ids()[base:] for f in forks]

    state = run(body, backend)
    own = sum(state.ret_value, ())
    begin = len(state.token_ids()) - len(own) - 1 - 8
    assert state.token_ids()[begin : begin + len(own)] == own
    assert state.get_meta_info("w")["prompt_tokens"] == begin + len(own) + 1


def test_branches_joined_apart_are_not_computed_again(backend):
    base = "What is known about them all, in a few words:"

    def body(s):
        s += base
        forks = s.fork(3)
        forks += lambda i: f" chunk number {i}, which says " + gen("v", ignore_eos=True)
        forks.join("concate_and_append")
        s += "." + gen("w", ignore_eos=True) + select("x", ["yes", "no"])

    if isinstance(backend, ramet.OpenAI):
        with pytest.raises(ramet.UnsupportedError, match="this backend cannot join"):
            run(body, backend)
        return
    state = run(body, backend)
    meta = state.get_meta_info("w")
    assert meta["prompt_tokens"] == len(state.token_ids()) - 8 - len(state["x"])
    if not isinstance(backend, ramet.Fake):  # a branch's last id was drawn and never computed, and of the last branch it is not needed
        assert meta["prompt_tokens"] - meta["cached_tokens"] == 2 + 2
        assert state.get_meta_info("x")["cached_tokens"] >= meta["prompt_tokens"] + 7


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        ("Answer:", [" Yes", " Yes, but", " No"]),
        ("", ["a", "aa", "b"]),
        ("x ", ["y", "z"]),
        ("n:", ["item-1", "item-10", "item-2"]),
        ("f:", ["🙂", "no\nface"]),
        ("o:", ["only"]),
        ("s:", ["p", "p", "q"]),
        ("e:", ["", "x"]),
    ],
)
def test_select_scores_each_option_as_if_it_were_alone(backend, prompt, options):
    def body(s, choices):
        s += prompt
        s += select("v", choices)

    program = ramet.function(body)
    if not prompt and isinstance(backend, ramet.OpenAI):
        with pytest.raises(ramet.UnsupportedError, match="first token"):
            program.run(options, backend=backend)
        return
    for _ in range(2):
        state = program.run(options, backend=backend)
        assert state["v"] in options and state.text() == prompt + state["v"]
        for option, score in zip(options, state.get_meta_info("v")["scores"], strict=True):
            alone = program.run([option], backend=backend).get_meta_info("v")["scores"][0]
            assert score == pytest.approx(alone, abs=1e-3)


def test_select_goes_on_from_the_choice(backend):
    def body(s):
        s += "pick" + select("v", ["one", "two"]) + " then" + gen("w", ignore_eos=True)
        s += gen("again", ignore_eos=True)

    state = run(body, backend)
    meta = state.get_meta_info("w")
    assert meta["cached_tokens"] >= len("pick") and backend.decode(state.token_ids()) == state.text()


def test_logprobs(backend):
    if isinstance(backend, ramet.OpenAI):
        with pytest.raises(ramet.UnsupportedError, match="return_logprob"):
            run(lambda s: s.__iadd__("x" + gen("a", return_logprob=True)) and None, backend)
        return
    state = run(lambda s: s.__iadd__("x" + gen("a", max_tokens=3, ignore_eos=True, return_logprob=True)) and None, backend)
    rows = state.get_meta_info("a")["output_token_logprobs"]
    assert len(rows) == 3 and all(row[0] < 0 and isinstance(row[1], int) and row[2] is None for row in rows)


def test_stops_are_trimmed_and_ids_kept(backend):
    whole = run(lambda s: s.__iadd__("seed" + gen("a", max_tokens=30, ignore_eos=True)) and None, backend)["a"]
    stop = next(c for i, c in enumerate(whole) if i >= 3 and c != "\ufffd" and c not in whole[:i])

    def body(s):
        s += "seed" + gen("a", max_tokens=30, ignore_eos=True, stop=stop)
        s += "!" + gen("b", ignore_eos=True)

    state = run(body, backend)
    assert state["a"] == whole[: whole.index(stop)]
    assert state.get_meta_info("a")["finish_reason"] == {"type": "stop", "matched": stop}
    assert state.get_meta_info("b")["cached_tokens"] >= state.get_meta_info("a")["prompt_tokens"]


def test_choices_by_constraint_and_several_outputs(backend):
    def body(s):
        s += "c:" + gen("c", n=2)

    state = ramet.function(body).run(backend=backend, max_new_tokens=4, seed=5, ignore_eos=True)
    assert len(state["c"]) == 2 and state.text().endswith(state["c"][0])


def test_streams(backend):
    state = ramet.function(lambda s: s.__iadd__("stream:" + gen("a", ignore_eos=True)) and None).run(
        backend=backend, temperature=0, max_new_tokens=12, stream=True
    )
    assert "".join(state.text_iter("a")) == state["a"]


def test_batches(backend):
    @ramet.function
    def body(s, i):
        s += f"item {i}:" + gen("a", ignore_eos=True)
        s += s["a"] + gen("b", ignore_eos=True)
        return s["b"]

    states = body.run_batch([(i,) for i in range(40)], backend=backend, temperature=0, max_new_tokens=4)
    assert [s.ret_value for s in states[:3]] == [body.run(i, backend=backend, temperature=0, max_new_tokens=4).ret_value for i in range(3)]


def test_awaited_runs(backend):
    @ramet.function
    def body(s, i):
        s += f"item {i}:" + gen("a", ignore_eos=True)
        return s["a"]

    async def main():
        return [
            s.ret_value for s in await asyncio.gather(*(body.arun(i, backend=backend, temperature=0, max_new_tokens=4) for i in range(8)))
        ]

    assert len(asyncio.run(main())) == 8


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        (lambda: gen("a"), ramet.PromptError),
        (lambda: "x" + gen("a", stop_token_ids=[10**6], logit_bias={10**6: 1.0}), ramet.RequestError),
        (lambda: "y" * 5000 + gen("a"), ramet.RequestError),
    ],
)
def test_refused_requests_are_typed_and_the_next_is_right(backend, expression, error):
    if isinstance(backend, ramet.Fake) and error is ramet.RequestError:
        pytest.skip("a script has no limits")
    start = time.monotonic()
    with pytest.raises(error):
        run(lambda s: s.__iadd__(expression()) and s["a"], backend)
    assert time.monotonic() - start < 5
    assert run(lambda s: s.__iadd__("fine" + gen("a", ignore_eos=True)) and s["a"], backend).ret_value


def test_cancelled_runs_leave_nothing_behind(backend):
    state = ramet.function(lambda s: s.__iadd__("long:" + gen("a", max_tokens=1500, ignore_eos=True)) and s["a"]).run(
        backend=backend, temperature=0, stream=True
    )
    if isinstance(backend, ramet.Fake):
        pytest.skip("its answer is there at once")
    next(state.text_iter("a"))
    state.cancel()
    with pytest.raises(ramet.CancelledError):
        _ = state["a"] + state.text()
    if isinstance(backend, ramet.OpenAI):
        wait_for(lambda: httpx.get(str(backend.get_server_info()["base_url"]).replace("/v1/", "/loads")).json()["running"] == 0, 5)
        return
    deadline = time.monotonic() + 5
    while not backend.flush_cache():  # false as long as the request runs
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_flush_and_info(backend):
    if isinstance(backend, ramet.OpenAI):
        with pytest.raises(ramet.UnsupportedError, match="flush_cache"):
            ramet.flush_cache(backend)
    else:
        assert ramet.flush_cache(backend) is True
    assert ramet.get_server_info(backend)["model_path"]


def test_a_server_that_is_not_there():
    with pytest.raises(ramet.BackendError, match="ramet serve"):
        ramet.RuntimeEndpoint("http://127.0.0.1:9")
