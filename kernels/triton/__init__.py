"""Kernels for GPUs, written in Triton. On a processor they run under Triton's interpreter: for tests, far too slow for use."""
from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING

from ..errors import KernelError

if TYPE_CHECKING:
    from .peer import TritonKernels


def open_peer(device: str, dtype: str, threads: int | None, *, deterministic: bool) -> TritonKernels:
    """The triton peer for `get_kernels`. Raises KernelError where Triton is not installed."""
    if importlib.util.find_spec("triton") is None:
        raise KernelError("triton is not installed: pip install 'ramet[gpu]'")
    if device == "cpu":
        _interpret()
    from .peer import TritonKernels

    return TritonKernels(device, dtype, deterministic=deterministic)


def _interpret() -> None:
    """Turns the interpreter on. Triton decides when it is first imported, for its own functions as for ours."""
    if "triton" not in sys.modules:
        before = os.environ.get("TRITON_INTERPRET")
        os.environ["TRITON_INTERPRET"] = "1"
        import triton

        triton.knobs.runtime.interpret = True
        if before is None:
            del os.environ["TRITON_INTERPRET"]
        else:
            os.environ["TRITON_INTERPRET"] = before
    elif not sys.modules["triton"].knobs.runtime.interpret:
        raise KernelError("triton was imported before, to compile: set TRITON_INTERPRET=1 to run its kernels on a processor")
