"""The tensors that hold keys and values. Which slot is whose is not known here."""
from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .slots import Ints

COPIED = 256  # tokens that are copied at a time: what is held between reading and writing stays in a processor's cache
Rows = NDArray[np.uint8]  # (tokens, row_bytes): all that the pool holds of a token, as it would be written to a file


class KVPool:
    """k and v of every slot: (layers, slots, kv_heads, head_dim) each. Memory is touched only when written."""

    def __init__(self, *, layers: int, slots: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: str = "cpu") -> None:
        self.k: Tensor = torch.empty((layers, slots, kv_heads, head_dim), dtype=dtype, device=device)
        self.v: Tensor = torch.empty_like(self.k)
        self.slots = slots
        self._layer_bytes = kv_heads * head_dim * dtype.itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes of one slot: k and v of all layers."""
        return 2 * self.k.shape[0] * self._layer_bytes

    def read(self, slots: Ints) -> Rows:
        """A copy of what the slots hold, one row each."""
        rows = np.empty((len(slots), 2, self.k.shape[0], self._layer_bytes), dtype=np.uint8)
        for half, pool in enumerate(self._bytes()):
            for layer, held in enumerate(pool):
                rows[:, half, layer] = held[slots]
        return rows.reshape(len(slots), -1)

    def write(self, slots: Ints, rows: Rows) -> None:
        """Puts rows that `read` gave, of this or an equal pool, into slots. Safe beside a pass that uses none of them."""
        parts = rows.reshape(len(slots), 2, self.k.shape[0], self._layer_bytes)
        for half, pool in enumerate(self._bytes()):
            for layer, held in enumerate(pool):
                held[slots] = parts[:, half, layer]

    def copy(self, source: Ints, target: Ints, turn: tuple[Tensor, Tensor] | None = None) -> None:
        """What `source` slots hold to `target` slots, of which none is a source. `turn`, cos and sin (tokens, head_dim / 2), rotates the
        keys: halves as rotary embeddings turn them, in float32."""
        a, b = (torch.from_numpy(slots.astype(np.int64)).to(self.k.device) for slots in (source, target))
        for begin in range(0, len(source), COPIED):
            part = slice(begin, begin + COPIED)
            keys = self.k.index_select(1, a[part])
            if turn is not None:
                _turn(keys, turn[0][part], turn[1][part])
            self.k.index_copy_(1, b[part], keys)
            self.v.index_copy_(1, b[part], self.v.index_select(1, a[part]))

    def _bytes(self) -> tuple[Rows, Rows]:
        """k and v as (layers, slots, bytes), the same memory."""
        layers, slots = self.k.shape[:2]
        k, v = (pool.view(torch.uint8).numpy().reshape(layers, slots, self._layer_bytes) for pool in (self.k, self.v))
        return k, v

    @staticmethod
    def bytes_per_slot(*, layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        return 2 * layers * kv_heads * head_dim * dtype.itemsize


def _turn(keys: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotates (layers, tokens, kv_heads, head_dim) in place by the angles, the first 2 * cos.shape[1] entries of each head."""
    half = cos.shape[1]
    cos, sin = cos[:, None], sin[:, None]
    first, second = keys[..., :half].float(), keys[..., half : 2 * half].float()
    turned = first * cos - second * sin, second * cos + first * sin  # both before the first is written: float32 is not copied above
    keys[..., :half], keys[..., half : 2 * half] = turned
