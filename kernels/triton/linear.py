"""A matrix product whose rows do not depend on each other's number, for the deterministic mode.

A library chooses tiles and the division of the inner dimension by the number of rows, so a row's sums are added in another order in another
batch (He et al., "Defeating Nondeterminism in LLM Inference", Thinking Machines Lab 2025). Here one size of tile serves every batch,
and the inner dimension is always cut after SPLIT products: few rows have a program a split, many have one program for all of
them; either adds the splits' sums in their order, so both give the same bits.
"""
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE_M, TILE_N, TILE_K = 64, 64, 64
SPLIT = 1024  # of the inner dimension
ENOUGH = 264  # programs that keep a large card busy: two a multiprocessor of an H100


@triton.jit
def product(
    x, w, bias, out, partial, M, N, K,
    ALL: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """A tile of rows and of columns a program, ALL: all splits of it; else one, whose sum goes to partial (splits, M, N) float32.
    x: (M, K); w: (N, K); bias: (N,) or None; out: (M, N). WIDE: products in float32."""
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (m < M)[:, None] & (n < N)[None, :]
    k = tl.arange(0, BLOCK_K)
    row, column = x + m.to(tl.int64)[:, None] * K, w + n.to(tl.int64)[None, :] * K
    to = m.to(tl.int64)[:, None] * N + n[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    first, last = 0, tl.cdiv(K, SPLIT)
    if not ALL:
        first = tl.program_id(2)
        last = first + 1
    for split in range(first, last):
        part = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for at in range(split * SPLIT, tl.minimum(K, (split + 1) * SPLIT), BLOCK_K):
            inner = at + k
            a = tl.load(row + inner[None, :], mask=(m < M)[:, None] & (inner < K)[None, :], other=0.0)
            b = tl.load(column + inner[:, None], mask=(inner < K)[:, None] & (n < N)[None, :], other=0.0)
            if WIDE:
                a, b = a.to(tl.float32), b.to(tl.float32)
            part = tl.dot(a, b, part, input_precision="ieee")
        total += part
    if ALL:
        if bias is not None:
            total += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
        tl.store(out + to, total.to(out.dtype.element_ty), mask=inside)
    else:
        tl.store(partial + tl.program_id(2).to(tl.int64) * M * N + to, total, mask=inside)


@triton.jit
def add_splits(partial, bias, out, M, N, splits, BLOCK: tl.constexpr):
    """A row and a block of columns a program."""
    row, n = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for split in range(splits):
        total += tl.load(partial + (split * M + row) * N + n, mask=n < N, other=0.0)
    if bias is not None:
        total += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)
    tl.store(out + row * N + n, total.to(out.dtype.element_ty), mask=n < N)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, wide: bool) -> Tensor:
    """x (..., in) @ weight (out, in).T + bias, summed in float32; the same bits for a row in any batch."""
    flat, weight = x.reshape(-1, x.shape[-1]).contiguous(), weight.contiguous()
    (rows, inner), columns = flat.shape, weight.shape[0]
    out = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    if not rows:
        return out.view(*x.shape[:-1], columns)
    grid = triton.cdiv(columns, TILE_N), triton.cdiv(rows, TILE_M)
    splits = triton.cdiv(inner, SPLIT)
    together = splits == 1 or grid[0] * grid[1] >= ENOUGH
    partial = None if together else torch.empty((splits, rows, columns), dtype=torch.float32, device=x.device)
    product[(*grid, 1 if together else splits)](
        flat, weight, bias, out, partial, rows, columns, inner,
        ALL=together, WIDE=wide, BLOCK_M=TILE_M, BLOCK_N=TILE_N, BLOCK_K=TILE_K, SPLIT=SPLIT, num_warps=4,
    )  # fmt: skip
    if not together:
        add_splits[(rows, triton.cdiv(columns, 1024))](partial, bias, out, rows, columns, splits, BLOCK=1024)
    return out.view(*x.shape[:-1], columns)
