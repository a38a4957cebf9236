"""How long answers will be: a share of what they may be, first cautious, then as seen."""
from __future__ import annotations

from math import ceil

from .request import Request

FIRST = 0.5  # share of max_new_tokens that an answer is expected to take
LEAST = 0.1
HEADROOM = 8  # tokens that each running request is given at least, so that it is not thrown out at once
DECAY = 0.01  # a step brings the expectation so much nearer to what was seen
NEWEST = 0.05  # weight of the last answer among those seen


class Lengths:
    """Expected lengths of the answers that run. conservativeness: 0 expects next to nothing, 1 as seen, more is more."""

    def __init__(self, conservativeness: float = 1.0) -> None:
        self._conservativeness = conservativeness
        self._seen = FIRST
        self.share = FIRST

    def left(self, request: Request) -> int:
        """Tokens that it will still append."""
        most = request.max_new_tokens - request.output_len
        return min(most, max(HEADROOM, ceil(self._conservativeness * self.share * most)))

    def step(self) -> None:
        self.share += DECAY * (max(self._seen, LEAST) - self.share)

    def ended(self, request: Request) -> None:
        if request.finish is not None and request.max_new_tokens > 0:
            self._seen += NEWEST * (request.output_len / request.max_new_tokens - self._seen)

    def ran_out(self) -> None:
        """More was promised than there is: be cautious again."""
        self.share = max(self.share, FIRST)
