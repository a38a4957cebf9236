"""What is measured on: a GPU, or for trying the script out, a processor under Triton's interpreter."""
from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Row:
    """A line of the table. share: of the floor, where 1.0 is the limit. goal: what the share (or the value) should be."""

    what: str
    value: float
    unit: str
    share: float | None = None
    goal: str = ""
    of: str = "the floor"  # what it is a share of


@dataclass
class Replay:
    """A captured graph, and what holds the memory that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    work: Callable[[], Any]
    kept: Any

    def __call__(self) -> None:
        self.graph.replay()


@dataclass
class Card:
    """The device, and the time that is left. dry: every function runs, small and interpreted, and no figure means anything."""

    dry: bool
    limit: float  # seconds for all of it
    begin: float = field(default_factory=time.monotonic)
    skipped: list[str] = field(default_factory=list)

    @property
    def device(self) -> str:
        return "cpu" if self.dry else "cuda"

    @property
    def name(self) -> str:
        return "a processor, interpreted" if self.dry else torch.cuda.get_device_name()

    def memory(self) -> int:
        """Bytes that are free."""
        return 1 << 30 if self.dry else torch.cuda.mem_get_info()[0]

    def has(self, seconds: float, what: str) -> bool:
        """Whether that much time is left; if not, it is noted that `what` was left out."""
        if self.limit - (time.monotonic() - self.begin) >= seconds:
            return True
        self.skipped.append(what)
        return False

    def seconds(self, work: Callable[[], Any], turns: int = 20) -> float:
        """The median time of `turns` runs, by the GPU's own clock. They are queued at once, so that launches do not count where work is long."""
        if self.dry:
            begin = time.perf_counter()
            work()
            return time.perf_counter() - begin
        for _ in range(3):
            work()
        marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(turns)]
        for begin_mark, end_mark in marks:
            begin_mark.record()
            work()
            end_mark.record()
        torch.cuda.synchronize()
        return sorted(begin_mark.elapsed_time(end_mark) for begin_mark, end_mark in marks)[turns // 2] / 1000

    def captured(self, work: Callable[[], Any]) -> Callable[[], Any]:
        """The work as a CUDA graph: its launches cost next to nothing when it is called."""
        if self.dry:
            return work
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = work()
        return Replay(graph, work, kept)

    def idle_share(self, work: Callable[[], Any], turns: int, trace: Path | None) -> float:
        """The share of the time in which no kernel runs, between the first and the last of `turns` runs, from the profiler."""
        from torch.profiler import ProfilerActivity, profile

        for _ in range(3):
            work()
        with profile(activities=[ProfilerActivity.CPU] if self.dry else [ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            for _ in range(1 if self.dry else turns):
                work()
            if not self.dry:
                torch.cuda.synchronize()
        if trace is not None:
            seen.export_chrome_trace(str(trace))
        device = torch.autograd.DeviceType.CPU if self.dry else torch.autograd.DeviceType.CUDA
        spans = sorted((e.time_range.start, e.time_range.end) for e in seen.events() if e.device_type == device)
        if not spans:  # the profiler may not trace this card
            return float("nan")
        busy, until = 0.0, spans[0][0]
        for start, end in spans:
            busy += max(0.0, end - max(start, until))
            until = max(until, end)
        return 1.0 - busy / max(until - spans[0][0], 1e-9)
