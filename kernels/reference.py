"""The reference peer: plain torch, on any device. The oracle in tests, and what runs where nothing faster can.

Every operation is the shortest exact statement of the interface. Products are torch's own, whose order of summation may
depend on the number of rows: equal inputs in different batches agree to rounding here, and bit by bit on the other peers.
"""
from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from .blocks import dequantize
from .errors import KernelError
from .interface import AttnMeta, DecoderWeights, Linear, PackedWeight, RopeTable


class ReferenceKernels:
    """Kernels in plain torch. Packed weights are expanded on first use and kept as long as the weight lives."""

    name = "reference"

    def __init__(self, why: str, dtype: torch.dtype = torch.float32) -> None:
        self.why = why
        self.activation_dtype = dtype
        self.kv_dtype = dtype
        self._expanded: WeakKeyDictionary[PackedWeight, Tensor] = WeakKeyDictionary()

    def matrix(self, weight: Tensor | PackedWeight) -> Tensor:
        """The weight as a plain (out, in) tensor of the activations' type."""
        if isinstance(weight, Tensor):
            return weight.to(self.activation_dtype)
        kept = self._expanded.get(weight)
        if kept is None:
            kept = self._expanded[weight] = dequantize(weight).to(self.activation_dtype)
        return kept

    def linear(self, x: Tensor, w: Linear) -> Tensor:
        bias = None if w.bias is None else w.bias.to(x.dtype)
        return torch.nn.functional.linear(x, self.matrix(w.weight).to(x.dtype), bias)

    def embed(self, ids: Tensor, table: Tensor | PackedWeight) -> Tensor:
        if isinstance(table, PackedWeight):
            return dequantize(table, ids).to(self.activation_dtype)
        return table[ids.long()].to(self.activation_dtype)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        residual += x
        return self.rms_norm(residual, weight, eps)

    def rope(self, q: Tensor, k: Tensor, positions: Tensor, table: RopeTable) -> None:
        cos = table.cos[positions.long()].unsqueeze(1)  # (T, 1, rotary_dim / 2)
        sin = table.sin[positions.long()].unsqueeze(1)
        half = cos.shape[-1]
        for x in (q, k):
            first, second = x[..., :half].float(), x[..., half : 2 * half].float()
            # Both before either is stored: in float32 `first` and `second` are views of x.
            turned = first * cos - second * sin, second * cos + first * sin
            x[..., :half], x[..., half : 2 * half] = turned

    def store_kv(self, k: Tensor, v: Tensor, pool_k: Tensor, pool_v: Tensor, slots: Tensor) -> None:
        for pool, x in ((pool_k, k), (pool_v, v)):
            most = torch.finfo(torch.float16).max
            pool[slots.long()] = (x.float().clamp(-most, most) if pool.dtype == torch.float16 else x).to(pool.dtype)

    def attention(self, q: Tensor, pool_k: Tensor, pool_v: Tensor, meta: AttnMeta, scale: float) -> Tensor:
        out = torch.empty_like(q)
        starts, lengths = meta.query_start.tolist(), meta.context_len.tolist()
        shared = _runs(meta)
        for s, length in enumerate(lengths):
            rows = slice(starts[s], starts[s + 1])
            if rows.start == rows.stop:
                continue
            parts = []
            tail = max((stop for _, _, stop in shared[s]), default=0)
            for owner, begin, end in [*shared[s], (s, tail, length)]:
                slots = meta.tables[owner, begin:end].long()
                parts.append(_attend(q[rows], pool_k[slots], pool_v[slots], length - begin, scale))
            out[rows] = _merge(parts).to(q.dtype)
        return out

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        return (torch.nn.functional.silu(gate.float()) * up.float()).to(gate.dtype)

    def mask_logits(self, logits: Tensor, bits: Tensor) -> None:
        ids = torch.arange(logits.shape[1], device=logits.device)
        allowed = (bits[:, ids // 32] >> (ids % 32)) & 1
        logits.masked_fill_(allowed == 0, float("-inf"))

    def decoder(self, weights: DecoderWeights) -> None:
        return None

    def sampler(self) -> None:
        return None


def _runs(meta: AttnMeta) -> list[list[tuple[int, int, int]]]:
    """For each sequence the (owner, start, stop) of the segments it reads, in order of position."""
    runs: list[list[tuple[int, int, int]]] = [[] for _ in range(meta.context_len.shape[0])]
    if (shared := meta.segments) is None:
        return runs
    borders, members = shared.member_start.tolist(), shared.members.tolist()
    for i, run in enumerate(zip(shared.owner.tolist(), shared.start.tolist(), shared.stop.tolist(), strict=True)):
        for s in members[borders[i] : borders[i + 1]]:
            runs[s].append(run)
    return [sorted(r, key=lambda run: run[1]) for r in runs]


def _attend(q: Tensor, k: Tensor, v: Tensor, ahead: int, scale: float) -> tuple[Tensor, Tensor]:
    """Rows q (t, H, D) over one run of keys (n, G, D). The last row sees `ahead` keys counted from the run's start (all of
    them when it has fewer), each earlier row one less. Returns the result of the run alone and its log-sum-exp (t, H, 1)."""
    rows, groups = q.shape[0], k.shape[1]
    heads = q.float().reshape(rows, groups, -1, q.shape[2])
    scores = torch.einsum("tgrd,ngd->tgrn", heads, k.float()) * scale
    seen = torch.arange(k.shape[0], device=q.device) < torch.arange(ahead - rows + 1, ahead + 1, device=q.device).unsqueeze(1)
    scores = scores.masked_fill(~seen[:, None, None, :], float("-inf"))
    total = torch.logsumexp(scores, dim=-1, keepdim=True)
    weights = torch.where(seen[:, None, None, :], torch.exp(scores - total), 0.0)
    mixed = torch.einsum("tgrn,ngd->tgrd", weights, v.float())
    return mixed.reshape(q.shape), total.reshape(rows, -1, 1)


def _merge(parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Results of disjoint runs, weighted by the share of the softmax that each run holds. A run that a row sees nothing
    of weighs nothing."""
    totals = torch.stack([total for _, total in parts])
    share = torch.softmax(totals, dim=0)
    return torch.stack([mixed for mixed, _ in parts]).mul(share).sum(0)


def open_peer(device: str, dtype: str, threads: int | None, *, deterministic: bool) -> ReferenceKernels:
    """The reference for `get_kernels`. Threads are torch's own and belong to the process: a number given sets it for all of it.
    Raises KernelError where bits must not depend on the batch."""
    if deterministic:
        raise KernelError("the reference's products are torch's, whose bits depend on the number of rows: it cannot be deterministic")
    if threads is not None:
        torch.set_num_threads(threads)
    chosen = torch.float32 if dtype == "auto" else getattr(torch, dtype)
    return ReferenceKernels("plain torch, exact and 5 to 50 times slower than compiled kernels", chosen)
