"""The embedded model against transformers: the same weights in float32, the same ids, the same logits.

Greedy ids are right when each is the argmax of the oracle's logits over everything before it, so one oracle pass over
prompt and answer checks a whole answer.
"""
from __future__ import annotations

import json
import random

import pytest
import torch

from ramet.runtime.config import EngineConfig
from ramet.runtime.engine import Engine
from ramet.runtime.protocol import Chunk, Constraint, GenerateRequest, SamplingParams

N_NEW = 48
GREEDY = SamplingParams(max_new_tokens=N_NEW, temperature=0.0, ignore_eos=True)
TEXT = (
    "A ramet is one stem of a plant whose stems all grow from one root system. The old gardener wrote down the day on which each of "
    "them broke the ground, how tall it stood in June, and whether the frost had taken its leaves. {} Nobody read the book. "
)


@pytest.fixture(scope="module")
def engine(embedded_model) -> Engine:
    return Engine.open(EngineConfig(model_path=str(embedded_model.path), dtype="float32", max_total_tokens=16384))


def lengths() -> list[int]:
    """40 lengths from 1 to 1,500, most of them short."""
    return sorted({*range(1, 20), *(round(20 * 1.24**i) for i in range(20)), 1500})[:40]


def prompts(engine: Engine) -> list[tuple[int, ...]]:
    rng = random.Random(1)
    text = "".join(TEXT.format(rng.randrange(10**6)) for _ in range(60))
    ids = engine.tokenizer.encode(text)
    return [tuple(ids[start : start + n]) for n in lengths() for start in [rng.randrange(0, len(ids) - n)]]


def run(engine: Engine, requests: list[GenerateRequest], arrivals: random.Random | None = None) -> dict[str, list[Chunk]]:
    chunks: dict[str, list[Chunk]] = {}
    queue = list(requests)
    while queue or engine.busy:
        while queue and (arrivals is None or arrivals.random() < 0.3):
            engine.submit(queue.pop(0))
        for chunk in engine.step():
            assert chunk.error is None, chunk.error
            chunks.setdefault(chunk.rid, []).append(chunk)
    engine.check()
    return chunks


def ids_of(chunks: list[Chunk]) -> tuple[int, ...]:
    return tuple(i for c in chunks for i in c.token_ids)


