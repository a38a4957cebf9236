"""The engine on the triton peer, every kernel under Triton's interpreter: the ids of the compiled CPU peer."""
from __future__ import annotations

import pytest
import torch
import transformers
from fakes import byte_tokenizer

from ramet.kernels import KernelError, get_kernels
from ramet.runtime.config import EngineConfig
from ramet.runtime.engine import Engine
from ramet.runtime.hub import resolve
from ramet.runtime.open import Part
from ramet.runtime.protocol import GenerateRequest, SamplingParams
from ramet.runtime.weights import load_model

SLOTS = 1024


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    torch.manual_seed(3)
    shape = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 1, "num_attention_heads": 6, "num_key_value_heads": 2}
    config = transformers.Qwen3Config(vocab_size=257, head_dim=24, max_position_embeddings=512, **shape)
    folder = tmp_path_factory.mktemp("model")
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return load_model(resolve(folder), EngineConfig())


def generate(loaded, kernels, prompts, budget):
    runner = Part(loaded, kernels, "cpu").runner(SLOTS)
    assert runner.staged == (kernels.name == "triton"), "interpreted kernels get passes the way a GPU would"
    engine = Engine(runner, byte_tokenizer(), EngineConfig(chunked_prefill_size=budget))
    for i, prompt in enumerate(prompts):
        engine.submit(GenerateRequest(str(i), prompt, SamplingParams(max_new_tokens=30, temperature=0.0, ignore_eos=True)))
    out = {str(i): [] for i in range(len(prompts))}
    while engine.busy:
        for chunk in engine.step():
            out[chunk.rid] += chunk.token_ids
    engine.check()
    return out


def test_ids_are_those_of_the_cpu(loaded):
    """Three branches under one long prompt, so that segments are shared, and a stranger; the prompt in chunks beside decoding rows."""
    try:
        interpreted = get_kernels("cpu", "triton")
    except KernelError as error:
        pytest.skip(str(error))
    root = tuple(torch.randint(0, 200, (130,), generator=torch.Generator().manual_seed(1)).tolist())
    prompts = [root + (1, 2, 3), root + (4, 5), root + (7,), tuple(range(40, 60))]
    want = generate(loaded, get_kernels("cpu", dtype="float32"), prompts, 64)
    assert generate(loaded, interpreted, prompts, 64) == want
    assert all(len(ids) == 30 for ids in want.values())
