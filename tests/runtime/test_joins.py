"""Parallel encoding in the engine: what attends to what, what is computed, what happens when there is no room."""
from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from fakes import FakeRunner, byte_tokenizer, fake_logits
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.batch import ForwardBatch
from ramet.runtime.config import EngineConfig
from ramet.runtime.engine import Engine
from ramet.runtime.errors import CancelledError, EngineError, RequestError, UnsupportedError
from ramet.runtime.protocol import GenerateRequest, SamplingParams, ScoreRequest
from ramet.runtime.scoring import ScoreCollector, score_requests
from ramet.runtime.stats import engine_stats


class Attending(FakeRunner):
    """Its KV of a token is a hash of the token and of the KV that the token attended to: what was seen when, shows."""

    def __init__(self, slots: int = 512, context_length: int = 2048, fail_at: frozenset[int] = frozenset()) -> None:
        super().__init__(slots, context_length, fail_at=fail_at)
        self.kv = np.zeros(slots, dtype=np.int64)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        super().forward(batch)
        inputs, meta = batch.inputs, batch.inputs.attn
        owner = np.repeat(np.arange(len(meta.context_len)), np.diff(meta.query_start.numpy()))
        for row, (token, position, slot) in enumerate(
            zip(inputs.input_ids.tolist(), inputs.positions.tolist(), inputs.write_slots.tolist(), strict=True)
        ):
            self.kv[slot] = seen(self.kv[meta.tables[owner[row], :position].numpy()], token)
        rows = [self.kv[meta.tables[owner[row], : int(inputs.positions[row]) + 1].numpy()] for row in inputs.logit_rows.tolist()]
        logits = [fake_logits(kv, self.vocab_size) for kv in rows]
        return torch.from_numpy(np.array(logits, dtype=np.float32).reshape(len(rows), self.vocab_size))

    def copy_kv(self, source: np.ndarray, target: np.ndarray, shifts: np.ndarray) -> None:
        super().copy_kv(source, target, shifts)
        self.kv[target] = self.kv[source]


def seen(before: np.ndarray, token: int) -> int:
    digest = hashlib.blake2b(np.ascontiguousarray(before, dtype=np.int64).tobytes() + token.to_bytes(8, "little"), digest_size=8)
    return int.from_bytes(digest.digest(), "little", signed=True)


def attend(kv: list[int], ids) -> list[int]:
    """`kv`, and that of the ids after it: each sees all before it."""
    kv = list(kv)
    for token in ids:
        kv.append(seen(np.array(kv, dtype=np.int64), token))
    return kv


def expected(prompt, joined, n: int) -> tuple[int, ...]:
    """Greedy answer by the documented rule: a part sees the prefix and itself, what follows sees everything."""
    kv: list[int] = []
    for prefix, *ends in joined:
        kv = attend(kv, prompt[len(kv) : prefix])
        parts = [attend(kv, prompt[a:b])[prefix:] for a, b in zip([prefix, *ends], ends, strict=False)]
        kv += [one for part in parts for one in part]
    kv = attend(kv, prompt[len(kv) :])
    answer: list[int] = []
    for _ in range(n):
        answer.append(int(fake_logits(np.array(kv, dtype=np.int64), 257).argmax()))
        kv = attend(kv, answer[-1:])
    return tuple(answer)


def engine(slots: int = 512, fail_at: frozenset[int] = frozenset(), **config) -> Engine:
    return Engine(Attending(slots, fail_at=fail_at), byte_tokenizer(), EngineConfig(**config))


def request(rid: str, prompt, joined=(), n: int = 4, **fields) -> GenerateRequest:
    return GenerateRequest(rid, tuple(prompt), SamplingParams(max_new_tokens=n, temperature=0.0, ignore_eos=True), joined=joined, **fields)


def run(eng: Engine, *requests: GenerateRequest, steps: int = 2000) -> dict[str, list]:
    """Steps until all are done, with the invariants checked; the chunks of each."""
    for one in requests:
        eng.submit(one)
    chunks: dict[str, list] = {one.rid: [] for one in requests}
    while eng.busy:
        steps -= 1
        assert steps, "no end"
        for chunk in eng.step():
            chunks[chunk.rid].append(chunk)
        eng.check()
    return chunks


def ids_of(chunks: list) -> tuple[int, ...]:
    assert chunks[-1].error is None, chunks[-1].error
    return tuple(token for chunk in chunks for token in chunk.token_ids)


PREFIX, A, B, C = b"The prefix. ", b"First part.", b"Second, longer part.", b"Third."
PROMPT = PREFIX + A + B + C + b" Question?"
ENDS = (len(PREFIX), len(PREFIX + A), len(PREFIX + A + B), len(PREFIX + A + B + C))


def test_parts_see_the_prefix_and_themselves_and_what_follows_sees_all():
    answer = ids_of(run(engine(), request("r", PROMPT, (ENDS,)))["r"])
    assert answer == expected(PROMPT, (ENDS,), 4)
    assert answer != expected(PROMPT, (), 4)


