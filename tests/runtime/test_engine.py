"""The engine on a model that shows every mistake: answers must equal those of a loop without cache, batch or chunks."""
from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from fakes import EOS, fake_engine, fake_logits

from ramet.runtime.engine import Engine
from ramet.runtime.errors import CancelledError, DeadlineError, EngineError, PromptError, QueueFullError, RequestError
from ramet.runtime.protocol import Chunk, Constraint, GenerateRequest, SamplingParams

GREEDY = SamplingParams(max_new_tokens=12, temperature=0.0, ignore_eos=True)


def prompt(seed: int, n: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(97, 123), k=n))


def expected(ids, n: int, vocab: int = 257) -> tuple[int, ...]:
    """Greedy continuation by the fake model's rule, one id at a time."""
    ids = list(ids)
    start = len(ids)
    for _ in range(n):
        ids.append(int(fake_logits(np.array(ids), vocab).argmax()))
    return tuple(ids[start:])


def run(engine: Engine, requests: list[GenerateRequest]) -> dict[str, list[Chunk]]:
    """Submits all at once and steps to the end; chunks by rid. Checks the cache after every step."""
    for request in requests:
        engine.submit(request)
    chunks: dict[str, list[Chunk]] = {}
    while engine.busy:
        for chunk in engine.step():
            chunks.setdefault(chunk.rid, []).append(chunk)
        engine.check()
    assert engine.cache.evictable + engine.cache.free == engine.cache.capacity
    return chunks


def ids_of(chunks: list[Chunk], index: int = 0) -> tuple[int, ...]:
    return tuple(i for c in chunks if c.index == index for i in c.token_ids)


def one(engine: Engine, ids, params: SamplingParams = GREEDY, rid: str = "r", **fields) -> tuple[tuple[int, ...], Chunk]:
    chunks = run(engine, [GenerateRequest(rid, tuple(ids), params, **fields)])[rid]
    assert chunks[-1].error is None, chunks[-1].error
    return ids_of(chunks), chunks[-1]


@pytest.mark.parametrize("budget", [1, 7, 64, 512])
def test_the_answer_does_not_depend_on_the_chunk_size(budget):
    engine = fake_engine(chunked_prefill_size=budget)
    ids, last = one(engine, prompt(1, 100))
    assert ids == expected(prompt(1, 100), 12)
    assert last.finish.type == "length" and last.usage.prompt_tokens == 100 and last.usage.completion_tokens == 12


def test_a_batch_of_sixteen_with_arrivals_and_finishes_in_between():
    engine = fake_engine(slots=4096, chunked_prefill_size=32)
    rng = random.Random(5)
    todo = [GenerateRequest(f"r{i}", prompt(i % 4, 10) + prompt(100 + i, rng.randrange(1, 60)),
                            SamplingParams(max_new_tokens=rng.randrange(1, 20), temperature=0, ignore_eos=True)) for i in range(16)]
    chunks: dict[str, list[Chunk]] = {}
    queue = list(todo)
    while engine.busy or queue:
        for _ in range(rng.randrange(3)):
            if queue:
                engine.submit(queue.pop(0))
        for chunk in engine.step():
            chunks.setdefault(chunk.rid, []).append(chunk)
        engine.check()
    for request in todo:
        assert ids_of(chunks[request.rid]) == expected(request.prompt, request.params.max_new_tokens)


def test_a_retracted_request_resumes_with_the_same_answer():
    engine = fake_engine(slots=60, chunked_prefill_size=16)
    todo = [GenerateRequest(f"r{i}", prompt(i, 12), SamplingParams(max_new_tokens=30, temperature=0, ignore_eos=True)) for i in range(4)]
    chunks = run(engine, todo)
    assert engine.scheduler.retractions > 0
    assert sum(c[-1].usage.retractions for c in chunks.values()) == engine.scheduler.retractions
    for request in todo:
        assert ids_of(chunks[request.rid]) == expected(request.prompt, 30)


