"""The triton peer: its own kernels for all but the linears, which are torch's (cuBLAS on a GPU)."""
from __future__ import annotations

import torch
import triton
from torch import Tensor

from ..interface import AttnMeta, DecoderWeights, Linear, PackedWeight, RopeTable
from ..reference import ReferenceKernels
from . import attention, rows
from .linear import linear
from .plan import Work, plan
from .sampler import TritonSampler

BLOCK = 1024  # elements a program, where rows do not matter


class TritonKernels:
    """Kernels in Triton. A row's bits do not depend on who else is in the pass, but for the products, which are cuBLAS's and depend on how
    many rows there are; with `deterministic` they are Triton's too (linear.py), and slower."""

    name = "triton"

    def __init__(self, device: str, dtype: str = "auto", *, deterministic: bool = False) -> None:
        self.device = torch.device(device)
        self.interpreted = self.device.type == "cpu"
        self.deterministic = deterministic
        chosen = ("float32" if self.interpreted else "bfloat16") if dtype == "auto" else dtype
        self.activation_dtype = self.kv_dtype = getattr(torch, chosen)
        self.why = f"Triton kernels, {chosen}" + (", interpreted: exact, and thousands of times slower than compiled" if self.interpreted else "")
        if deterministic:
            self.why += ", deterministic"
        self._torch = ReferenceKernels(self.why, self.activation_dtype)
        self._planned: tuple[AttnMeta, Work] | None = None  # all layers of a pass have the same

    def linear(self, x: Tensor, w: Linear) -> Tensor:
        if self.deterministic:
            return linear(x, self._torch.matrix(w.weight), w.bias, wide=self.interpreted)
        return self._torch.linear(x, w)

    def embed(self, ids: Tensor, table: Tensor | PackedWeight) -> Tensor:
        return self._torch.embed(ids, table)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self._norm(x, None, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self._norm(x, residual, weight, eps)

    def _norm(self, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
        x, size = x.contiguous(), x.shape[-1]
        out = torch.empty_like(x)
        if x.numel():
            grid, block = (x.numel() // size,), triton.next_power_of_2(size)
            rows.rms_norm[grid](
                x, x if residual is None else residual, weight, out, eps, size, WITH_RESIDUAL=residual is not None, BLOCK=block
            )
        return out

    def rope(self, q: Tensor, k: Tensor, positions: Tensor, table: RopeTable) -> None:
        (n, heads, size), groups, half = q.shape, k.shape[1], table.cos.shape[1]
        if n:
            block = triton.next_power_of_2(half)
            rows.rope[(n, heads + groups)](q, k, positions, table.cos, table.sin, heads, groups, size, half, BLOCK=block)

    def store_kv(self, k: Tensor, v: Tensor, pool_k: Tensor, pool_v: Tensor, slots: Tensor) -> None:
        size = k.shape[1] * k.shape[2]
        if len(k):
            rows.store_kv[(len(k),)](k.contiguous(), v.contiguous(), pool_k, pool_v, slots, size, BLOCK=triton.next_power_of_2(size))

    def attention(self, q: Tensor, pool_k: Tensor, pool_v: Tensor, meta: AttnMeta, scale: float) -> Tensor:
        if self._planned is None or self._planned[0] is not meta:
            self._planned = meta, plan(meta, q.shape[1] // pool_k.shape[1], q.device)
        return attention.attend(q.contiguous(), pool_k, pool_v, self._planned[1], scale, wide=self.interpreted)

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        out = torch.empty_like(gate)
        if gate.numel():
            rows.silu_mul[(triton.cdiv(gate.numel(), BLOCK),)](gate, up, out, gate.numel(), BLOCK=BLOCK)
        return out

    def mask_logits(self, logits: Tensor, bits: Tensor) -> None:
        n, vocabulary = logits.shape
        if logits.device.type != self.device.type:  # brought to the host already
            self._torch.mask_logits(logits, bits)
        elif n:
            bits = bits.to(logits.device).contiguous()
            rows.mask_logits[(n, triton.cdiv(vocabulary, BLOCK))](logits, bits, vocabulary, bits.shape[1], BLOCK=BLOCK)

    def decoder(self, weights: DecoderWeights) -> None:
        return None

    def sampler(self) -> TritonSampler:
        return TritonSampler()
