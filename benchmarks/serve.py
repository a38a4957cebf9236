"""What does serving cost? Tokens a second over HTTP and ZMQ, against the same engine in process, in one run.

    python benchmarks/serve.py [--streams 32] [--tokens 96] [--rounds 3]

Rounds alternate between the two. On a machine that others use too, wall time is a lottery: the processors' time a token says more,
though it cannot show waiting. The clients are one process of their own, as they would be: on a machine with few cores they
take part of what the engine could use; how much is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PROMPTS = [f"Question {i}: tell me something about the number {i} and where it is used.\nAnswer:" for i in range(256)]


def params(tokens: int) -> dict[str, Any]:
    return {"max_new_tokens": tokens, "temperature": 0.0, "ignore_eos": True}


def in_process(loop: Any, streams: int, tokens: int) -> tuple[float, list[float]]:
    """Tokens a second, and the gaps between pieces of one stream."""
    import threading

    from ramet.runtime.protocol import GenerateRequest, SamplingParams

    done = threading.Semaphore(0)
    last: dict[str, float] = {}
    gaps: list[float] = []

    def sink(chunk: Any) -> None:
        now = time.perf_counter()
        if chunk.rid in last:
            gaps.append(now - last[chunk.rid])
        last[chunk.rid] = now
        if chunk.last:
            assert chunk.error is None, chunk.error
            done.release()

    loop.flush_cache()
    begin = time.perf_counter()
    for i in range(streams):
        loop.submit(GenerateRequest(f"r{i}-{begin}", PROMPTS[i], SamplingParams(**params(tokens))), sink)
    for _ in range(streams):
        done.acquire()
    return streams * tokens / (time.perf_counter() - begin), gaps


async def _clients(url: str, streams: int, tokens: int) -> tuple[float, list[float], float]:
    """The same over HTTP: a small client on plain sockets, so that what is measured is the server."""
    host, port = url.removeprefix("http://").split(":")
    gaps: list[float] = []

    async def one(i: int) -> None:
        body = json.dumps({"text": PROMPTS[i], "stream": True, "incremental": True, "sampling_params": params(tokens)}).encode()
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /generate HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        count, last, rest = 0, 0.0, b""
        while data := await reader.read(65536):
            now = time.perf_counter()
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            for line in lines:
                if line.startswith(b"data: {"):
                    count += line.count(b",", line.index(b'"output_ids":['), line.index(b"]")) + 1
                    if last:
                        gaps.append(now - last)
                    last = now
        writer.close()
        assert count == tokens, (count, tokens)

    begin, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(one(i) for i in range(streams)))
    wall = time.perf_counter() - begin
    return streams * tokens / wall, gaps, (time.process_time() - cpu) / wall


def _client_process(pipe: Any) -> None:
    while (job := pipe.recv()) is not None:
        pipe.send(asyncio.run(_clients(*job)))


def cpu_seconds(pids: list[int]) -> float:
    """User and system time of processes so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def start_server(options: list[str]) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "ramet.runtime.server", "--port", "0", "--no-log-requests", "--log-format", "json", *options], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if '"url"' in line:
            url: str = json.loads(line)["url"]
            return process, url
    raise SystemExit("the server did not start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-path", default="smollm2-135m")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()

    from ramet.runtime.config import EngineConfig
    from ramet.runtime.loop import EngineLoop

    here, there = multiprocessing.get_context("spawn").Pipe()
    clients = multiprocessing.get_context("spawn").Process(target=_client_process, args=(there,), daemon=True)
    clients.start()
    loop = EngineLoop.open(EngineConfig(model_path=options.model_path))
    server, url = start_server(["--model-path", options.model_path])
    rows: dict[str, list[float]] = {"in process": [], "served": []}
    gaps: dict[str, list[float]] = {"in process": [], "served": []}
    costs: dict[str, list[float]] = {"in process": [], "served": [], "HTTP process": []}  # milliseconds a token
    shares = []
    total = options.streams * options.tokens / 1e3
    worker = [int(pid) for pid in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()]
    try:
        in_process(loop, 2, 8)  # both warm
        here.send((url, 2, 8))
        here.recv()
        for _ in range(options.rounds):
            before = time.process_time()
            speed, pieces = in_process(loop, options.streams, options.tokens)
            costs["in process"].append((time.process_time() - before) / total)
            rows["in process"].append(speed)
            gaps["in process"] += pieces
            before, before_http = cpu_seconds([server.pid, *worker]), cpu_seconds([server.pid])
            here.send((url, options.streams, options.tokens))
            speed, pieces, share = here.recv()
            costs["served"].append((cpu_seconds([server.pid, *worker]) - before) / total)
            costs["HTTP process"].append((cpu_seconds([server.pid]) - before_http) / total)
            rows["served"].append(speed)
            gaps["served"] += pieces
            shares.append(share)
    finally:
        here.send(None)
        server.terminate()
        server.wait(60)
        loop.close()
    medians = {name: statistics.median(values) for name, values in rows.items()}
    print(f"{options.streams} streams of {options.tokens} tokens, {options.rounds} rounds, medians")
    for name, speed in medians.items():
        middle, high = (1e3 * percentile(gaps[name], share) for share in (0.5, 0.99))
        print(f"  {name:<11}{speed:9.1f} tokens/s   gap p50 {middle:6.1f} ms   p99 {high:6.1f} ms")
    overhead = 1 - medians["served"] / medians["in process"]
    print(f"  serving costs {100 * overhead:.1f}%   (the clients themselves took {100 * statistics.median(shares):.0f}% of a core)")
    spent = {name: statistics.median(values) for name, values in costs.items()}
    more = spent["served"] / spent["in process"] - 1
    print(
        f"  processor time a token: in process {spent['in process']:.2f} ms, served {spent['served']:.2f} ms ({100 * more:+.1f}%), "
        f"of which the HTTP process {spent['HTTP process']:.2f} ms"
    )
    if options.json:
        with open(options.json, "w") as file:
            json.dump(
                {"tokens_per_second": rows, "overhead": overhead, "cpu_ms_per_token": costs, "gap_p99": {n: percentile(g, 0.99) for n, g in gaps.items()}}, file
            )


if __name__ == "__main__":
    main()
