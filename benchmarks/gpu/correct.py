"""Is every kernel right? Against float64 where it sums, against the host's sampler where it draws, against itself alone and in a batch."""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ramet.kernels import get_kernels
from ramet.kernels.interface import AttnMeta, Kernels, Linear, RopeTable, SamplingRows
from ramet.runtime import sampler as host
from ramet.runtime.protocol import SamplingParams

from .card import Card, Row
from .passes import alone, attended, crowd, ints, normed, tree

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
SIZES = {"bfloat16": (64, 80, 96, 128, 256), "float16": (64, 128), "float32": (64, 128)}


class Wrong(Exception):
    """A kernel's result is not what it should be."""


def check(card: Card) -> list[Row]:
    """The largest error of each kernel. Raises Wrong if one is more than rounding, or not a number."""
    torch.manual_seed(0)
    found: list[Row] = []
    for dtype in ("float32",) if card.dry else ("bfloat16", "float16", "float32"):
        kernels = get_kernels(card.device, "triton", dtype)
        found += rows_alone(kernels, card.device)
        for size in SIZES[dtype] if not card.dry else (64, 256):
            found += attention(kernels, card.device, size)
    found += masks(kernels, card.device) + drawing(kernels, card) + logprobs(kernels, card.device)
    return found + invariance(card)


def compared(what: str, got: Tensor, want: Tensor, dtype: torch.dtype) -> Row:
    error = float((got.double().cpu() - want).abs().max() / want.abs().max().clamp(min=1e-9))
    if not error <= TOLERANCE[dtype]:  # NaN is not less either
        raise Wrong(f"{what} in {dtype}: off by {error:.2e} of the largest value, more than {TOLERANCE[dtype]:.0e}")
    return Row(f"error of {what}, {str(dtype)[6:]}", error, "of the largest")


def rows_alone(kernels: Kernels, device: str) -> list[Row]:
    dtype, found = kernels.activation_dtype, []

    def given(*shape: int) -> Tensor:
        return torch.randn(shape).to(dtype).to(device)

    for rows, size in ((1, 64), (5, 577), (33, 4096)):
        x, y, weight = given(rows, size), given(rows, size), torch.rand(size).to(device)
        total = (x.double().cpu() + y.double().cpu()).to(dtype).double()  # the residual is kept rounded
        at = f"{rows}x{size}"
        found.append(compared(f"rms_norm {at}", kernels.rms_norm(x, weight, 1e-5), normed(x.double().cpu(), weight.double().cpu()), dtype))
        found.append(compared(f"add_rms_norm {at}", kernels.add_rms_norm(x, y, weight, 1e-5), normed(total, weight.double().cpu()), dtype))
        gate, up = given(rows, size) * 5, given(rows, size)
        want = torch.nn.functional.silu(gate.double().cpu()) * up.double().cpu()
        found.append(compared(f"silu_mul {at}", kernels.silu_mul(gate, up), want, dtype))
    return found


