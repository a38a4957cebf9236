"""A device without memory for a pass: the pass is taken back and tried again in smaller steps; answers are those of a device with enough."""
from __future__ import annotations

import random

import pytest
import torch
from fakes import FakeRunner, byte_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.config import EngineConfig
from ramet.runtime.engine import Engine
from ramet.runtime.errors import EngineError
from ramet.runtime.protocol import Constraint, GenerateRequest, SamplingParams


class TightRunner(FakeRunner):
    """Raises torch.OutOfMemoryError for passes of more than `bears(pass number)` rows, after it has written half of them."""

    def __init__(self, bears, slots: int = 512) -> None:
        super().__init__(slots)
        self.bears, self.tried = bears, []

    def forward(self, batch):
        rows, may = len(batch.inputs.input_ids), self.bears(len(self.tried))
        self.tried.append(rows)
        if rows > may:
            self.token[batch.inputs.write_slots.numpy()] = 7  # what a pass that ended in the middle leaves is wrong
            raise torch.OutOfMemoryError("the fake device is full")
        return super().forward(batch)


def answers(runner, requests, *, aborted=(), **config):
    """(ids, logprobs, finish or error type) by rid. Checks all slots after every step."""
    engine = Engine(runner, byte_tokenizer(), EngineConfig(**config))
    for request in requests:
        engine.submit(request)
    out = {request.rid: [[], [], None] for request in requests}
    steps = 0
    while engine.busy:
        for chunk in engine.step():
            ids, logprobs, _ = out[chunk.rid]
            ids += chunk.token_ids
            logprobs += [*chunk.prompt_logprobs, *chunk.logprobs]
            if chunk.last:
                out[chunk.rid][2] = chunk.finish or type(chunk.error)
                if chunk.usage is not None:
                    assert chunk.usage.cached_tokens <= chunk.usage.prompt_tokens
        engine.check()
        steps += 1
        assert steps < 4000, "no progress"
    assert engine.cache.evictable + engine.cache.free == engine.cache.capacity
    return out, engine


def some_requests(seed: int) -> list[GenerateRequest]:
    """Prompts that share beginnings, some that continue others; sampled, with logprobs, stops and grammars among them."""
    rng = random.Random(seed)
    root = tuple(rng.choices(range(97, 123), k=40))
    requests = []
    for i in range(rng.randint(2, 7)):
        prompt = root[: rng.choice([1, 17, 40])] + tuple(rng.choices(range(97, 123), k=rng.randint(0, 30)))
        kind = rng.randrange(4)
        params = SamplingParams(
            max_new_tokens=rng.randint(0, 14), temperature=rng.choice([0.0, 1.0]), seed=i, stop=("q",) if kind == 1 else (), ignore_eos=True,
            constraint=Constraint("regex", "[a-f]{3,9}(end|fin)") if kind == 2 else None,
        )  # fmt: skip
        logprobs = kind == 3
        requests.append(GenerateRequest(f"r{i}", prompt, params, logprobs=logprobs, logprob_start=0 if logprobs else -1))
    return requests


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000), least=st.integers(1, 40), each=st.sampled_from([1, 2, 3, 5]), radix=st.booleans(),
    slots=st.sampled_from([140, 512]), budget=st.sampled_from([8, 64, 512]),
)  # fmt: skip
def test_answers_are_those_of_a_device_with_enough_memory(seed, least, each, radix, slots, budget):
    requests, options = some_requests(seed), {"disable_radix_cache": not radix, "chunked_prefill_size": budget}
    want, _ = answers(FakeRunner(slots), requests, **options)
    got, _ = answers(TightRunner(lambda n: least if n % each == 0 else 10_000, slots), requests, **options)
    assert got == want


def test_a_pass_is_halved_until_it_fits_and_grows_again():
    runner = TightRunner(lambda n: 10 if n < 5 else 10_000)
    prompt = tuple(range(97, 123)) * 3
    answers(runner, [GenerateRequest("a", prompt, SamplingParams(max_new_tokens=1, ignore_eos=True))], chunked_prefill_size=64)
    assert runner.tried == [64, 32, 16, 8] + [8] * 8 + [6]


def test_a_shortage_that_passed_is_forgotten():
    runner = TightRunner(lambda n: 10 if n < 2 else 10_000, slots=8192)
    long = tuple(random.Random(1).choices(range(97, 123), k=2000))
    answers(runner, [GenerateRequest("a", long, SamplingParams(max_new_tokens=1, ignore_eos=True))], chunked_prefill_size=32)
    assert runner.tried[:3] == [32, 16, 8] and max(runner.tried[3:]) > 12


def test_a_row_that_never_fits_fails_its_request_and_the_engine_lives():
    room = [0]
    runner = TightRunner(lambda n: room[0])
    requests = [GenerateRequest(rid, (97, 98, 99), SamplingParams(max_new_tokens=3, temperature=0.0, ignore_eos=True)) for rid in "ab"]
    out, engine = answers(runner, requests)
    assert out["a"][2] is EngineError and out["b"][2] is EngineError
    assert engine.shortages == len(runner.tried)
    room[0] = 100
    engine.submit(requests[0])
    chunks = []
    while engine.busy:
        chunks += engine.step()
    assert chunks[-1].finish.type == "length" and chunks[-1].error is None


def test_the_error_names_the_cause():
    engine = Engine(TightRunner(lambda n: 0), byte_tokenizer(), EngineConfig())
    with pytest.raises(EngineError, match="no memory for one more token: the fake device is full") as caught:
        for chunk in engine.generate(GenerateRequest("a", (97, 98), SamplingParams(max_new_tokens=1))):
            if chunk.error is not None:
                raise chunk.error
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)
