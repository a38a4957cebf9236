"""A prefix that is kept in a backend's cache as long as somebody needs it."""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ..runtime.errors import RequestError, UnsupportedError

TTL = 600.0  # seconds that a pin lasts; it is renewed in its second half, by being used

_lock = threading.Lock()


class Pinned:
    """`ids`, pinned in the cache of a `backends.base.Pinning` until `close`, or until nobody refers to this any more.

    Several may pin the same ids: the last one lets them go. Where the backend refuses, because its cache is switched off or
    half of it is pinned, nothing is held and `tokens` is 0; the second case is worth a warning.
    """

    def __init__(self, backend: Any, ids: Sequence[int]) -> None:
        self._backend, self._ids = backend, tuple(ids)
        self._renew_at = 0.0
        self.tokens = 0
        holders = _holders(backend)
        with _lock:
            holders[self._ids] += 1
        # finalizers run in the middle of anything, on whatever thread: what there is to do is left to the backend's worker
        self._release = weakref.finalize(self, backend.defer, partial(_let_go, backend, holders, self._ids))
        self._release.atexit = False
        self.renew()

    def renew(self) -> None:
        """Pins for another while, if that is due. Raises what the backend raises when it cannot be asked."""
        if not self._release.alive or time.monotonic() < self._renew_at:
            return
        self._renew_at = time.monotonic() + TTL / 2
        try:
            self.tokens = self._backend.pin(self._ids, TTL)
        except UnsupportedError:
            self.tokens = 0
        except RequestError as exc:
            self.tokens = 0
            warnings.warn(f"a prefix of {len(self._ids)} tokens stays unpinned: {exc}", RuntimeWarning, stacklevel=3)

    def close(self) -> None:
        """Lets the prefix be evicted again, soon. Twice is once."""
        self._release()
        self.tokens = 0


def _holders(backend: Any) -> Counter[tuple[int, ...]]:
    """How many hold which ids in this backend; kept with it."""
    with _lock:
        return backend.__dict__.setdefault("_pin_holders", Counter())


def _let_go(backend: Any, holders: Counter[tuple[int, ...]], ids: tuple[int, ...]) -> None:
    with _lock:
        holders[ids] -= 1
        held = holders[ids] > 0
        if not held:
            del holders[ids]
    if not held:
        with suppress(Exception):  # the backend is gone, and its pins with it
            backend.unpin(ids)
