"""Readers of weights: what they give, and what they refuse."""

import json
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf_files import TINY, write_model
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from transformers import LlamaConfig
from vocabularies import write_sentencepiece

from ramet.kernels.interface import PackedWeight
from ramet.runtime.config import EngineConfig
from ramet.runtime.errors import CorruptModelError, ModelError, ModelNotFoundError, UnknownArchitectureError, UnsupportedError
from ramet.runtime.gguf_reader import PACKED, PLAIN, GGUFFile, Strings, dequantize
from ramet.runtime.hub import ModelFiles, resolve
from ramet.runtime.weights import load_model

KINDS = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"]


def plain(weight):
    return dequantize(weight) if isinstance(weight, PackedWeight) else weight.float()


def test_block_sizes_are_those_of_the_gguf_package():
    for kind, (name, block, size) in PACKED.items():
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]] == (block, size)
        assert gguf.GGMLQuantizationType[name] == kind
    names = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
    assert {gguf.GGMLQuantizationType(kind).name: name for kind, (name, _) in PLAIN.items()} == names
    assert all(getattr(torch, name).itemsize == size for name, size in PLAIN.values())


@pytest.mark.parametrize("kind", KINDS)
def test_every_type_reads_as_the_gguf_package_reads_it(kind, tmp_path):
    path = write_model(tmp_path / "m.gguf", quantization=kind)
    ours, theirs = GGUFFile(path), gguf.GGUFReader(path)
    assert list(ours.tensors) == [t.name for t in theirs.tensors]
    for tensor in theirs.tensors:
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(plain(ours.load(tensor.name)).numpy(), expected, err_msg=tensor.name)


@pytest.mark.parametrize("kind", KINDS)
def test_heads_are_put_in_order_in_packed_and_plain_form(kind, tmp_path):
    path = write_model(tmp_path / "m.gguf", quantization=kind)
    kept = load_model(resolve(path), EngineConfig())
    wide = load_model(resolve(path), EngineConfig(dtype="float32"))
    raw = plain(GGUFFile(path).load("blk.1.attn_k.weight"))
    halves = raw.view(2, 32, 2, 256)  # KV heads, pairs, (first half, second half), hidden
    expected = torch.cat((halves[:, :, 0], halves[:, :, 1]), dim=1).view(128, 256)
    for loaded in (kept, wide):
        k = loaded.weights.layers[1].k.weight
        torch.testing.assert_close(plain(k), expected, atol=0, rtol=0)
    assert isinstance(kept.weights.layers[1].k.weight, PackedWeight) == (kind not in ("F32", "F16", "BF16"))
    assert wide.weights.layers[0].down.weight.dtype == torch.float32
    assert kept.weights.head.weight is kept.weights.embed


def test_metadata_equals_the_gguf_package(tmp_path):
    extra = [("a.text", "né"), ("a.flag", True), ("a.float", 0.5), ("a.count", 7)]
    for path in (write_sentencepiece(tmp_path / "v.gguf"), write_model(tmp_path / "m.gguf", metadata=extra)):
        ours, theirs = GGUFFile(path), gguf.GGUFReader(path)
        assert {*ours.metadata} == {key for key in theirs.fields if not key.startswith("GGUF.")}
        for key, value in ours.metadata.items():
            value = list(value) if isinstance(value, Strings | tuple) else value
            assert value == theirs.fields[key].contents(), key


def test_packed_weights_are_the_pages_of_the_file(embedded_model):
    """Nothing is copied but q and k, whose rows are put in order."""
    layer = load_model(embedded_model, EngineConfig(context_length=16)).weights.layers[3]
    raw = GGUFFile(embedded_model.gguf).load("blk.3.ffn_down.weight")
    assert isinstance(layer.down.weight, PackedWeight) and layer.down.weight.kind == raw.kind == "Q4_1"
    assert torch.equal(layer.down.weight.data, raw.data)
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(embedded_model.gguf.name)]
    spans = [tuple(int(at, 16) for at in line[0].split("-")) for line in maps]

    def mapped(linear):
        return any(start <= linear.weight.data.data_ptr() < stop for start, stop in spans)

    assert [mapped(layer.down), mapped(layer.gate), mapped(layer.o), mapped(layer.v), mapped(layer.q)] == [True, True, True, True, False]


