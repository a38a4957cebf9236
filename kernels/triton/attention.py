"""Ragged paged attention with shared segments.

The work of a pass is a list of items: a tile of query rows against a run of keys, for one KV head a program. Rows of several sequences
stand in one tile where they share the run, so that it is read once for all of them (tree attention: Yao et al. 2024, DeFT, section 3).
Runs are cut at multiples of SPLIT (as in Flash-Decoding), and shared in whole splits only. Each item leaves, for each of its rows, the
softmax-weighted mean over its own keys and the log-sum-exp of its scores; a second kernel joins what a row has, in the order of the keys.
So what a row sums, and in which order, does not depend on who else is in the pass.
"""
from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from ..interface import AttnMeta

SPLIT = 256
"""Keys of one item at most."""
TILE = 64
"""Rows of the matrix unit's tile. A decode step fills few of them, and reads no more for it: it is bound by memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """One pass as items, on the device. All int32.

    items: (N, 5): the sequence whose table is read, first and last key position (exclusive), first of its entries and how many. An entry
    is a row of an item, and has a partial result. rows: (entries,) the row of each. positions: (T,). part_start: (T+1,) and parts: the
    entries of each row, in the order of their keys.
    """

    items: Tensor
    rows: Tensor
    positions: Tensor
    part_start: Tensor
    parts: Tensor
    tables: Tensor


def plan(meta: AttnMeta, per_group: int, device: torch.device) -> Work:
    """The items of a pass, for `per_group` query heads a KV head. Integers only, on the host: one copy of each list to the device."""
    starts, lengths = meta.query_start.cpu().numpy(), meta.context_len.cpu().numpy()
    counts = np.diff(starts)
    positions = np.arange(starts[-1], dtype=np.int32) + np.repeat(lengths - starts[1:], counts).astype(np.int32)
    items, entries = _cut(_runs(meta, starts, lengths), positions, max(1, TILE // per_group))
    rows = np.concatenate([np.empty(0, np.int32), *entries])
    first_keys = np.repeat(np.array([item[1] for item in items], np.int32), [item[4] for item in items])
    order = np.lexsort((first_keys, rows))

    def place(values: np.ndarray | list[tuple[int, ...]]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int32)).to(device, non_blocking=True)

    return Work(
        items=place(items),
        rows=place(rows),
        positions=place(positions),
        part_start=place(np.searchsorted(rows[order], np.arange(starts[-1] + 1))),
        parts=place(order),
        tables=meta.tables.to(device, non_blocking=True),
    )


Run = tuple[int, int, int, np.ndarray]
"""A sequence in whose table the slots stand, first and last key position (exclusive), the rows that read them."""


def _runs(meta: AttnMeta, starts: np.ndarray, lengths: np.ndarray) -> list[Run]:
    """The whole splits of each segment, for the rows of all its members; then what remains of each sequence, for its own rows."""
    rows_of = [np.arange(begin, end, dtype=np.int32) for begin, end in pairwise(starts)]
    runs: list[Run] = []
    covered: list[list[tuple[int, int]]] = [[] for _ in rows_of]
    if (shared := meta.segments) is not None:
        border, members = shared.member_start.tolist(), shared.members.tolist()
        for i, (owner, start, stop) in enumerate(zip(shared.owner.tolist(), shared.start.tolist(), shared.stop.tolist(), strict=True)):
            first, last = -(-start // SPLIT) * SPLIT, stop // SPLIT * SPLIT
            if first < last:
                readers = members[border[i] : border[i + 1]]
                runs.append((owner, first, last, np.concatenate([rows_of[s] for s in readers])))
                for s in readers:
                    covered[s].append((first, last))
    for s, rows in enumerate(rows_of):
        at = 0
        for first, last in [*sorted(covered[s]), (int(lengths[s]), 0)]:
            if at < first and len(rows):
                runs.append((s, at, first, rows))
            at = last
    return runs


def _cut(runs: list[Run], positions: np.ndarray, tile_rows: int) -> tuple[list[tuple[int, ...]], list[np.ndarray]]:
    """Runs into tiles of rows and splits of keys. A tile reads no key that its last row does not see."""
    items: list[tuple[int, ...]] = []
    entries: list[np.ndarray] = []
    first = 0
    for owner, start, stop, rows in runs:
        for at in range(0, len(rows), tile_rows):
            tile = rows[at : at + tile_rows]
            end = min(stop, int(positions[tile].max()) + 1)
            for begin in (start, *range(start - start % SPLIT + SPLIT, end, SPLIT)) if start < end else ():
                cut = min(end, begin - begin % SPLIT + SPLIT)
                items.append((owner, begin, cut, first, len(tile)))
                entries.append(tile)
                first += len(tile)
    return items, entries


@triton.jit
def partials(
    q, k, v, out, lse, items, rows, positions, tables, scale, table_width, kv_slot,
    R: tl.constexpr, H: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """An item and KV head a program. The R query heads of a row that read this KV head lie in the tile one after the other.

    q: (T, H, D); k, v: (slots, G, D); out: (parts, H, D) float32; lse: (parts, H) float32. WIDE: products in float32."""
    item = items + tl.program_id(0) * 5
    group = tl.program_id(1)
    owner, start, stop = tl.load(item).to(tl.int64), tl.load(item + 1), tl.load(item + 2)
    first, count = tl.load(item + 3), tl.load(item + 4)
    m = tl.arange(0, BLOCK_M)
    entry, head = m // R, group * R + m % R
    live = entry < count
    row = tl.load(rows + first + entry, mask=live, other=0)
    position = tl.load(positions + row, mask=live, other=-1)
    d = tl.arange(0, BLOCK_D)
    wide_enough = d < D
    query = tl.load(q + (row.to(tl.int64) * H + head)[:, None] * D + d[None, :], mask=live[:, None] & wide_enough[None, :], other=0.0)
    if WIDE:
        query = query.to(tl.float32)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    mean = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for at in range(start, stop, BLOCK_N):
        key = at + tl.arange(0, BLOCK_N)
        there = key < stop
        slot = tl.load(tables + owner * table_width + key, mask=there, other=0).to(tl.int64)
        place = slot[:, None] * kv_slot + group * D + d[None, :]
        keys = tl.load(k + place, mask=there[:, None] & wide_enough[None, :], other=0.0)
        values = tl.load(v + place, mask=there[:, None] & wide_enough[None, :], other=0.0)
        if WIDE:
            keys, values = keys.to(tl.float32), values.to(tl.float32)
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
    to = (first + entry).to(tl.int64) * H + head
    tl.store(out + to[:, None] * D + d[None, :], mean / share[:, None], mask=live[:, None] & wide_enough[None, :])
    tl.store(lse + to, tl.where(total > 0.0, top + tl.log(share), float("-inf")), mask=live)


@triton.jit
def join(partial, lse, part_start, parts, out, H: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """A row and head a program: the means of its parts, each weighted by its part of the softmax."""
    row, head = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, BLOCK_D)
    inside = d < D
    top = float("-inf")
    total = 0.0
    mean = tl.zeros((BLOCK_D,), tl.float32)
    for i in range(tl.load(part_start + row), tl.load(part_start + row + 1)):
        at = tl.load(parts + i).to(tl.int64) * H + head
        weight = tl.load(lse + at)
        higher = tl.maximum(top, weight)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        fade, own = tl.exp(top - base), tl.exp(weight - base)
        mean = mean * fade + own * tl.load(partial + at * D + d, mask=inside, other=0.0)
        total = total * fade + own
        top = higher
    tl.store(out + (row.to(tl.int64) * H + head) * D + d, (mean / total).to(out.dtype.element_ty), mask=inside)


def attend(q: Tensor, pool_k: Tensor, pool_v: Tensor, work: Work, scale: float, *, wide: bool) -> Tensor:
    """(T, H, D) by the interface's `attention`. q and the pools contiguous."""
    rows, heads, size = q.shape
    groups = pool_k.shape[1]
    per_group, block_d = heads // groups, max(16, triton.next_power_of_2(size))
    out = torch.empty_like(q)
    if not rows:
        return out
    partial = torch.empty((len(work.rows), heads, size), dtype=torch.float32, device=q.device)
    lse = torch.empty((len(work.rows), heads), dtype=torch.float32, device=q.device)
    block_n, warps = shape_for(block_d)
    partials[(len(work.items), groups)](
        q, pool_k, pool_v, partial, lse, work.items, work.rows, work.positions, work.tables, scale, work.tables.shape[1], groups * size,
        R=per_group, H=heads, D=size, BLOCK_D=block_d, BLOCK_M=max(TILE, triton.next_power_of_2(per_group)), BLOCK_N=block_n, WIDE=wide, num_warps=warps,
    )  # fmt: skip
    join[(rows, heads)](partial, lse, work.part_start, work.parts, out, H=heads, D=size, BLOCK_D=block_d)
    return out


def shape_for(block_d: int) -> tuple[int, int]:
    """Keys a turn and warps a program, for heads of that size: the most that spill no registers (benchmarks/gpu_resources.py)."""
    return 64 if block_d <= 128 else 32, 4 if block_d <= 64 else 8
