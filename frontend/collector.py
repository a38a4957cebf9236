"""The cycle collector, told to look less often while a batch runs.

A batch makes many objects that stay: a state for each program. The collector takes them for a reason to look at everything that the
process holds, again and again, which takes a good part of the time of short programs.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

OBJECTS = 50_000  # that may be made before it looks for cycles among them; 700 by default

_lock = threading.Lock()
_batches = 0  # under way in this process, which has one collector
_before: tuple[int, int, int] | None = None


@contextmanager
def seldom() -> Iterator[None]:
    """Until the last of the blocks that are open at the same time ends. A threshold that is higher, or zero (never), stays."""
    global _batches, _before
    with _lock:
        _batches += 1
        if _batches == 1:
            first, *rest = _before = gc.get_threshold()
            if 0 < first < OBJECTS:
                gc.set_threshold(OBJECTS, *rest)
    try:
        yield
    finally:
        with _lock:
            _batches -= 1
            if _batches == 0 and _before is not None:
                gc.set_threshold(*_before)
