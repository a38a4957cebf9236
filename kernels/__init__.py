"""Arithmetic, one peer per device, behind the border of interface.py. `get_kernels` chooses, and says what and why."""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .errors import KernelError

if TYPE_CHECKING:
    from .interface import Kernels

__all__ = ["KernelError", "get_kernels"]

# Peers by name, each the module whose `open_peer(device, dtype, threads, deterministic=)` makes it or raises KernelError; fastest first.
PEERS = {"cpu": ".cpu", "triton": ".triton", "reference": ".reference"}
RUNS_ON = {"cpu": ("cpu", "reference", "triton"), "cuda": ("triton", "reference")}  # the reference runs always; triton on a CPU is for tests
DTYPES = ("auto", "float32", "bfloat16", "float16")


def get_kernels(
    device: str = "auto", choice: str = "auto", dtype: str = "auto", threads: int | None = None, *, deterministic: bool = False
) -> Kernels:
    """The peer called `choice`, or with "auto" the fastest that runs on `device`; its `why` says in a line how it was chosen.

    dtype "float32": exact results, packed weights expanded; "bfloat16" or "float16": that KV cache and 8-bit activations
    against packed weights; "auto": the fastest. threads: None for all cores that this process may use.
    deterministic: a row's bits depend on no other row of its batch; the cpu peer's never do, on a GPU it costs speed.
    Raises KernelError: an unknown name, a peer asked for by name that cannot run here, or none that is deterministic.
    """
    device = _device(device)
    if dtype not in DTYPES:
        raise KernelError(f"dtype {dtype!r}: choose one of {', '.join(DTYPES)}")
    if threads is not None and threads < 1:
        raise KernelError(f"threads={threads}: at least 1 is needed")
    if choice != "auto" and choice not in PEERS:
        raise KernelError(f"kernels {choice!r}: choose one of auto, {', '.join(PEERS)}")
    if choice != "auto" and choice not in RUNS_ON[device]:
        raise KernelError(f"kernels {choice!r} do not run on {device}; there are: {', '.join(RUNS_ON[device])}")
    missed: list[str] = []
    for name in (choice,) if choice != "auto" else RUNS_ON[device]:
        try:
            peer: Kernels = importlib.import_module(PEERS[name], __package__).open_peer(device, dtype, threads, deterministic=deterministic)
        except KernelError as error:
            if choice != "auto":
                raise
            missed.append(f"no {name} kernels ({error})")
            continue
        reason = "asked for by name" if choice != "auto" else "; ".join(missed) or f"the fastest for {device}"
        peer.why = f"{peer.why}: {reason}"
        return peer
    raise KernelError("; ".join(missed))  # the reference runs everywhere, but is not deterministic


def _device(device: str) -> str:
    """"auto", "cpu" or "cuda" (with an index or without) -> the kind of device."""
    import torch

    kind = device.split(":")[0]
    if kind == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if kind not in RUNS_ON:
        raise KernelError(f"device {device!r}: choose one of auto, {', '.join(RUNS_ON)}")
    if kind == "cuda" and not torch.cuda.is_available():
        raise KernelError(f"device {device!r}: torch finds no CUDA device here; use device='cpu'")
    return kind
