"""The tensors that hold keys and values. Which slot is whose is not known here."""
from __future__ import annotations

import torch
from torch import Tensor


class KVPool:
    """k and v of every slot: (layers, slots, kv_heads, head_dim) each. Memory is touched only when written."""

    def __init__(self, *, layers: int, slots: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: str = "cpu") -> None:
        self.k: Tensor = torch.empty((layers, slots, kv_heads, head_dim), dtype=dtype, device=device)
        self.v: Tensor = torch.empty_like(self.k)
        self.slots = slots

    @staticmethod
    def bytes_per_slot(*, layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        return 2 * layers * kv_heads * head_dim * dtype.itemsize