def test_sampled_answers_depend_on_seed_and_position_only():
    params = SamplingParams(max_new_tokens=20, temperature=1.3, seed=7, top_p=0.9, ignore_eos=True)
    alone = one(fake_engine(), prompt(3, 40), params)[0]
    small = fake_engine(slots=90, chunked_prefill_size=5)
    crowd = [GenerateRequest(f"x{i}", prompt(50 + i, 15), SamplingParams(max_new_tokens=25, seed=i, ignore_eos=True)) for i in range(5)]
    chunks = run(small, [*crowd, GenerateRequest("r", prompt(3, 40), params)])
    assert ids_of(chunks["r"]) == alone
    assert one(fake_engine(), prompt(3, 40), SamplingParams(max_new_tokens=20, seed=8, temperature=1.3, ignore_eos=True))[0] != alone


class TestPrefixes:
    def test_the_second_turn_reuses_the_answer_too(self):
        engine = fake_engine(slots=2048)
        first, _ = one(engine, prompt(1, 100), SamplingParams(max_new_tokens=50, temperature=0, ignore_eos=True))
        ids, last = one(engine, prompt(1, 100) + first + prompt(2, 20), rid="second")
        assert last.usage.cached_tokens == 149
        ids, last = one(engine, prompt(1, 100) + first + prompt(2, 20) + ids + prompt(3, 5), rid="third")
        assert last.usage.cached_tokens == 170 + 12 - 1

    @pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 100])
    def test_the_same_prompt_again_gives_the_same_answer_and_logprobs(self, length):
        engine = fake_engine()
        params = SamplingParams(max_new_tokens=8, temperature=0, ignore_eos=True)
        runs = []
        for i in range(4):
            chunks = run(engine, [GenerateRequest(f"r{i}", prompt(9, length), params, logprobs=True, top_logprobs=5)])[f"r{i}"]
            assert chunks[-1].usage.cached_tokens == (0 if i == 0 else length - 1)
            runs.append((ids_of(chunks), [p for c in chunks for p in c.logprobs]))
        assert all(r == runs[0] for r in runs)
        assert one(engine, prompt(9, length) + (97,), params)[0] == expected(prompt(9, length) + (97,), 8)
        if length > 1:
            assert one(engine, prompt(9, length)[:-1], params)[0] == expected(prompt(9, length)[:-1], 8)

    @pytest.mark.parametrize("budget", [64, 512, 2048])
    def test_eight_forks_of_a_long_state_in_one_step_compute_it_once(self, budget):
        engine = fake_engine(slots=4096, chunked_prefill_size=budget)
        root = prompt(4, 1000)
        todo = [GenerateRequest(f"f{i}", root + (97 + i, 98), SamplingParams(max_new_tokens=1, temperature=0)) for i in range(8)]
        chunks = run(engine, todo)
        assert engine.runner.rows == 1000 + 8 * 2
        assert sum(c[-1].usage.cached_tokens for c in chunks.values()) == 7 * 1000
        for request in todo:
            assert ids_of(chunks[request.rid]) == expected(request.prompt, 1)

    def test_without_a_cache_everything_is_computed_and_the_answers_are_the_same(self):
        engine = fake_engine(slots=4096, disable_radix_cache=True)
        todo = [GenerateRequest(f"f{i}", prompt(4, 50) + (97 + i,), GREEDY) for i in range(4)]
        chunks = run(engine, todo)
        assert engine.runner.rows == 4 * (51 + 11)
        assert all(ids_of(chunks[r.rid]) == expected(r.prompt, 12) for r in todo)

    def test_different_salts_never_share(self):
        engine = fake_engine()
        one(engine, prompt(1, 30), rid="a", cache_salt="a")
        assert one(engine, prompt(1, 30), rid="b", cache_salt="b")[1].usage.cached_tokens == 0


