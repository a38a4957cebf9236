"""What each of several ranks holds, and what a pass looks like on its way to them."""
from __future__ import annotations

import socket
import threading

import gguf_files
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ramet.kernels.interface import AttnMeta, DecoderInput, PackedWeight, Segments
from ramet.runtime.config import EngineConfig
from ramet.runtime.errors import ConfigError
from ramet.runtime.gguf_reader import dequantize
from ramet.runtime.hub import resolve
from ramet.runtime.models.config import ModelConfig
from ramet.runtime.models.registry import FAMILIES
from ramet.runtime.models.share import shares
from ramet.runtime.parallel.wire import SEGMENTS, Channel, pack, unpack
from ramet.runtime.weights import load_model


def shape(kv_heads: int, mlp: int, vocab: int) -> ModelConfig:
    return ModelConfig(FAMILIES[0], vocab, 64, mlp, 2, kv_heads * 2, kv_heads, 16, 128, 1e-5, 10000.0)


@given(kv_heads=st.integers(1, 40), blocks=st.integers(1, 60), block=st.sampled_from([1, 32, 256]), vocab=st.integers(100, 5000), data=st.data())
def test_shares_cover_everything_once_and_evenly(kv_heads, blocks, block, vocab, data):
    size = data.draw(st.integers(1, min(kv_heads, blocks)))
    parts = shares(shape(kv_heads, blocks * block, vocab), size, block)
    for field, total, step in (("kv_heads", kv_heads, 1), ("mlp", blocks * block, block), ("vocab", vocab, 1)):
        runs = [getattr(part, field) for part in parts]
        assert [i for run in runs for i in run] == list(range(total))
        assert all(run.start % step == 0 and len(run) for run in runs)
        assert [len(run) for run in runs] == sorted(map(len, runs), reverse=True)
        assert len(runs[0]) - len(runs[-1]) <= step
    assert [part.rank for part in parts] == list(range(size))


def test_more_ranks_than_parts_are_refused():
    with pytest.raises(ConfigError, match="tensor_parallel_size=4: this model has 3 KV heads"):
        shares(shape(3, 512, 100), 4)
    with pytest.raises(ConfigError, match="tensor_parallel_size=3: 512 intermediate numbers in blocks of 256"):
        shares(shape(3, 512, 100), 3, 256)


def plain(weight) -> torch.Tensor:
    return dequantize(weight) if isinstance(weight, PackedWeight) else weight


BIASES = [
    *((f"blk.{i}.attn_{r}.bias", np.arange(n, dtype=np.float32)) for i in range(2) for r, n in (("q", 256), ("k", 128), ("v", 128), ("output", 256))),
    *((f"blk.{i}.ffn_{r}.bias", np.arange(n, dtype=np.float32)) for i in range(2) for r, n in (("gate", 512), ("up", 512), ("down", 256))),
]


@pytest.mark.parametrize("quantization", ["F32", "Q4_1", "Q8_0"])
def test_the_shares_of_a_file_are_its_weights(tmp_path, quantization):
    path = gguf_files.write_model(tmp_path / "m.gguf", quantization=quantization, extra=BIASES)
    whole = load_model(resolve(path), EngineConfig()).weights
    parts = [load_model(resolve(path), EngineConfig(tensor_parallel_size=2), rank=rank).weights for rank in range(2)]
    assert [(part.n_heads, part.n_kv_heads) for part in parts] == [(2, 1), (2, 1)]
    for role, dim in (("q", 0), ("k", 0), ("v", 0), ("o", 1), ("gate", 0), ("up", 0), ("down", 1)):
        wanted = getattr(whole.layers[1], role)
        linears = [getattr(part.layers[1], role) for part in parts]
        assert torch.equal(torch.cat([plain(linear.weight) for linear in linears], dim), plain(wanted.weight)), role
        assert all(isinstance(linear.weight, PackedWeight) == isinstance(wanted.weight, PackedWeight) for linear in linears)
        biases = [linear.bias for linear in linears]
        assert torch.equal(torch.cat(biases) if dim == 0 else sum(biases), wanted.bias), role
    assert torch.equal(torch.cat([plain(part.embed) for part in parts]), plain(whole.embed))
    assert all(part.head.weight is part.embed for part in parts)  # tied, and held once
    assert all(torch.equal(part.layers[1].mlp_norm, whole.layers[1].mlp_norm) for part in parts)


