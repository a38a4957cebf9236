"""How does the engine behave on a machine that is not its own, and what does it take?

    python benchmarks/crowd.py [--model smollm2-135m] [--rounds 5] [--streams 1] [--json FILE]

Crowd: tokens a second while another process computes on one core without pause, against quiet rounds in turn with those (wanted: at
least 40%). Idle: processor time of an engine that has answered and waits (wanted: none). Memory: resident bytes of a process after
its first answer, beyond the weights' file and what was written of the KV pool (wanted: at most 350 MB). Start: `import ramet` beyond the bare
interpreter (under 0.15 s), and `ramet generate` to its first token (under 2.5 s), each the best of the rounds.
Linux only: it reads /proc.
"""
from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

from ramet.runtime.config import DEFAULT_MODEL

SPIN = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nprint(flush=True)\nwhile True: pass"


def crowd(model: str, streams: int, rounds: int) -> dict[str, float]:
    """Median rates, quiet and beside a process that keeps the first of our cores busy."""
    from decode_peers import RametPeer

    peer, core = RametPeer(model, {}), min(os.sched_getaffinity(0))
    rates: dict[str, list[float]] = {"quiet": [], "crowd": []}

    def rate(number: int) -> float:
        draw = random.Random(number)
        return peer.run([tuple(draw.randrange(3, 40_000) for _ in range(96)) for _ in range(streams)], 128).rate

    rate(0)
    for number in range(rounds):
        rates["quiet"].append(rate(number))
        with subprocess.Popen([sys.executable, "-c", SPIN, str(core)], stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            other.stdout.readline()
            try:
                rates["crowd"].append(rate(number))
            finally:
                other.kill()
    peer.close()
    middle = {name: statistics.median(values) for name, values in rates.items()}
    return {"quiet_tokens_s": middle["quiet"], "crowd_tokens_s": middle["crowd"], "share": middle["crowd"] / middle["quiet"]}


def resident() -> dict[str, int]:
    """Bytes of this process in memory: its own, and pages of files."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(fields[key].split()[0]) * 1024 for name, key in (("rss", "VmRSS"), ("own", "RssAnon"), ("files", "RssFile"))}


def idle(model: str, seconds: float = 5.0) -> dict[str, float]:
    """Processor share and memory of an engine on its thread, in this process, after one answer."""
    from restart import ask

    from ramet.runtime.config import EngineConfig
    from ramet.runtime.hub import resolve
    from ramet.runtime.loop import EngineLoop
    from ramet.runtime.model_runner import ModelRunner

    loop = EngineLoop.open(EngineConfig.of(model_path=model))
    prompt, answer = tuple(range(100, 200)), 8
    ask(loop, "one", prompt, answer)
    time.sleep(1)
    begin, used = time.perf_counter(), time.process_time()
    time.sleep(seconds)
    share = (time.process_time() - used) / (time.perf_counter() - begin)
    memory, runner, files = resident(), loop.engine.runner, resolve(model)
    assert isinstance(runner, ModelRunner)
    pool = (len(prompt) + answer) * runner.pool.row_bytes  # the rest of it is no memory until it is written
    weights = sum(path.stat().st_size for path in ([files.gguf] if files.gguf else files.folder.glob("*.safetensors")))
    loop.close()
    return {"processor_share": share, **memory, "weights": weights, "pool": pool, "beyond": memory["rss"] - weights - pool}


def start(model: str, rounds: int) -> dict[str, float]:
    """Seconds: of the import beyond the interpreter's own start, and of the command to the first byte of its answer."""

    def run(code: str) -> float:
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - begin

    def first_token() -> float:
        begin = time.perf_counter()
        command = [sys.executable, "-c", "from ramet.runtime.cli import main; main()", "generate", "hi", "--model", model, "--max-tokens", "8"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0) as child:
            assert child.stdout is not None
            if not child.stdout.read(1):
                raise SystemExit(f"{' '.join(command)} wrote nothing")
            took = time.perf_counter() - begin
            child.stdout.read()
        return took

    first_token()  # compiles, and brings the file into memory
    bare, imported = (min(run(code) for _ in range(rounds)) for code in ("pass", "import ramet"))
    return {"import_s": imported - bare, "first_token_s": min(first_token() for _ in range(rounds))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    report: dict[str, dict[str, float]] = {"idle": idle(options.model)}  # first: memory of a process that has done nothing else
    memory = report["idle"]
    print(f"idle: {memory['processor_share']:.1%} of a processor")
    print(f"memory: {memory['rss'] / 1e6:.0f} MB resident ({memory['files'] / 1e6:.0f} MB of it pages of files); weights {memory['weights'] / 1e6:.0f} MB, "
          f"KV {memory['pool'] / 1e6:.0f} MB, {memory['beyond'] / 1e6:+.0f} MB beyond them")  # fmt: skip
    report["start"] = start(options.model, options.rounds)
    print(f"start: import {report['start']['import_s']:.3f} s, first token {report['start']['first_token_s']:.2f} s", flush=True)
    report["crowd"] = rates = crowd(options.model, options.streams, options.rounds)
    print(f"crowd: {rates['crowd_tokens_s']:.1f} tokens/s beside a busy process, {rates['quiet_tokens_s']:.1f} quiet: {rates['share']:.0%}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()