class TestLimits:
    def test_what_cannot_fit_is_refused_at_once_and_the_next_request_is_right(self):
        engine = fake_engine(slots=512, context_length=2048)
        with pytest.raises(PromptError, match=r"700 tokens.*KV pool holds 512") as caught:
            engine.submit(GenerateRequest("a", prompt(1, 700), GREEDY))
        assert caught.value.field == "prompt"
        assert one(engine, prompt(2, 5))[0] == expected(prompt(2, 5), 12)

    def test_a_request_that_equals_the_pool_runs(self):
        engine = fake_engine(slots=512, context_length=2048)
        ids, last = one(engine, prompt(1, 10), SamplingParams(max_new_tokens=503, temperature=0, ignore_eos=True))
        assert len(ids) == 503 and last.finish.type == "length"

    def test_more_than_the_pool_holds_is_cut_and_ends_with_length(self):
        engine = fake_engine(slots=64, context_length=2048)
        ids, last = one(engine, prompt(1, 10), SamplingParams(max_new_tokens=2000, temperature=0, ignore_eos=True))
        assert len(ids) == 55 and last.finish.type == "length"
        engine = fake_engine(slots=512, context_length=40)
        assert len(one(engine, prompt(1, 10), SamplingParams(max_new_tokens=2000, temperature=0, ignore_eos=True))[0]) == 30

    def test_one_running_request_and_two_outputs_run_in_sequence(self):
        engine = fake_engine(max_running_requests=1)
        chunks = run(engine, [GenerateRequest("r", prompt(1, 5), SamplingParams(max_new_tokens=5, n=2, seed=1, ignore_eos=True))])["r"]
        assert {c.index for c in chunks if c.finish} == {0, 1}

    def test_a_full_queue_is_an_error_of_its_own(self):
        engine = fake_engine(max_queued_requests=1)
        engine.submit(GenerateRequest("a", prompt(1, 5), GREEDY))
        with pytest.raises(QueueFullError):
            engine.submit(GenerateRequest("b", prompt(1, 5), GREEDY))

    def test_a_second_request_of_the_same_id_is_refused(self):
        engine = fake_engine()
        engine.submit(GenerateRequest("a", prompt(1, 5), GREEDY))
        with pytest.raises(RequestError, match="ids must differ"):
            engine.submit(GenerateRequest("a", prompt(1, 5), GREEDY))

    @pytest.mark.parametrize(("fields", "name"), [
        ({"max_new_tokens": -1}, "max_new_tokens"), ({"temperature": float("nan")}, "temperature"), ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1.0}, "temperature"), ({"top_p": 0.0}, "top_p"), ({"top_p": 1.5}, "top_p"), ({"top_k": 0}, "top_k"),
        ({"top_k": -5}, "top_k"), ({"min_p": 2.0}, "min_p"), ({"n": 0}, "n"), ({"n": 5_000_000}, "n"), ({"seed": 2**70}, "seed"),
        ({"seed": 1.5}, "seed"), ({"logit_bias": {999999: 5.0}}, "logit_bias"), ({"logit_bias": {5: None}}, "logit_bias"),
        ({"frequency_penalty": 3.0}, "frequency_penalty"), ({"repetition_penalty": 0.0}, "repetition_penalty"), ({"stop": ("",)}, "stop"),
        ({"stop": "abc"}, "stop"), ({"stop_regex": ("(",)}, "stop_regex"), ({"stop_token_ids": (-1,)}, "stop_token_ids"),
        ({"min_new_tokens": 200}, "min_new_tokens"), ({"max_new_tokens": True}, "max_new_tokens"),
        ({"constraint": Constraint("regex", "(")}, "regex"), ({"constraint": Constraint("json_schema", '{"type": "strng"}')}, "json_schema"),
    ])  # fmt: skip
    def test_a_bad_parameter_is_refused_by_name(self, fields, name):
        engine = fake_engine()
        with pytest.raises(RequestError) as caught:
            engine.submit(GenerateRequest("a", prompt(1, 5), SamplingParams(**fields)))
        assert caught.value.field == name and name.split("_")[0] in str(caught.value)
        assert not engine.busy

    @pytest.mark.parametrize("ids", [(), (-1,), (257,), (5, "x"), (True,)])
    def test_a_bad_prompt_is_refused(self, ids):
        with pytest.raises(PromptError):
            fake_engine().submit(GenerateRequest("a", ids, GREEDY))


