"""Ragged paged attention with shared segments, over the tiles of plan.py.

A split's part of a row is the softmax-weighted mean over its keys and the log-sum-exp of their scores. Parts are folded from the first
key to the last by `_fold`, in a program that reads all of a tile's keys (`whole`) or from memory (`partials`, then `join`): the same
operations on the same numbers, whose products are fused only where the source says so.
"""
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .plan import SPLIT, TILE, Work

_SPLIT = tl.constexpr(SPLIT)


@triton.jit
def _queries(q, rows, positions, first, count, group, R: tl.constexpr, H: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr):
    """(BLOCK_M, BLOCK_D) queries, and of each: whether it is there, its place in the tile, its row, head and position.
    The R query heads of a row that read one KV head lie one after the other."""
    m = tl.arange(0, BLOCK_M)
    entry, head = m // R, group * R + m % R
    live = entry < count
    row = tl.load(rows + first + entry, mask=live, other=0)
    position = tl.load(positions + row, mask=live, other=-1)
    d = tl.arange(0, BLOCK_D)
    query = tl.load(q + (row.to(tl.int64) * H + head)[:, None] * D + d[None, :], mask=live[:, None] & (d < D)[None, :], other=0.0)
    return query, live, entry, row, head, position


@triton.jit
def _split(
    query, k, v, table, begin, stop, position, scale, kv_slot, offset,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Log-sum-exp (BLOCK_M,) of the scores of keys begin..stop, -inf where a row sees none, and the weighted mean (BLOCK_M, BLOCK_D) of the values."""
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    mean = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    d = tl.arange(0, BLOCK_D)
    for at in range(begin, stop, BLOCK_N):
        key = at + tl.arange(0, BLOCK_N)
        there = key < stop
        slot = tl.load(table + key, mask=there, other=0).to(tl.int64)
        place = slot[:, None] * kv_slot + offset + d[None, :]
        inside = there[:, None] & (d < D)[None, :]
        keys = tl.load(k + place, mask=inside, other=0.0).to(query.dtype)
        values = tl.load(v + place, mask=inside, other=0.0).to(query.dtype)
        score = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
        seen = there[None, :] & (key[None, :] <= position[:, None])
        score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # a row that has seen nothing yet
        weight = tl.exp(score - base[:, None])
        fade = tl.exp(top - base)
        mean = mean * fade[:, None] + tl.dot(weight.to(values.dtype), values, input_precision="ieee")
        total = total * fade + tl.sum(weight, 1)
        top = higher
    share = tl.where(total > 0.0, total, 1.0)
    share = tl.where(total != total, total, share)  # not a number stays so
    return tl.where(total > 0.0, top + tl.log(share), tl.where(total != total, total, float("-inf"))), mean / share[:, None]


@triton.jit
def _faded(top, total, lse):
    """How a fold goes on with a part: the new largest, what remains of the old sums, what the part counts, the new total."""
    higher = tl.where(lse != lse, lse, tl.maximum(top, lse))
    base = tl.where(higher == float("-inf"), 0.0, higher)
    fade, own = tl.exp(top - base), tl.exp(lse - base)
    return higher, fade, own, tl.fma(total, fade, own)


@triton.jit
def whole(
    q, k, v, out, tiles, rows, positions, tables, scale, table_width, kv_slot,
    R: tl.constexpr, H: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """A KV head and tile a program: all its keys. q and out: (T, H, D); k, v: (slots, G, D). WIDE: products in float32."""
    group, tile = tl.program_id(0), tiles + tl.program_id(1) * 6
    count = tl.load(tile + 4)
    if count == 0:
        return
    owner, start, stop = tl.load(tile).to(tl.int64), tl.load(tile + 1), tl.load(tile + 2)
    query, live, _, row, head, position = _queries(q, rows, positions, tl.load(tile + 3), count, group, R, H, D, BLOCK_D, BLOCK_M)
    if WIDE:
        query = query.to(tl.float32)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    mean = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for begin in range(start, stop, _SPLIT):
        end = tl.minimum(begin + _SPLIT, stop)
        lse, part = _split(query, k, v, tables + owner * table_width, begin, end, position, scale, kv_slot, group * D, D, BLOCK_D, BLOCK_M, BLOCK_N)
        top, fade, own, total = _faded(top, total, lse)
        mean = tl.fma(mean, tl.broadcast_to(fade[:, None], (BLOCK_M, BLOCK_D)), own[:, None] * part)
    d = tl.arange(0, BLOCK_D)
    to = out + (row.to(tl.int64) * H + head)[:, None] * D + d[None, :]
    tl.store(to, (mean / tl.where(live, total, 1.0)[:, None]).to(out.dtype.element_ty), mask=live[:, None] & (d < D)[None, :])


@triton.jit
def partials(
    q, k, v, out, lses, tiles, rows, positions, tables, scale, table_width, kv_slot,
    R: tl.constexpr, H: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """A KV head, tile and split a program. out: (partial results, H, D) float32; lses: (partial results, H) float32."""
    group, tile, split = tl.program_id(0), tiles + tl.program_id(1) * 6, tl.program_id(2)
    owner, stop, count = tl.load(tile).to(tl.int64), tl.load(tile + 2), tl.load(tile + 4)
    begin = tl.load(tile + 1) + split * _SPLIT
    if (begin >= stop) | (count == 0):
        return
    query, live, entry, _, head, position = _queries(q, rows, positions, tl.load(tile + 3), count, group, R, H, D, BLOCK_D, BLOCK_M)
    if WIDE:
        query = query.to(tl.float32)
    end = tl.minimum(begin + _SPLIT, stop)
    lse, part = _split(query, k, v, tables + owner * table_width, begin, end, position, scale, kv_slot, group * D, D, BLOCK_D, BLOCK_M, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    to = (tl.load(tile + 5) + split * count + entry).to(tl.int64) * H + head
    tl.store(out + to[:, None] * D + d[None, :], part, mask=live[:, None] & (d < D)[None, :])
    tl.store(lses + to, lse, mask=live)


@triton.jit
def join(partial, lses, joined, part_start, parts, out, H: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """A joined row and head a program: the fold of its parts, in the order of their keys."""
    at, head = tl.program_id(0), tl.program_id(1)
    row = tl.load(joined + at).to(tl.int64)
    if row < 0:
        return
    d = tl.arange(0, BLOCK_D)
    inside = d < D
    top, total = tl.full((), float("-inf"), tl.float32), tl.full((), 0.0, tl.float32)
    mean = tl.zeros((BLOCK_D,), tl.float32)
    for i in range(tl.load(part_start + at), tl.load(part_start + at + 1)):
        first, stride = tl.load(parts + i * 3).to(tl.int64), tl.load(parts + i * 3 + 1)
        for split in range(tl.load(parts + i * 3 + 2)):
            entry = (first + split * stride) * H + head
            part = tl.load(partial + entry * D + d, mask=inside, other=0.0)
            top, fade, own, total = _faded(top, total, tl.load(lses + entry))
            mean = tl.fma(mean, tl.zeros_like(mean) + fade, own * part)
    tl.store(out + (row * H + head) * D + d, (mean / total).to(out.dtype.element_ty), mask=inside)


def attend(q: Tensor, pool_k: Tensor, pool_v: Tensor, work: Work, scale: float, *, wide: bool) -> Tensor:
    """(T, H, D) by the interface's `attention`. q and the pools contiguous."""
    rows, heads, size = q.shape
    groups, sizes = pool_k.shape[1], work.sizes
    per_group, block_d = heads // groups, max(16, triton.next_power_of_2(size))
    out = torch.empty_like(q)
    if not rows:
        return out
    block_n, warps = shape_for(block_d)
    reads = work.rows, work.positions, work.tables, scale, work.tables.shape[1], groups * size
    shape = {
        "R": per_group, "H": heads, "D": size, "BLOCK_D": block_d, "BLOCK_M": max(TILE, triton.next_power_of_2(per_group)), "BLOCK_N": block_n,
        "WIDE": wide, "num_warps": warps,
    }  # fmt: skip
    if sizes.whole:
        whole[(groups, sizes.whole)](q, pool_k, pool_v, out, work.whole, *reads, **shape)
    if sizes.tiles:
        partial = torch.empty((sizes.partials, heads, size), dtype=torch.float32, device=q.device)
        lses = torch.empty((sizes.partials, heads), dtype=torch.float32, device=q.device)
        partials[(groups, sizes.tiles, sizes.splits)](q, pool_k, pool_v, partial, lses, work.tiles, *reads, **shape)
        join[(sizes.joined, heads)](partial, lses, work.joined, work.part_start, work.parts, out, H=heads, D=size, BLOCK_D=block_d, num_warps=1)
    return out


def shape_for(block_d: int) -> tuple[int, int]:
    """Keys a turn and warps a program, for heads of that size: the most that spill no registers (benchmarks/gpu_resources.py).
    The same for every kernel here, since a row's sums are added in an order that depends on both."""
    return 64 if block_d <= 128 else 32, 8
