"""How long a policy may prefer others: each request is overtaken by at most twice as many as waited when it came.

Time is counted in admissions. A request that finds n others waiting must be admitted before 2n others that were not. So it has
a last turn, and in the order of last turns the i-th of those that wait must still have i turns before its own: `spare` of them
are free for the policy to give away. Arrivals keep that true (a new one has n to spare at least, and takes one from nobody with
fewer), so the bound holds whatever the policy prefers, as long as it chooses from `head` when nothing is to spare.
"""
from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

import numpy as np

from .request import Request

MOST = 16  # of those whom nobody may overtake any more: from so many the policy chooses


class Ageing:
    """The requests of one priority that wait, in the order of their last turns."""

    def __init__(self) -> None:
        self.admissions = 0
        self._line: list[Request] = []
        self._last = array("q")  # last turn of each in line, ascending
        self._spare = 0  # turns that may go to anyone, at least

    def add(self, request: Request) -> None:
        waited = len(self._line)
        request.overtaken_until = self.admissions + 2 * waited
        at = bisect_right(self._last, request.overtaken_until)
        self._last.insert(at, request.overtaken_until)
        self._line.insert(at, request)
        self._spare = min(self._spare, waited) if waited else 0

    def remove(self, request: Request, *, admitted: bool) -> None:
        at = bisect_left(self._last, request.overtaken_until)
        while self._line[at] is not request:
            at += 1
        del self._last[at], self._line[at]
        if admitted:
            self.admissions += 1
            self._spare -= 1

    def head(self) -> list[Request] | None:
        """One of these must be next; None: anyone may."""
        if self._spare > 0 or not self._line:
            return None
        spare = np.frombuffer(self._last, dtype=np.int64) - np.arange(len(self._line)) - self.admissions
        tight = spare <= 0
        first = int(tight.argmax())
        if not tight[first]:
            self._spare = int(spare.min())
            return None
        return self._line[: min(first + 1, MOST)]
