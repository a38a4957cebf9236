"""Kernels for the processor: C++ sources, compiled on first use for what the machine runs."""
from __future__ import annotations

from .peer import CpuKernels


def open_peer(device: str, dtype: str, threads: int | None, *, deterministic: bool) -> CpuKernels:
    """The cpu peer for `get_kernels`; it is deterministic in any case. Raises KernelError without a compiler."""
    return CpuKernels(dtype, threads)
