"""What a step costs on this machine: learned from the steps themselves, kept on disk from run to run.

    seconds = base + token x tokens + draw x rows drawn from + read x positions read + pair x (query, position) pairs of chunks

The base is reading the weights, `token` the products with them, `draw` the output matrix and the sampling, `read` the keys and values
of each item once, `pair` the products of a chunk's attention. Coefficients are fitted by least squares on relative errors, none negative.
"""
from __future__ import annotations

import json
import os
from collections import deque
from dataclasses import astuple, dataclass, fields
from math import sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

MEMORY = 0.995  # weight of a step after the next one of its kind: some 200 are remembered
REFIT = 16  # steps between two fits, once there have been so many
NEARLY_ALL = 0.95  # share of steps that should keep within what is predicted times `margin`
WIDEST = 2.0  # margin: on a machine so busy that steps vary by more, a target cannot be kept by smaller steps
OUTLIER = 4.0  # a step of so many times its prediction was held up by something else
ENOUGH = 8  # steps until the fit is believed
GUESSED, KEPT = 0.005, 1.0  # weight of the first beliefs, in steps: a guess, what an earlier run measured


@dataclass(slots=True)
class Work:
    """What one forward pass has to do."""

    tokens: int = 0
    drawn: int = 0
    reads: int = 0
    pairs: float = 0.0

    def add(self, start: int, n: int, *, draws: bool) -> None:
        """n tokens of a request from position `start` on."""
        self.tokens += n
        self.drawn += draws
        self.reads += start + n
        if n > 1:
            self.pairs += n * (start + n / 2)


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Seconds for one of each."""

    base: float = 0.008
    token: float = 0.0015
    draw: float = 0.0005
    read: float = 2e-6
    pair: float = 4e-7


class CostModel:
    """Predicts the seconds of a step, and learns from each. Not thread-safe: the step thread alone calls it."""

    def __init__(self, coefficients: Coefficients | None = None, *, observed: int = 0) -> None:
        self._fitted = coefficients or Coefficients()
        self._prior: Vector = np.array(astuple(self._fitted))
        # Where steps say nothing the prior holds: each coefficient within a share of itself.
        self._trust = (KEPT if coefficients else GUESSED) / np.maximum(self._prior, 0.1 * np.array(astuple(Coefficients()))) ** 2
        self.observed = observed
        self.margin = 1.25  # by this most steps stay below their prediction
        self._kinds = [_Sums(), _Sums()]  # steps of draws alone, and with chunks: neither makes the other forgotten
        self._ratios: deque[float] = deque(maxlen=64)
        self._since = 0

    @property
    def coefficients(self) -> Coefficients:
        return self._fitted

    @property
    def known(self) -> bool:
        """True once it rests on steps of this machine."""
        return self.observed >= ENOUGH

    def predict(self, work: Work) -> float:
        """Seconds, on average."""
        c = self._fitted
        return c.base + c.token * work.tokens + c.draw * work.drawn + c.read * work.reads + c.pair * work.pairs

    def fitting(self, seconds: float, work: Work, start: int) -> int:
        """How many tokens from position `start` on can be computed beside `work` in so many seconds, on average."""
        c = self._fitted
        left = seconds - self.predict(work) - c.draw - c.read * start
        if left <= 0:
            return 0
        linear, square = c.token + c.read + c.pair * start, c.pair / 2
        if square * left < 1e-6 * linear**2:
            return int(left / linear) if linear > 0 else 1 << 30
        return int((sqrt(linear * linear + 4 * square * left) - linear) / (2 * square))

    def observe(self, work: Work, seconds: float) -> None:
        """A step of this work took so long."""
        if work.tokens == 0 or seconds <= 0:
            return
        expected = max(self.predict(work), 1e-6)
        if self.known:
            self._ratios.append(seconds / expected)
            seconds = min(seconds, OUTLIER * expected)
        x = np.array([1.0, work.tokens, work.drawn, work.reads, work.pairs]) / seconds
        self._kinds[work.tokens > work.drawn].add(x)
        self.observed += 1
        self._since += 1
        if self._since >= min(REFIT, self.observed):
            self._fit()

    def _fit(self) -> None:
        self._since = 0
        gram = self._kinds[0].gram + self._kinds[1].gram + np.diag(self._trust)
        right = self._kinds[0].right + self._kinds[1].right + self._trust * self._prior
        free = np.ones(len(right), dtype=bool)
        theta = np.linalg.solve(gram, right)
        while theta.min() < 0:  # what would be most negative is left out, and the rest fitted again
            free[theta.argmin()] = False
            theta = np.zeros_like(right)
            theta[free] = np.linalg.solve(gram[np.ix_(free, free)], right[free])
        self._fitted = Coefficients(*theta.tolist())
        if len(self._ratios) >= ENOUGH:
            ordered = sorted(self._ratios)
            self.margin = min(max(ordered[int(NEARLY_ALL * len(ordered))], 1.0), WIDEST)

    # ---- on disk ----------------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, path: Path) -> CostModel | None:
        """What an earlier run left there; None if there is nothing that can be used."""
        try:
            kept = json.loads(path.read_text())
            found = Coefficients(*(float(kept["seconds"][f.name]) for f in fields(Coefficients)))
            observed = int(kept["steps"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        usable = all(0 <= value < 1e3 for value in astuple(found)) and sum(astuple(found)) > 0
        return cls(found, observed=observed) if usable else None

    def save(self, path: Path, about: str) -> None:
        """Keeps it for the next run. A folder that cannot be written is no error: the next run learns again."""
        if not self.known:
            return
        seconds = {f.name: getattr(self._fitted, f.name) for f in fields(Coefficients)}
        text = json.dumps({"about": about, "steps": self.observed, "seconds": seconds}, indent=1)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_suffix(f".{os.getpid()}")
            draft.write_text(text)
            draft.replace(path)
        except OSError:
            pass


class _Sums:
    """What least squares needs of the steps of one kind, older ones counting less."""

    def __init__(self) -> None:
        self.gram = np.zeros((5, 5))
        self.right = np.zeros(5)

    def add(self, x: Vector) -> None:
        """x: the features over the seconds, so that the wanted product with the coefficients is 1."""
        self.gram *= MEMORY
        self.gram += x[:, None] * x
        self.right *= MEMORY
        self.right += x
