"""The CPU peer: the kernels of this folder behind the interface, on torch tensors.

Activations are float32. Packed weights keep the file's numbers and meet activations rounded to 8 bits, 32 at a time with
a scale of their own; with dtype "float32" they are expanded, and everything is exact.
"""
from __future__ import annotations

import ctypes
import os
from typing import Any
from weakref import WeakKeyDictionary, finalize

import torch
from torch import Tensor

from ..blocks import check, dequantize
from ..errors import KernelError
from ..interface import AttnMeta, DecoderInput, DecoderWeights, Linear, PackedWeight, RopeTable
from . import library
from .library import CLinear, DecoderSpec, LayerSpec, Meta, Pass

KINDS: dict[Any, int] = {  # Kind of matrix.h
    torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, "Q8_0": 3, "Q4_0": 4, "Q4_1": 5, "Q4_K": 6, "Q6_K": 7,
}  # fmt: skip
CACHES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}  # Cache of attention.h


class Matrix:
    """A weight in the kernels' own order (a copy: as many bytes as the file's, tiles filled up). Freed with this object."""

    def __init__(self, peer: CpuKernels, weight: Tensor | PackedWeight) -> None:
        if isinstance(weight, PackedWeight):
            check(weight)
            kind, rows, self.outputs, self.inputs = KINDS[weight.kind], weight.data, weight.out_features, weight.in_features
        else:
            if weight.dtype not in CACHES or weight.dim() != 2:
                raise KernelError(f"a weight must be 2-dimensional float32, float16 or bfloat16, not {weight.dtype} {tuple(weight.shape)}")
            kind, rows, (self.outputs, self.inputs) = KINDS[weight.dtype], weight.detach().contiguous(), weight.shape
        self.packed = isinstance(weight, PackedWeight)
        self.handle = peer.lib.ramet_matrix_new(peer.pool, kind, self.outputs, self.inputs, rows.data_ptr())
        if not self.handle:
            raise KernelError(f"not enough memory for a weight of {self.outputs} x {self.inputs}")
        self.bytes: int = peer.lib.ramet_matrix_bytes(self.handle)
        _free_with(self, peer.lib.ramet_matrix_free, self.handle)


