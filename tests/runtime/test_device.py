"""The way to a device, as far as it needs none: passes in one buffer, how large a pool is, what is refused."""
from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ramet.kernels.interface import AttnMeta, DecoderInput
from ramet.runtime.config import EngineConfig
from ramet.runtime.device import Memory, check_device, staged
from ramet.runtime.errors import ConfigError
from ramet.runtime.open import open_kernels, open_runner

CPU = torch.device("cpu")


def some_pass(rows: int, logit_rows: int, sequences: int, width: int) -> DecoderInput:
    def numbers(*shape: int) -> torch.Tensor:
        return torch.randint(0, 1 << 30, shape, dtype=torch.int32)

    meta = AttnMeta(numbers(sequences + 1), numbers(sequences), numbers(sequences, width), width, rows)
    return DecoderInput(numbers(rows), numbers(rows), numbers(rows), numbers(logit_rows), meta)


@given(rows=st.integers(1, 40), logit_rows=st.integers(0, 5), sequences=st.integers(1, 5), width=st.integers(1, 33))
def test_a_staged_pass_is_the_same_pass_in_one_buffer(rows, logit_rows, sequences, width):
    batch = some_pass(rows, logit_rows, sequences, width)
    there = staged(batch, CPU)
    mine = [batch.input_ids, batch.positions, batch.write_slots, batch.logit_rows, batch.attn.tables]
    theirs = [there.input_ids, there.positions, there.write_slots, there.logit_rows, there.attn.tables]
    for a, b in zip(mine, theirs, strict=True):
        assert torch.equal(a, b) and a.dtype == b.dtype and b.is_contiguous()
        assert b.storage_offset() % 4 == 0, "16 bytes"
    assert len({b.untyped_storage().data_ptr() for b in theirs}) == 1
    assert there.attn.query_start is batch.attn.query_start and there.attn.max_context == batch.attn.max_context


def test_a_pool_is_a_share_of_what_is_free():
    assert Memory(1000, 0.85).slots(None, 10) == 85
    assert Memory(1000, 0.5, most=20).slots(None, 10) == 20
    assert Memory(1000, 0.5).slots(100, 10) == 100, "what is asked for may be more than the share"
    with pytest.raises(ConfigError, match="max_total_tokens=101.*at most 100 fit"):
        Memory(1000, 0.5).slots(101, 10)
    with pytest.raises(ConfigError, match="no memory for a KV pool"):
        Memory(19, 0.5).slots(None, 10)


def test_a_host_pool_takes_a_quarter_of_what_is_free_and_no_more_than_it_may_use(monkeypatch):
    from ramet.runtime import model_runner

    monkeypatch.setattr(model_runner, "available_memory", lambda: 4_000_000)
    assert model_runner.host_memory(2048).slots(None, 100) == 10_000
    assert model_runner.host_memory(2048).slots(None, 1) == 65_536
    assert model_runner.host_memory(100_000).slots(None, 1) == 100_000


class TestCuda:
    def test_a_torch_without_cuda(self, monkeypatch):
        monkeypatch.setattr(torch.version, "cuda", None)
        monkeypatch.setattr(torch.version, "hip", None)
        for refuses in (check_device, open_runner, open_kernels):
            with pytest.raises(ConfigError, match="device='cuda': torch was built without CUDA"):
                refuses(EngineConfig(device="cuda"))

    def test_no_gpu(self, monkeypatch):
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(ConfigError, match="device='cuda': no GPU seen"):
            check_device(EngineConfig(device="cuda"))

    def test_what_a_gpu_does_not_do_yet(self, monkeypatch, tmp_path):
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        config = EngineConfig(device="cuda")
        assert check_device(config) == "cuda"
        for options, says in (({"tensor_parallel_size": 2}, "tensor_parallel_size=2"), ({"cache_dir": str(tmp_path)}, "cache_dir"),
                              ({"host_cache_bytes": 1}, "host_cache_bytes")):  # fmt: skip
            with pytest.raises(ConfigError, match=says):
                check_device(replace(config, **options))

    @pytest.mark.parametrize("device", ["auto", "cpu"])
    def test_nothing_else_is_a_gpu(self, device):
        assert check_device(EngineConfig(device=device, tensor_parallel_size=2)) == "cpu"
