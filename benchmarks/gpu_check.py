"""Are the GPU kernels right, and how near are they to what the card can do? One table, in under six minutes, from a plain checkout.

    python benchmarks/gpu_check.py [--out FOLDER] [--seconds 340] [--dry]

First every kernel against float64, the host's sampler and itself, and a small model against transformers: the first thing that is wrong ends
the run. Then figures: attention alone as a share of the measured copy bandwidth, with and without shared segments; decode steps (as CUDA
graphs) and a prefill of the shapes of Llama 3.2 1B and Llama 3.1 8B with random weights, as shares of their floors: bytes of weights and
unique KV over that bandwidth, operations over the measured rate of a large bfloat16 product; idle time between kernels; what drawing
and masks cost. What does not fit in the time or the memory is named. --out: the table as JSON, and a trace for chrome://tracing.
Needs torch, triton and numpy; nothing of Ramet need be installed. --dry runs every function on a processor, interpreted and small.
"""
from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for gpu_check.json and trace.json")
    parser.add_argument("--seconds", type=float, default=340, help="figures that would take longer are left out")
    parser.add_argument("--dry", action="store_true", help="every function on a processor, interpreted and small: no figure means anything")
    options = parser.parse_args()
    if options.dry:  # before anything imports triton
        os.environ["TRITON_INTERPRET"] = "1"
    import torch
    from gpu.card import Card, Row
    from gpu.checkout import find_package

    find_package()
    if not options.dry and not torch.cuda.is_available():
        raise SystemExit("no CUDA device here: --dry tries the script out on a processor")
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    card, rows = Card(options.dry, options.seconds), list[Row]()
    wrong = ""
    try:
        for row in run(card, options.out):
            rows.append(row)
            print(line(row), flush=True)
    except Exception as error:
        if type(error).__name__ != "Wrong":
            raise
        wrong = str(error)
    finally:
        about = {
            "card": card.name, "date": time.strftime("%Y-%m-%d %H:%M"), "python": platform.python_version(), "torch": torch.__version__,
            "seconds": round(time.monotonic() - card.begin), "wrong": wrong, "skipped": card.skipped,
        }  # fmt: skip
        if options.out is not None:
            (options.out / "gpu_check.json").write_text(json.dumps({**about, "rows": [asdict(row) for row in rows]}, indent=1))
    print(", ".join(f"{name} {value}" for name, value in about.items() if value and name not in ("skipped", "wrong")))
    for what in card.skipped:
        print(f"left out: {what}")
    if wrong:
        raise SystemExit(f"WRONG: {wrong}")


def run(card, out):  # type: ignore[no-untyped-def]
    """Rows of the table, as they are known."""
    import gpu.correct
    import gpu.figures as figures
    import gpu.parity
    import torch

    from ramet.kernels import get_kernels

    with torch.no_grad():
        yield from gpu.correct.check(card)
        yield from gpu.parity.check(card)
        kernels = get_kernels(card.device, "triton")
        limits = figures.floors(card)
        yield gpu.card.Row("copy bandwidth", limits.bandwidth / 1e9, "GB/s")
        yield gpu.card.Row("bfloat16 product", limits.rate / 1e12, "TFLOP/s")
        yield from figures.attention(card, kernels, limits)
        for shape in figures.DRY if card.dry else reversed(figures.SHAPES):  # the goals are of the large one, so it comes first
            steps: dict[int, float] = {}
            large = shape.name != "1B"
            yield from figures.model(card, kernels, shape, limits, out / "trace.json" if out is not None and large else None, steps)
            for batch in (figures.DRY_BATCHES if card.dry else figures.BATCHES) if large else ():
                if card.has(12, f"drawing {batch} rows"):
                    yield from figures.sampling(card, kernels, batch, steps.get(batch))


def line(row) -> str:  # type: ignore[no-untyped-def]
    share = "" if row.share is None else f"{100 * row.share:6.1f} % of {row.of}"
    goal = f"  (goal {row.goal})" if row.goal else ""
    return f"{row.what:72} {row.value:12.4g} {row.unit:16} {share}{goal}"


if __name__ == "__main__":
    main()
