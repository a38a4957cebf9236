"""Every family against transformers on the same random weights, and the default model on its real ones."""

import json

import pytest
import torch
from passes import i32, logits
from tiny_models import FAMILIES, TINY, save
from transformers import MistralConfig, Qwen2Config

from ramet.kernels.interface import AttnMeta, DecoderInput
from ramet.kernels.reference import ReferenceKernels
from ramet.runtime.config import EngineConfig
from ramet.runtime.errors import ConfigError, CorruptModelError, UnknownArchitectureError, UnsupportedError
from ramet.runtime.hub import resolve
from ramet.runtime.models.config import ModelConfig
from ramet.runtime.models.llama import LlamaModel
from ramet.runtime.weights import load_model


def edit(path, **changes):
    values = json.loads(path.read_text())
    values.update(changes)
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))


@pytest.mark.parametrize("name", FAMILIES)
def test_family_equals_transformers(name, tmp_path):
    model = save(FAMILIES[name], tmp_path)
    loaded = load_model(resolve(tmp_path), EngineConfig())
    sequences = [torch.randint(0, 97, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (1, 17, 150)]
    for ids, ours in zip(sequences, logits(loaded, sequences), strict=True):
        with torch.no_grad():
            theirs = model(torch.tensor([ids])).logits[0]
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_sharded_folder_is_the_same_model(tmp_path):
    model = save(FAMILIES["qwen3"], tmp_path, max_shard_size="40KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    loaded = load_model(resolve(tmp_path), EngineConfig())
    with torch.no_grad():
        theirs = model(torch.tensor([[1, 2, 3]])).logits[0]
    torch.testing.assert_close(logits(loaded, [[1, 2, 3]])[0], theirs, atol=1e-4, rtol=0)


def test_default_model_equals_transformers(embedded_model, reference_model):
    generator = torch.Generator().manual_seed(0)
    sequences = [torch.randint(0, 49152, (n,), generator=generator).tolist() for n in (1, 30)]
    with torch.no_grad():
        theirs = [reference_model(torch.tensor([ids])).logits[0] for ids in sequences]
    for dtype in ("auto", "float32"):  # as packed in the file, and unpacked when loaded
        loaded = load_model(embedded_model, EngineConfig(dtype=dtype, context_length=64))
        for ours, expected in zip(logits(loaded, sequences), theirs, strict=True):
            torch.testing.assert_close(ours, expected, atol=1e-3, rtol=0)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    save(FAMILIES["qwen3"], folder)
    return load_model(resolve(folder), EngineConfig())


@pytest.mark.parametrize("size", [1, 7])
def test_chunks_and_neighbours_change_nothing(tiny, size):
    """A sequence in chunks, each beside another sequence, with only its last row's logits wanted."""
    ids, other = list(range(20, 40)), [5, 4, 3]
    expected = logits(tiny, [ids])[0]
    model = LlamaModel(tiny.config, tiny.weights, ReferenceKernels("test"))
    pool_k = torch.zeros(2, 64, 2, 24)
    pool_v = torch.zeros_like(pool_k)
    for begin in range(0, len(ids), size):
        end = min(begin + size, len(ids))
        n = end - begin
        meta = AttnMeta(i32([0, n, n + 3]), i32([end, 3]), torch.stack((torch.arange(63, 43, -1), torch.arange(20))).int(), end, max(n, 3))
        slots = i32([63 - p for p in range(begin, end)] + [0, 1, 2])
        wanted = i32([n - 1]) if end == len(ids) else i32([])
        batch = DecoderInput(i32(ids[begin:end] + other), i32([*range(begin, end), 0, 1, 2]), slots, wanted, meta)
        out = model.forward(batch, pool_k, pool_v)
        assert out.shape == (len(wanted), 97) and out.dtype == torch.float32
    torch.testing.assert_close(out[0], expected[-1], atol=1e-5, rtol=0)


def test_a_fused_decoder_is_used_where_the_device_has_one(tiny):
    class Fused(ReferenceKernels):
        def decoder(self, weights):
            self.given = weights
            return self

        def forward(self, batch, pool_k, pool_v):
            return batch, pool_k, pool_v

    kernels = Fused("test")
    assert LlamaModel(tiny.config, tiny.weights, kernels).forward("batch", "k", "v") == ("batch", "k", "v")
    assert kernels.given is tiny.weights


def test_old_spelling_of_rope_scaling(tmp_path):
    """Files written before transformers 5 say rope_theta and rope_scaling."""
    FAMILIES["llama 3"].save_pretrained(tmp_path)
    edit(tmp_path / "config.json", architectures=["LlamaForCausalLM"])
    new = ModelConfig.from_folder(tmp_path)
    parameters = json.loads((tmp_path / "config.json").read_text())["rope_parameters"]
    theta = parameters.pop("rope_theta")
    edit(tmp_path / "config.json", rope_parameters=None, rope_theta=theta, rope_scaling=parameters)
    assert ModelConfig.from_folder(tmp_path) == new


def test_qwen_window_that_is_off_is_no_window(tmp_path):
    Qwen2Config(**TINY, use_sliding_window=False, sliding_window=32).save_pretrained(tmp_path)
    assert ModelConfig.from_folder(tmp_path).sliding_window is None


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, UnknownArchitectureError, "GPT2LMHeadModel.*LlamaForCausalLM, MistralForCausalLM"),
        ({"quantization_config": {"quant_method": "gptq"}}, UnsupportedError, "quantization_config"),
        ({"hidden_act": "gelu"}, UnsupportedError, "hidden_act"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, UnsupportedError, "'dynamic'.*known: linear, llama3, yarn"),
        ({"hidden_size": None}, CorruptModelError, "hidden_size is missing"),
        ({"num_hidden_layers": 0}, CorruptModelError, "num_hidden_layers is 0"),
        ({"num_hidden_layers": "two"}, CorruptModelError, "num_hidden_layers is 'two'"),
        ({"num_key_value_heads": 3}, CorruptModelError, "4 query heads cannot share 3"),
    ],
)
def test_config_that_cannot_be_computed_is_refused(tmp_path, changes, error, words):
    FAMILIES["llama tied"].save_pretrained(tmp_path)
    edit(tmp_path / "config.json", **{"architectures": ["LlamaForCausalLM"], **changes})
    with pytest.raises(error, match=words):
        ModelConfig.from_folder(tmp_path)


def test_window_shorter_than_the_context_is_refused(tmp_path):
    model = save(MistralConfig(**TINY, sliding_window=32), tmp_path)
    with pytest.raises(UnsupportedError, match="context_length=32 or less"):
        load_model(resolve(tmp_path), EngineConfig())
    loaded = load_model(resolve(tmp_path), EngineConfig(context_length=32))
    ids = list(range(32))
    with torch.no_grad():
        torch.testing.assert_close(logits(loaded, [ids])[0], model(torch.tensor([ids])).logits[0], atol=1e-4, rtol=0)


def test_context_beyond_the_model_is_refused(tmp_path):
    save(FAMILIES["llama tied"], tmp_path)
    with pytest.raises(ConfigError, match="context_length=257: this model knows 256"):
        load_model(resolve(tmp_path), EngineConfig(context_length=257))
    assert load_model(resolve(tmp_path), EngineConfig(context_length=9)).weights.rope.cos.shape == (9, 8)