class CpuKernels:
    """Kernels of the processor. One pool of threads, which sleeps between passes; a call uses it alone."""

    name = "cpu"
    activation_dtype = torch.float32

    def __init__(self, dtype: str = "auto", threads: int | None = None, instruction_set: str | None = None) -> None:
        self.lib, self.instruction_set, missed = library.load(instruction_set)
        self.threads = threads or usable_cores()
        self.exact = dtype == "float32"
        self.kv_dtype = torch.bfloat16 if dtype == "auto" else getattr(torch, dtype)
        self.why = f"compiled kernels ({self.instruction_set}, {self.threads} threads{'; ' + missed if missed else ''})"
        self.pool = self.lib.ramet_pool_new(self.threads)
        if not self.pool:
            raise KernelError(f"the system refused {self.threads} threads; ask for fewer")
        _free_with(self, self.lib.ramet_pool_free, self.pool)
        self._matrices: WeakKeyDictionary[Any, Matrix] = WeakKeyDictionary()

    def matrix(self, weight: Linear | PackedWeight) -> Matrix:
        """The kernels' form of a weight, made on first use and kept as long as the weight lives."""
        kept = self._matrices.get(weight)
        if kept is None:
            raw = weight.weight if isinstance(weight, Linear) else weight
            if isinstance(raw, PackedWeight) and self.exact:
                raw = dequantize(raw)
            kept = self._matrices[weight] = Matrix(self, raw)
        return kept

    def linear(self, x: Tensor, w: Linear) -> Tensor:
        matrix, rows = self.matrix(w), _float(x, "x")
        if rows.shape[-1] != matrix.inputs:
            raise KernelError(f"x has {rows.shape[-1]} numbers in a row; the weight takes {matrix.inputs}")
        out = torch.empty(*rows.shape[:-1], matrix.outputs)
        bias = None if w.bias is None else w.bias.float().contiguous()
        count = rows.numel() // matrix.inputs
        _check(self.lib.ramet_linear(self.pool, matrix.handle, _at(bias), count, rows.data_ptr(), out.data_ptr()))
        return out

    def embed(self, ids: Tensor, table: Tensor | PackedWeight) -> Tensor:
        return dequantize(table, ids) if isinstance(table, PackedWeight) else table[ids.long()].float()

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x, weight = _float(x, "x"), _float(weight, "weight")
        out, size = torch.empty_like(x), x.shape[-1]
        self.lib.ramet_rms_norm(self.pool, x.numel() // size, size, x.data_ptr(), weight.data_ptr(), eps, out.data_ptr())
        return out

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        x, weight = _float(x, "x"), _float(weight, "weight")
        _in_place(residual, "residual")
        out, size = torch.empty_like(x), x.shape[-1]
        self.lib.ramet_add_rms_norm(
            self.pool, x.numel() // size, size, x.data_ptr(), residual.data_ptr(), weight.data_ptr(), eps, out.data_ptr()
        )
        return out

    def rope(self, q: Tensor, k: Tensor, positions: Tensor, table: RopeTable) -> None:
        half = table.cos.shape[1]
        for x, name in ((q, "q"), (k, "k")):
            _in_place(x, name)
            self.lib.ramet_rope(
                self.pool, x.shape[0], x.shape[1], x.shape[2], half, x.data_ptr(), _ints(positions, "positions").data_ptr(),
                _float(table.cos, "cos").data_ptr(), _float(table.sin, "sin").data_ptr(),
            )  # fmt: skip

    def store_kv(self, k: Tensor, v: Tensor, pool_k: Tensor, pool_v: Tensor, slots: Tensor) -> None:
        k, v, slots = _float(k, "k"), _float(v, "v"), _ints(slots, "slots")
        cache = _cache(pool_k, pool_v)
        size = pool_k.shape[1] * pool_k.shape[2]
        self.lib.ramet_store_kv(
            self.pool, cache, k.shape[0], size, k.data_ptr(), v.data_ptr(), pool_k.data_ptr(), pool_v.data_ptr(), slots.data_ptr()
        )

    def attention(self, q: Tensor, pool_k: Tensor, pool_v: Tensor, meta: AttnMeta, scale: float) -> Tensor:
        q = _float(q, "q")
        out, (rows, heads, size) = torch.empty_like(q), q.shape
        slots, groups, _ = pool_k.shape
        _check(self.lib.ramet_attention(
            self.pool, ctypes.byref(_meta(meta)), rows, slots, _cache(pool_k, pool_v), heads, groups, size,
            q.data_ptr(), pool_k.data_ptr(), pool_v.data_ptr(), scale, out.data_ptr(),
        ))  # fmt: skip
        return out

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = _float(gate, "gate"), _float(up, "up")
        out, size = torch.empty_like(gate), gate.shape[-1]
        self.lib.ramet_silu_mul(self.pool, gate.numel() // size, size, gate.data_ptr(), up.data_ptr(), out.data_ptr())
        return out

    def mask_logits(self, logits: Tensor, bits: Tensor) -> None:
        _in_place(logits, "logits")
        bits = _ints(bits, "bits")
        rows, vocabulary = logits.shape
        if bits.shape[0] != rows or bits.shape[1] * 32 < vocabulary:
            raise KernelError(f"bits {tuple(bits.shape)} do not cover logits {tuple(logits.shape)}: 32 ids to a word")
        self.lib.ramet_mask_logits(self.pool, rows, vocabulary, bits.shape[1], logits.data_ptr(), bits.data_ptr())

    def decoder(self, weights: DecoderWeights) -> CpuDecoder:
        return CpuDecoder(self, weights)

    def sampler(self) -> None:
        return None


class CpuDecoder:
    """A whole stack as one call. Holds its own form of the weights; those it was made from are no longer needed."""

    def __init__(self, peer: CpuKernels, weights: DecoderWeights) -> None:
        if weights.sliding_window is not None:
            raise KernelError("a sliding window is not supported by the cpu kernels")
        self._peer = peer
        self._kept: list[Matrix | Tensor] = []  # what the C side points at
        head = weights.head
        self._vocabulary = head.out_features
        self._shape = (len(weights.layers), weights.n_kv_heads, weights.head_dim)  # of the pool, slots left out
        linear_head = self._linear(head)
        tied = weights.embed is head.weight
        embed = linear_head.w if tied else self._linear(Linear(weights.embed)).w
        layers = (LayerSpec * len(weights.layers))()
        for spec, layer in zip(layers, weights.layers, strict=True):
            for name in ("attn_norm", "mlp_norm", "q_norm", "k_norm"):
                setattr(spec, name, self._vector(getattr(layer, name)))
            for name in ("q", "k", "v", "o", "down"):
                setattr(spec, name, self._linear(getattr(layer, name)))
            spec.gate, spec.up = self._gate_and_up(layer.gate, layer.up)
        rope = weights.rope
        self._spec = DecoderSpec(
            len(layers), head.in_features, weights.n_heads, weights.n_kv_heads, weights.head_dim, rope.cos.shape[1], weights.rms_eps,
            embed, self._vector(weights.norm), linear_head, self._vector(rope.cos), self._vector(rope.sin), rope.cos.shape[0], layers,
        )  # fmt: skip
        self._handle = peer.lib.ramet_decoder_new(peer.pool, ctypes.byref(self._spec))
        if not self._handle:
            raise KernelError("not enough memory for the decoder")
        _free_with(self, peer.lib.ramet_decoder_free, self._handle)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all matrices in the kernels' form."""
        return sum(kept.bytes for kept in self._kept if isinstance(kept, Matrix))

    def _vector(self, x: Tensor | None) -> int | None:
        if x is None:
            return None
        kept = x.detach().float().contiguous()
        self._kept.append(kept)
        return kept.data_ptr()

    def _linear(self, w: Linear, *, plain: bool = False) -> CLinear:
        raw = w.weight
        if isinstance(raw, PackedWeight) and (plain or self._peer.exact):
            raw = dequantize(raw)
        kept = Matrix(self._peer, raw)
        self._kept.append(kept)
        return CLinear(kept.handle, self._vector(w.bias))

    def _gate_and_up(self, gate: Linear, up: Linear) -> tuple[CLinear, CLinear]:
        if gate.bias is not None or up.bias is not None:
            raise KernelError("gate and up projections with a bias are not supported by the cpu kernels")
        plain = not (isinstance(gate.weight, PackedWeight) and isinstance(up.weight, PackedWeight))  # one kind of tile for both
        return self._linear(gate, plain=plain), self._linear(up, plain=plain)

    def forward(self, batch: DecoderInput, pool_k: Tensor, pool_v: Tensor) -> Tensor:
        """(R, vocabulary) float32 logits of batch.logit_rows. Raises KernelError where the batch and the pool do not fit."""
        cache = _cache(pool_k, pool_v)
        layers, slots, groups, size = pool_k.shape
        if (layers, groups, size) != self._shape:
            raise KernelError(f"the pool is {tuple(pool_k.shape)}; (layers, slots, kv heads, head size) must be {self._shape} with slots")
        rows = [_ints(t, name) for t, name in (
            (batch.input_ids, "input_ids"), (batch.positions, "positions"), (batch.write_slots, "write_slots"), (batch.logit_rows, "logit_rows"),
        )]  # fmt: skip
        if not len(rows[0]) == len(rows[1]) == len(rows[2]):
            raise KernelError("input_ids, positions and write_slots must be of one length")
        logits = torch.empty(len(rows[3]), self._vocabulary)
        call = Pass(
            len(rows[0]), len(rows[3]), *(t.data_ptr() for t in rows), _meta(batch.attn), cache,
            pool_k.data_ptr(), pool_v.data_ptr(), slots * groups * size, slots, logits.data_ptr(),
        )  # fmt: skip
        _check(self._peer.lib.ramet_decoder_forward(self._peer.pool, self._handle, ctypes.byref(call)))
        return logits


def usable_cores() -> int:
    """Cores that this process may use: its affinity, and the quota of its control group."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return cores


def _free_with(owner: object, free: Any, handle: int) -> None:
    """Frees a handle when its owner goes; not at the interpreter's end, where a thread may still be computing with it."""
    finalize(owner, free, handle).atexit = False


def _check(message: bytes | None) -> None:
    if message:
        raise KernelError(message.decode())


def _at(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _float(x: Tensor, name: str) -> Tensor:
    if x.dtype != torch.float32:
        raise KernelError(f"{name} must be float32, not {x.dtype}")
    return x.contiguous()


def _in_place(x: Tensor, name: str) -> None:
    if x.dtype != torch.float32 or not x.is_contiguous():
        raise KernelError(f"{name} is changed in place and must be contiguous float32")


def _ints(x: Tensor, name: str) -> Tensor:
    if x.dtype != torch.int32 or not x.is_contiguous():
        raise KernelError(f"{name} must be contiguous int32, not {x.dtype}")
    return x


def _cache(pool_k: Tensor, pool_v: Tensor) -> int:
    if pool_k.dtype not in CACHES or pool_v.dtype != pool_k.dtype or pool_v.shape != pool_k.shape:
        raise KernelError(f"pools must be alike and float32, float16 or bfloat16; they are {pool_k.dtype} and {pool_v.dtype}")
    if not (pool_k.is_contiguous() and pool_v.is_contiguous()):
        raise KernelError("pools must be contiguous")
    return CACHES[pool_k.dtype]


def _meta(meta: AttnMeta) -> Meta:
    tables = _ints(meta.tables, "tables")
    shared = meta.segments
    parts: tuple[Tensor, ...] = () if shared is None else (shared.start, shared.stop, shared.owner, shared.member_start, shared.members)
    return Meta(
        len(meta.context_len), 0 if shared is None else len(shared.start), tables.shape[1],
        _ints(meta.query_start, "query_start").data_ptr(), _ints(meta.context_len, "context_len").data_ptr(), tables.data_ptr(),
        *(_ints(part, "segments").data_ptr() for part in parts),
    )  # fmt: skip
