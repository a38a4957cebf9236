"""What do the GPU kernels need of a multiprocessor? Compiles them for a card that need not be there.

    python benchmarks/gpu_resources.py [--arch 90] [--json FILE]

For each kernel and shape: registers a thread, bytes spilled, shared memory and size of the code, read from the
machine code. Needs Triton, whose wheel brings the tools, and no GPU. Ends with an error if a kernel spills.
"""
# ruff: noqa: C408 - signatures read best as keywords
from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Resources:
    kernel: str
    shape: str
    warps: int  # a program
    registers: int
    spilled: int  # bytes of stack and local memory a thread
    shared: int  # bytes a program
    code: int  # bytes of machine code


I32, I64, BF16, F32, F64 = "*i32", "*i64", "*bf16", "*fp32", "*fp64"
LIMITS = dict(temperature=F32, top_k=I32, top_p=F32, min_p=F32)
WIDTH = dict(vocabulary="i32", blocks="i32")
MULTIPLES = {"kv_slot", "size", "M", "N", "K", "vocabulary", "total", "half", "D", "H"}  # of 16, in the shapes of usual models


@dataclass(frozen=True)
class Case:
    kernel: Any
    shape: str
    types: dict[str, str]  # of the run-time arguments
    constants: dict[str, Any]
    warps: int = 4


def cases() -> list[Case]:
    return [*attention_cases(), *row_cases(), *product_cases(), *sampling_cases()]


