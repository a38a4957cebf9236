"""Counts of durations by size, and the largest of the last minute: how the engine and the server say where time goes."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import deque
from typing import Any

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds
WINDOW = 60.0  # seconds that `largest` looks back


class Histogram:
    """`observe` from any thread; costs a microsecond."""

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # by the first bound that is not smaller; the last: larger than all
        self.sum = 0.0
        self._peaks: deque[tuple[float, float]] = deque()  # (when, value), values falling: what may still become the largest
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        now = time.monotonic()
        with self._lock:
            self.counts[bisect_left(self.bounds, value)] += 1
            self.sum += value
            while self._peaks and self._peaks[-1][1] <= value:
                self._peaks.pop()
            self._peaks.append((now, value))
            while self._peaks[0][0] < now - WINDOW:
                self._peaks.popleft()

    def largest(self) -> float:
        """Of the last minute; 0 when there was none."""
        with self._lock:
            while self._peaks and self._peaks[0][0] < time.monotonic() - WINDOW:
                self._peaks.popleft()
            return self._peaks[0][1] if self._peaks else 0.0

    def snapshot(self) -> dict[str, Any]:
        """Plain data: `bounds`, `counts` (one more than bounds), `sum`, `largest`."""
        return {"bounds": self.bounds, "counts": list(self.counts), "sum": self.sum, "largest": self.largest()}
