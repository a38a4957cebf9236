"""Pinned prefixes: leases that no request runs on, held for a time.

A pin keeps what is cached of a prefix from being evicted. Pins give way: they may hold a share of the pool at most, they
expire, and when nothing else is left to make room for a request that waits, the one that would expire first is dropped.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..radix_cache import SHARED, Lease, Namespace, PrefixCache
from ..radix_cache.slots import Ints
from .errors import RequestError, UnsupportedError

SHARE = 0.5  # of the pool


@dataclass(frozen=True, slots=True, eq=False)
class _Pin:
    ids: Ints
    lease: Lease
    until: float  # on the monotonic clock


class Pins:
    """The pins of one engine. Not thread-safe: the step thread alone calls it."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._held: dict[tuple[Namespace, bytes], _Pin] = {}

    def __len__(self) -> int:
        return len(self._held)

    @property
    def tokens(self) -> int:
        """Slots that pins protect; one that lies in two pins counts twice."""
        return sum(pin.lease.shared for pin in self._held.values())

    def pin(self, ids: Sequence[int], ttl: float, space: Namespace = SHARED) -> int:
        """Keeps the part of `ids` that is cached for `ttl` seconds, anew if it is pinned already; the tokens of that part.

        Raises RequestError over the share, UnsupportedError without a cache."""
        if not self._cache.enabled:
            raise UnsupportedError("pin: the radix cache is disabled (disable_radix_cache)", field="pin")
        key = _key(ids, space)
        array = np.asarray(ids, dtype=np.int32)
        lease = self._cache.match_and_lock(array, space, owner="a pin")
        most = int(SHARE * self._cache.capacity)
        held = self.tokens - (self._held[key].lease.shared if key in self._held else 0)
        if held + lease.shared > most:  # a pin that there was before stays
            self._cache.release(lease, array)
            raise RequestError(f"pin: {held} tokens are pinned; with these it would be more than {most}, half of the pool", field="input_ids")
        self._drop(key)
        self._held[key] = _Pin(array, lease, time.monotonic() + ttl)
        return lease.shared

    def unpin(self, ids: Sequence[int], space: Namespace = SHARED) -> bool:
        """True if `ids` were pinned."""
        return self._drop(_key(ids, space))

    def expire(self) -> None:
        """Drops the pins whose time is over."""
        now = time.monotonic()
        for key in [key for key, pin in self._held.items() if pin.until <= now]:
            self._drop(key)

    def give_way(self) -> bool:
        """Drops the pin that would expire first; False if there is none."""
        return bool(self._held) and self._drop(min(self._held, key=lambda key: self._held[key].until))

    def clear(self) -> None:
        while self.give_way():
            pass

    def _drop(self, key: tuple[Namespace, bytes]) -> bool:
        pin = self._held.pop(key, None)
        if pin is None:
            return False
        self._cache.release(pin.lease, pin.ids)
        return True


def _key(ids: Sequence[int], space: Namespace) -> tuple[Namespace, bytes]:
    return space, np.asarray(ids, dtype=np.int32).tobytes()
