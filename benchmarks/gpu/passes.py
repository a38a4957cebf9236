"""Ragged passes to try kernels on, and their definition in float64."""
from __future__ import annotations

import torch
from torch import Tensor

from ramet.kernels.interface import AttnMeta, Segments


def ints(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def crowd(lengths: list[int], rows: list[int]) -> AttnMeta:
    """Sequences that share nothing, each with its last rows in the pass; slots in no order."""
    longest = max(lengths)
    tables = torch.randperm(len(lengths) * longest).int().reshape(len(lengths), longest)
    starts = torch.tensor([0, *rows]).cumsum(0).int()
    return AttnMeta(starts, ints(lengths), tables, longest, max(rows))


def tree(branches: int, shared: int, own: int, *, share: bool = True) -> AttnMeta:
    """Branches of one row each under a shared prefix."""
    length = shared + own
    root = torch.arange(shared, dtype=torch.int32).expand(branches, shared)
    tails = shared + torch.arange(branches * own, dtype=torch.int32).reshape(branches, own)
    every = torch.arange(branches, dtype=torch.int32)
    segments = Segments(ints([0]), ints([shared]), ints([0]), ints([0, branches]), every, ints([shared] * branches))
    starts = torch.arange(branches + 1, dtype=torch.int32)
    return AttnMeta(starts, ints([length] * branches), torch.cat((root, tails), 1).contiguous(), length, 1, segments if share else None)


def alone(meta: AttnMeta, s: int) -> AttnMeta:
    """Sequence s of a pass by itself."""
    rows, length = int(meta.query_start[s + 1] - meta.query_start[s]), int(meta.context_len[s])
    return AttnMeta(ints([0, rows]), ints([length]), meta.tables[s : s + 1, :length].contiguous(), length, rows)


def attended(q: Tensor, pool_k: Tensor, pool_v: Tensor, meta: AttnMeta, scale: float) -> Tensor:
    """One row after the other, by the interface's definition."""
    out, per_group = torch.empty_like(q), q.shape[1] // pool_k.shape[1]
    for s, length in enumerate(meta.context_len.tolist()):
        begin, end = meta.query_start[s : s + 2].tolist()
        for row in range(begin, end):
            slots = meta.tables[s, : length - (end - row) + 1].long()
            k, v = (pool[slots].repeat_interleave(per_group, 1) for pool in (pool_k, pool_v))
            out[row] = torch.einsum("hn,nhd->hd", torch.softmax(torch.einsum("hd,nhd->hn", q[row], k) * scale, -1), v)
    return out


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
