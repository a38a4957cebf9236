"""Joined KV against transformers, which computes the documented rule in one pass: a mask says who sees what, positions where it stands."""
from itertools import pairwise

import numpy as np
import pytest
import torch
from fakes import byte_tokenizer
from tiny_models import FAMILIES, save

from ramet.kernels.reference import ReferenceKernels
from ramet.radix_cache.pool import KVPool
from ramet.runtime.config import EngineConfig
from ramet.runtime.engine import Engine
from ramet.runtime.hub import resolve
from ramet.runtime.model_runner import ModelRunner
from ramet.runtime.models.llama import LlamaModel
from ramet.runtime.models.rope import RopeScaling, rope_table, turn_by
from ramet.runtime.protocol import GenerateRequest, SamplingParams
from ramet.runtime.weights import load_model


def open_engine(folder, dtype=torch.float32) -> Engine:
    loaded = load_model(resolve(folder), EngineConfig())
    shape, kernels = loaded.config, ReferenceKernels("test")
    pool = KVPool(layers=shape.n_layers, slots=512, kv_heads=shape.n_kv_heads, head_dim=shape.head_dim, dtype=dtype)
    return Engine(ModelRunner(LlamaModel(shape, loaded.weights, kernels), pool, kernels, shape.context_length), byte_tokenizer(), EngineConfig())


def logprobs(engine: Engine, prompt: list[int], joined=()) -> torch.Tensor:
    """Of all ids after the prompt."""
    request = GenerateRequest(
        "r", tuple(prompt), SamplingParams(max_new_tokens=1, temperature=0.0), token_ids_logprob=tuple(range(97)), joined=joined
    )
    chunks = list(engine.generate(request))
    assert chunks[-1].error is None, chunks[-1].error
    engine.check()
    return torch.tensor([logprob for _, logprob in sorted(chunks[0].first_logprobs)])


def rule(model, prompt: list[int], ends: tuple[int, ...]) -> torch.Tensor:
    """One pass over the prompt and, for each part, a copy of the prefix that only it sees, as far before it as the prefix was
    when the part was computed. Embeddings are relative, so a copy of the prefix is the prefix."""
    prefix, total = ends[0], len(prompt)
    ids, positions = list(prompt), list(range(total))
    sees = torch.zeros(total, total, dtype=torch.bool)
    sees[:prefix, :prefix] = torch.ones(prefix, prefix).tril().bool()
    sees[ends[-1] :] = torch.ones(total, total).tril().bool()[ends[-1] :]
    blocks = list(pairwise(ends))
    for start, stop in blocks:
        sees[start:stop, start:stop] = torch.ones(stop - start, stop - start).tril().bool()
    size = total + prefix * len(blocks)
    mask = torch.zeros(size, size, dtype=torch.bool)
    mask[:total, :total] = sees
    for i, (start, stop) in enumerate(blocks):
        copy = slice(total + i * prefix, total + (i + 1) * prefix)
        mask[copy, copy] = torch.ones(prefix, prefix).tril().bool()
        mask[start:stop, copy] = True
        ids += prompt[:prefix]
        positions += range(start - prefix, start)
    bias = torch.zeros(size, size).masked_fill(~mask, torch.finfo(torch.float32).min)
    with torch.no_grad():
        out = model(torch.tensor([ids]), attention_mask=bias[None, None], position_ids=torch.tensor([positions]))
    return out.logits[0, total - 1].log_softmax(0)


PROMPT = torch.randint(0, 97, (120,), generator=torch.Generator().manual_seed(1)).tolist()
ENDS = (20, 43, 80, 105)


@pytest.mark.parametrize("name", ["llama tied", "llama, linear rope", "llama 3", "llama, yarn", "qwen3"])
def test_joined_prompts_equal_transformers_with_the_mask_of_the_rule(name, tmp_path):
    model = save(FAMILIES[name], tmp_path)
    engine = open_engine(tmp_path)
    plain = logprobs(engine, PROMPT)
    ours, theirs = logprobs(engine, PROMPT, (ENDS,)), rule(model, PROMPT, ENDS)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
    assert (ours - plain).abs().max() > 1e-3, "joined and plain prompts must differ, or nothing is shown"
    torch.testing.assert_close(logprobs(engine, PROMPT, (ENDS[:2],)), plain, atol=1e-5, rtol=0)
    order = PROMPT[:20] + PROMPT[80:105] + PROMPT[20:43] + PROMPT[105:]
    before = engine.computed_tokens
    torch.testing.assert_close(logprobs(engine, order, ((20, 45, 68),)), rule(model, order, (20, 45, 68)), atol=1e-4, rtol=0)
    assert engine.computed_tokens - before == 15, "parts that are there are not computed again"


def test_a_bfloat16_pool_rounds_keys_once_more(tmp_path):
    model = save(FAMILIES["llama tied"], tmp_path)
    engine = open_engine(tmp_path, torch.bfloat16)
    torch.testing.assert_close(logprobs(engine, PROMPT, (ENDS,)), rule(model, PROMPT, ENDS), atol=0.05, rtol=0)


@pytest.mark.parametrize("scaling", [None, RopeScaling("yarn", 4.0, 64, attention_factor=1.3), RopeScaling("llama3", 8.0, 64)])
def test_a_key_that_is_turned_is_the_key_of_a_later_position(scaling):
    table = rope_table(16, 10000.0, scaling, 300)
    key, pool = torch.randn(16), KVPool(layers=1, slots=3, kv_heads=1, head_dim=16, dtype=torch.float32)

    def at(position: int) -> torch.Tensor:
        a, b, cos, sin = key[:8], key[8:], table.cos[position], table.sin[position]
        return torch.cat((a * cos - b * sin, b * cos + a * sin))

    pool.k[0, 0, 0], pool.v[0, 0, 0] = at(11), key
    pool.copy(np.array([0], np.int32), np.array([2], np.int32), turn_by(table, np.array([250], np.int32)))
    torch.testing.assert_close(pool.k[0, 2, 0], at(261), atol=1e-4, rtol=0)
    assert (pool.v[0, 2, 0] == key).all()