class TestEnds:
    def test_abort_frees_the_slots_at_once(self):
        engine = fake_engine(chunked_prefill_size=16)
        engine.submit(GenerateRequest("a", prompt(1, 100), GREEDY))
        engine.submit(GenerateRequest("b", prompt(2, 20), GREEDY))
        engine.step()
        engine.step()
        engine.abort("a")
        engine.check()
        chunks: list[Chunk] = []
        while engine.busy:
            chunks += engine.step()
        assert [type(c.error) for c in chunks if c.rid == "a"] == [CancelledError]
        assert ids_of([c for c in chunks if c.rid == "b"])[-1] == expected(prompt(2, 20), 12)[-1]
        assert engine.cache.available == engine.cache.capacity and engine.flush_cache() and engine.cache.free == engine.cache.capacity
        engine.abort("never heard of")

    def test_a_deadline_ends_a_request_and_not_its_neighbour(self):
        engine = fake_engine()
        chunks = run(engine, [GenerateRequest("a", prompt(1, 5), GREEDY, deadline=0.0), GenerateRequest("b", prompt(2, 5), GREEDY)])
        assert isinstance(chunks["a"][-1].error, DeadlineError) and isinstance(chunks["a"][-1].error, TimeoutError)
        assert ids_of(chunks["b"]) == expected(prompt(2, 5), 12)

    def test_a_failed_pass_fails_its_requests_and_leaves_nothing_in_the_tree(self):
        engine = fake_engine(fail_at=frozenset({2}), chunked_prefill_size=16)
        chunks = run(engine, [GenerateRequest("a", prompt(1, 30), GREEDY), GenerateRequest("b", prompt(1, 30), GREEDY)])
        assert isinstance(chunks["a"][-1].error, EngineError) and isinstance(chunks["a"][-1].error.__cause__, RuntimeError)
        assert one(engine, prompt(1, 30), rid="c")[0] == expected(prompt(1, 30), 12)

    def test_end_of_text_and_stop_ids(self):
        free = SamplingParams(max_new_tokens=40, temperature=0, logit_bias={EOS: 100.0})
        ids, last = one(fake_engine(), prompt(1, 5), free)
        assert ids == (EOS,) and last.finish.type == "stop" and last.finish.matched == EOS
        ids, last = one(fake_engine(), prompt(1, 5), SamplingParams(max_new_tokens=6, min_new_tokens=4, temperature=0, logit_bias={EOS: 100.0}))
        assert len(ids) == 5 and EOS not in ids[:4]
        ids, last = one(fake_engine(), prompt(1, 5), SamplingParams(max_new_tokens=6, temperature=0, logit_bias={65: 100.0}, stop_token_ids=(65,)))
        assert ids == (65,) and last.finish.matched == 65
        ids, last = one(fake_engine(), prompt(1, 5), SamplingParams(max_new_tokens=6, temperature=0, logit_bias={EOS: 100.0}, ignore_eos=True))
        assert ids == (EOS,) * 6 and last.finish.type == "length"

    def test_max_new_tokens_0_computes_and_keeps_the_prompt(self):
        engine = fake_engine()
        ids, last = one(engine, prompt(1, 20), SamplingParams(max_new_tokens=0))
        assert ids == () and last.finish.type == "length" and last.usage.completion_tokens == 0
        assert one(engine, prompt(1, 20) + (97,), rid="b")[1].usage.cached_tokens == 20


