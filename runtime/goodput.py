"""How many requests met their targets (goodput: DistServe, arXiv 2401.09670, section 2)."""
from __future__ import annotations

from .protocol import GenerateRequest, Timings


class Goodput:
    """Counts outputs that came with a target: time to the first token, mean time between later ones, deadline."""

    def __init__(self) -> None:
        self.asked = self.met = 0

    @property
    def share(self) -> float | None:
        """Of the outputs with targets, those inside all of theirs; None before there was one."""
        return self.met / self.asked if self.asked else None

    def count(self, source: GenerateRequest, timings: Timings | None) -> None:
        """An output of this request is done (timings), or failed (None)."""
        if source.ttft_target is None and source.tpot_target is None and source.deadline is None:
            return
        self.asked += 1
        if timings is None:
            return
        late = source.ttft_target is not None and timings.ttft * 1000 > source.ttft_target
        slow = source.tpot_target is not None and timings.tpot * 1000 > source.tpot_target
        self.met += not (late or slow)