def test_gguf_of_other_families(tmp_path):
    """Qwen2 rows are not interleaved, and its biases are found."""
    hidden, keys = TINY["hidden"], 128
    bias = [
        (f"blk.{i}.attn_{r}.bias", np.full(n, i + 1.0, np.float32)) for i in range(2) for r, n in (("q", hidden), ("k", keys), ("v", keys))
    ]
    path = write_model(tmp_path / "m.gguf", architecture="qwen2", extra=bias)
    loaded = load_model(resolve(path), EngineConfig())
    assert torch.equal(loaded.weights.layers[1].q.weight, GGUFFile(path).load("blk.1.attn_q.weight"))
    assert loaded.weights.layers[1].k.bias.tolist() == [2.0] * keys


def test_rope_factors_of_a_gguf_file_divide_the_frequencies(tmp_path):
    factors = np.linspace(1, 8, 32, dtype=np.float32)
    path = write_model(tmp_path / "m.gguf", extra=[("rope_freqs.weight", factors)])
    rope = load_model(resolve(path), EngineConfig()).weights.rope
    frequencies = 10000.0 ** (-torch.arange(0, 64, 2) / 64) / torch.from_numpy(factors)
    torch.testing.assert_close(rope.cos[100], (100 * frequencies).cos(), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"drop": ["blk.1.ffn_up.weight"]}, CorruptModelError, "blk.1.ffn_up.weight is missing"),
        ({"extra": [("blk.0.attn_q_norm.weight", np.ones(64, np.float32))]}, CorruptModelError, "does not have: blk.0.attn_q_norm.weight"),
        (
            {"drop": ["output_norm.weight"], "extra": [("output_norm.weight", np.ones(7, np.float32))]},
            CorruptModelError,
            r"shape \(7,\).*\(256,\)",
        ),
        ({"architecture": "mamba"}, UnknownArchitectureError, "'mamba'.*known: LlamaForCausalLM"),
        ({"quantization": "Q5_0"}, UnsupportedError, "Q5_0; read are F32, F16, BF16, Q4_0"),
        ({"metadata": [("llama.rope.scaling.type", "longrope")]}, UnsupportedError, "longrope"),
        ({"metadata": [("llama.expert_count", 8)]}, UnsupportedError, "expert_count"),
        ({"metadata": [("llama.attention.key_length", 32)]}, CorruptModelError, r"attn_q.weight is of shape \(256, 256\)"),
        ({"metadata": [("llama.rope.dimension_count", 32)]}, UnsupportedError, "rope.dimension_count"),
        ({"metadata": [("split.count", 3)]}, UnsupportedError, "one part of 3"),
    ],
)
def test_gguf_that_cannot_be_computed_is_refused(tmp_path, changes, error, words):
    path = write_model(tmp_path / "m.gguf", **changes)
    with pytest.raises(error, match=words) as caught:
        load_model(resolve(path), EngineConfig())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("keep", [0, 3, 20, 100, 0.3, 0.9999])
def test_truncated_gguf_is_refused_by_name(tmp_path, keep):
    raw = write_model(tmp_path / "m.gguf").read_bytes()
    path = tmp_path / "short.gguf"
    path.write_bytes(raw[: keep if isinstance(keep, int) else int(len(raw) * keep)])
    with pytest.raises(CorruptModelError, match=r"short\.gguf"):
        load_model(ModelFiles("short", gguf=path), EngineConfig())