class TestLogprobs:
    @pytest.mark.parametrize("start", [0, 1, 5, 19])
    @pytest.mark.parametrize("budget", [4, 512])
    def test_of_a_prompt_cold_and_cached(self, start, budget):
        engine = fake_engine(chunked_prefill_size=budget)
        ids = prompt(1, 20)
        for rid in ("cold", "cached"):
            params = SamplingParams(max_new_tokens=3, temperature=0, ignore_eos=True)
            chunks = run(engine, [GenerateRequest(rid, ids, params, logprobs=True, logprob_start=start, top_logprobs=2)])[rid]
            found = [p for c in chunks for p in c.prompt_logprobs]
            assert [p.token_id for p in found] == list(ids[start:])
            for position, p in enumerate(found, start):
                if position == 0:
                    assert p.logprob is None
                    continue
                truth = torch.log_softmax(torch.from_numpy(fake_logits(np.array(ids[:position]), 257)), -1)
                assert p.logprob == pytest.approx(float(truth[ids[position]]), abs=1e-5)
                assert [i for i, _ in p.top] == truth.topk(2).indices.tolist()
            out = [p for c in chunks for p in c.logprobs]
            assert tuple(p.token_id for p in out) == ids_of(chunks) == expected(ids, 3)
            assert all(p.top[0] == (p.token_id, p.logprob) for p in out)

    def test_are_raw_under_bias_and_penalties(self):
        params = SamplingParams(max_new_tokens=2, temperature=0, logit_bias={65: 50.0}, frequency_penalty=1.0)
        chunks = run(fake_engine(), [GenerateRequest("r", prompt(1, 4), params, logprobs=True)])["r"]
        first = next(p for c in chunks for p in c.logprobs)
        truth = torch.log_softmax(torch.from_numpy(fake_logits(np.array(prompt(1, 4)), 257)), -1)
        assert first.token_id == 65 and first.logprob == pytest.approx(float(truth[65]), abs=1e-5)

    def test_survive_retraction(self):
        engine = fake_engine(slots=60, chunked_prefill_size=16)
        params = SamplingParams(max_new_tokens=30, temperature=0, ignore_eos=True)
        chunks = run(engine, [GenerateRequest(f"r{i}", prompt(i, 12), params, logprobs=True, logprob_start=3) for i in range(4)])
        assert engine.scheduler.retractions
        for found in chunks.values():
            assert len([p for c in found for p in c.prompt_logprobs]) == 9
            assert tuple(p.token_id for c in found for p in c.logprobs) == ids_of(found)


class TestManyOutputs:
    def test_n_outputs_differ_and_repeat(self):
        params = SamplingParams(max_new_tokens=24, temperature=1.0, seed=7, n=3, ignore_eos=True)
        runs = [run(fake_engine(), [GenerateRequest("r", prompt(1, 10), params)])["r"] for _ in range(2)]
        outputs = [tuple(ids_of(chunks, i) for i in range(3)) for chunks in runs]
        assert outputs[0] == outputs[1] and len(set(outputs[0])) == 3
        assert all(len(o) == 24 for o in outputs[0])
        solo = one(fake_engine(), prompt(1, 10), SamplingParams(max_new_tokens=24, temperature=1.0, seed=7, ignore_eos=True))[0]
        assert solo == outputs[0][0]

    def test_random_seed_makes_unseeded_runs_repeat(self):
        params = SamplingParams(max_new_tokens=10, ignore_eos=True)
        runs = []
        for _ in range(2):
            engine = fake_engine(random_seed=3)
            runs.append([one(engine, prompt(1, 5), params, rid=r)[0] for r in "ab"])
        assert runs[0] == runs[1] and runs[0][0] != runs[0][1]


