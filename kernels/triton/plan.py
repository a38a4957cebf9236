"""A pass of attention as lists of tiles: whole numbers, made on the host, one copy to the device.

A *tile* is rows that read the same run of keys: rows of one sequence, or of several that share the run, so that it is read once for all of
them (tree attention: Yao et al. 2024, DeFT, section 3). Keys are cut at multiples of SPLIT (as in Flash-Decoding), and runs are
shared in whole splits only. A row's result is the fold of its splits' results in the order of the keys, whoever computes them:

* a *whole* tile folds all its keys in one program and writes the result: chunks of prompts, and contexts of one split;
* any other tile has a program a split, which leaves a partial result for each of its rows; `join` folds what a row has.

So what a row sums, and in which order, depends neither on who else is in the pass nor on which of the two ways it goes.
"""
from __future__ import annotations

from dataclasses import astuple, dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from ..errors import KernelError
from ..interface import AttnMeta

SPLIT = 256  # keys
TILE = 64
"""Rows of the matrix unit's tile, query heads of one KV head side by side. A decode step fills few, and reads no more for it: memory bounds it."""
WHOLE_ROWS = 128
"""A sequence with as many rows in the pass has work for enough programs without being cut along its keys, and full tiles without sharing."""

Tile = tuple[int, int, int, np.ndarray]
"""A sequence in whose table the slots stand, first and last key position (exclusive), the rows."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How long the lists of a pass are; or for a pass that is captured once and filled again, how long they may become."""

    whole: int  # tiles that are folded in one program
    tiles: int  # tiles with a program a split
    rows: int  # of all tiles
    parts: int  # tiles of each joined row, all together
    joined: int  # rows that are joined
    positions: int  # rows of the pass
    splits: int  # of the longest tile
    partials: int  # results of rows and splits


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """One pass on the device. All int32, views of one buffer; what a list does not fill is 0, in `joined` -1, and nothing is done for it.

    whole, tiles: (., 6): sequence, first and last key (exclusive), first of its `rows`, how many, first of its partial results: that of
    row i and split j is so many plus j * count + i. rows: of the pass. joined: rows, part_start (joined + 1): their parts, each (3,): first
    partial result, distance to the next split's, how many splits. positions: of each row. tables: as in AttnMeta.
    """

    sizes: Sizes
    buffer: Tensor
    whole: Tensor
    tiles: Tensor
    rows: Tensor
    joined: Tensor
    part_start: Tensor
    parts: Tensor
    positions: Tensor
    tables: Tensor

    def fill(self, meta: AttnMeta, per_group: int) -> None:
        """Another pass in the same buffers, as a captured graph replays it; its tables go into `tables`. KernelError if it is larger."""
        lists, sizes = _lists(meta, per_group)
        if any(has > may for has, may in zip(astuple(sizes), astuple(self.sizes), strict=True)):
            raise KernelError(f"a pass of {sizes} does not fit in the {self.sizes} that were reserved")
        self.buffer.copy_(_staged(_laid(lists, self.sizes), self.buffer.device), non_blocking=True)
        sequences, width = meta.tables.shape
        self.tables[:sequences, :width].copy_(meta.tables, non_blocking=True)


def plan(meta: AttnMeta, per_group: int, device: torch.device, *, room: Sizes | None = None, tables: Tensor | None = None) -> Work:
    """The tiles of a pass, for `per_group` query heads a KV head. With `room` and `tables` (sequences, positions)
    on the device, larger passes may follow in the same buffers (`fill`)."""
    lists, sizes = _lists(meta, per_group)
    room = room or sizes
    buffer = torch.empty(sum(_lengths(room)), dtype=torch.int32, device=device)
    views = buffer.split(_lengths(room))
    if tables is None:
        tables = meta.tables.to(device, non_blocking=True)
    work = Work(room, buffer, views[0].view(-1, 6), views[1].view(-1, 6), views[2], views[3], views[4], views[5].view(-1, 3), views[6], tables)
    buffer.copy_(_staged(_laid(lists, room), device), non_blocking=True)
    return work


def _staged(values: np.ndarray, device: torch.device) -> Tensor:
    """In memory that a GPU reads by itself, so that the copy is queued and not waited for."""
    host = torch.from_numpy(values)
    return host.pin_memory() if device.type == "cuda" else host


def _lengths(sizes: Sizes) -> list[int]:
    return [6 * sizes.whole, 6 * sizes.tiles, sizes.rows, sizes.joined, sizes.joined + 1, 3 * sizes.parts, sizes.positions]


def _laid(lists: list[np.ndarray], room: Sizes) -> np.ndarray:
    """The lists one after the other, each with room to grow."""
    out = np.zeros(sum(_lengths(room)), dtype=np.int32)
    for at, length, values in zip(accumulate(_lengths(room), initial=0), _lengths(room), lists, strict=False):
        out[at : at + values.size] = values.reshape(-1)
        if values is lists[3]:
            out[at + values.size : at + length] = -1
    return out


