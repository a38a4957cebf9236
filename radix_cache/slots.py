"""Integers that stand for places in the KV pool: who has which is decided here, nothing is computed."""
from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]


_NONE: Ints = np.empty(0, dtype=np.int32)


class CacheError(Exception):
    """An invariant of the cache does not hold: a bug, never the user's fault."""


class IntBuffer:
    """A growing int32 array: amortised O(1) append, and a view without a copy."""

    __slots__ = ("_data", "_size")

    def __init__(self, values: Ints | list[int] | tuple[int, ...] = _NONE) -> None:
        self._data = np.array(values, dtype=np.int32) if len(values) else _NONE
        self._size = len(self._data)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> int:
        if not -self._size <= index < self._size:
            raise IndexError(index)
        return int(self._data[index if index >= 0 else self._size + index])

    @property
    def view(self) -> Ints:
        """The values so far. Valid until the next append; not to be written."""
        return self._data[: self._size]

    def append(self, value: int) -> None:
        self._room(1)
        self._data[self._size] = value
        self._size += 1

    def extend(self, values: Ints | list[int] | tuple[int, ...]) -> None:
        n = len(values)
        end = self._size + n
        if end > len(self._data):
            self._room(n)
        self._data[self._size : end] = values
        self._size = end

    def truncate(self, size: int) -> None:
        if not 0 <= size <= self._size:
            raise IndexError(size)
        self._size = size

    def _room(self, n: int) -> None:
        if self._size + n > len(self._data):
            grown = np.empty(max(64, 2 * len(self._data), self._size + n), dtype=np.int32)
            grown[: self._size] = self._data[: self._size]
            self._data = grown


class SlotAllocator:
    """Hands out the slots 0..capacity-1 and takes them back. A slot handed back twice raises CacheError."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity={capacity}: at least one slot is needed")
        self.capacity = capacity
        # A stack, lowest slot on top; `_taken` is the second opinion that catches a double free.
        self._stack = np.arange(capacity - 1, -1, -1, dtype=np.int32)
        self._top = capacity
        self._taken = np.zeros(capacity, dtype=np.uint8)

    @property
    def free_count(self) -> int:
        return self._top

    def alloc(self, n: int) -> Ints | None:
        """n slots, or None when fewer are free."""
        if n > self._top:
            return None
        self._top -= n
        if n == 1:  # a running answer's next token: most of all calls
            slots = self._stack[self._top : self._top + 1].copy()
            self._taken[slots[0]] = 1
            return slots
        slots = self._stack[self._top : self._top + n][::-1].copy()
        self._taken.put(slots.astype(np.intp), 1)  # `put` and `take` with this type cost a quarter of plain indexing, for a few slots
        return slots

    def free(self, slots: Ints) -> None:
        n = len(slots)
        if n == 0:
            return
        places = slots.astype(np.intp)
        if self._taken.take(places).tobytes().find(0) >= 0:
            raise CacheError("a slot was freed twice")
        self._taken.put(places, 0)
        self._stack[self._top : self._top + n] = slots[::-1]
        self._top += n

    def taken(self) -> Ints:
        """All slots now handed out, ascending (for `PrefixCache.check`)."""
        return np.flatnonzero(self._taken).astype(np.int32)
