"""Does a server stay whole? Many streams at once for minutes, a third of them left early at a random piece.

    python benchmarks/soak.py [--streams 64] [--seconds 120]

Checks that each stream that ends equals its twin without a stream (temperature 0), that no slot is missing at the end, and that
the memory of both processes is flat in the second half. Prints the gaps between tokens. Ends with status 1 if a check fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

import httpx
from serve import percentile, start_server

PLACES = {
    "step_seconds": "a step",
    "between_steps_seconds": "between two steps",
    "delivery_seconds": "from the engine's process to the HTTP process",
    "event_loop_lag_seconds": "the HTTP process's event loop, late by",
}
WORDS = ["river", "stone", "cloud", "lamp", "garden", "bread", "clock", "train", "paper", "glass", "horse", "winter"]
PROMPTS = [f"{a.capitalize()} and {b}: a story in {i % 7 + 2} lines." for i, a in enumerate(WORDS) for b in WORDS if a != b][:96]


def body(prompt: str, tokens: int, *, stream: bool) -> bytes:
    params = {"max_new_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
    return json.dumps({"text": prompt, "stream": stream, "incremental": True, "sampling_params": params}).encode()


class Soak:
    """What happened so far."""

    def __init__(self, url: str, tokens: int) -> None:
        self.url, self.tokens = url, tokens
        self.twins: dict[str, str] = {}
        self.ended = self.left = self.wrong = 0
        self.gaps: list[float] = []
        self.late = 0.0  # seconds

    async def one(self, draw: random.Random) -> None:
        prompt = draw.choice(PROMPTS)
        leave_at = draw.randrange(self.tokens) if draw.random() < 1 / 3 else None
        host, port = self.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        data = body(prompt, self.tokens, stream=True)
        writer.write(b"POST /generate HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
        text, pieces, last, finished = "", 0, 0.0, False
        try:
            while line := await reader.readline():
                if not line.startswith(b"data: {"):
                    finished = finished or line.startswith(b"data: [DONE]")
                    continue
                now = time.perf_counter()
                if last:
                    self.gaps.append(now - last)
                last = now
                text += json.loads(line[6:])["text"]
                pieces += 1
                if leave_at is not None and pieces > leave_at:
                    self.left += 1
                    return
        finally:
            writer.close()
        self.ended += 1
        self.wrong += not finished or self.twins.setdefault(prompt, text) != text

    async def crowd(self, streams: int, seconds: float) -> None:
        end = time.monotonic() + seconds

        async def client(number: int) -> None:
            draw = random.Random(number)
            while time.monotonic() < end:
                await self.one(draw)

        await asyncio.gather(*(client(i) for i in range(streams)))


def resident(pids: list[int]) -> float:
    """Megabytes."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * 4096 / 1e6


async def run(url: str, pids: list[int], options: argparse.Namespace) -> list[str]:
    soak, failures = Soak(url, options.tokens), []
    async with httpx.AsyncClient(base_url=url, timeout=300) as http:
        memory: list[tuple[float, float]] = []

        async def watch() -> None:
            while True:
                memory.append((time.monotonic(), resident(pids)))
                await asyncio.sleep(1)

        peaks: dict[str, float] = dict.fromkeys(PLACES, 0.0)

        async def lag() -> None:
            """How late this process is itself: a gap that it sees may be its own."""
            while True:
                due = time.monotonic() + 0.05
                await asyncio.sleep(0.05)
                soak.late = max(soak.late, time.monotonic() - due)

        async def look() -> None:
            """Where the time went, by the server's own clocks; each remembers its largest of a minute."""
            while True:
                await asyncio.sleep(5)
                stats = (await http.get("/loads")).json()
                for name in PLACES:
                    peaks[name] = max(peaks[name], stats[name]["largest"])

        begin, watchers = time.monotonic(), [asyncio.create_task(task()) for task in (watch, look, lag)]
        await soak.crowd(options.streams, options.seconds)
        for watcher in watchers:
            watcher.cancel()
        for prompt, text in list(soak.twins.items())[:: max(1, len(soak.twins) // 24)]:  # some of them once more, without a stream
            whole: dict[str, Any] = (await http.post("/generate", content=body(prompt, options.tokens, stream=False))).json()
            soak.wrong += whole["text"] != text
        await asyncio.sleep(2)
        pool = (await http.get("/loads")).json()["pool"]
    half = [size for when, size in memory if when > begin + options.seconds / 2]
    growth = max(half[-5:]) / min(half[:5]) - 1
    print(
        f"{soak.ended} streams ended, {soak.left} left early, {soak.wrong} wrong; gap p50 {1e3 * percentile(soak.gaps, 0.5):.0f} ms, "
        f"p99 {1e3 * percentile(soak.gaps, 0.99):.0f} ms; memory {half[0]:.0f} to {half[-1]:.0f} MB in the second half "
        f"({100 * growth:+.1f}%); pool {pool}"
    )
    print(f"  longest gap {1e3 * max(soak.gaps):.0f} ms; longest " + ", ".join(f"{PLACES[n]} {1e3 * peak:.0f} ms" for n, peak in peaks.items()))
    print(f"  this process late by {1e3 * soak.late:.0f} ms at most")
    if options.json:
        figures = {
            "ended": soak.ended, "left": soak.left, "wrong": soak.wrong, "gap_p50_s": percentile(soak.gaps, 0.5),
            "gap_p99_s": percentile(soak.gaps, 0.99), "memory_mb": [half[0], half[-1]], "memory_growth": growth, "pool": pool,
            "gap_longest_s": max(soak.gaps), "longest": peaks,
        }  # fmt: skip
        options.json.write_text(json.dumps(figures, indent=2))
    if soak.wrong:
        failures.append(f"{soak.wrong} streams were not what they should be")
    if pool["free"] + pool["evictable"] != pool["slots"]:
        failures.append(f"slots are missing: {pool}")
    if growth > 0.03:
        failures.append(f"memory grew by {100 * growth:.1f}% in the second half")
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-path", default="smollm2-135m")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    server, url = start_server(["--model-path", options.model_path, "--max-total-tokens", "8192"])
    try:
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        failures = asyncio.run(run(url, [server.pid, *map(int, children)], options))
    finally:
        server.terminate()
        server.wait(60)
    if failures:
        raise SystemExit("; ".join(failures))


if __name__ == "__main__":
    main()
