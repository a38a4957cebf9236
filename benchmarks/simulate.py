"""What would this scheduler do with that traffic? The real scheduler, policies and tree on a model of a machine.

    python benchmarks/simulate.py policies [--requests 10000] [--load 0.8] [--policies lpm,dfs,shortest,fcfs] [--workloads mixed|all|NAME,..]
    python benchmarks/simulate.py stalls       streams beside long prompts, whole and in chunks (SARATHI)
    python benchmarks/simulate.py mixes        prefill:decode ratios, whole prompts against chunks
    python benchmarks/simulate.py memory       slots taken as needed against contiguous reservation (PagedAttention)

    --costs FILE   a machine's step costs, as `ramet` keeps them in RAMET_HOME/costs; default: two AVX2 cores with the embedded model
    --json FILE, --plot FILE.png

`of_optimum` is the hit rate over that of depth-first order with a pool that forgets nothing; `overdrawn` the most admissions by
which a request was overtaken beyond the bound: 0 or less means that the bound held in the whole run.
"""
from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from simulator import questions
from simulator.machine import Setup
from simulator.traffic import WORKLOADS

from ramet.runtime.cost_model import CostModel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=["policies", "stalls", "mixes", "memory"])
    parser.add_argument("--requests", type=int)
    parser.add_argument("--load", type=float, default=0.8, help="of what the machine could do at best, on average; it comes in waves")
    parser.add_argument("--policies", default=",".join(questions.POLICIES))
    parser.add_argument("--workloads", default="mixed", help=f"mixed, all, or some of {', '.join(WORKLOADS)}")
    parser.add_argument("--slots", type=int, default=262_144, help="of the pool")
    parser.add_argument("--running", type=int, default=64, help="max_running_requests")
    parser.add_argument("--eviction", default="lru")
    parser.add_argument("--tpot-target", type=float, help="milliseconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--costs", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    gc.disable()  # the traffic is millions of objects that live to the end
    setup = Setup(max_total_tokens=options.slots, max_running_requests=options.running, tpot_target=options.tpot_target, eviction_policy=options.eviction)
    if options.costs:
        known = CostModel.load(options.costs)
        if known is None:
            raise SystemExit(f"{options.costs}: no step costs in it")
        setup = Setup(**{**{f: getattr(setup, f) for f in setup.__slots__}, "machine": known.coefficients})
    rows, draw = ask(options, setup)
    show(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    if options.plot:
        draw(options.plot)


def ask(options: argparse.Namespace, setup: Setup) -> tuple[list[dict[str, Any]], Callable[[Path], None]]:
    """The rows of the answer, and what draws them."""
    n = options.requests
    if options.question == "policies":
        workloads = list(WORKLOADS) if options.workloads == "all" else options.workloads.split(",")
        rows = questions.policies(
            n or 10_000, load=options.load, seed=options.seed, setup=setup, names=options.policies.split(","), workloads=workloads
        )
        return rows, partial(questions.plot_policies, rows)
    if options.question == "stalls":
        rows, gaps = questions.stalls(setup=setup, seed=options.seed)
        return rows, partial(questions.plot_stalls, gaps)
    if options.question == "mixes":
        rows = questions.mixes(n or 150, setup=setup, seed=options.seed)
        return rows, partial(questions.plot_mixes, rows)
    rows = questions.memory(n or 400, setup=setup, seed=options.seed)
    return rows, partial(questions.plot_memory, rows)


def show(rows: list[dict[str, Any]]) -> None:
    """One line a row, columns as wide as their widest."""
    table = [list(rows[0])] + [[_text(value) for value in row.values()] for row in rows]
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    for line in table:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 10 else f"{value:.0f}"
    return str(value)


if __name__ == "__main__":
    main()