def attention(kernels: Kernels, device: str, size: int) -> list[Row]:
    """rope, store_kv and attention of heads of that size: chunks and decode rows of any length, a tree, NaN in every slot nobody owns."""
    dtype = kernels.activation_dtype
    angles = torch.rand(100, size // 2) * 6
    q, k = (torch.randn(7, heads, size).to(dtype).to(device) for heads in (4, 2))
    positions = torch.randint(0, 100, (7,), dtype=torch.int32)
    turns = torch.polar(torch.ones(1, dtype=torch.float64), angles[positions.long()].double()).unsqueeze(1)
    both = torch.cat((q, k), 1).double().cpu()
    turned = torch.complex(both[..., : size // 2], both[..., size // 2 :]) * turns
    kernels.rope(q, k, positions.to(device), RopeTable(angles.cos().to(device), angles.sin().to(device)))
    found = [compared(f"rope of {size}", torch.cat((q, k), 1), torch.cat((turned.real, turned.imag), -1), dtype)]
    for what, meta in (("chunks", crowd([300, 1, 257, 40, 600], [9, 1, 1, 40, 1])), ("a whole prompt", crowd([290], [140])), ("a tree", tree(4, 600, 37))):
        slots = int(meta.tables.max()) + 50
        used = torch.cat([meta.tables[s, :length] for s, length in enumerate(meta.context_len.tolist())]).unique()
        pools = [torch.full((slots, 2, size), float("nan"), dtype=kernels.kv_dtype, device=device) for _ in range(2)]
        k, v = (torch.randn(len(used), 2, size).to(dtype).to(device) for _ in range(2))
        kernels.store_kv(k, v, pools[0], pools[1], used.int().to(device))
        if not torch.equal(pools[0][used.long()].cpu(), k.cpu()):
            raise Wrong("store_kv: the pool does not hold what was stored")
        rows = torch.randn(int(meta.query_start[-1]), 6, size).to(dtype).to(device)
        got = kernels.attention(rows, pools[0], pools[1], meta, size**-0.5)
        want = attended(rows.double().cpu(), pools[0].double().cpu(), pools[1].double().cpu(), meta, size**-0.5)
        found.append(compared(f"attention over {what}, heads of {size}", got, want, dtype))
    return found


def allowed(bits: Tensor, vocabulary: int) -> Tensor:
    return ((bits.repeat_interleave(32, 1)[:, :vocabulary] >> (torch.arange(vocabulary) % 32)) & 1) == 1


def masks(kernels: Kernels, device: str) -> list[Row]:
    logits, bits = torch.randn(3, 1000), torch.randint(-(2**31), 2**31 - 1, (3, 32), dtype=torch.int32)
    ours = logits.clone().to(device)
    kernels.mask_logits(ours, bits.to(device))
    if not torch.equal(ours.cpu(), logits.masked_fill(~allowed(bits, 1000), float("-inf"))):
        raise Wrong("mask_logits: not the ids whose bit is 0")
    return []


def some_rows(n: int, vocabulary: int, device: str, **params: Any) -> tuple[SamplingRows, list[Any]]:
    """n rows of one kind for the device, and for the host's sampler."""
    p = SamplingParams(**params)
    requests = []
    for i in range(n):
        ids = np.array([1, 2, 3, 3, i % vocabulary])
        tokens = type("Ids", (), {"view": ids, "__len__": lambda self: 5})()
        requests.append(SimpleNamespace(params=p, ids=tokens, prompt_len=2, output_len=3, seed=1000 + i, eos_ids=()))
    seen = torch.zeros(n, vocabulary, dtype=torch.int32)
    for i in range(n):
        seen[i, [1, 2]] = 1
        for drawn in (3, 3, i % vocabulary):
            seen[i, drawn] += 2
    every = torch.arange(n, dtype=torch.int32)

    def column(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.full((n,), value, dtype=dtype, device=device)

    penalised = p.repetition_penalty != 1.0 or p.presence_penalty or p.frequency_penalty
    penalties = torch.tensor([[p.repetition_penalty, p.presence_penalty, p.frequency_penalty]] * n, dtype=torch.float64)
    return SamplingRows(
        column(p.temperature), column(p.top_k, torch.int32), column(p.top_p), column(p.min_p),
        (1000 + torch.arange(n)).to(device), column(5, torch.int64),
        seen_row=every.to(device) if penalised else None, seen=seen.to(device) if penalised else None,
        penalties=penalties.to(device) if penalised else None,
    ), requests  # fmt: skip


KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9}, {"temperature": 1.2, "top_k": 50}, {"min_p": 0.05},
    {"temperature": 5.0, "top_p": 0.95, "top_k": 2000}, {"repetition_penalty": 1.2, "frequency_penalty": 0.5, "top_p": 0.8},
]  # fmt: skip


def drawing(kernels: Kernels, card: Card) -> list[Row]:
    """The host's ids for the same logits. A draw within rounding of the border between two ids may be the other's: one in a hundred is let pass."""
    n, vocabulary = (2, 1500) if card.dry else (64, 128_256)
    sampler = kernels.sampler()
    assert sampler is not None
    differing = 0
    for params in KINDS:
        logits = torch.randn(n, vocabulary) * 3
        rows, requests = some_rows(n, vocabulary, card.device, **params)
        got = sampler.draw(logits.to(card.device), rows).tolist()
        want = host.sample(logits.numpy().copy(), requests)
        wrong = sum(a != b for a, b in zip(got, want, strict=True))
        if wrong and params.get("temperature") == 0.0:
            raise Wrong(f"greedy: {wrong} of {n} ids are not the largest logit's")
        differing += wrong
    if differing > 0.01 * n * len(KINDS):
        raise Wrong(f"drawing: {differing} of {n * len(KINDS)} ids are not the host's")
    return [Row(f"ids drawn unlike the host's, of {n * len(KINDS)}", differing, "ids")]


def logprobs(kernels: Kernels, device: str) -> list[Row]:
    sampler = kernels.sampler()
    assert sampler is not None
    logits = torch.randn(3, 5000) * 4
    ids = torch.randint(0, 5000, (3, 2), dtype=torch.int32)
    chosen, top_ids, _ = sampler.logprobs(logits.to(device), ids.to(device), 5)
    want = torch.log_softmax(logits.double(), -1)
    if not torch.equal(top_ids.cpu().long(), torch.argsort(-logits, stable=True)[:, :5]):
        raise Wrong("logprobs: not the five likeliest ids")
    return [compared("logprobs", chosen, want.gather(1, ids.long()), torch.float32)]


def invariance(card: Card) -> list[Row]:
    """The deterministic mode: a row alone and in a batch, shared or not, bit by bit."""
    kernels = get_kernels(card.device, "triton", deterministic=True)
    dtype, device = kernels.activation_dtype, card.device
    inner, columns = (300, 40) if card.dry else (4096, 1024)
    x, weight = torch.randn(70, inner).to(dtype).to(device), Linear(torch.randn(columns, inner).to(dtype).to(device))

    def same(what: str, one: Tensor, many: Tensor) -> None:
        if not torch.equal(one, many):
            raise Wrong(f"{what}: a row has other bits alone than in a batch")

    for row in (0, 64) if card.dry else (0, 1, 37, 69):
        same("linear", kernels.linear(x[row : row + 1], weight), kernels.linear(x, weight)[row : row + 1])
    meta = crowd([700, 300, 257], [1, 1, 1])
    pools = [torch.randn(int(meta.tables.max()) + 1, 2, 64).to(dtype).to(device) for _ in range(2)]
    q = torch.randn(3, 8, 64).to(dtype).to(device)
    for s in range(3):
        lone: AttnMeta = alone(meta, s)
        same("attention", kernels.attention(q[s : s + 1], *pools, lone, 0.125), kernels.attention(q, *pools, meta, 0.125)[s : s + 1])
    shared, plain = tree(3, 520, 20), tree(3, 520, 20, share=False)
    rows = slice(0, 1 if card.dry else 3)  # numpy, which multiplies in the interpreter, adds by a row's place in the tile
    same("attention over a tree", kernels.attention(q, *pools, plain, 0.125)[rows], kernels.attention(q, *pools, shared, 0.125)[rows])
    chunk = crowd([400], [130])
    q = torch.randn(130, 8, 64).to(dtype).to(device)
    last = AttnMeta(ints([0, 2]), ints([400]), chunk.tables, 400, 2)
    same("attention, whole and in splits", kernels.attention(q[128:], *pools, last, 0.125), kernels.attention(q, *pools, chunk, 0.125)[128:])
    return []
