"""What does tree attention buy? Steps of branches that share a prefix, with it and without, and the KV that attention reads.

    python benchmarks/tree.py [--model smollm2-135m] [--prefix 4000] [--branches 32] [--steps 24] [--json FILE]

Three figures on the whole engine, prompts of random ids: one decode step of 1 and of 32 branches below one prefix; a tree of three levels
(1 x 4 x 8, 1,000 tokens a level); and, counted from what the kernels are told, the KV positions that a step reads against those that
are different ones. Steps with tree attention and without alternate on the same engine, so both see the same machine; a figure is
the median. The prefixes' KV is drawn, not computed: a decode step costs the same. `attention` is the same pass through the attention
kernel alone (all layers), which tells it from the rest of the step.
"""
from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from ramet.kernels.interface import AttnMeta
from ramet.runtime.batch import ForwardBatch
from ramet.runtime.config import DEFAULT_MODEL, EngineConfig
from ramet.runtime.engine import Engine
from ramet.runtime.protocol import GenerateRequest, SamplingParams


@dataclass(frozen=True)
class Pass:
    """One decode step: seconds with tree attention and without, of the step and of its attention; positions read and different ones."""

    step: float
    step_off: float
    attention: float
    attention_off: float
    read: int
    read_off: int
    unique: int


class Bench:
    def __init__(self, engine: Engine, steps: int) -> None:
        self.engine, self.steps = engine, steps
        self.runner: Any = engine.runner
        self.draw = random.Random(1)
        self.last: ForwardBatch | None = None
        forward = self.runner.forward

        def noted(batch: ForwardBatch) -> torch.Tensor:
            self.last = batch
            return forward(batch)

        self.runner_forward, self.engine.runner = noted, _Noting(self.runner, noted)

    def ids(self, n: int) -> tuple[int, ...]:
        return tuple(self.draw.randrange(100, 40_000) for _ in range(n))

    def plant(self, ids: tuple[int, ...]) -> None:
        """Makes the prefix cached, with random KV."""
        array, cache, pool = np.array(ids, dtype=np.int32), self.engine.cache, self.runner.pool
        lease = cache.match_and_lock(array)
        slots = cache.reserve(lease, len(ids) - len(lease.slots))
        if slots is None:
            raise SystemExit(f"the pool of {cache.capacity} slots is too small")
        at = torch.from_numpy(slots.astype(np.int64))
        for half in (pool.k, pool.v):
            for layer in half:
                layer[at] = torch.randn(len(at), *layer.shape[1:]).to(layer.dtype)
        cache.release(lease, array)

    def measure(self, prompts: list[tuple[int, ...]]) -> Pass:
        """Brings the prompts to where all of them decode, then times steps."""
        engine = self.engine
        params = SamplingParams(max_new_tokens=self.steps * 2 + 12 + len(prompts), temperature=0, ignore_eos=True)
        for i, prompt in enumerate(prompts):
            self.plant(prompt[:-8])
            engine.submit(GenerateRequest(f"r{i}", prompt, params))
        while engine.scheduler.waiting or any(r.todo > 1 for r in engine.scheduler.running):
            engine.step()
        engine.step()
        assert len(engine.scheduler.running) == len(prompts)
        times: dict[bool, list[float]] = {True: [], False: []}
        attention: dict[bool, list[float]] = {True: [], False: []}
        read, unique = {}, 0
        for number in range(2 * self.steps):
            self.runner.tree_attention = number % 2 == 0
            begin = time.perf_counter()
            engine.step()
            times[self.runner.tree_attention].append(time.perf_counter() - begin)
            assert self.last is not None
            meta = self.last.inputs.attn
            read[self.runner.tree_attention], unique = positions_read(meta), positions_unique(meta)
            if number < 10:
                attention[self.runner.tree_attention].append(self.attention_alone(meta))
        for i in range(len(prompts)):
            engine.abort(f"r{i}")
        while engine.busy:
            engine.step()
        engine.check()
        engine.flush_cache()
        best = {name: statistics.median(each) for name, each in times.items()}
        alone = {name: statistics.median(each) for name, each in attention.items()}
        return Pass(best[True], best[False], alone[True], alone[False], read[True], read[False], unique)

    def attention_alone(self, meta: AttnMeta) -> float:
        """Seconds of all layers' attention of this pass."""
        shape, pool = self.runner.model.config, self.runner.pool
        q = torch.randn(int(meta.query_start[-1]), shape.n_heads, shape.head_dim)
        begin = time.perf_counter()
        for layer in range(shape.n_layers):
            self.runner.kernels.attention(q, pool.k[layer], pool.v[layer], meta, shape.head_dim**-0.5)
        return time.perf_counter() - begin


