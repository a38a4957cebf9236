"""How fast could a step be here? The machine's memory bandwidth and matrix rates, measured, and what they bound.

    python benchmarks/machine.py [--model smollm2-135m] [--threads N] [--json FILE]

Bandwidth is that of summing an array much larger than any cache. Matrix rates are what the cpu kernels reach on weights that
lie in the cache, for 64 rows: the most that a pass of many rows can hope for from these kernels on this processor. The floor
of a step is the larger of its bytes over the bandwidth and its products over the rate.
"""
from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ramet.kernels import get_kernels
from ramet.kernels.blocks import FORMATS
from ramet.kernels.interface import DecoderWeights, Kernels, Linear, PackedWeight
from ramet.runtime.config import DEFAULT_MODEL, EngineConfig
from ramet.runtime.hub import resolve
from ramet.runtime.weights import load_model


@dataclass(frozen=True)
class Machine:
    threads: int
    kernels: str
    read_gb_s: float  # 1e9 bytes a second
    packed_gmac_s: float  # 1e9 products a second, 4-bit weights against 8-bit activations
    float_gmac_s: float  # float32 against float32


@dataclass(frozen=True)
class Work:
    """What a model asks of a machine."""

    weight_bytes: int  # all that a step reads
    row_products: int  # of the layers, a row
    head_products: int  # of the output matrix, a row with logits
    position_bytes: int  # keys and values of one position

    def step_floor(self, machine: Machine, streams: int, context: int) -> tuple[float, float]:
        """Seconds of a step of one row a stream: by bytes, by products."""
        size = self.weight_bytes + streams * context * self.position_bytes
        return size / machine.read_gb_s / 1e9, streams * (self.row_products + self.head_products) / machine.packed_gmac_s / 1e9

    def prefill_floor(self, machine: Machine, tokens: int) -> float:
        """Seconds of a prompt's products with weights; those of attention come on top."""
        return (tokens * self.row_products + self.head_products) / machine.packed_gmac_s / 1e9


def best_of(work: Callable[[], Any], seconds: float) -> float:
    """The quickest of the runs that fit into the given time: other processes only ever slow a run down."""
    work()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
    return best


def measure(threads: int | None = None, seconds: float = 1.0) -> Machine:
    kernels = get_kernels("cpu", threads=threads)
    exact = get_kernels("cpu", dtype="float32", threads=threads)
    count = getattr(kernels, "threads", torch.get_num_threads())
    torch.set_num_threads(count)
    large = torch.ones(64 << 20)
    rows, n = 64, 1024

    def rate(peer: Kernels, weight: torch.Tensor | PackedWeight) -> float:
        linear, x = Linear(weight), torch.randn(rows, n)
        return rows * n * n / best_of(lambda: peer.linear(x, linear), seconds) / 1e9

    packed = PackedWeight("Q4_1", torch.zeros(n, n // 32 * FORMATS["Q4_1"][1], dtype=torch.uint8), n)
    return Machine(
        count,
        f"{kernels.name}: {kernels.why}",
        large.numel() * 4 / best_of(large.sum, seconds) / 1e9,
        rate(kernels, packed),
        rate(exact, torch.zeros(n, n)),
    )


def work_of(weights: DecoderWeights, cache_bytes: int = 2) -> Work:
    def size(weight: torch.Tensor | PackedWeight) -> int:
        data = weight.data if isinstance(weight, PackedWeight) else weight
        return data.numel() * data.element_size()

    linears = [getattr(layer, name) for layer in weights.layers for name in ("q", "k", "v", "o", "gate", "up", "down")]
    products = sum(each.in_features * each.out_features for each in linears)
    return Work(
        sum(size(each.weight) for each in (*linears, weights.head)),
        products,
        weights.head.in_features * weights.head.out_features,
        len(weights.layers) * weights.n_kv_heads * weights.head_dim * 2 * cache_bytes,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    machine = measure(options.threads)
    work = work_of(load_model(resolve(options.model), EngineConfig.of(model_path=options.model)).weights)
    print(f"{machine.kernels}\nreads {machine.read_gb_s:.1f} GB/s; {machine.packed_gmac_s:.0f} G products/s packed, {machine.float_gmac_s:.0f} float32")
    print(f"{options.model}: {work.weight_bytes / 1e6:.1f} MB of weights, {work.row_products / 1e6:.0f} M products a row, "
          f"{work.head_products / 1e6:.0f} M for its logits, {work.position_bytes / 1e3:.1f} kB a position")  # fmt: skip
    floors = {}
    for streams, context in ((1, 128), (1, 512), (4, 128), (16, 128), (16, 512), (32, 128)):
        by_bytes, by_products = work.step_floor(machine, streams, context)
        floors[f"decode_{streams}_ctx{context}"] = streams / max(by_bytes, by_products)
        print(f"{streams:3} streams at {context:4}: bytes {by_bytes * 1e3:6.2f} ms, products {by_products * 1e3:6.2f} ms"
              f" -> at most {streams / max(by_bytes, by_products):6.0f} tokens/s")  # fmt: skip
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"machine": asdict(machine), "work": asdict(work), "floors": floors}, file, indent=1)


if __name__ == "__main__":
    main()
