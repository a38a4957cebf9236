"""GGML's quantised blocks: how many bytes each takes, and what numbers they stand for.

The layouts are those of the GGUF file format (ggml-common.h in the ggml project describes them as C structs). A row of a
matrix is a run of blocks; `d` is the scale of a block and `m` (or dmin) its offset, both float16.
"""
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .errors import KernelError
from .interface import PackedWeight


def _half(raw: Tensor) -> Tensor:
    """(n, 2) bytes -> (n, 1) float32."""
    return raw.contiguous().view(torch.float16).to(torch.float32)


def _nibbles(raw: Tensor) -> Tensor:
    """(n, b) bytes -> (n, 2b): all low nibbles, then all high ones."""
    return torch.cat((raw & 15, raw >> 4), dim=1)


def _q8_0(raw: Tensor) -> Tensor:
    """d, 32 int8."""
    return _half(raw[:, :2]) * raw[:, 2:].contiguous().view(torch.int8)


def _q4_0(raw: Tensor) -> Tensor:
    """d, 16 bytes: entries 0-15 in the low nibbles, 16-31 in the high; value d (q - 8)."""
    return _half(raw[:, :2]) * (_nibbles(raw[:, 2:]).float() - 8)


def _q4_1(raw: Tensor) -> Tensor:
    """d, m, 16 bytes as in Q4_0; value d q + m."""
    return _half(raw[:, :2]) * _nibbles(raw[:, 4:]) + _half(raw[:, 2:4])


def scales_q4_k(raw: Tensor) -> tuple[Tensor, Tensor]:
    """(n, 12) bytes -> the 6-bit scales and offsets of the eight sub-blocks, (n, 8) uint8 each."""
    low, middle, high = raw[:, 0:4], raw[:, 4:8], raw[:, 8:12]
    scale = torch.cat((low & 63, (high & 15) | ((low >> 6) << 4)), dim=1)
    offset = torch.cat((middle & 63, (high >> 4) | ((middle >> 6) << 4)), dim=1)
    return scale, offset


def _q4_k(raw: Tensor) -> Tensor:
    """d, dmin, 12 bytes of scales, 128 bytes: 32 bytes hold sub-block 2j in low nibbles and 2j+1 in high; d sc q - dmin m."""
    scale, offset = scales_q4_k(raw[:, 4:16])
    q = raw[:, 16:].reshape(-1, 4, 1, 32)
    q = torch.cat((q & 15, q >> 4), dim=2).reshape(-1, 8, 32)
    d = (_half(raw[:, :2]) * scale).unsqueeze(-1)
    m = (_half(raw[:, 2:4]) * offset).unsqueeze(-1)
    return (d * q - m).reshape(-1, 256)


def _q6_k(raw: Tensor) -> Tensor:
    """128 bytes of low 4 bits, 64 of high 2 bits, 16 int8 scales (16 entries each), d; value d sc (q - 32)."""
    low = raw[:, :128].reshape(-1, 2, 1, 64)
    low = torch.cat((low & 15, low >> 4), dim=2).reshape(-1, 2, 4, 32)
    high = raw[:, 128:192].reshape(-1, 2, 1, 32)
    high = torch.cat([(high >> shift) & 3 for shift in (0, 2, 4, 6)], dim=2)
    q = (low | (high << 4)).to(torch.float32) - 32
    scale = _half(raw[:, 208:]) * raw[:, 192:208].contiguous().view(torch.int8)
    return (scale.unsqueeze(-1) * q.reshape(-1, 16, 16)).reshape(-1, 256)


# kind -> entries of a block, its bytes, and what turns (n, bytes) uint8 into (n, entries) float32
FORMATS: dict[str, tuple[int, int, Callable[[Tensor], Tensor]]] = {
    "Q8_0": (32, 34, _q8_0),
    "Q4_0": (32, 18, _q4_0),
    "Q4_1": (32, 20, _q4_1),
    "Q4_K": (256, 144, _q4_k),
    "Q6_K": (256, 210, _q6_k),
}


def check(weight: PackedWeight) -> None:
    """Raises KernelError where kind, dtype and shape of a packed weight do not fit each other."""
    if weight.kind not in FORMATS:
        raise KernelError(f"weights of kind {weight.kind!r} are not supported; known: {', '.join(FORMATS)}")
    entries, size, _ = FORMATS[weight.kind]
    data = weight.data
    if data.dtype != torch.uint8 or data.dim() != 2 or not data.is_contiguous():
        raise KernelError(f"{weight.kind} data must be contiguous uint8 (rows, bytes), not {data.dtype} {tuple(data.shape)}")
    if weight.in_features % entries or data.shape[1] != weight.in_features // entries * size:
        raise KernelError(f"{weight.kind} rows of {weight.in_features} entries cannot be {data.shape[1]} bytes long")


def dequantize(weight: PackedWeight, rows: Tensor | None = None) -> Tensor:
    """float32 (out_features, in_features), or of the given rows only: exactly the numbers that the blocks stand for."""
    check(weight)
    _, size, convert = FORMATS[weight.kind]
    data = weight.data if rows is None else weight.data[rows.long()]
    return convert(data.reshape(-1, size)).reshape(data.shape[0], weight.in_features)
