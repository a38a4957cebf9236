"""What is done to each row or element alone: norms, rotation, the store into the cache, the gate, the mask."""
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rms_norm(x, residual, weight, out, eps, size, WITH_RESIDUAL: tl.constexpr, BLOCK: tl.constexpr):
    """A row a program. out = norm(x) * weight; with a residual, residual += x first, and that sum is normed."""
    row = tl.program_id(0).to(tl.int64) * size
    at = tl.arange(0, BLOCK)
    inside = at < size
    values = tl.load(x + row + at, mask=inside, other=0.0).to(tl.float32)
    if WITH_RESIDUAL:
        added = (values + tl.load(residual + row + at, mask=inside, other=0.0).to(tl.float32)).to(residual.dtype.element_ty)
        tl.store(residual + row + at, added, mask=inside)
        values = added.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(values * values) / size + eps)
    weights = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row + at, (values * scale * weights).to(out.dtype.element_ty), mask=inside)


@triton.jit
def rope(q, k, positions, cos, sin, H, G, D, half, BLOCK: tl.constexpr):
    """A row and head a program, heads of q first. Rotates in place by halves (NeoX order)."""
    row, head = tl.program_id(0), tl.program_id(1)
    at = tl.arange(0, BLOCK)
    inside = at < half
    position = tl.load(positions + row).to(tl.int64)
    c = tl.load(cos + position * half + at, mask=inside, other=0.0)
    s = tl.load(sin + position * half + at, mask=inside, other=0.0)
    if head < H:
        base = q + (row.to(tl.int64) * H + head) * D
    else:
        base = k + (row.to(tl.int64) * G + head - H) * D
    first = tl.load(base + at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(base + half + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(base + at, (first * c - second * s).to(q.dtype.element_ty), mask=inside)
    tl.store(base + half + at, (second * c + first * s).to(q.dtype.element_ty), mask=inside)


@triton.jit
def _rounded(x, TO: tl.constexpr):
    """To the nearest number of the type; in float16 and float8 to its largest rather than to infinity or NaN."""
    if tl.float16 == TO:
        x = tl.clamp(x.to(tl.float32), -65504.0, 65504.0)
    if tl.float8e4nv == TO:
        x = tl.clamp(x.to(tl.float32), -448.0, 448.0)
    return x.to(TO, fp_downcast_rounding="rtne") if x.dtype.primitive_bitwidth > TO.primitive_bitwidth else x.to(TO)


@triton.jit
def store_kv(k, v, pool_k, pool_v, slots, size, BLOCK: tl.constexpr):
    """A row a program: `size` numbers of all its KV heads go to its slot."""
    row = tl.program_id(0).to(tl.int64)
    to = tl.load(slots + row).to(tl.int64) * size
    at = tl.arange(0, BLOCK)
    inside = at < size
    tl.store(pool_k + to + at, _rounded(tl.load(k + row * size + at, mask=inside), pool_k.dtype.element_ty), mask=inside)
    tl.store(pool_v + to + at, _rounded(tl.load(v + row * size + at, mask=inside), pool_v.dtype.element_ty), mask=inside)


@triton.jit
def silu_mul(gate, up, out, total, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    g = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, (g / (1.0 + tl.exp(-g)) * u).to(out.dtype.element_ty), mask=inside)


@triton.jit
def mask_logits(logits, bits, vocabulary, words, BLOCK: tl.constexpr):
    """A row and a block of ids a program: -inf where an id's bit is 0. What is allowed is not touched."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < vocabulary
    word = tl.load(bits + row * words + at // 32, mask=inside, other=-1)
    denied = ((word >> (at % 32)) & 1) == 0
    nothing = tl.full((BLOCK,), float("-inf"), tl.float32)
    tl.store(logits + row * vocabulary + at, nothing, mask=inside & denied)
