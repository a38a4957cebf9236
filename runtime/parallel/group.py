"""The ranks of one model, over torch.distributed: gloo on CPUs, NCCL on GPUs.

A group of its own, not torch's default one, so that a program may have several engines, and groups of its own beside them.
"""
from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import ConfigError
from ..models.share import Share, runs

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
TIMEOUT = timedelta(seconds=60)  # for the slowest rank to come to the same point of a pass


class RankLost(Exception):
    """Another rank is gone, or did not come to the same point in time."""


class Group:
    """`models.share.Ranks` among processes of one machine. Opening it waits for all of them. Everything raises RankLost, and
    opening ConfigError where this torch cannot."""

    def __init__(self, share: Share, meeting: Path, device: str = "cpu") -> None:
        """`meeting`: a file that none of the ranks made yet, and all may write."""
        if not dist.is_available():
            raise ConfigError(f"tensor_parallel_size={share.size}: this torch was built without torch.distributed")
        self.share = share
        store = dist.FileStore(str(meeting), share.size)
        store.set_timeout(TIMEOUT)
        self.name = "gloo" if device == "cpu" else "NCCL"
        with _lost():
            self._group: Any = _gloo(store, share) if device == "cpu" else _nccl(store, share, device)

    def sum(self, x: Tensor) -> Tensor:
        """Every rank gets all parts and adds them itself: an all-reduce would add in an order that depends on the number of rows."""
        parts = x.new_empty((self.share.size * x.shape[0], *x.shape[1:]))
        with _lost():
            self._group._allgather_base(parts, x.contiguous()).wait()
        first, *others = parts.view(self.share.size, *x.shape)
        total = first.float()
        for part in others:
            total += part
        return total.to(x.dtype)

    def gather(self, x: Tensor, total: int) -> Tensor | None:
        widths = [len(run) for run in runs(total, self.share.size)]
        own = torch.nn.functional.pad(x, (0, widths[0] - x.shape[1])).contiguous()  # gathered are tensors of one shape
        options = dist.GatherOptions()  # rank 0 is the root
        parts = [torch.empty_like(own) for _ in widths] if self.share.rank == 0 else []
        with _lost():
            self._group.gather([parts] if parts else [], [own], options).wait()
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], dim=1) if parts else None

    def abort(self) -> None:
        """Lets go of a collective that waits for a rank that is lost. From any thread."""
        self._group.abort()

    def close(self) -> None:
        self._group.shutdown()


@contextmanager
def _lost() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RankLost(str(error)) from error


def _gloo(store: dist.Store, share: Share) -> Any:
    gloo: Any = dist.ProcessGroupGloo  # torch's own stub has other names for its options
    options = gloo._Options()
    options._devices = [gloo.create_device(interface=LOOPBACK)]  # it must not listen to the network
    options._timeout = TIMEOUT
    return gloo(store, share.rank, share.size, options)


def _nccl(store: dist.Store, share: Share, device: str) -> Any:
    if not dist.is_nccl_available():
        raise ConfigError("tensor_parallel_size: this torch was built without NCCL, through which GPUs meet")
    torch.cuda.set_device(device)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = TIMEOUT
    return dist.ProcessGroupNCCL(store, share.rank, share.size, options)
