"""What does one forward pass cost, without the engine around it?

    python benchmarks/step.py [--model smollm2-135m] [--threads N] [--rounds 9] [--json FILE]

Two clocks: the wall's, and the processor time of the calling thread, which does all the work with `--threads 1`. On a machine
that other processes share the second is the one to compare; both are the best of the rounds, because noise only adds.
"""
from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch

from ramet.kernels import get_kernels
from ramet.kernels.interface import AttnMeta, DecoderInput
from ramet.runtime.config import DEFAULT_MODEL, EngineConfig
from ramet.runtime.hub import resolve
from ramet.runtime.weights import load_model

# streams, rows of each, context of each
PASSES = [(1, 1, 16), (1, 1, 128), (1, 1, 512), (1, 1, 2000), (1, 1, 8000), (4, 1, 128), (16, 1, 128), (16, 1, 512), (16, 1, 1000), (32, 1, 128),
          (1, 128, 128), (1, 512, 512), (1, 512, 2000)]  # fmt: skip


def make_pass(streams: int, rows: int, context: int, vocabulary: int) -> DecoderInput:
    """Streams that share nothing; logits of each one's last row."""
    tables = torch.arange(streams * context, dtype=torch.int32).view(streams, context)
    positions = torch.arange(context - rows, context, dtype=torch.int32).repeat(streams)
    starts = torch.arange(0, streams * rows + 1, rows, dtype=torch.int32)
    meta = AttnMeta(starts, torch.full((streams,), context, dtype=torch.int32), tables, context, rows)
    ids = torch.randint(0, vocabulary, (streams * rows,), dtype=torch.int32)
    return DecoderInput(ids, positions, tables[:, context - rows :].flatten().contiguous(), starts[1:] - 1, meta)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    loaded = load_model(resolve(options.model), EngineConfig.of(model_path=options.model))
    kernels = get_kernels("cpu", "cpu", threads=options.threads)
    decoder: Any = kernels.decoder(loaded.weights)
    shape, slots = loaded.config, max(streams * context for streams, _, context in PASSES)
    pools = [torch.randn(shape.n_layers, slots, shape.n_kv_heads, shape.head_dim).to(kernels.kv_dtype) for _ in range(2)]
    print(f"{kernels.why}; {decoder.weight_bytes / 1e6:.1f} MB of weights; cache of {kernels.kv_dtype}")
    results = []
    for streams, rows, context in PASSES:
        batch = make_pass(streams, rows, context, shape.vocab_size)
        times = []
        for _ in range(options.rounds if rows == 1 else max(1, options.rounds // 3)):
            wall, cpu = time.perf_counter(), time.thread_time()
            decoder.forward(batch, *pools)
            times.append((time.perf_counter() - wall, time.thread_time() - cpu))
        wall, cpu = min(t[0] for t in times), min(t[1] for t in times)
        results.append({"streams": streams, "rows": rows, "context": context, "wall_s": wall, "thread_s": cpu})
        rate = streams * rows / wall
        print(f"{streams:3} x {rows:3} rows at {context:4}: {wall * 1e3:8.2f} ms, processor {cpu * 1e3:8.2f} ms -> {rate:7.1f} rows/s", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"kernels": kernels.why, "passes": results}, file, indent=1)


if __name__ == "__main__":
    main()
