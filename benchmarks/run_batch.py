"""What does the language itself cost? Batches on a backend whose calls take a fixed time and no processor.

    python benchmarks/run_batch.py [--programs 500] [--gens 1 8] [--slots 64] [--rounds 5] [--json FILE]

The backend computes --slots calls at once, each in a given time. The ideal is calls / slots * time; a ratio near 1 means that
programs keep the backend busy. Then: what a call costs in processor time, the fake backend's share included, how many threads
there were at most, and how much memory a program took. Medians; the best round says what the machine's other work hides.
"""
from __future__ import annotations

import argparse
import json
import resource
import statistics
import threading
import time
from typing import Any

import ramet
from ramet import gen


def measure(programs: int, gens: int, slots: int, latency: float) -> dict[str, Any]:
    threads = 0

    @ramet.function
    def program(s, i):
        nonlocal threads
        for j in range(gens):
            s += f"{i}.{j}:" + gen(f"g{j}")
            s[f"g{j}"]
        threads = max(threads, threading.active_count())

    with ramet.Fake("x", latency=latency, max_concurrency=slots) as backend:
        before, memory = threading.active_count(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        wall, processor = time.perf_counter(), time.process_time()
        program.run_batch([(i,) for i in range(programs)], backend=backend)
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    ideal = programs * gens / slots * latency
    return {
        "seconds": wall,
        "ideal": ideal,
        "us_a_call": processor / (programs * gens) * 1e6,
        "threads": threads - before,
        "kb_a_program": grown / programs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in (("programs", 500), ("slots", 64), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--gens", type=int, nargs="+", default=[1, 8], help="calls a program, each of which is read before the next")
    parser.add_argument("--ms", type=float, nargs="+", default=[5, 20, 50], help="how long a call takes")
    parser.add_argument("--json", help="write every figure to this file")
    args = parser.parse_args()

    results = []
    print(f"{args.programs} programs, {args.slots} calls at once")
    print(f"{'calls':>6}{'of':>9}{'seconds':>10}{'ideal':>8}{'ratio':>7}{'best':>6}{'us a call':>11}{'threads':>9}{'kB a program':>14}")
    for gens in args.gens:
        for ms in args.ms:
            rounds = [measure(args.programs, gens, args.slots, ms / 1000) for _ in range(args.rounds)]
            results.append({"gens": gens, "ms": ms, "rounds": rounds})
            seconds, cost = (statistics.median(r[key] for r in rounds) for key in ("seconds", "us_a_call"))
            ideal, best = rounds[0]["ideal"], min(r["seconds"] for r in rounds)
            threads, memory = max(r["threads"] for r in rounds), max(r["kb_a_program"] for r in rounds)
            line = f"{gens:>6}{ms:>6g} ms{seconds:>10.3f}{ideal:>8.3f}{seconds / ideal:>7.2f}{best / ideal:>6.2f}{cost:>11.0f}"
            print(f"{line}{threads:>9}{memory:>14.0f}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"args": vars(args), "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