def _lists(meta: AttnMeta, per_group: int) -> tuple[list[np.ndarray], Sizes]:
    starts, lengths = meta.query_start.cpu().numpy(), meta.context_len.cpu().numpy()
    counts = np.diff(starts)
    positions = np.arange(starts[-1], dtype=np.int32) + np.repeat(lengths - starts[1:], counts).astype(np.int32)
    whole, split = _tiles(meta, starts, lengths, max(1, TILE // per_group), positions)
    ends = [*accumulate((len(tile[3]) for tile in (*whole, *split)), initial=0)]
    splits = [-(-(stop - start) // SPLIT) for _, start, stop, _ in split]
    firsts = [*accumulate((n * len(tile[3]) for n, tile in zip(splits, split, strict=True)), initial=0)]
    rows = np.concatenate([np.empty(0, np.int32), *(tile[3] for tile in (*whole, *split))])
    whole_list = np.array([(o, a, b, first, len(r), 0) for (o, a, b, r), first in zip(whole, ends, strict=False)], np.int32).reshape(-1, 6)
    split_list = np.array(
        [(o, a, b, first, len(r), at) for (o, a, b, r), first, at in zip(split, ends[len(whole) :], firsts, strict=False)], np.int32
    ).reshape(-1, 6)
    joined, part_start, parts = _parts(split, splits, firsts)
    sizes = Sizes(len(whole), len(split), len(rows), len(parts), len(joined), len(positions), max(splits, default=0), firsts[-1])
    return [whole_list, split_list, rows, joined, part_start, parts, positions], sizes


def _tiles(meta: AttnMeta, starts: np.ndarray, lengths: np.ndarray, most: int, positions: np.ndarray) -> tuple[list[Tile], list[Tile]]:
    """Those that one program folds, and those with a program a split. A tile reads no key that its last row does not see."""
    rows_of = [np.arange(begin, end, dtype=np.int32) for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)]
    covered: list[list[tuple[int, int]]] = [[] for _ in rows_of]
    runs: list[Tile] = []
    if (shared := meta.segments) is not None:
        border, members = shared.member_start.tolist(), shared.members.tolist()
        for i, (owner, start, stop) in enumerate(zip(shared.owner.tolist(), shared.start.tolist(), shared.stop.tolist(), strict=True)):
            first, last = -(-start // SPLIT) * SPLIT, stop // SPLIT * SPLIT
            readers = [s for s in members[border[i] : border[i + 1]] if 0 < len(rows_of[s]) < WHOLE_ROWS]
            if first < last and readers:
                runs.append((owner, first, last, np.concatenate([rows_of[s] for s in readers])))
                for s in readers:
                    covered[s].append((first, last))
    whole: list[Tile] = []
    for s, (rows, length) in enumerate(zip(rows_of, lengths.tolist(), strict=True)):
        if not len(rows):
            continue
        if not covered[s] and (length <= SPLIT or len(rows) >= WHOLE_ROWS):
            whole.append((s, 0, length, rows))
            continue
        at = 0
        for first, last in [*sorted(covered[s]), (length, length)]:
            if at < first:
                runs.append((s, at, first, rows))
            at = last
    return _cut(whole, most, positions), _cut(runs, most, positions)


def _cut(runs: list[Tile], most: int, positions: np.ndarray) -> list[Tile]:
    """Runs with at most so many rows each. The last row of a sequence's own is the furthest; of a shared run each row sees all."""
    tiles: list[Tile] = []
    for owner, start, stop, rows in runs:
        for at in range(0, len(rows), most):
            tile = rows[at : at + most]
            end = min(stop, int(positions[tile[-1]]) + 1)
            if start < end:
                tiles.append((owner, start, end, tile))
    return tiles


def _parts(tiles: list[Tile], splits: list[int], firsts: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows that have partial results, where each one's parts begin, and the parts in the order of their keys."""
    if not tiles:
        return np.empty(0, np.int32), np.zeros(1, np.int32), np.empty((0, 3), np.int32)
    counts = [len(tile[3]) for tile in tiles]
    rows = np.concatenate([tile[3] for tile in tiles])
    inner = np.arange(len(rows)) - np.repeat([*accumulate(counts[:-1], initial=0)], counts)
    each = np.stack((np.repeat(firsts[:-1], counts) + inner, np.repeat(counts, counts), np.repeat(splits, counts)), 1)
    order = np.lexsort((np.repeat([tile[1] for tile in tiles], counts), rows))
    joined, begin = np.unique(rows[order], return_index=True)
    return joined.astype(np.int32), np.append(begin, len(rows)).astype(np.int32), each[order].astype(np.int32)
