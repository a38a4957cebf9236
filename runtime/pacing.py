"""How long a step may take, and so how much of a long prompt fits beside the streams that run."""
from __future__ import annotations

from collections.abc import Iterable, Sequence

from .cost_model import CostModel, Work
from .request import Request

STRETCH = 2.1  # without a target: a step with chunks takes so many times the step of the streams alone,
CALM, CROWDED = 0.03, 0.1  # or so many seconds, if that is more: while few wait, and while many do (ten tokens a second can be read)
CROWD = 8  # waiting requests that add CALM once more
SMALLEST = 4  # tokens of a chunk: smaller ones cost more than they bring
PATIENCE, ANYWAY = 24, 128  # steps without any chunk, after which so many tokens are computed whatever the targets: of 25, one is late


class Pace:
    """Sizes the chunks of one step after another.

    auto: keep streams without a target from stalling too. tpot_target: seconds, of requests that bring none."""

    def __init__(self, cost: CostModel, *, auto: bool = True, tpot_target: float | None = None) -> None:
        self.cost = cost
        self._auto = auto
        self._target = tpot_target
        self._limit: float | None = None  # seconds that this step should take on average
        self._strict = False  # the limit comes of a target: better no chunk than a late token
        self._hungry = 0  # steps in a row whose chunks found no room

    def begin(self, streams: Sequence[Request], *, waiting: int = 0) -> Work:
        """Starts a step: `streams` are the requests that need one row each, `waiting` how many others are not admitted.

        Returns the step's work, the streams included."""
        work, target = Work(), self._target
        for request in streams:
            work.reads += request.computed + 1
            if request.source.tpot_target is not None:
                target = _least(target, request.tpot_target)
        work.tokens = work.drawn = len(streams)
        self._limit, self._strict = None, target is not None
        if streams and target is not None:
            self._limit = target / self.cost.margin
        elif streams and self._auto and self.cost.known:
            calm = min(CROWDED, CALM * (1 + waiting / CROWD))
            self._limit = max(calm, STRETCH * self.cost.predict(work))
        return work

    def chunk(self, work: Work, start: int, wanted: int) -> int:
        """How many of `wanted` tokens from position `start` on fit in beside `work`; 0 where it is not worth beginning."""
        if self._limit is None:
            return wanted
        n = min(wanted, self.cost.fitting(self._limit, work, start))
        least = min(wanted, SMALLEST)
        if n >= least:
            self._hungry = 0
            return n
        if work.tokens > work.drawn:  # there is a chunk already
            return 0
        if not self._strict:
            return least
        self._hungry = (self._hungry + 1) % (PATIENCE + 1)
        return 0 if self._hungry else min(wanted, ANYWAY)

    def bears(self, running: Iterable[Request], one_more: Request) -> bool:
        """False if a step of these streams alone would miss a target once `one_more` is among them."""
        target = one_more.tpot_target or self._target
        streams = [*running, one_more]
        for request in streams:
            if request.source.tpot_target is not None:
                target = _least(target, request.tpot_target)
        if target is None or len(streams) == 1:
            return True
        work = Work()
        for request in streams:
            work.add(len(request.ids), 1, draws=True)
        return self.cost.predict(work) * self.cost.margin <= target


def _least(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else min(a, b)
