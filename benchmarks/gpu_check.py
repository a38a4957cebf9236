"""Are the GPU kernels right, and how near are they to what the card can do? One table, in a few minutes, from a plain checkout.

    PYTHONPATH=. python benchmarks/gpu_check.py [--json FILE] [--interpret]

First every kernel against float64 on ragged passes; then decode attention as a share of the measured copy bandwidth, with and without
shared segments, and whole decode steps and a prefill of the shape of Llama 3.2 1B and Llama 3.1 8B (random weights) as shares of their floors:
bytes of weights and unique KV over that bandwidth, products over the measured rate of a large bfloat16 product.
--interpret: the checks alone, on a processor, under Triton's interpreter.
"""
from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ramet.kernels import get_kernels
from ramet.kernels.interface import AttnMeta, DecoderInput, DecoderWeights, Kernels, LayerWeights, Linear, RopeTable, Segments

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


@dataclass(frozen=True)
class Row:
    what: str
    value: float
    unit: str
    share: float | None = None  # of the floor


@dataclass(frozen=True)
class Shape:
    name: str
    layers: int
    hidden: int
    inner: int
    heads: int
    groups: int
    size: int
    vocabulary: int


SHAPES = [Shape("1B", 16, 2048, 8192, 32, 8, 64, 128_256), Shape("8B", 32, 4096, 14_336, 32, 8, 128, 128_256)]


# ---- right? -----------------------------------------------------------------------------------------------------------------------