class TestConstraints:
    def test_masks_fall_on_their_own_rows(self):
        plain = SamplingParams(max_new_tokens=40, temperature=0, ignore_eos=True)
        warm = SamplingParams(max_new_tokens=30, temperature=1.0, seed=3, logit_bias={97: 2.0}, ignore_eos=True)
        alone = {"r1": one(fake_engine(), prompt(1, 9), plain)[0], "r5": one(fake_engine(), prompt(5, 9), warm)[0]}
        for slots, round_ in ((90, 0), (90, 1), (1000, 2)):
            engine = fake_engine(slots=slots)
            digits = SamplingParams(max_new_tokens=20, seed=round_, constraint=Constraint("regex", "[0-9]{8}"))
            choice = SamplingParams(max_new_tokens=20, seed=round_, constraint=Constraint("choice", '["yes", "no"]'))
            chunks = run(engine, [
                GenerateRequest("r1", prompt(1, 9), plain), GenerateRequest("r2", prompt(2, 9), digits),
                GenerateRequest("r4", prompt(4, 9), choice), GenerateRequest("r5", prompt(5, 9), warm),
            ])  # fmt: skip
            text = {rid: "".join(c.text for c in found) for rid, found in chunks.items()}
            assert ids_of(chunks["r1"]) == alone["r1"] and ids_of(chunks["r5"]) == alone["r5"]
            assert len(text["r2"]) == 8 and text["r2"].isdigit() and text["r4"] in ("yes", "no")
            assert chunks["r2"][-1].finish.type == "stop"

    def test_forced_text_needs_no_sampling_and_counts(self):
        params = SamplingParams(max_new_tokens=60, seed=1, constraint=Constraint("regex", "the answer is [0-9]{2}, says the oracle"))
        engine = fake_engine()
        chunks = run(engine, [GenerateRequest("r", prompt(1, 9), params, logprobs=True)])["r"]
        text = "".join(c.text for c in chunks)
        assert text.startswith("the answer is ") and text.endswith(", says the oracle")
        assert ids_of(chunks) == tuple(text.encode())
        assert chunks[-1].usage.forced_tokens == len(text) - 2 and engine.steps <= 5
        off = fake_engine(jump_forward=False)
        again = run(off, [GenerateRequest("r", prompt(1, 9), params, logprobs=True)])["r"]
        assert ids_of(again) == ids_of(chunks) and again[-1].usage.forced_tokens == 0 and off.steps == len(text)
        one_way = [p.logprob for c in chunks for p in c.logprobs]
        assert one_way == pytest.approx([p.logprob for c in again for p in c.logprobs], abs=1e-5)

    def test_ids_that_a_jump_takes_back_may_lie_in_the_tree(self):
        """A repeated request finds its own first answer cached, so that a jump gives back ids whose slots are shared."""
        params = SamplingParams(max_new_tokens=60, temperature=0, constraint=Constraint("regex", "ab[0-9]{1,3}; the end of it all"))
        engine = fake_engine()
        texts = {"".join(c.text for c in run(engine, [GenerateRequest(f"r{i}", prompt(1, 9), params)])[f"r{i}"]) for i in range(3)}
        assert len(texts) == 1
        request = engine.prepare(GenerateRequest("again", prompt(1, 9), params))
        engine.submit(request)
        engine.step()
        shared = request[0].lease.shared
        engine.scheduler.take_back(request[0], shared - 1)
        engine.check()
        assert request[0].computed == shared - 1 == len(request[0].lease.slots)

    def test_a_grammar_that_fails_in_the_middle_fails_its_request_alone(self, monkeypatch):
        engine = fake_engine()
        digits = SamplingParams(max_new_tokens=20, seed=1, constraint=Constraint("regex", "[0-9]{8}"))
        prepared = engine.prepare(GenerateRequest("bad", prompt(2, 9), digits))
        real = prepared[0].matcher

        class Failing:
            def __getattr__(self, name):
                return getattr(real, name)

            def fill(self, row, budget=None):
                raise MemoryError("too many states")

        prepared[0].matcher = Failing()
        engine.submit(prepared)
        chunks = run(engine, [GenerateRequest("good", prompt(1, 9), GREEDY), GenerateRequest("same", prompt(2, 9), digits)])
        assert isinstance(chunks["bad"][-1].error, EngineError) and isinstance(chunks["bad"][-1].error.__cause__, MemoryError)
        assert ids_of(chunks["good"]) == expected(prompt(1, 9), 12)
        assert "".join(c.text for c in chunks["same"]).isdigit()

    @pytest.mark.parametrize("limit", range(9, 40, 3))
    def test_json_is_complete_at_every_budget_that_is_not_refused(self, limit):
        schema = '{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": false}'
        params = SamplingParams(max_new_tokens=limit, temperature=2.0, seed=limit, constraint=Constraint("json_schema", schema))
        chunks = run(fake_engine(), [GenerateRequest("r", prompt(1, 9), params)])["r"]
        import json

        assert isinstance(json.loads("".join(c.text for c in chunks))["a"], str)
        assert chunks[-1].usage.completion_tokens <= limit

    def test_a_budget_below_the_shortest_text_is_refused_with_the_least_that_would_do(self):
        schema = '{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": false}'
        params = SamplingParams(max_new_tokens=3, constraint=Constraint("json_schema", schema))
        with pytest.raises(RequestError, match=r"takes \d+ tokens") as caught:
            fake_engine().submit(GenerateRequest("r", prompt(1, 9), params))
        assert caught.value.field == "max_new_tokens"


