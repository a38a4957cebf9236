"""What does the language itself cost? Batches on a backend whose calls take a fixed time and no processor.

    python benchmarks/run_batch.py [--programs 500] [--gens 1] [--slots 64] [--rounds 3] [--json FILE]

The backend computes --slots calls at once, each in a given time. The ideal is calls / slots * time; a ratio near 1 means that
programs keep the backend busy. The last column is what a call costs in processor time, the fake backend's share included.
"""
from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from typing import Any

import ramet
from ramet import gen


@ramet.function
def program(s, i, gens):
    for j in range(gens):
        s += f"{i}.{j}:" + gen(f"g{j}")
        s[f"g{j}"]


def measure(programs: int, gens: int, slots: int, latency: float) -> dict[str, Any]:
    with ramet.Fake("x", latency=latency, max_concurrency=slots) as backend:
        threads = threading.active_count()
        wall, processor = time.perf_counter(), time.process_time()
        program.run_batch([(i, gens) for i in range(programs)], backend=backend)
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        ideal = programs * gens / slots * latency
        return {"seconds": wall, "ideal": ideal, "us_a_call": processor / (programs * gens) * 1e6, "threads": threading.active_count() - threads}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in (("programs", 500), ("gens", 1), ("slots", 64), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", help="write every figure to this file")
    args = parser.parse_args()

    results = {}
    print(f"{args.programs} programs of {args.gens} calls, {args.slots} at once")
    print(f"{'a call takes':>14}{'seconds':>9}{'ideal':>8}{'ratio':>7}{'us a call':>11}")
    for latency in (0.005, 0.02, 0.05, 0.2):
        rounds = [measure(args.programs, args.gens, args.slots, latency) for _ in range(args.rounds)]
        results[latency] = rounds
        seconds, cost = (statistics.median(r[key] for r in rounds) for key in ("seconds", "us_a_call"))
        ideal = rounds[0]["ideal"]
        print(f"{latency * 1000:>11.0f} ms{seconds:>9.3f}{ideal:>8.3f}{seconds / ideal:>7.2f}{cost:>11.0f}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"args": vars(args), "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