def test_one_part_is_plain():
    assert ids_of(run(engine(), request("r", PROMPT, (ENDS[:2],)))["r"]) == expected(PROMPT, (), 4)


def test_without_a_prefix_and_with_a_second_join_behind_the_first():
    joined = ((0, 5, 11), (20, 31, 40))
    assert ids_of(run(engine(), request("r", PROMPT, joined))["r"]) == expected(PROMPT, joined, 4)


def test_parts_in_another_order_and_mix_are_not_computed_again():
    eng = engine()
    usage = run(eng, request("r", PROMPT, (ENDS,), 1))["r"][-1].usage
    assert (usage.prompt_tokens, usage.cached_tokens) == (len(PROMPT), 0)
    assert eng.computed_tokens == len(PROMPT)
    before = eng.computed_tokens
    prompt, ends = PREFIX + C + A + b" Other question?", (len(PREFIX), len(PREFIX + C), len(PREFIX + C + A))
    chunks = run(eng, request("s", prompt, (ends,), 1))["s"]
    assert ids_of(chunks) == expected(prompt, (ends,), 1)
    assert eng.computed_tokens - before == len(b" Other question?")
    assert chunks[-1].usage.cached_tokens == len(prompt) - len(b" Other question?")
    before = eng.computed_tokens
    run(eng, request("t", prompt[:-1] + b"!", (ends,), 1))
    assert eng.computed_tokens - before == 1, "the joined prefix with what followed is an entry of its own"


def test_joined_and_plain_prompts_share_nothing_but_parts():
    eng = engine()
    run(eng, request("r", PROMPT, (ENDS,)))
    assert ids_of(run(eng, request("s", PROMPT))["s"]) == expected(PROMPT, (), 4)
    assert ids_of(run(eng, request("t", PROMPT, (ENDS,), cache_salt="other"))["t"]) == expected(PROMPT, (ENDS,), 4)


def test_several_outputs_join_once():
    eng = engine()
    one = GenerateRequest("r", tuple(PROMPT), SamplingParams(max_new_tokens=2, temperature=0.0, n=3), joined=(ENDS,))
    run(eng, one)
    assert eng.joins.joined_tokens == ENDS[-1]


def test_scores_are_those_after_the_joined_prompt():
    eng = engine()
    score = ScoreRequest("s", tuple(PROMPT), ((1, 2), (1, 3, 4), (9,)), joined=(ENDS,))
    parts = score_requests(score)
    collector = ScoreCollector(score, len(parts))
    scores = [found for chunks in run(eng, *parts).values() for chunk in chunks if (found := collector.add(chunk)) is not None]
    prefix = attend([], PREFIX)
    kv = prefix + [one for part in (A, B, C) for one in attend(prefix, part)[len(prefix) :]]
    for option, found in zip(score.options, scores[0].logprobs, strict=True):
        at = attend(kv, PROMPT[ENDS[-1] :])
        for token, logprob in zip(option, found, strict=True):
            row = torch.log_softmax(torch.from_numpy(fake_logits(np.array(at, dtype=np.int64), 257)), 0)
            assert logprob == pytest.approx(float(row[token]), abs=1e-5)
            at = attend(at, [token])


def test_evicted_joins_are_made_again_and_a_retracted_request_resumes():
    eng = engine(slots=150, max_running_requests=4)
    others = [request(f"o{i}", bytes([i]) * 30, n=60) for i in range(4)]
    joined = [request(f"j{i}", PROMPT + bytes([i]), (ENDS,), 40) for i in range(2)]
    chunks = run(eng, *others[:2], *joined, *others[2:])
    for one in (*others, *joined):
        assert ids_of(chunks[one.rid]) == expected(bytes(one.prompt), one.joined, one.params.max_new_tokens), one.rid
    assert eng.scheduler.retractions > 0
    assert ids_of(run(eng, request("again", PROMPT, (ENDS,)))["again"]) == expected(PROMPT, (ENDS,), 4)


def test_two_joins_that_do_not_fit_side_by_side_take_turns():
    eng = engine(slots=2 * ENDS[-1] + 4)
    other, ends = PREFIX + bytes(range(40)), (len(PREFIX), len(PREFIX) + 20, len(PREFIX) + 36)
    chunks = run(eng, request("a", PROMPT, (ENDS,), 3), request("b", other, (ends,), 3), request("c", other, (), 3))
    assert ids_of(chunks["a"]) == expected(PROMPT, (ENDS,), 3)
    assert ids_of(chunks["b"]) == expected(other, (ends,), 3)
    assert ids_of(chunks["c"]) == expected(other, (), 3)