@pytest.fixture(scope="module")
def answers(engine) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Each prompt alone, cold, in whole."""
    found = {}
    for ids in prompts(engine):
        assert engine.flush_cache()
        found[ids] = ids_of(run(engine, [GenerateRequest("r", ids, GREEDY)])["r"])
    return found


def test_greedy_ids_are_those_of_transformers_and_logits_within_a_thousandth(reference_model, engine, answers):
    assert len(answers) == 40 and max(map(len, answers)) == 1500 and min(map(len, answers)) == 1
    for ids, answer in answers.items():
        with torch.inference_mode():
            logits = reference_model(torch.tensor([ids + answer[:-1]]), logits_to_keep=N_NEW).logits[0]
        assert logits.argmax(-1).tolist() == list(answer), f"prompt of {len(ids)} tokens"
    worst = 0.0
    for ids in [p for p in answers if len(p) in (1, 7, 131)]:
        chunks = run(engine, [GenerateRequest("r", ids, GREEDY, logprobs=True, top_logprobs=50)])["r"]
        with torch.inference_mode():
            truth = torch.log_softmax(reference_model(torch.tensor([ids + answers[ids][:-1]]), logits_to_keep=N_NEW).logits[0], -1)
        for row, position in zip(truth, [p for c in chunks for p in c.logprobs], strict=True):
            worst = max(worst, *(abs(float(row[i]) - value) for i, value in position.top))
    assert worst < 1e-3


@pytest.mark.parametrize(("budget", "some"), [(1, (3, 12, 59)), (7, (1, 8, 74, 171)), (64, (20, 92, 402, 1500))])
def test_chunked_is_the_same_as_whole(engine, answers, budget, some):
    chunked = Engine(engine.runner, engine.tokenizer, EngineConfig(chunked_prefill_size=budget))
    chosen = [min(answers, key=lambda ids: abs(len(ids) - length)) for length in some]
    for ids in chosen:
        assert chunked.flush_cache()
        assert ids_of(run(chunked, [GenerateRequest("r", ids, GREEDY)])["r"]) == answers[ids], f"prompt of {len(ids)} tokens"


def test_cached_is_the_same_as_cold(engine, answers):
    for ids in [p for p in answers if 1 < len(p) < 500][::6]:
        for rid in ("first", "second"):
            chunks = run(engine, [GenerateRequest(rid, ids, GREEDY)])[rid]
            assert ids_of(chunks) == answers[ids]
        assert chunks[-1].usage.cached_tokens == len(ids) - 1


def test_a_batch_of_sixteen_with_arrivals_is_the_same_as_alone(engine, answers):
    batch = Engine(engine.runner, engine.tokenizer, EngineConfig(chunked_prefill_size=96))
    some = [p for p in answers if len(p) < 400][-16:]
    rng = random.Random(2)
    requests = [
        GenerateRequest(f"r{i}", ids, SamplingParams(max_new_tokens=rng.randrange(8, N_NEW), temperature=0, ignore_eos=True))
        for i, ids in enumerate(some)
    ]
    chunks = run(batch, requests, arrivals=rng)
    for request in requests:
        assert ids_of(chunks[request.rid]) == answers[request.prompt][: request.params.max_new_tokens]


def test_a_forced_preemption_changes_nothing(embedded_model, answers):
    small = Engine.open(EngineConfig(model_path=str(embedded_model.path), dtype="float32", max_total_tokens=150))
    some = [p for p in answers if 20 <= len(p) <= 60][:4]
    chunks = run(small, [GenerateRequest(f"r{i}", ids, GREEDY) for i, ids in enumerate(some)])
    assert small.scheduler.retractions > 0
    for i, ids in enumerate(some):
        assert ids_of(chunks[f"r{i}"]) == answers[ids]


PLACE = (
    '{"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "pop": {"type": "integer", "minimum": 0, "maximum": 99999999}, '
    '"tags": {"type": "array", "items": {"enum": ["old", "big"]}, "maxItems": 2}}, "required": ["city", "pop", "tags"], "additionalProperties": false}'
)


def test_jumping_over_forced_text_changes_no_answer_but_by_its_spelling(engine):
    from jsonschema import validate

    forced, passes = 0, {True: 0, False: 0}
    for town in ("Paris", "Oslo", "Lima", "Kyoto", "Cairo", "Quito", "Perth", "Delhi"):
        ids = tuple(engine.tokenizer.encode(f"Facts about {town} as JSON: "))
        found = {}
        for jump in (True, False):
            params = SamplingParams(max_new_tokens=64, temperature=0, constraint=Constraint("json_schema", PLACE), jump_forward=jump)
            before = engine.steps
            chunks = run(engine, [GenerateRequest("r", ids, params)])["r"]
            passes[jump] += engine.steps - before
            text = "".join(c.text for c in chunks)
            validate(json.loads(text), json.loads(PLACE))
            assert engine.tokenizer.decode([i for i in ids_of(chunks) if i not in engine.tokenizer.eos_ids]) == text
            found[jump] = text, ids_of(chunks)
            forced += chunks[-1].usage.forced_tokens
        texts, spellings = zip(found[True], found[False], strict=True)
        split = next((i for i, (a, b) in enumerate(zip(*spellings, strict=False)) if a != b), None)
        if texts[0] != texts[1]:  # only after another spelling of the same text
            assert split is not None
            heads = [engine.tokenizer.decode(s[: split + 1]) for s in spellings]
            assert heads[0].startswith(heads[1]) or heads[1].startswith(heads[0])
    assert forced > 50 and passes[True] <= 0.7 * passes[False]
