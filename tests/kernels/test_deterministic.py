"""The deterministic mode of the triton peer: every kernel gives a row the same bits alone and in any batch."""
from __future__ import annotations

import pytest
import torch

from ramet.kernels import KernelError, get_kernels
from ramet.kernels.interface import Kernels, Linear, RopeTable

from .conftest import ints
from .test_blocks import random_packed


@pytest.fixture(scope="module")
def fixed() -> Kernels:
    try:
        return get_kernels("cpu", "triton", deterministic=True)
    except KernelError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 64, 64), (5, 77, 130), (70, 40, 33), (3, 2100, 65), (0, 9, 4), (2, 1, 1), (66, 1100, 9)])
def test_products(fixed: Kernels, rows: int, inner: int, columns: int, bias: bool) -> None:
    x, weight = torch.randn(rows, inner), torch.randn(columns, inner)
    added = torch.randn(columns) if bias else None
    want = x.double() @ weight.double().T + (added.double() if added is not None else 0.0)
    got = fixed.linear(x, Linear(weight, added))
    assert got.dtype == x.dtype
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5 * inner**0.5)


def test_products_with_packed_weights(fixed: Kernels, reference: Kernels) -> None:
    weight = random_packed("Q4_1", 70, 256)
    x = torch.randn(2, 3, 256)
    torch.testing.assert_close(fixed.linear(x, Linear(weight)), reference.linear(x, Linear(weight)), rtol=1e-4, atol=1e-5)


def test_splits_of_the_inner_dimension_together_and_apart(fixed: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    """One program for all splits, as large batches have it, adds as a program a split does: the same bits."""
    from ramet.kernels.triton import linear

    x, weight = torch.randn(3, 2500), Linear(torch.randn(66, 2500))
    apart = fixed.linear(x, weight)
    monkeypatch.setattr(linear, "ENOUGH", 1)
    assert torch.equal(fixed.linear(x, weight), apart)
    monkeypatch.setattr(linear, "SPLIT", 2560)
    assert not torch.equal(fixed.linear(x, weight), apart)  # another division is another sum: the test can fail


def test_a_row_has_its_bits_alone_and_in_any_batch(fixed: Kernels) -> None:
    """Rows 0 and 64 stand at the same place of a tile (numpy, which multiplies here, adds by place; a matrix unit does not)."""
    x, residual = torch.randn(65, 700), torch.randn(65, 700)
    x[64], residual[64] = x[0], residual[0]
    weight, norm = Linear(torch.randn(40, 700), torch.randn(40)), torch.randn(700)
    for kernel in (
        lambda rows: fixed.linear(x[rows], weight),
        lambda rows: fixed.rms_norm(x[rows], norm, 1e-5),
        lambda rows: fixed.add_rms_norm(x[rows], residual[rows].clone(), norm, 1e-5),
        lambda rows: fixed.silu_mul(x[rows], residual[rows]),
        lambda rows: turned(fixed, x[rows, :640].reshape(-1, 10, 64), rows),
    ):
        alone = kernel(slice(0, 1))
        for rows, at in ((slice(0, 3), 0), (slice(0, 65), 0), (slice(0, 65), 64)):
            assert torch.equal(kernel(rows)[at], alone[0])


def turned(fixed: Kernels, heads: torch.Tensor, rows: slice) -> torch.Tensor:
    angles = torch.rand(9, 32, generator=torch.Generator().manual_seed(2))
    q, k = heads[:, :8].clone(memory_format=torch.contiguous_format), heads[:, 8:].clone(memory_format=torch.contiguous_format)
    fixed.rope(q, k, ints([7 if i % 64 == 0 else 3 for i in range(65)])[rows].contiguous(), RopeTable(angles.cos(), angles.sin()))
    return torch.cat((q, k), 1)
