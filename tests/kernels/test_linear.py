"""Products of every kind of weight, and that a row does not depend on its neighbours."""
from __future__ import annotations

import pytest
import torch

from ramet.kernels import KernelError
from ramet.kernels.blocks import FORMATS, dequantize
from ramet.kernels.cpu.peer import CpuKernels
from ramet.kernels.interface import Kernels, Linear

from .conftest import cpu_kernels, instruction_sets
from .test_blocks import random_packed

PLAIN = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", PLAIN)
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(0, 3, 4), (1, 1, 1), (2, 33, 7), (7, 100, 65), (67, 17, 576)])
def test_plain_weights(peer: Kernels, dtype: torch.dtype, rows: int, outputs: int, inputs: int) -> None:
    w = Linear(torch.randn(outputs, inputs).to(dtype), torch.randn(outputs))
    x = torch.randn(rows, inputs)
    want = x.double() @ w.weight.double().T + w.bias.double()
    torch.testing.assert_close(peer.linear(x, w).double(), want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", FORMATS)
def test_packed_weights_in_exact_mode(peer: Kernels, kind: str) -> None:
    w = Linear(random_packed(kind, 37, 512))
    x = torch.randn(5, 512)
    want = x.double() @ dequantize(w.weight).double().T
    torch.testing.assert_close(peer.linear(x, w).double(), want, rtol=1e-5, atol=1e-4)


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Activations as the packed products see them: 8 bits and a scale for 32 of them."""
    blocks = x.double().unflatten(-1, (-1, 32))
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    return torch.where(scale > 0, (blocks / scale).round() * scale, 0.0).flatten(-2)


@pytest.mark.parametrize("name", instruction_sets())
@pytest.mark.parametrize("kind", FORMATS)
def test_packed_weights_meet_rounded_activations(kind: str, name: str) -> None:
    fast = cpu_kernels(instruction_set=name, threads=2)
    w = Linear(random_packed(kind, 101, 768), torch.randn(101))
    x = torch.randn(23, 768) * torch.rand(23, 1) * 10
    x[3] = 0
    x[4, 32:64] = 0
    want = rounded(x) @ dequantize(w.weight).double().T + w.bias.double()
    size = rounded(x).abs() @ dequantize(w.weight).double().abs().T
    error = (fast.linear(x, w).double() - want).abs()
    # A value halfway between two steps may go either way: a thousandth of the sum of sizes is far above that, and below any mistake.
    assert (error <= 1e-3 * size + 1e-6).all()
    assert torch.equal(fast.linear(x, w)[3], w.bias)


@pytest.mark.parametrize("kind", [*FORMATS, *PLAIN])
def test_a_row_has_the_same_bits_in_any_company(cpu: CpuKernels, kind: object) -> None:
    w = Linear(random_packed(kind, 90, 512) if isinstance(kind, str) else torch.randn(90, 512).to(kind))
    x = torch.randn(133, 512)
    whole = cpu.linear(x, w)
    alone = cpu_kernels(threads=1)
    for begin, end in [(0, 1), (1, 3), (3, 7), (7, 23), (23, 88), (88, 133), (130, 133)]:
        assert torch.equal(cpu.linear(x[begin:end], w), whole[begin:end])
        assert torch.equal(alone.linear(x[begin:end], w), whole[begin:end])


@pytest.mark.parametrize("kind", FORMATS)
def test_extreme_weights_do_not_overflow(cpu: CpuKernels, kind: str) -> None:
    """All bits of the weights set, or none, against the largest activations: partial sums are at their limits."""
    for fill in (0x00, 0x7F, 0x80, 0xFF):
        weight = random_packed(kind, 8, 256)
        scales = random_packed(kind, 8, 256).data
        data = weight.data.fill_(fill)
        for at in {"Q8_0": range(0, 272, 34), "Q4_0": range(0, 144, 18), "Q4_1": range(0, 160, 20), "Q4_K": [0], "Q6_K": [208]}[kind]:
            data[:, at : at + 2] = scales[:, at : at + 2]
            if kind in ("Q4_1", "Q4_K"):
                data[:, at + 2 : at + 4] = scales[:, at + 2 : at + 4]
        for x in (torch.full((2, 256), 127.0), torch.full((2, 256), -127.0)):
            want = x.double() @ dequantize(weight).double().T
            torch.testing.assert_close(cpu.linear(x, Linear(weight)).double(), want, rtol=1e-5, atol=1e-2)


def test_a_nan_stays_in_its_row(cpu: CpuKernels) -> None:
    w = Linear(random_packed("Q4_1", 40, 64))
    x = torch.randn(9, 64)
    want = cpu.linear(x, w)
    x[4, 7] = float("nan")
    got = cpu.linear(x, w)
    assert got[4].isnan().all()
    assert torch.equal(got[[0, 1, 2, 3, 5, 6, 7, 8]], want[[0, 1, 2, 3, 5, 6, 7, 8]])


def test_a_wrong_width_is_refused(cpu: CpuKernels) -> None:
    with pytest.raises(KernelError, match="33 numbers.*takes 32"):
        cpu.linear(torch.randn(2, 33), Linear(torch.randn(4, 32)))