def test_an_abort_while_parts_are_computed_leaves_nothing_behind():
    eng = engine(chunked_prefill_size=8)
    eng.submit(request("r", PROMPT, (ENDS,)))
    eng.step()
    assert engine_stats(eng)["joins"] == {"waiting": 1, "joined_tokens": 0}
    eng.abort("r")
    chunks = [chunk for _ in range(3) for chunk in eng.step()]
    assert [(chunk.rid, type(chunk.error)) for chunk in chunks] == [("r", CancelledError)]
    assert not eng.busy
    assert eng.flush_cache()


def test_a_part_that_fails_is_the_error_of_those_that_wait_for_it():
    eng = engine(fail_at=frozenset({1}))
    chunks = run(eng, request("r", PROMPT, (ENDS,)), request("s", PROMPT, (ENDS,)))
    assert isinstance(chunks["r"][-1].error, EngineError)
    assert isinstance(chunks["s"][-1].error, EngineError)
    assert ids_of(run(eng, request("t", PROMPT, (ENDS,)))["t"]) == expected(PROMPT, (ENDS,), 4)


@pytest.mark.parametrize(
    ("joined", "why"),
    [
        (((3,),), "the end of each part"),
        (((3, 3),), "must ascend"),
        (((3, 9), (8, 12)), "must ascend"),
        (((3, 1.5),), "whole numbers"),
        (((3, len(PROMPT)),), "at least one must follow"),
    ],
)
def test_spans_that_are_none_are_refused_by_name(joined, why):
    with pytest.raises(RequestError, match=why) as caught:
        engine().submit(request("r", PROMPT, joined))
    assert caught.value.field == "joined"


def test_what_cannot_be_is_refused_at_the_door():
    with pytest.raises(RequestError, match="the engine's own"):
        engine().submit(request("(part of a join) 0", PROMPT))
    with pytest.raises(RequestError, match="need 98 slots; the KV pool has 80"):
        engine(slots=80).submit(request("r", PROMPT, (ENDS,)))
    with pytest.raises(RequestError, match="must be token ids"):
        engine().submit(GenerateRequest("r", "text", joined=((1, 2),)))
    with pytest.raises(RequestError, match="logprobs of ids before position 50"):
        engine().submit(request("r", PROMPT, (ENDS,), logprobs=True, logprob_start=49))
    with pytest.raises(UnsupportedError, match="radix cache"):
        engine(disable_radix_cache=True).submit(request("r", PROMPT, (ENDS,)))


@st.composite
def traffic(draw):
    """Prompts of a few chunks in any order below one of two prefixes, some joined, some plain; when each comes, and what is aborted."""
    chunks = [bytes([65 + i]) * draw(st.integers(1, 12)) + bytes([97 + i]) for i in range(4)]
    requests = []
    for i in range(draw(st.integers(1, 6))):
        prompt, ends = draw(st.sampled_from([b"", b"one prefix ", b"the other"])), []
        ends.append(len(prompt))
        for part in draw(st.lists(st.sampled_from(chunks), min_size=1, max_size=4)):
            prompt += part
            ends.append(len(prompt))
        groups = (tuple(ends),)
        if draw(st.booleans()):
            prompt += b"and"
            start = len(prompt)
            prompt += chunks[0] + chunks[1]
            groups += ((start, start + len(chunks[0]), len(prompt)),)
        prompt += draw(st.sampled_from([b"?", b" why?"]))
        joined = groups if draw(st.booleans()) else ()
        requests.append((draw(st.integers(0, 6)), request(f"r{i}", prompt, joined, draw(st.integers(1, 20)), priority=draw(st.integers(0, 1)))))
    return requests, draw(st.dictionaries(st.integers(0, 5), st.integers(0, 8), max_size=2))


@settings(max_examples=150, deadline=None)
@given(traffic(), st.integers(175, 400), st.sampled_from(["lpm", "fcfs", "dfs", "priority"]), st.sampled_from([7, 64]), st.sampled_from(["lru", "lfu", "slru"]))
def test_every_request_ends_with_the_answer_of_the_rule(work, slots, policy, budget, eviction):
    requests, aborts = work
    eng = engine(slots, schedule_policy=policy, chunked_prefill_size=budget, eviction_policy=eviction, max_running_requests=3)
    chunks: dict[str, list] = {one.rid: [] for _, one in requests}
    for now in range(3000):
        for when, one in requests:
            if when == now:
                eng.submit(one)
        for number, when in aborts.items():
            if when == now:
                eng.abort(f"r{number}")
        for chunk in eng.step():
            chunks[chunk.rid].append(chunk)
        eng.check()
        if now > 8 and not eng.busy:
            break
    assert not eng.busy, "no end"
    for _, one in requests:
        end = chunks[one.rid][-1]
        if end.error is None:
            assert ids_of(chunks[one.rid]) == expected(bytes(one.prompt), one.joined, one.params.max_new_tokens)
        else:
            assert isinstance(end.error, CancelledError)
    assert eng.flush_cache()