def attention_cases() -> list[Case]:
    import triton

    from ramet.kernels.triton import attention
    from ramet.kernels.triton.plan import TILE

    reads = dict(tiles=I32, rows=I32, positions=I32, tables=I32, scale="fp32", table_width="i32", kv_slot="i32")
    found: list[Case] = []
    for size, groups, heads, pool in ((64, 3, 9, BF16), (64, 8, 32, BF16), (80, 8, 32, BF16), (96, 8, 32, BF16), (128, 8, 32, BF16),
                                      (128, 8, 32, "*fp8e4nv"), (256, 4, 16, BF16)):  # fmt: skip
        block_d = triton.next_power_of_2(size)
        block_n, warps = attention.shape_for(block_d)
        shape = f"{heads}/{groups} heads of {size}" + (", float8 cache" if pool != BF16 else "")
        constants = dict(R=heads // groups, H=heads, D=size, BLOCK_D=block_d, BLOCK_M=TILE, BLOCK_N=block_n, WIDE=False)
        found.append(Case(attention.whole, shape, dict(q=BF16, k=pool, v=pool, out=BF16, **reads), constants, warps))
        found.append(Case(attention.partials, shape, dict(q=BF16, k=pool, v=pool, out=F32, lses=F32, **reads), constants, warps))
    joined = dict(partial=F32, lses=F32, joined=I32, part_start=I32, parts=I32, out=BF16)
    return [*found, *(Case(attention.join, f"heads of {size}", joined, dict(H=32, D=size, BLOCK_D=size), 1) for size in (128, 256))]


def row_cases() -> list[Case]:
    from ramet.kernels.triton import rows

    norm = dict(x=BF16, residual=BF16, weight=F32, out=BF16, eps="fp32", size="i32")
    turn = dict(q=BF16, k=BF16, positions=I32, cos=F32, sin=F32, H="i32", G="i32", D="i32", half="i32")
    store = dict(k=BF16, v=BF16, pool_k=BF16, pool_v=BF16, slots=I32, size="i32")
    return [
        Case(rows.rms_norm, "4096, with a residual", norm, dict(WITH_RESIDUAL=True, BLOCK=4096)),
        Case(rows.rope, "heads of 128", turn, dict(BLOCK=64)),
        Case(rows.store_kv, "8 heads of 128", store, dict(BLOCK=1024)),
        Case(rows.silu_mul, "blocks of 1024", dict(gate=BF16, up=BF16, out=BF16, total="i32"), dict(BLOCK=1024)),
        Case(rows.mask_logits, "blocks of 1024", dict(logits=F32, bits=I32, vocabulary="i32", words="i32"), dict(BLOCK=1024)),
    ]


def product_cases() -> list[Case]:
    from ramet.kernels.triton import linear

    types = dict(x=BF16, w=BF16, out=BF16, M="i32", N="i32", K="i32")
    tile = dict(WIDE=False, BLOCK_M=linear.TILE_M, BLOCK_N=linear.TILE_N, BLOCK_K=linear.TILE_K, SPLIT=linear.SPLIT, bias=None)
    added = dict(partial=F32, out=BF16, M="i32", N="i32", splits="i32")
    return [
        Case(linear.product, "all splits", types, dict(ALL=True, partial=None, **tile)),
        Case(linear.product, "a split a program", dict(partial=F32, **types), dict(ALL=False, **tile)),
        Case(linear.add_splits, "blocks of 1024", added, dict(BLOCK=1024, bias=None)),
    ]


def sampling_cases() -> list[Case]:
    from ramet.kernels.triton import draw, logprobs

    tables = dict(bits=I32, bits_row=I32, bias=F32, bias_row=I32, seen=I32, seen_row=I32, penalties=F64)
    adjust = dict(logits=F32, scaled=F32, largest=F32, temperature=F32, top_k=I32, vocabulary="i32", words="i32", blocks="i32")
    ladder = dict(scaled=F32, largest=F32, masses=F64, shares=F32, counts=I32)
    drawn = dict(scaled=F32, largest=F32, masses=F64, values=F32, ids=I32, sizes=I32, out=I32, seed=I64, position=I64)
    pick = dict(logits=F32, best=F32, best_id=I32, sums=F32, ids=I32, chosen=F32, top_ids=I32, top_values=F32, n_ids="i32", top="i32")
    found = [
        Case(draw.adjust, "all tables", {**adjust, **tables}, {}),
        Case(draw.adjust, "no table", adjust, dict.fromkeys(tables)),
        Case(draw.note, "a row", dict(ids=I32, seen=I32, seen_row=I32, vocabulary="i32"), {}),
        Case(logprobs.survey, "blocks of 1024", dict(logits=F32, best=F32, best_id=I32, sums=F32, **WIDTH), {}),
    ]
    for blocks in (128, 256):
        shape = f"up to {blocks * 1024:,} ids"
        found += [
            Case(draw.weigh, shape, {**ladder, **LIMITS, **WIDTH}, dict(NB=blocks)),
            Case(draw.gather, shape, {**ladder, "values": F32, "ids": I32, "sizes": I32, **LIMITS, **WIDTH}, dict(NB=blocks)),
            Case(draw.draw, shape, {**drawn, **LIMITS, **WIDTH}, dict(NB=blocks), draw.DRAW_WARPS),
            Case(logprobs.pick, shape, {**pick, **WIDTH}, dict(NB=blocks, IDS=16)),
        ]
    return found


def measure(case: Case, arch: int) -> Resources:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {**case.types, **dict.fromkeys(case.constants, "constexpr")}
    source = ASTSource(fn=case.kernel, signature=signature, constexprs=case.constants, attrs=aligned(case))
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": case.warps})
    usage = resource_usage(compiled.asm["cubin"])
    spilled, code = usage["STACK"] + usage["LOCAL"], len(compiled.asm["cubin"])
    return Resources(case.kernel.__name__, case.shape, case.warps, usage["REG"], spilled, compiled.metadata.shared, code)


def aligned(case: Case) -> dict[tuple[int], list[list[Any]]]:
    """What Triton knows at a launch: addresses, and sizes of usual models, are multiples of 16. Loads are as wide and as deep as there."""
    names = case.kernel.arg_names
    known = [name for name, kind in case.types.items() if kind.startswith("*") or name in MULTIPLES]
    return {(names.index(name),): [["tt.divisibility", 16]] for name in known}


def resource_usage(cubin: bytes) -> dict[str, int]:
    """What cuobjdump reads in the machine code: REG, STACK, LOCAL, SHARED, ..."""
    import triton.backends.nvidia

    cuobjdump = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        report = subprocess.run([str(cuobjdump), "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in re.findall(r"([A-Z]+):(\d+)", report)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", type=int, default=90, help="compute capability, 90 for an H100 or H200")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = [measure(case, options.arch) for case in cases()]
    print(f"sm_{options.arch}")
    print(f"{'kernel':14} {'shape':34} {'warps':>5} {'registers':>9} {'spilled':>8} {'shared':>8} {'code':>8}")
    for r in found:
        print(f"{r.kernel:14} {r.shape:34} {r.warps:5} {r.registers:9} {r.spilled:8} {r.shared:8} {r.code:8}")
    if options.json:
        options.json.write_text(json.dumps([asdict(r) for r in found], indent=1))
    if spilling := [f"{r.kernel} ({r.shape})" for r in found if r.spilled]:
        raise SystemExit(f"registers are spilled by {', '.join(spilling)}")


if __name__ == "__main__":
    main()
