"""Small kernels of every peer against float64."""
from __future__ import annotations

import pytest
import torch

from ramet.kernels import KernelError
from ramet.kernels.interface import Kernels, RopeTable

from .conftest import ints

SHAPES = [(0, 64), (1, 1), (3, 7), (5, 576), (17, 1537)]


@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm(peer: Kernels, shape: tuple[int, int]) -> None:
    x, weight = torch.randn(shape) * 3, torch.randn(shape[1])
    wide = x.double()
    want = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    torch.testing.assert_close(peer.rms_norm(x, weight, 1e-5).double(), want, rtol=1e-5, atol=1e-6)


def test_rms_norm_of_heads(peer: Kernels) -> None:
    x, weight = torch.randn(5, 9, 64), torch.randn(64)
    want = torch.stack([peer.rms_norm(head, weight, 1e-6) for head in x])
    torch.testing.assert_close(peer.rms_norm(x, weight, 1e-6), want)


@pytest.mark.parametrize("shape", SHAPES)
def test_add_rms_norm(peer: Kernels, shape: tuple[int, int]) -> None:
    x, residual, weight = torch.randn(shape), torch.randn(shape), torch.randn(shape[1])
    total = x + residual
    out = peer.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(residual, total)
    torch.testing.assert_close(out, peer.rms_norm(total, weight, 1e-5))


@pytest.mark.parametrize(("size", "rotary"), [(64, 64), (80, 80), (96, 32), (128, 128), (6, 4)])
def test_rope_turns_halves(peer: Kernels, size: int, rotary: int) -> None:
    angles = torch.rand(50, rotary // 2) * 6
    positions = ints([3, 49, 0, 7, 7])
    q, k = torch.randn(5, 6, size), torch.randn(5, 2, size)
    wants = []
    for x in (q, k):
        pairs = torch.complex(x[..., : rotary // 2].double(), x[..., rotary // 2 : rotary].double())
        turned = pairs * torch.polar(torch.ones(5, 1, rotary // 2).double(), angles[positions.long()].unsqueeze(1).double())
        wants.append(torch.cat((turned.real, turned.imag, x[..., rotary:].double()), dim=-1))
    peer.rope(q, k, positions, RopeTable(angles.cos(), angles.sin()))
    for got, want in zip((q, k), wants, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [64, 7])
def test_store_kv_rounds_as_torch_does(peer: Kernels, dtype: torch.dtype, size: int) -> None:
    k, v = torch.randn(5, 3, size), torch.randn(5, 3, size) * 1e-6
    k[0, 0, :3] = torch.tensor([0.0, -0.0, 65504.0])
    slots = ints([9, 2, 0, 7, 5])
    pools = [torch.full((10, 3, size), 1.5, dtype=dtype) for _ in range(2)]
    peer.store_kv(k, v, pools[0], pools[1], slots)
    for pool, x in zip(pools, (k, v), strict=True):
        if peer.name == "triton" and dtype == torch.bfloat16:  # the interpreter cuts where a GPU rounds
            torch.testing.assert_close(pool[slots.long()], x.to(dtype), rtol=2**-7, atol=0)
        else:
            assert torch.equal(pool[slots.long()], x.to(dtype))
        assert (pool[[1, 3, 4, 6, 8]] == 1.5).all()


def test_half_precision_cache_never_holds_infinity(peer: Kernels) -> None:
    k, v = torch.full((1, 1, 9), 1e6), torch.full((1, 1, 9), -1e6)
    pools = [torch.zeros(1, 1, 9, dtype=torch.float16) for _ in range(2)]
    peer.store_kv(k, v, pools[0], pools[1], ints([0]))
    assert (pools[0] == 65504).all() and (pools[1] == -65504).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_silu_mul(peer: Kernels, shape: tuple[int, int]) -> None:
    gate, up = torch.randn(shape) * 20, torch.randn(shape)
    want = torch.nn.functional.silu(gate.double()) * up.double()
    torch.testing.assert_close(peer.silu_mul(gate, up).double(), want, rtol=1e-5, atol=1e-6)


def test_silu_of_extremes(peer: Kernels) -> None:
    gate = torch.tensor([[-1e30, -100.0, -0.0, 100.0, 1e30, float("nan")]])
    out = peer.silu_mul(gate, torch.ones_like(gate))[0]
    assert torch.allclose(out[:5], torch.tensor([0.0, 0.0, 0.0, 100.0, 1e30])) and out[5].isnan()


@pytest.mark.parametrize("vocabulary", [1, 31, 32, 33, 49152])
def test_mask_logits(peer: Kernels, vocabulary: int) -> None:
    allowed = torch.rand(3, vocabulary) < 0.5
    allowed[0], allowed[1] = True, False
    words = (vocabulary + 31) // 32
    bits = torch.zeros(3, words * 32, dtype=torch.int64)
    bits[:, :vocabulary] = allowed
    packed = (bits.view(3, words, 32) << torch.arange(32)).sum(-1).to(torch.int32)
    logits = torch.randn(3, vocabulary)
    want = logits.masked_fill(~allowed, float("-inf"))
    peer.mask_logits(logits, packed)
    assert torch.equal(logits, want)


def test_wrong_types_are_refused(cpu: Kernels) -> None:
    with pytest.raises(KernelError, match="float32"):
        cpu.rms_norm(torch.randn(2, 4, dtype=torch.float64), torch.ones(4), 1e-5)
    with pytest.raises(KernelError, match="int32"):
        cpu.mask_logits(torch.randn(1, 32), torch.ones(1, 1, dtype=torch.int64))
    with pytest.raises(KernelError, match="cover"):
        cpu.mask_logits(torch.randn(1, 64), ints([[1]]))
    with pytest.raises(KernelError, match="in place"):
        cpu.mask_logits(torch.randn(64, 2).T, torch.ones(2, 2, dtype=torch.int32))