def test_heads_that_end_inside_a_block_are_refused_with_a_way_out(tmp_path):
    """A KV head's query heads are 128 numbers of o here; Q4_K packs 256 together."""
    path = gguf_files.write_model(tmp_path / "m.gguf", quantization="Q6_K")
    for rank in range(2):
        with pytest.raises(ConfigError, match="tensor_parallel_size=2: .*inside a Q6_K block of 256 numbers; use dtype='float32'"):
            load_model(resolve(path), EngineConfig(tensor_parallel_size=2), rank=rank)
    whole = load_model(resolve(path), EngineConfig(dtype="float32")).weights
    parts = [load_model(resolve(path), EngineConfig(tensor_parallel_size=2, dtype="float32"), rank=rank).weights for rank in range(2)]
    assert torch.equal(torch.cat([part.layers[0].o.weight for part in parts], 1), whole.layers[0].o.weight)


def test_random_weights_are_those_of_one_rank(tmp_path):
    files, options = resolve(gguf_files.write_model(tmp_path / "m.gguf")), {"load_format": "dummy", "random_seed": 5}
    whole = load_model(files, EngineConfig(**options)).weights
    parts = [load_model(files, EngineConfig(**options, tensor_parallel_size=2), rank=rank).weights for rank in range(2)]
    assert torch.equal(torch.cat([part.layers[1].down.weight for part in parts], 1), whole.layers[1].down.weight)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tensor_parallel_size": 0}, "tensor_parallel_size=0: a whole number of at least 1"),
        ({"tensor_parallel_size": None}, "tensor_parallel_size=None: a whole number"),
        ({"tensor_parallel_size": 2, "cache_dir": "somewhere"}, "tensor_parallel_size=2: KV of several ranks is not written out"),
        ({"tensor_parallel_size": 2, "host_cache_bytes": 1}, "leave cache_dir and host_cache_bytes out"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        EngineConfig.of(**options)


# ---- passes on their way


def numbers(draw, n: int) -> torch.Tensor:
    return torch.tensor(draw(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=n, max_size=n)), dtype=torch.int32)


@st.composite
def passes(draw) -> DecoderInput:
    rows, sequences, width = draw(st.integers(1, 9)), draw(st.integers(1, 4)), draw(st.integers(1, 9))
    segments = None
    if draw(st.booleans()):
        segments = Segments(*(numbers(draw, draw(st.integers(1, 4))) for _ in SEGMENTS))
    tables = numbers(draw, sequences * width).view(sequences, width)
    meta = AttnMeta(numbers(draw, sequences + 1), numbers(draw, sequences), tables, draw(st.integers(1, 99)), draw(st.integers(1, 99)), segments)
    return DecoderInput(numbers(draw, rows), numbers(draw, rows), numbers(draw, rows), numbers(draw, draw(st.integers(0, rows))), meta)


def assert_same(one, other):
    for name in type(one).__slots__:
        a, b = getattr(one, name), getattr(other, name)
        if isinstance(a, torch.Tensor):
            assert torch.equal(a, b) and b.dtype == torch.int32 and b.is_contiguous(), name
        elif hasattr(a, "__slots__"):
            assert_same(a, b)
        else:
            assert a == b, name


@given(passes())
def test_a_pass_arrives_as_it_was_sent(batch):
    assert_same(batch, unpack(bytearray(pack(batch))))


def test_frames_keep_their_order_and_their_end_is_noticed():
    here, there = (Channel(end) for end in socket.socketpair())
    big = torch.arange(300_000, dtype=torch.int32)  # more than a socket's buffer
    batch = DecoderInput(big, big, big, big[:0], AttnMeta(big[:2], big[:1], big.view(1, -1), 7, 8))
    sender = threading.Thread(target=lambda: (here.say(word=1), here.send(batch), here.say(word="é"), here.close()))
    sender.start()
    assert there.receive() == {"word": 1}
    assert_same(batch, there.receive())
    assert there.receive() == {"word": "é"}
    sender.join()
    with pytest.raises(EOFError):
        there.receive()
    with pytest.raises(EOFError):
        for _ in range(3):
            there.say(word=2)
    there.close()
