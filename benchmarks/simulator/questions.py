"""The questions that the simulator is asked, each a function that returns rows of a table, and the pictures of their answers."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ramet.runtime.goodput import Goodput
from ramet.runtime.protocol import GenerateRequest, Timings

from .machine import AROUND, Result, Setup, Simulation, unique
from .traffic import WORKLOADS, Call, Source, arrive, mixed, strangers

Row = dict[str, Any]
POLICIES = ("lpm", "dfs", "shortest", "fcfs")


def percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


def summary(result: Result, best: int | None = None) -> Row:
    """Figures of one run. best: the fewest prompt tokens that can be computed."""
    prompts = sum(len(a.call.prompt) for a in result.answers)
    hit = sum(a.cached for a in result.answers) / prompts
    tokens = sum(len(a.call.answer) for a in result.answers)
    row: Row = {
        "requests": len(result.answers), "hit": hit, "ttft_p50_s": percentile((a.ttft for a in result.answers), 0.5),
        "ttft_p99_s": percentile((a.ttft for a in result.answers), 0.99), "tpot_p50_ms": 1e3 * percentile((a.tpot for a in result.answers), 0.5),
        "tpot_p99_ms": 1e3 * percentile((a.tpot for a in result.answers), 0.99), "tokens_per_s": tokens / result.seconds,
        "goodput": _goodput(result), "retractions": result.retractions, "overdrawn": max((a.overdrawn for a in result.answers), default=0),
        "simulated_s": result.seconds, "wall_s": result.wall, "requests_per_wall_s": len(result.answers) / result.wall,
    }  # fmt: skip
    if best is not None:
        row["of_optimum"] = hit / (1 - best / prompts)
    return row


def policies(n: int, *, load: float, seed: int, setup: Setup, names: Iterable[str] = POLICIES, workloads: Iterable[str] = ("mixed",)) -> list[Row]:
    """Policies side by side on the same traffic: hit rates against the optimum, times, goodput, fairness."""
    rows: list[Row] = []
    for workload in workloads:
        make: Callable[[Source, int], list[Call]] = mixed if workload == "mixed" else WORKLOADS[workload]
        for name in names:
            calls = traffic(make, n, load=load, seed=seed, setup=setup)
            result = Simulation(replace(setup, schedule_policy=name)).run(calls)
            rows.append({"workload": workload, "policy": name, **summary(result, unique(calls))})
    return rows


def traffic(make: Callable[[Source, int], list[Call]], n: int, *, load: float, seed: int, setup: Setup) -> list[Call]:
    """`load`: of what the machine could do if every prefix were cached that can be, and 16 streams ran at a time."""
    source = Source(seed)
    calls = make(source, n)
    for call in calls:
        call.ttft_target, call.tpot_target = 2000.0 + 4.0 * len(call.prompt), 150.0
    c = setup.machine
    tokens, drawn = unique(calls), sum(max(len(call.answer), 1) for call in calls)
    reads = sum(len(call.answer) * (len(call.prompt) + len(call.answer) / 2) for call in calls)
    pairs = 0.7 * tokens * sum(len(call.prompt) for call in calls) / len(calls)
    seconds = c.token * (tokens + drawn) + c.pair * pairs + (c.draw + (c.base + AROUND) / 16) * drawn + c.read * reads
    return arrive(calls, source, load * len(calls) / seconds)


def stalls(*, setup: Setup, seed: int, streams: int = 8, prompt: int = 3000, every: float = 5.0, prompts: int = 2) -> tuple[list[Row], dict[str, list[float]]]:
    """Gaps between the tokens of streams while long prompts arrive (SARATHI's stalls), whole and in chunks; and each gap."""
    source, rows, gaps = Source(seed), [], {}
    long = [Call(source.ids(prompt), source.ids(1), 1, at=2 + every * i) for i in range(prompts)]
    until = 30 + every * prompts
    alone = Simulation(setup).run([replace_call(long[0])]).answers[0].ttft
    for name, option, some in (
        ("no long prompts", None, []), ("chunks beside streams", None, long), ("chunks of 512", 512, long), ("whole prompts", prompt + streams, long)
    ):  # fmt: skip
        calls = [Call(source.ids(32), source.ids(20_000), 20_000) for _ in range(streams)] + [replace_call(call) for call in some]
        simulation = Simulation(replace(setup, chunked_prefill_size=option, max_total_tokens=10**6, schedule_conservativeness=0.0), tokens=True)
        result = simulation.run(calls, until=until)
        gaps[name] = simulation.gaps(1.0)
        ttfts = [a.ttft for a in result.answers if len(a.call.prompt) == prompt]
        rows.append({
            "setting": name, "gap_p50_ms": 1e3 * percentile(gaps[name], 0.5), "gap_p99_ms": 1e3 * percentile(gaps[name], 0.99),
            "gap_max_ms": 1e3 * max(gaps[name]), "ttft_longest_s": max(ttfts, default=0.0), "of_alone": max(ttfts, default=0.0) / alone,
            "answered": len(ttfts),
        })  # fmt: skip
    return rows, gaps


def replace_call(call: Call) -> Call:
    """The same call anew."""
    return Call(call.prompt, call.answer, call.most, call.at)


def mixes(n: int, *, setup: Setup, seed: int, ratios: Iterable[float] = (1, 3, 10, 30, 100)) -> list[Row]:
    """Prompts of 1,000 tokens and answers of 1,000 / ratio, nothing shared: prompts in one step against chunks beside streams."""
    rows = []
    for ratio in ratios:
        row: Row = {"prefill_decode": ratio}
        for name, option in (("whole", 1100), ("chunks", None)):
            source = Source(seed)
            calls = [source.call(source.ids(1000), answer=(int(1000 / ratio),) * 2) for _ in range(n)]
            cost = setup.machine.token * (1000 + 1000 / ratio) + setup.machine.draw * 1000 / ratio
            result = Simulation(replace(setup, chunked_prefill_size=option, disable_radix_cache=True), tokens=True).run(
                arrive(calls, source, 0.7 / cost, bursts=False)
            )
            gaps = [b - a for answer in result.answers for a, b in pairwise(answer.when)]
            row[f"{name}_tokens_per_s"] = sum(len(c.prompt) + len(c.answer) for c in calls) / result.seconds
            row[f"{name}_gap_p99_ms"] = 1e3 * percentile(gaps, 0.99)
        rows.append(row)
    return rows


def memory(n: int, *, setup: Setup, seed: int) -> list[Row]:
    """Slots of the pool that hold tokens: taken one by one, or reserved in one piece for the longest answer (PagedAttention, section 3)."""
    rows = []
    for name, caution in (("as they are needed", setup.schedule_conservativeness), ("reserved for the longest answer", 1e9)):
        source = Source(seed)
        calls = strangers(source, n)
        for call in calls:
            call.most = 1024
        small = replace(setup, max_total_tokens=16_384, schedule_conservativeness=caution, disable_radix_cache=True, chunked_prefill_size=512)
        result = Simulation(small, tokens=True).run(calls)
        busy = [h for h in result.held[len(result.held) // 10 : -len(result.held) // 5] if h[3]]
        asked = sum(most if caution > 1e6 else slots for _, slots, most, _ in busy)
        rows.append({
            "slots": name, "hold_tokens": sum(h[0] for h in busy) / asked, "at_a_time": float(np.mean([h[3] for h in busy])),
            "tokens_per_s": sum(len(a.call.answer) for a in result.answers) / result.seconds, "retractions": result.retractions,
        })  # fmt: skip
    return rows


def _goodput(result: Result) -> float | None:
    count = Goodput()
    for a in result.answers:
        source = GenerateRequest("", (), ttft_target=a.call.ttft_target, tpot_target=a.call.tpot_target)
        count.count(source, Timings(ttft=a.ttft, tpot=a.tpot))
    return count.share


def plot_policies(rows: list[Row], path: Path) -> None:
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(1, 3, figsize=(11, 3.2))
    several = len({row["workload"] for row in rows}) > 1
    names = [f"{row['workload']}\n{row['policy']}" if several else row["policy"] for row in rows]
    for axis, (key, title, scale) in zip(
        axes, (("of_optimum", "hits, % of the optimum", 100), ("ttft_p99_s", "TTFT p99, s", 1), ("goodput", "goodput, %", 100)), strict=True
    ):
        axis.bar(names, [scale * row[key] for row in rows], width=0.6)
        axis.set_title(title, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def plot_stalls(gaps: dict[str, list[float]], path: Path) -> None:
    pyplot = _pyplot()
    figure, axis = pyplot.subplots(figsize=(7, 3.6))
    for name, values in gaps.items():
        ordered = np.sort(values)
        axis.plot(1e3 * ordered, 1 - np.arange(len(ordered)) / len(ordered), label=name)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("ms between two tokens of a stream")
    axis.set_ylabel("share of the tokens that waited longer")
    axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def plot_mixes(rows: list[Row], path: Path) -> None:
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.2))
    ratios = [row["prefill_decode"] for row in rows]
    for name in ("whole", "chunks"):
        axes[0].plot(ratios, [row[f"{name}_tokens_per_s"] for row in rows], "o-", label=name)
        axes[1].plot(ratios, [row[f"{name}_gap_p99_ms"] for row in rows], "o-", label=name)
    for axis, title in zip(axes, ("tokens a second, prompts included", "p99 gap between tokens, ms"), strict=True):
        axis.set_xscale("log")
        axis.set_xlabel("prompt tokens for each answer token")
        axis.set_title(title, fontsize=9)
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def plot_memory(rows: list[Row], path: Path) -> None:
    pyplot = _pyplot()
    figure, axis = pyplot.subplots(figsize=(6, 1.8))
    axis.barh([row["slots"] for row in rows], [100 * row["hold_tokens"] for row in rows], height=0.5)
    axis.set_xlabel("slots that hold a token, %")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
