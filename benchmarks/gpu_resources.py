"""What do the GPU kernels need of a multiprocessor? Compiles them for a card that need not be there.

    python benchmarks/gpu_resources.py [--arch 90] [--json FILE]

For each kernel and shape: registers a thread, bytes spilled, shared memory and size of the code, read from the
machine code. Needs Triton, whose wheel brings the tools, and no GPU.
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


def cases() -> list[tuple[Any, str, dict[str, str], dict[str, Any]]]:
    """(kernel, shape, types of the run-time arguments, constants)."""
    import triton

    from ramet.kernels.triton import attention, rows

    i32, bf, f = "*i32", "*bf16", "*fp32"
    found: list[tuple[Any, str, dict[str, str], dict[str, Any]]] = []
    for size, groups, heads in ((64, 3, 9), (64, 8, 32), (80, 8, 32), (96, 8, 32), (128, 8, 32), (256, 4, 16)):
        block_d = triton.next_power_of_2(size)
        found.append((
            attention.partials, f"{heads}/{groups} heads of {size}",
            dict(q=bf, k=bf, v=bf, out=f, lse=f, items=i32, rows=i32, positions=i32, tables=i32, scale="fp32", table_width="i32", kv_slot="i32"),
            dict(R=heads // groups, H=heads, D=size, BLOCK_D=block_d, BLOCK_M=attention.TILE, BLOCK_N=attention.shape_for(block_d)[0], WIDE=False),
        ))  # fmt: skip
    found.append((attention.join, "heads of 128", dict(partial=f, lse=f, part_start=i32, parts=i32, out=bf), dict(H=32, D=128, BLOCK_D=128)))
    norm = dict(x=bf, residual=bf, weight=f, out=bf, eps="fp32", size="i32")
    found.append((rows.rms_norm, "4096, with a residual", norm, dict(WITH_RESIDUAL=True, BLOCK=4096)))
    turn = dict(q=bf, k=bf, positions=i32, cos=f, sin=f, H="i32", G="i32", D="i32", half="i32")
    found.append((rows.rope, "heads of 128", turn, dict(BLOCK=64)))
    store = dict(k=bf, v=bf, pool_k=bf, pool_v=bf, slots=i32, size="i32")
    found.append((rows.store_kv, "8 heads of 128", store, dict(BLOCK=1024)))
    found.append((rows.silu_mul, "blocks of 1024", dict(gate=bf, up=bf, out=bf, total="i32"), dict(BLOCK=1024)))
    found.append((rows.mask_logits, "blocks of 1024", dict(logits=f, bits=i32, vocabulary="i32", words="i32"), dict(BLOCK=1024)))
    return found


def measure(kernel: Any, shape: str, types: dict[str, str], constants: dict[str, Any], arch: int) -> Resources:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from ramet.kernels.triton.attention import shape_for

    warps = shape_for(constants["BLOCK_D"])[1] if "BLOCK_M" in constants else 4
    source = ASTSource(fn=kernel, signature={**types, **dict.fromkeys(constants, "constexpr")}, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": warps})
    usage = resource_usage(compiled.asm["cubin"])
    return Resources(kernel.__name__, shape, warps, usage["REG"], usage["STACK"] + usage["LOCAL"], compiled.metadata.shared, len(compiled.asm["cubin"]))


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
    found = [measure(*case, options.arch) for case in cases()]
    print(f"sm_{options.arch}")
    print(f"{'kernel':14} {'shape':32} {'warps':>5} {'registers':>9} {'spilled':>8} {'shared':>8} {'code':>8}")
    for r in found:
        print(f"{r.kernel:14} {r.shape:32} {r.warps:5} {r.registers:9} {r.spilled:8} {r.shared:8} {r.code:8}")
    if options.json:
        options.json.write_text(json.dumps([asdict(r) for r in found], indent=1))


if __name__ == "__main__":
    main()