@pytest.fixture(scope="module")
def whole_file(tmp_path_factory):
    shape = {**TINY, "vocab": 8, "hidden": 32, "mlp": 32, "heads": 2, "kv_heads": 1, "layers": 1}
    return write_model(tmp_path_factory.mktemp("gguf") / "m.gguf", shape=shape)


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_header_never_crashes(whole_file, tmp_path_factory, data):
    raw = bytearray(whole_file.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, 1500))
        raw[at : at + 8] = data.draw(st.sampled_from([struct.pack("<Q", n) for n in (0, 1, 2**31, 2**63, 2**64 - 1)] + [bytes([7]) * 8]))
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(raw)
    try:
        load_model(ModelFiles("damaged", gguf=path), EngineConfig())
    except ModelError as error:
        assert "damaged.gguf" in str(error) or "architecture" in str(error)
    except UnsupportedError:
        pass


# --- safetensors


def hf_folder(folder, **tensors):
    LlamaConfig(
        vocab_size=11,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
        tie_word_embeddings=True,
    ).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["LlamaForCausalLM"]}))
    return folder


def tiny_tensors(dtype=torch.float32):
    names = {"input_layernorm": (8,), "post_attention_layernorm": (8,)}
    names |= {f"self_attn.{r}_proj": (8, 8) for r in "qkvo"} | {f"mlp.{r}_proj": (8, 8) for r in ("gate", "up", "down")}
    tensors = {f"model.layers.0.{name}.weight": torch.ones(shape, dtype=dtype) for name, shape in names.items()}
    return {**tensors, "model.embed_tokens.weight": torch.ones(11, 8, dtype=dtype), "model.norm.weight": torch.ones(8, dtype=dtype)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_plain_weights_keep_their_dtype_unless_another_is_asked_for(tmp_path, dtype):
    save_file(tiny_tensors(dtype), hf_folder(tmp_path) / "model.safetensors")
    kept = load_model(resolve(tmp_path), EngineConfig()).weights
    assert kept.layers[0].gate.weight.dtype == dtype
    assert kept.norm.dtype == kept.layers[0].attn_norm.dtype == torch.float32
    assert load_model(resolve(tmp_path), EngineConfig(dtype="bfloat16")).weights.embed.dtype == torch.bfloat16


def test_truncated_safetensors_are_refused_by_name(tmp_path):
    path = hf_folder(tmp_path) / "model.safetensors"
    save_file(tiny_tensors(), path)
    raw = path.read_bytes()
    for keep in (0, 4, 50, len(raw) - 1):
        path.write_bytes(raw[:keep])
        with pytest.raises(CorruptModelError, match=r"model\.safetensors"):
            load_model(resolve(tmp_path), EngineConfig())


def test_missing_shard_and_bad_index_are_refused_by_name(tmp_path):
    index = hf_folder(tmp_path) / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}))
    with pytest.raises(CorruptModelError, match=r"shard model-00001-of-00002\.safetensors is missing"):
        load_model(resolve(tmp_path), EngineConfig())
    index.write_text("{")
    with pytest.raises(CorruptModelError, match=r"index\.json"):
        load_model(resolve(tmp_path), EngineConfig())


def test_folder_without_weights_is_refused(tmp_path):
    hf_folder(tmp_path)
    with pytest.raises(ModelNotFoundError, match=r"no weights: model\.safetensors is needed; or load_format='dummy'"):
        load_model(resolve(tmp_path), EngineConfig())
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelNotFoundError, match="pickled weights are never read"):
        load_model(resolve(tmp_path), EngineConfig())


def test_integer_weights_are_refused_by_name(tmp_path):
    save_file({**tiny_tensors(), "model.norm.weight": torch.ones(8, dtype=torch.int8)}, hf_folder(tmp_path) / "model.safetensors")
    with pytest.raises(UnsupportedError, match=r"model\.norm\.weight is torch\.int8"):
        load_model(resolve(tmp_path), EngineConfig())


def test_dummy_weights_are_reproducible(tmp_path):
    hf_folder(tmp_path)
    one, two, other = (load_model(resolve(tmp_path), EngineConfig(load_format="dummy", random_seed=seed)).weights for seed in (3, 3, 4))
    assert torch.equal(one.layers[0].down.weight, two.layers[0].down.weight)
    assert not torch.equal(one.layers[0].down.weight, other.layers[0].down.weight)
    assert one.embed.shape == (11, 8) and one.embed.float().std() == pytest.approx(0.02, rel=0.3)
