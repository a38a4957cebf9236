"""Rows of the pool go out and come back bit by bit, whatever their type."""
from __future__ import annotations

import numpy as np
import pytest
import torch

from ramet.radix_cache.pool import KVPool


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_come_back_where_they_are_put(dtype):
    pool = KVPool(layers=3, slots=20, kv_heads=2, head_dim=4, dtype=dtype)
    pool.k.normal_()
    pool.v.normal_()
    k, v = pool.k.clone(), pool.v.clone()
    old, new = np.array([3, 17, 5], dtype=np.int32), np.array([0, 1, 19], dtype=np.int32)
    rows = pool.read(old)
    assert rows.shape == (3, pool.row_bytes) and pool.row_bytes == 2 * 3 * 2 * 4 * dtype.itemsize
    pool.write(new, rows)
    at, to = torch.tensor(old), torch.tensor(new)
    assert torch.equal(pool.k[:, to], k[:, at]) and torch.equal(pool.v[:, to], v[:, at])
    rest = [i for i in range(20) if i not in new]
    assert torch.equal(pool.k[:, rest], k[:, rest]) and torch.equal(pool.v[:, rest], v[:, rest])
    assert not np.shares_memory(rows, pool.k.view(torch.uint8).numpy())
