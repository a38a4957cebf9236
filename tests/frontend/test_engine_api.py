"""`ramet.Engine`: prompts in, dicts out."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from fakes import fake_engine

import ramet
from ramet.runtime.loop import EngineLoop


@pytest.fixture(scope="module")
def engine():
    made = ramet.Engine.__new__(ramet.Engine)
    made.runtime = ramet.Runtime.on(EngineLoop(fake_engine(4096, 2048)))
    with made:
        yield made


GREEDY = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}


def test_one_prompt(engine):
    result = engine.generate("hello", GREEDY)
    assert set(result) == {"text", "output_ids", "meta_info"} and len(result["output_ids"]) == 6
    meta = result["meta_info"]
    assert meta["prompt_tokens"] == 5 and meta["completion_tokens"] == 6 and meta["finish_reason"]["type"] == "length"
    assert engine.generate(input_ids=list(b"hello"), sampling_params=GREEDY)["output_ids"] == result["output_ids"]


def test_lists_keep_their_order(engine):
    prompts = [f"prompt {i}" for i in range(5)]
    together = engine.generate(prompts, GREEDY)
    assert [r["text"] for r in together] == [engine.generate(p, GREEDY)["text"] for p in prompts]
    lengths = engine.generate(prompts[:2], [{**GREEDY, "max_new_tokens": n} for n in (2, 4)])
    assert [len(r["output_ids"]) for r in lengths] == [2, 4]


def test_several_outputs(engine):
    results = engine.generate("x", {"max_new_tokens": 4, "n": 3, "seed": 7})
    assert len(results) == 3 and len({tuple(r["output_ids"]) for r in results}) > 1


def test_streams_grow(engine):
    texts = [r["text"] for r in engine.generate("hello", GREEDY, stream=True)]
    assert texts[-1] == engine.generate("hello", GREEDY)["text"]
    assert all(b.startswith(a) for a, b in pairwise(texts))
    last = {r["index"]: r["text"] for r in engine.generate(["a", "b"], GREEDY, stream=True)}
    assert last == {i: engine.generate(p, GREEDY)["text"] for i, p in enumerate("ab")}


def test_a_stream_that_is_left_is_aborted(engine):
    stream = engine.generate("hello", {**GREEDY, "max_new_tokens": 1500}, stream=True)
    next(stream)
    stream.close()
    assert engine.generate("still there", GREEDY)["text"]


def test_async(engine):
    async def main():
        one, many = await asyncio.gather(engine.async_generate("hello", GREEDY), engine.async_generate(["a", "b"], GREEDY))
        pieces = [r["text"] async for r in await engine.async_generate("hello", GREEDY, stream=True)]
        return one, many, pieces

    one, many, pieces = asyncio.run(main())
    assert one["text"] == pieces[-1] == engine.generate("hello", GREEDY)["text"] and len(many) == 2


def test_one_bad_item_does_not_kill_the_others(engine):
    results = asyncio.run(engine.async_generate(["a", "", "b"], GREEDY))
    assert isinstance(results[1], ramet.PromptError)
    assert [r["text"] for r in (results[0], results[2])] == [engine.generate(p, GREEDY)["text"] for p in "ab"]
    with pytest.raises(ramet.PromptError):
        engine.generate(["a", "", "b"], GREEDY)


def test_logprobs(engine):
    meta = engine.generate("abc", GREEDY, return_logprob=True, logprob_start_len=0, top_logprobs_num=2, return_text_in_logprobs=True)[
        "meta_info"
    ]
    assert [row[1:] for row in meta["input_token_logprobs"]] == [[97, "a"], [98, "b"], [99, "c"]]
    assert meta["input_token_logprobs"][0][0] is None
    assert all(len(top) == 2 and top[0][0] >= top[1][0] for top in meta["output_top_logprobs"])
    assert [row[1] for row in meta["output_token_logprobs"]] == engine.generate("abc", GREEDY)["output_ids"]


def test_scores(engine):
    rows = engine.score("q", [" a", " b"], [65, 66], apply_softmax=True)
    assert len(rows) == 2 and all(sum(row) == pytest.approx(1.0) for row in rows)


def test_prefill_only(engine):
    result = engine.generate("a long enough prompt", {"max_new_tokens": 0})
    assert result["text"] == "" and result["meta_info"]["completion_tokens"] == 0
    assert engine.generate("a long enough prompt", GREEDY)["meta_info"]["cached_tokens"] == len("a long enough prompt") - 1


@pytest.mark.parametrize(
    ("arguments", "options", "field"),
    [
        ((), {}, "prompt"),
        (("a",), {"input_ids": [1]}, "prompt"),
        (("a", {"temprature": 1}), {}, "temprature"),
        (("a", {"temperature": -1}), {}, "temperature"),
        (("a", {"max_new_tokens": -1}), {}, "max_new_tokens"),
        (("a", {"regex": "a", "json_schema": "{}"}), {}, "json_schema"),
        (("a", {"regex": "("}), {}, "regex"),
        (("a",), {"retrun_logprob": True}, "retrun_logprob"),
        ((["a", "b"], [{}]), {}, "sampling_params"),
        ((["a", "b"],), {"rid": ["x", "x"]}, "rid"),
        ((), {"input_ids": ["a"]}, "input_ids"),
        (("",), {}, "prompt"),
    ],
)
def test_bad_requests(engine, arguments, options, field):
    with pytest.raises(ramet.RequestError) as caught:
        engine.generate(*arguments, **options)
    assert caught.value.field == field


@pytest.mark.parametrize("params", [{"structural_tag": "x"}, {"beam_width": 2}, {"spaces_between_special_tokens": False}])
def test_what_is_not_there_is_refused_by_name(engine, params):
    with pytest.raises(ramet.UnsupportedError) as caught:
        engine.generate("a", params)
    assert caught.value.field in params
    with pytest.raises(ramet.UnsupportedError):
        engine.generate("a", image_data="x.png")


def test_parameters_survive_the_way_to_a_server():
    from ramet.frontend.sampling import from_dict, to_dict
    from ramet.runtime.protocol import Constraint, SamplingParams

    for params in (
        SamplingParams(),
        SamplingParams(max_new_tokens=3, stop=("a", "b"), logit_bias={3: 1.5}, seed=7, finish="free", jump_forward=False, ignore_eos=True),
        SamplingParams(constraint=Constraint("json_schema", '{"type": "null"}', "compact")),
        SamplingParams(constraint=Constraint("choice", '["a", "b"]')),
        SamplingParams(constraint=Constraint("json_object", "")),
        SamplingParams(constraint=Constraint("regex", "a+")),
    ):
        back = from_dict(to_dict(params))
        assert {**to_dict(back)} == to_dict(params) and back.constraint == params.constraint


def test_a_runtime_explains_what_is_cached(engine):
    engine.generate("explain this prompt", {"temperature": 0, "max_new_tokens": 1})
    found = engine.runtime.explain("explain that prompt")
    assert (found["tokens"], found["cached"], found["asked_text"]) == (19, len("explain th"), "at promp")
    assert found["instead_text"][0].startswith("is promp")
    assert engine.runtime.explain(list(b"explain this"))["cached"] == 12
    assert engine.runtime.explain("explain this", cache_salt="other")["cached"] == 0
