"""Does a restarted engine answer warm? TTFT of a long prompt, cold and after a restart with the same cache_dir.

    python benchmarks/restart.py [--model smollm2-135m] [--tokens 4000] [--rounds 3] [--json FILE]

A round opens an engine on an empty folder, asks (cold), closes it, opens another one on what it left (the time of the snapshot and of
the opening is shown apart), asks again (warm), and compares: the answers must be equal. Each engine has answered another short
prompt before it is timed. TTFT is from submit to the first token, reading back from disk included.
"""
from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import threading
import time
from pathlib import Path

from ramet.runtime.config import DEFAULT_MODEL, EngineConfig
from ramet.runtime.loop import EngineLoop
from ramet.runtime.protocol import Chunk, GenerateRequest, SamplingParams


def ask(loop: EngineLoop, rid: str, prompt: tuple[int, ...], tokens: int = 8) -> tuple[float, int, tuple[int, ...]]:
    """Seconds to the first token, cached prompt tokens, the answer's ids."""
    ids: list[int] = []
    done, last = threading.Event(), []

    def sink(chunk: Chunk) -> None:
        ids.extend(chunk.token_ids)
        if chunk.last:
            last.append(chunk)
            done.set()

    loop.submit(GenerateRequest(rid, prompt, SamplingParams(max_new_tokens=tokens, temperature=0, ignore_eos=True)), sink)
    done.wait()
    if last[0].error is not None:
        raise last[0].error
    return last[0].timings.ttft, last[0].usage.cached_tokens, tuple(ids)


def timed_run(config: EngineConfig, prompt: tuple[int, ...], short: tuple[int, ...]) -> dict[str, object]:
    begin = time.perf_counter()
    loop = EngineLoop.open(config)
    opened = time.perf_counter() - begin
    ask(loop, "first", short)
    ttft, cached, ids = ask(loop, "timed", prompt)
    begin = time.perf_counter()
    loop.close()
    return {"open_s": opened, "ttft_s": ttft, "cached": cached, "ids": ids, "close_s": time.perf_counter() - begin}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    ratios, rows = [], []
    for number in range(options.rounds):
        draw = random.Random(number)
        prompt, short = (tuple(draw.randrange(100, 40_000) for _ in range(n)) for n in (options.tokens, 20))
        with tempfile.TemporaryDirectory() as folder:
            config = EngineConfig.of(model_path=options.model, cache_dir=folder)
            cold, warm = timed_run(config, prompt, short), timed_run(config, prompt, short)
            size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        if cold["ids"] != warm["ids"]:
            raise SystemExit(f"round {number}: the warm answer differs from the cold one")
        ratios.append(float(warm["ttft_s"]) / float(cold["ttft_s"]))  # type: ignore[arg-type]
        rows.append({"cold": cold, "warm": warm, "disk_bytes": size})
        for name, run in (("cold", cold), ("warm", warm)):
            print(f"{name}: TTFT {run['ttft_s']:.3f} s, {run['cached']} of {options.tokens} tokens cached; opened in {run['open_s']:.2f} s, "
                  f"closed in {run['close_s']:.2f} s")  # fmt: skip
        print(f"      warm / cold {ratios[-1]:.3f}; {size / 1e6:.1f} MB on disk", flush=True)
    print(f"median warm / cold: {statistics.median(ratios):.3f} (wanted: at most 0.2)")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"tokens": options.tokens, "ratios": ratios, "median": statistics.median(ratios), "rounds": rows}, file, indent=1)


if __name__ == "__main__":
    main()