class TestStops:
    def force(self, text: str, **fields) -> list[Chunk]:
        import re

        params = SamplingParams(**{"max_new_tokens": 200, "constraint": Constraint("regex", re.escape(text)), **fields})
        return run(fake_engine(), [GenerateRequest("r", prompt(1, 4), params)])["r"]

    @pytest.mark.parametrize("jump", [True, False])
    def test_a_stop_is_trimmed_held_back_and_reported(self, jump):
        text = "alpha END-beta\nEN ENDING gamma"
        chunks = self.force(text, stop=("ENDING",), jump_forward=jump)
        assert "".join(c.text for c in chunks) == "alpha END-beta\nEN "
        assert chunks[-1].finish.type == "stop" and chunks[-1].finish.matched == "ENDING"
        assert "".join(c.text for c in self.force(text, stop=("ENDING", "\n"), jump_forward=jump)) == "alpha END-beta"
        assert "".join(c.text for c in self.force(text, stop=("\nX",), jump_forward=jump)) == text
        cut = self.force(text, stop=("ENDING",), max_new_tokens=17, jump_forward=False)
        assert "".join(c.text for c in cut) == "alpha END-beta\nEN" and cut[-1].finish.type == "length"
        assert "".join(c.text for c in self.force(text, stop=("alpha",), jump_forward=jump)) == ""
        kept = self.force(text, stop=("ENDING",), no_stop_trim=True, jump_forward=jump)
        assert "".join(c.text for c in kept) == "alpha END-beta\nEN ENDING"
        assert "".join(c.text for c in self.force("né 🫠 ok", stop=("🫠",), jump_forward=jump)) == "né "
        found = self.force("abc 123 def", stop_regex=(r"\d+ ",), jump_forward=jump)
        assert "".join(c.text for c in found) == "abc " and found[-1].finish.matched == "123 "


def test_two_thousand_requests_of_every_kind_through_a_small_pool():
    engine = fake_engine(slots=1024, context_length=400, chunked_prefill_size=64, max_running_requests=48)
    rng = random.Random(11)
    kinds = [None, Constraint("regex", "[a-f]{3,9}"), Constraint("choice", '["yes", "no", "maybe"]')]
    requests = {}
    for i in range(2000):
        params = SamplingParams(
            max_new_tokens=rng.randrange(0, 24), temperature=rng.choice([0.0, 1.0]), seed=i, ignore_eos=rng.random() < 0.5,
            constraint=rng.choice(kinds), stop=("e",) if rng.random() < 0.2 else (),
        )  # fmt: skip
        ids = prompt(rng.randrange(12), rng.randrange(1, 60)) + prompt(1000 + i, rng.randrange(0, 40))
        requests[f"r{i}"] = GenerateRequest(f"r{i}", ids, params, priority=rng.randrange(3))
    queue, chunks, aborted = list(requests.values()), {}, set()
    while engine.busy or queue:
        for _ in range(rng.randrange(6)):
            if queue:
                engine.submit(queue.pop())
        if rng.random() < 0.1 and engine._live:
            rid = rng.choice(list(engine._live))
            engine.abort(rid)
            aborted.add(rid)
        for chunk in engine.step():
            chunks.setdefault(chunk.rid, []).append(chunk)
        if rng.random() < 0.05:
            engine.check()
    engine.check()
    assert engine.cache.available == 1024 and set(chunks) == set(requests)
    for rid, request in requests.items():
        last = chunks[rid][-1]
        if rid in aborted:
            assert isinstance(last.error, CancelledError)
            continue
        assert last.error is None
        ids = ids_of(chunks[rid])
        assert last.usage.completion_tokens == len(ids) <= request.params.max_new_tokens
        if request.params.constraint is None and request.params.temperature == 0 and not request.params.stop:
            truth = expected(request.prompt, request.params.max_new_tokens)
            if not request.params.ignore_eos and EOS in truth:
                truth = truth[: truth.index(EOS) + 1]
            assert ids == truth


def test_logprobs_of_a_prompt_of_one_token():
    """Its only id has none, and nothing has to be computed to say so."""
    engine = fake_engine()
    request = GenerateRequest("one", (97,), SamplingParams(max_new_tokens=0), logprobs=True, logprob_start=0)
    (chunk,) = run(engine, [request])["one"]
    assert chunk.finish is not None and [(p.token_id, p.logprob) for p in chunk.prompt_logprobs] == [(97, None)]
    engine.check()
