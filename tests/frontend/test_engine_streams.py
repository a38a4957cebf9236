"""Streams and refusals of `generate`: what is dropped is aborted, and nobody else's request is."""
from __future__ import annotations

import asyncio
import time

import pytest
from fakes import fake_engine

import ramet
from ramet.frontend.engine import async_generate, generate
from ramet.runtime.loop import EngineLoop

LONG = {"max_new_tokens": 1500, "ignore_eos": True}


@pytest.fixture
def runtime():
    loop = EngineLoop(fake_engine(slots=4096))
    with ramet.Runtime.on(loop) as made:
        yield made
    loop.close()


def running(runtime) -> int:
    end = time.monotonic() + 5
    while (count := runtime.get_server_info()["running"]) and time.monotonic() < end:
        time.sleep(0.01)
    return count


def test_a_refused_rid_leaves_its_owner_alone(runtime):
    stream = generate(runtime, "Once", {"max_new_tokens": 300, "ignore_eos": True}, rid="r", stream=True)
    next(stream)
    with pytest.raises(ramet.RequestError, match="ids must differ"):
        generate(runtime, "x", rid="r")
    assert list(stream)[-1]["meta_info"]["completion_tokens"] == 300


def test_where_one_prompt_is_refused_the_others_do_not_run_on(runtime):
    with pytest.raises(ramet.PromptError):
        generate(runtime, ["good", ""], LONG, stream=True)
    assert running(runtime) == 0


def test_a_stream_that_is_dropped_before_its_first_result_is_aborted(runtime):
    stream = generate(runtime, "Once", LONG, stream=True)
    del stream
    assert running(runtime) == 0


def test_an_async_stream_ends_with_its_loop(runtime):
    async def take_one() -> None:
        async for _ in await async_generate(runtime, "Once", LONG, stream=True):
            return

    asyncio.run(take_one())
    assert running(runtime) == 0


@pytest.mark.parametrize(("call", "field"), [
    ({"prompt": 5}, "prompt"), ({"prompt": "a", "sampling_params": "xx"}, "sampling_params"), ({"prompt": "a", "rid": 5}, "rid"),
    ({"prompt": "a", "rid": ""}, "rid"), ({"prompt": None, "input_ids": 7}, "input_ids"),
])  # fmt: skip
def test_what_is_of_the_wrong_type_is_named(runtime, call, field):
    with pytest.raises(ramet.RequestError) as caught:
        generate(runtime, **call)
    assert caught.value.field == field


def test_a_batch_ends_with_its_first_error(runtime):
    @ramet.function
    def program(s, i):
        if i == 3:
            raise ValueError("no")
        s += "x" + ramet.gen("a", max_tokens=3500, ignore_eos=True)

    begun = time.monotonic()
    with pytest.raises(ValueError, match="no") as caught:
        program.run_batch([(i,) for i in range(4)], backend=runtime)
    assert time.monotonic() - begun < 5 and "item 3" in caught.value.__notes__[0]
