"""What steps cost before any was made: from an earlier run's file, or a second of steps that compute nothing anyone asked for."""
from __future__ import annotations

import hashlib
import os
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..radix_cache import IntBuffer
from .cost_model import CostModel
from .native import cache_dir
from .protocol import GenerateRequest
from .request import Plan, PlanItem, Request

if TYPE_CHECKING:
    from .config import EngineConfig
    from .model_runner import Runner

# streams, rows of each, position of the first; each is a step. The first warms up.
STEPS = [(1, 1, 32), (1, 1, 32), (4, 1, 64), (8, 1, 64), (16, 1, 64), (8, 1, 512), (1, 32, 0), (1, 128, 0), (1, 64, 512), (1, 64, 1024), (16, 1, 256)]


def setting(config: EngineConfig, runner: Runner) -> str:
    """What a cost model holds for: model, machine, kernels, threads. One line."""
    threads = config.threads or len(os.sched_getaffinity(0))
    return f"{config.model_path}; {config.load_format}, {config.dtype}; {runner.describe()}; {threads} threads; {_processor()}"


def cost_file(about: str) -> Path:
    return cache_dir() / "costs" / (hashlib.sha256(about.encode()).hexdigest()[:16] + ".json")


def calibrate(runner: Runner, *, seconds: float = 1.5) -> CostModel:
    """Measures steps of several shapes on an idle runner for about so long. Writes to its pool, which must hold nothing yet."""
    cost = CostModel()
    end = time.monotonic() + seconds
    for number in range(4 * len(STEPS)):
        streams, rows, start = STEPS[number % len(STEPS)]
        if time.monotonic() > end:
            break
        if streams * (start + rows) > runner.slots or start + rows > runner.context_length:
            continue
        plan = _plan(streams, rows, start)
        begin = time.monotonic()
        runner.forward(runner.build(plan)).cpu()
        if number:
            cost.observe(plan.work, time.monotonic() - begin)
    return cost


def _plan(streams: int, rows: int, start: int) -> Plan:
    """One step of streams that share nothing. Item i has the i-th run of the pool's slots."""
    length = start + rows
    items = []
    for i in range(streams):
        request = Request(
            source=GenerateRequest("calibration", ()), index=0, ids=IntBuffer([1] * length), prompt_len=length, max_new_tokens=1, seed=0,
            eos_ids=frozenset(), matcher=None, must_finish=False, stream=None, stops=None,  # type: ignore[arg-type]
        )  # fmt: skip
        items.append(PlanItem(request, start, rows, IntBuffer(list(range(i * length, (i + 1) * length))), ()))
    return Plan(tuple(items))


def _processor() -> str:
    """The name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