def check(kernels: Kernels, device: str) -> list[Row]:
    """The largest relative error of each kernel; ends with an error if one is more than rounding, or not a number."""
    torch.manual_seed(0)
    dtype = kernels.activation_dtype
    found: list[Row] = []

    def compare(what: str, got: Tensor, want: Tensor) -> None:
        error = float((got.double().cpu() - want).abs().max() / want.abs().max().clamp(min=1e-9))
        if not error <= TOLERANCE[dtype]:  # NaN is not less either
            raise SystemExit(f"{what}: off by {error:.2e} of the largest value, more than {TOLERANCE[dtype]:.0e}")
        found.append(Row(f"error of {what}", error, "of the largest"))

    def given(*shape: int) -> Tensor:
        return torch.randn(shape).to(dtype).to(device)

    for rows, size in ((1, 64), (5, 577), (33, 4096)):
        x, y, weight = given(rows, size), given(rows, size), torch.rand(size).to(device)
        total = (x.double().cpu() + y.double().cpu()).to(dtype).double()  # the residual is kept rounded
        compare(f"rms_norm {rows}x{size}", kernels.rms_norm(x, weight, 1e-5), normed(x.double().cpu(), weight.double().cpu()))
        compare(f"add_rms_norm {rows}x{size}", kernels.add_rms_norm(x, y, weight, 1e-5), normed(total, weight.double().cpu()))
        gate, up = given(rows, size) * 5, given(rows, size)
        compare(f"silu_mul {rows}x{size}", kernels.silu_mul(gate, up), torch.nn.functional.silu(gate.double().cpu()) * up.double().cpu())
    for size in (64, 80, 96, 128, 256):
        angles = torch.rand(100, size // 2) * 6
        q, k, positions = given(7, 4, size), given(7, 2, size), torch.randint(0, 100, (7,), dtype=torch.int32)
        both = torch.cat((q, k), 1).double().cpu()
        turns = torch.polar(torch.ones(1, dtype=torch.float64), angles[positions.long()].double()).unsqueeze(1)
        turned = torch.complex(both[..., : size // 2], both[..., size // 2 :]) * turns
        kernels.rope(q, k, positions.to(device), RopeTable(angles.cos().to(device), angles.sin().to(device)))
        compare(f"rope of {size}", torch.cat((q, k), 1), torch.cat((turned.real, turned.imag), -1))
        for what, meta in (("chunks", crowd(3, 9, 300)), ("a tree", tree(4, 600, 37))):
            check_attention(kernels, device, size, what, meta, compare)
    logits, bits = torch.randn(3, 1000), torch.randint(-(2**31), 2**31 - 1, (3, 32), dtype=torch.int32)
    ours, theirs = logits.clone().to(device), logits.clone()
    kernels.mask_logits(ours, bits.to(device))
    theirs[((bits.repeat_interleave(32, 1)[:, :1000] >> (torch.arange(1000) % 32)) & 1) == 0] = float("-inf")
    if not torch.equal(ours.cpu(), theirs):
        raise SystemExit("mask_logits: not the ids whose bit is 0")
    return found


def check_attention(kernels: Kernels, device: str, size: int, what: str, meta: AttnMeta, compare: Callable[..., None]) -> None:
    """The pool is poisoned wherever no sequence looks."""
    slots = int(meta.tables.max()) + 50
    pools = [torch.full((slots, 2, size), float("nan")) for _ in range(2)]
    used = torch.unique(meta.tables)
    for pool in pools:
        pool[used.long()] = torch.randn(len(used), 2, size)
    placed = [pool.to(kernels.kv_dtype).to(device) for pool in pools]
    q = torch.randn(int(meta.query_start[-1]), 6, size).to(kernels.activation_dtype).to(device)
    got = kernels.attention(q, placed[0], placed[1], meta, size**-0.5)
    want = attended(q.double().cpu(), placed[0].double().cpu(), placed[1].double().cpu(), meta, size**-0.5)
    compare(f"attention over {what}, heads of {size}", got, want)


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


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


def crowd(sequences: int, rows: int, length: int) -> AttnMeta:
    """Sequences that share nothing, each with `rows` rows at its end."""
    tables = torch.randperm(sequences * length, dtype=torch.int64).int().reshape(sequences, length)
    starts = torch.arange(sequences + 1, dtype=torch.int32) * rows
    return AttnMeta(starts, torch.full((sequences,), length, dtype=torch.int32), tables, length, rows)


def tree(branches: int, shared: int, own: int, *, share: bool = True) -> AttnMeta:
    """Branches of one row each under a shared prefix."""
    length = shared + own
    root = torch.arange(shared, dtype=torch.int32).expand(branches, shared)
    tails = shared + torch.arange(branches * own, dtype=torch.int32).reshape(branches, own)
    ints = lambda values: torch.tensor(values, dtype=torch.int32)  # noqa: E731
    segments = Segments(ints([0]), ints([shared]), ints([0]), ints([0, branches]), torch.arange(branches, dtype=torch.int32), ints([shared] * branches))
    starts = torch.arange(branches + 1, dtype=torch.int32)
    lengths = torch.full((branches,), length, dtype=torch.int32)
    return AttnMeta(starts, lengths, torch.cat((root, tails), 1).contiguous(), length, 1, segments if share else None)


# ---- fast? ------------------------------------------------------------------------------------------------------------------------


def seconds(work: Callable[[], Any], turns: int = 20) -> float:
    """The median of `turns` runs, by the GPU's own clock."""
    for _ in range(3):
        work()
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(turns)]
    for begin, end in marks:
        begin.record()
        work()
        end.record()
    torch.cuda.synchronize()
    return sorted(begin.elapsed_time(end) for begin, end in marks)[turns // 2] / 1000


def copy_bandwidth() -> float:
    """Bytes a second, read and written."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / seconds(lambda: target.copy_(source))


def matrix_rate() -> float:
    """bfloat16 products and sums a second."""
    n = 8192
    a, b = (torch.randn(n, n, device="cuda").bfloat16() for _ in range(2))
    return 2 * n**3 / seconds(lambda: a @ b)


def attention_figures(kernels: Kernels, bandwidth: float) -> list[Row]:
    heads, groups, size = 32, 8, 128
    found: list[Row] = []
    pools = [torch.randn(64 * 8300, groups, size, device="cuda").bfloat16() for _ in range(2)]

    def time_of(meta: AttnMeta) -> float:
        q = torch.randn(int(meta.query_start[-1]), heads, size, device="cuda").bfloat16()
        return seconds(lambda: kernels.attention(q, pools[0], pools[1], meta, size**-0.5))

    for batch, context in ((1, 1024), (1, 8192), (16, 8192), (64, 1024), (64, 8192)):
        took = time_of(crowd(batch, 1, context))
        floor = batch * context * groups * size * 4 / bandwidth
        found.append(Row(f"attention, {batch} rows of {context} positions", took * 1e6, "us", floor / took))
    alone, together = (time_of(tree(64, 8192, 64, share=share)) for share in (False, True))
    found.append(Row("attention, 64 branches under 8192: shared is faster by", alone / together, "x"))
    return found


def random_weights(shape: Shape) -> DecoderWeights:
    def linear(out: int, size: int) -> Linear:
        return Linear(torch.randn(out, size, device="cuda", dtype=torch.bfloat16) * size**-0.5)

    def norm(size: int) -> Tensor:
        return torch.ones(size, device="cuda")

    head = linear(shape.vocabulary, shape.hidden)
    wide, narrow = shape.heads * shape.size, shape.groups * shape.size
    layers = tuple(
        LayerWeights(
            norm(shape.hidden), linear(wide, shape.hidden), linear(narrow, shape.hidden), linear(narrow, shape.hidden), linear(shape.hidden, wide),
            norm(shape.hidden), linear(shape.inner, shape.hidden), linear(shape.inner, shape.hidden), linear(shape.hidden, shape.inner),
        )
        for _ in range(shape.layers)
    )  # fmt: skip
    angles = torch.outer(torch.arange(9000), 500_000.0 ** (-torch.arange(0, shape.size, 2) / shape.size)).to("cuda")
    table = RopeTable(angles.cos().contiguous(), angles.sin().contiguous())
    return DecoderWeights(head.weight, layers, norm(shape.hidden), head, table, shape.heads, shape.groups, shape.size, 1e-5)


def model_figures(kernels: Kernels, shape: Shape, bandwidth: float, rate: float) -> list[Row]:
    from ramet.runtime.models.llama import LlamaModel

    weights = random_weights(shape)
    model = LlamaModel(None, weights, kernels)  # type: ignore[arg-type]  # its config is for those who build it
    products = shape.layers * (shape.hidden * (2 * shape.heads + 2 * shape.groups) * shape.size + 3 * shape.hidden * shape.inner)
    weight_bytes = 2 * (products + shape.hidden * shape.vocabulary)
    found: list[Row] = []

    def step(batch: int, rows: int, context: int) -> float:
        meta = crowd(batch, rows, context)
        pools = [torch.zeros(shape.layers, batch * context, shape.groups, shape.size, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        positions = torch.arange(context - rows, context, dtype=torch.int32).repeat(batch)
        slots = meta.tables[:, context - rows :].reshape(-1)
        last = torch.arange(1, batch + 1, dtype=torch.int32) * rows - 1
        ids = torch.randint(0, shape.vocabulary, (batch * rows,), dtype=torch.int32)
        inputs = DecoderInput(*(x.contiguous().to("cuda") for x in (ids, positions, slots, last)), meta)
        return seconds(lambda: model.forward(inputs, *pools), turns=10)

    for batch, context in ((1, 1024), (16, 1024), (64, 1024), (16, 8192)):
        took = step(batch, 1, context)
        floor = (weight_bytes + batch * context * shape.layers * shape.groups * shape.size * 4) / bandwidth
        found.append(Row(f"{shape.name} decode, {batch} at {context}", batch / took, "tokens/s", floor / took))
    took = step(1, 8192, 8192)
    found.append(Row(f"{shape.name} prefill of 8192", 8192 / took, "tokens/s", 2 * products * 8192 / rate / took))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--interpret", action="store_true", help="the checks alone, on a processor")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not options.interpret and not torch.cuda.is_available():
        raise SystemExit("no CUDA device here: --interpret checks the kernels on a processor")
    device = "cpu" if options.interpret else "cuda"
    begin = time.perf_counter()
    kernels = get_kernels(device, "triton")
    found = check(kernels, device)
    if not options.interpret:
        bandwidth, rate = copy_bandwidth(), matrix_rate()
        found += [Row("copy bandwidth", bandwidth / 1e9, "GB/s"), Row("bfloat16 product", rate / 1e12, "TFLOP/s")]
        found += attention_figures(kernels, bandwidth)
        for shape in SHAPES:
            found += model_figures(kernels, shape, bandwidth, rate)
            torch.cuda.empty_cache()
    card = "interpreted" if options.interpret else torch.cuda.get_device_name()
    print(f"{card}, {kernels.why}, {time.perf_counter() - begin:.0f} s")
    for row in found:
        share = "" if row.share is None else f"{100 * row.share:6.1f} % of the floor"
        print(f"{row.what:58} {row.value:12.4g} {row.unit:16} {share}")
    if options.json:
        options.json.write_text(json.dumps({"card": card, "rows": [asdict(row) for row in found]}, indent=1))


if __name__ == "__main__":
    main()
