"""Do long prompts stop the streams beside them?

    python benchmarks/stalls.py [--streams 8] [--prompt 3000] [--every 5] [--prompts 4] [--target MS] [--json FILE] [--plot FILE]

Streams of short prompts run all the time, each of 200 to 400 tokens and then another one in its place; every few seconds a long
prompt arrives. The engine itself, without a server, in four settings: no long prompts; chunks sized by the scheduler (the default);
whole prompts in one step (what a server without chunked prefill does); and with a target for the time between tokens. Prints the gaps
between the tokens of the streams, the times to the first token of the long prompts, and how both compare with each alone. The plot is
of the gaps over time: the stalls, and what is left of them.
"""
from __future__ import annotations

import argparse
import gc
import json
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramet.runtime.config import DEFAULT_MODEL, EngineConfig
from ramet.runtime.engine import Engine
from ramet.runtime.protocol import GenerateRequest, SamplingParams

PATIENCE = 60.0  # seconds for the last long prompt


@dataclass
class Run:
    """What one setting showed. Seconds."""

    name: str
    target: float | None = None
    gaps: list[tuple[float, float]] = field(default_factory=list)  # (when, how long) of each token of a stream
    ttfts: list[float] = field(default_factory=list)  # of the long prompts
    tokens: int = 0
    seconds: float = 0.0

    def gap(self, share: float) -> float:
        ordered = sorted(gap for _, gap in self.gaps)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]

    def line(self) -> str:
        ttft = f"TTFT {' '.join(f'{t:.2f}' for t in self.ttfts)} s" if self.ttfts else ""
        within = "" if self.target is None else f"; {100 * self.within:.1f}% within {1e3 * self.target:.0f} ms"
        rate = self.tokens / self.seconds
        gaps = f"gap p50 {1e3 * self.gap(0.5):6.1f}  p99 {1e3 * self.gap(0.99):6.1f}  max {1e3 * self.gap(1):7.1f} ms"
        return f"{self.name:24} {gaps}  {rate:5.0f} tokens/s  {ttft}{within}"

    @property
    def within(self) -> float:
        """Share of the gaps inside the target."""
        assert self.target is not None
        return sum(gap <= self.target for _, gap in self.gaps) / len(self.gaps)


class Load:
    """Requests that never hit the cache: random ids."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine, self.draw = engine, random.Random(seed)
        self.rids: list[str] = []

    def stream(self) -> None:
        self.submit("stream", 32, self.draw.randrange(200, 400))

    def submit(self, kind: str, prompt: int, answer: int) -> str:
        rid = f"{kind}-{len(self.rids)}"
        self.rids.append(rid)
        ids = tuple(self.draw.randrange(1000, self.engine.runner.vocab_size) for _ in range(prompt))
        self.engine.submit(GenerateRequest(rid, ids, SamplingParams(max_new_tokens=answer, temperature=0.0, ignore_eos=True)))
        return rid


def measure(engine: Engine, run: Run, options: argparse.Namespace, *, prompts: int) -> Run:
    """Steps the engine by the clock until all long prompts have answered, or so long as they would have been coming."""
    engine.flush_cache()
    load = Load(engine, 1)
    for _ in range(options.streams):
        load.stream()
    for _ in range(30):  # prompts done, first steps over
        engine.step()
    gc.collect()
    last: dict[str, float] = {}
    asked: dict[str, float] = {}
    begin = time.perf_counter()
    while True:
        now = time.perf_counter() - begin
        if len(asked) < prompts and now >= 1 + options.every * len(asked):
            asked[load.submit("long", options.prompt, 1)] = 1 + options.every * len(asked)
        if now > 2 + options.every * options.prompts and len(run.ttfts) == prompts:
            break
        if now > PATIENCE + options.every * options.prompts:
            print(f"{run.name}: {prompts - len(run.ttfts)} long prompts have no answer after {now:.0f} s", flush=True)
            break
        for chunk in engine.step():
            now = time.perf_counter() - begin
            if chunk.error is not None:
                raise chunk.error
            if chunk.rid in asked:
                run.ttfts.append(now - asked[chunk.rid])
            elif chunk.rid.startswith("stream"):
                if chunk.rid in last:
                    run.gaps.append((now, now - last[chunk.rid]))
                last[chunk.rid] = now
                run.tokens += len(chunk.token_ids)
                if chunk.last:
                    load.stream()
    run.seconds = time.perf_counter() - begin
    for rid in load.rids:
        engine.abort(rid)
    while engine.busy:
        engine.step()
    return run


def alone(engine: Engine, options: argparse.Namespace) -> float:
    """Seconds of a long prompt on an idle engine: the least of three."""
    times = []
    for seed in range(3):
        engine.flush_cache()
        begin = time.perf_counter()
        Load(engine, 100 + seed).submit("long", options.prompt, 1)
        while engine.busy:
            engine.step()
        times.append(time.perf_counter() - begin)
    return min(times)


def plot(runs: list[Run], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(runs), 1, figsize=(9, 1.6 * len(runs)), sharex=True, sharey=True)
    for axis, run in zip(axes, runs, strict=True):
        axis.plot([when for when, _ in run.gaps], [1e3 * gap for _, gap in run.gaps], ".", markersize=2)
        axis.set_yscale("log")
        axis.set_title(run.name, fontsize=9, loc="left")
        axis.set_ylabel("ms")
        if run.target is not None:
            axis.axhline(1e3 * run.target, linewidth=0.8, color="black")
    axes[-1].set_xlabel("seconds; each point is the wait for one token of a stream")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=3000, help="tokens of a long prompt")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two of them")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--target", type=float, help="milliseconds between tokens; default: 1.5 times the median without long prompts")
    parser.add_argument("--only", choices=["default", "target", "whole"], action="append", help="settings to run beside that without long prompts")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    wanted = options.only or ["default", "whole", "target"]
    first = Engine.open(EngineConfig(model_path=options.model))
    parts = (first.runner, first.tokenizer)

    def engine(**config: Any) -> Engine:
        return Engine(*parts, EngineConfig(model_path=options.model, **config), first.cost)

    long_alone = alone(engine(), options)
    runs = [measure(engine(), Run("no long prompts"), options, prompts=0)]
    print(f"a prompt of {options.prompt} alone: {long_alone:.2f} s\n{runs[0].line()}", flush=True)
    target = options.target / 1e3 if options.target else 1.5 * runs[0].gap(0.5)
    settings = {
        "default": (Run("chunks beside streams"), {}),
        "whole": (Run("whole prompts"), {"chunked_prefill_size": options.prompt + options.streams}),
        "target": (Run(f"a target of {1e3 * target:.0f} ms", target), {"tpot_target": 1e3 * target}),
    }
    for name in wanted:
        run, config = settings[name]
        runs.append(measure(engine(**config), run, options, prompts=options.prompts))
        ratios = f"gap p99 {run.gap(0.99) / runs[0].gap(0.99):.2f} x, longest TTFT {max(run.ttfts, default=0.0) / long_alone:.2f} x alone"
        print(f"{run.line()}; {ratios}", flush=True)
    if options.json:
        rows = [
            {"name": r.name, "gap_p50_s": r.gap(0.5), "gap_p99_s": r.gap(0.99), "gap_max_s": r.gap(1), "ttfts_s": r.ttfts, "target_s": r.target,
             "within": None if r.target is None else r.within, "tokens_per_s": r.tokens / r.seconds} for r in runs
        ]  # fmt: skip
        options.json.write_text(json.dumps({"alone_s": long_alone, "runs": rows}, indent=1))
    if options.plot:
        plot(runs, options.plot)


if __name__ == "__main__":
    main()