class _Noting:
    """The runner, whose `forward` notes what it is given."""

    def __init__(self, runner: Any, forward: Any) -> None:
        self._runner, self.forward = runner, forward

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


def positions_read(meta: AttnMeta) -> int:
    """KV positions that one layer's attention reads: each segment once, each sequence's own tail once (a decode row reads it once)."""
    segments = meta.segments
    if segments is None:
        return int(meta.context_len.sum())
    return int((segments.stop - segments.start).sum() + (meta.context_len - segments.tail_start).sum())


def positions_unique(meta: AttnMeta) -> int:
    """Different slots among all contexts."""
    tables = [meta.tables[s, : int(n)] for s, n in enumerate(meta.context_len)]
    return len(torch.unique(torch.cat(tables)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--prefix", type=int, default=4000)
    parser.add_argument("--branches", type=int, default=32)
    parser.add_argument("--level", type=int, default=1000, help="tokens a level of the three-level tree")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    slots = max(options.prefix + options.branches * 200, options.level * 37 + 32 * 200)
    engine = Engine.open(EngineConfig.of(model_path=options.model, max_total_tokens=slots, schedule_conservativeness=0.0))
    bench = Bench(engine, options.steps)
    print(engine.runner.describe())

    prefix = bench.ids(options.prefix)
    one = bench.measure([prefix + bench.ids(8)])
    wide = bench.measure([prefix + bench.ids(8) for _ in range(options.branches)])
    root, middles = bench.ids(options.level), [bench.ids(options.level) for _ in range(4)]
    deep = bench.measure([root + middle + bench.ids(options.level) for middle in middles for _ in range(8)])  # the last 8 tokens are computed

    results = {"one branch": one, f"{options.branches} branches": wide, "1 x 4 x 8": deep}
    print(f"{'':12} {'step':>9} {'without':>9} {'gain':>6} {'attention':>10} {'without':>9} {'gain':>6} {'read / unique':>14} {'without':>8}")
    for name, p in results.items():
        print(f"{name:12} {p.step * 1e3:6.1f} ms {p.step_off * 1e3:6.1f} ms {p.step_off / p.step:5.2f}x {p.attention * 1e3:7.1f} ms "
              f"{p.attention_off * 1e3:6.1f} ms {p.attention_off / p.attention:5.2f}x {p.read / p.unique:14.3f} {p.read_off / p.unique:8.2f}")  # fmt: skip
    figures = {
        "wide_step_over_one": wide.step / one.step, "wide_gain": wide.step_off / wide.step, "deep_gain": deep.step_off / deep.step,
        "wide_attention_over_one": wide.attention / one.attention, "wide_attention_gain": wide.attention_off / wide.attention,
        "deep_attention_gain": deep.attention_off / deep.attention, "wide_read": wide.read / wide.unique, "deep_read": deep.read / deep.unique,
    }  # fmt: skip
    print(f"step of {options.branches} branches over that of one: {figures['wide_step_over_one']:.2f} (wanted: at most 2); gain {figures['wide_gain']:.2f}x "
          f"(at least 3); three levels: gain {figures['deep_gain']:.2f}x (at least 2); read: {figures['wide_read']:.3f} and {figures['deep_read']:.3f} "
          "of the unique tokens (at most 1.1)")  # fmt: skip
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"figures": figures, "passes": {name: asdict(p) for name, p in results.items()}}, file, indent=1)


if __name__ == "__main__":
    main()
