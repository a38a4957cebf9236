"""Owns the model, its KV pool and the kernels: turns a plan into logits. Knows nothing of requests' meaning."""
from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from .device import Memory, staged
from .request import Plan

if TYPE_CHECKING:
    from torch import Tensor

    from ..kernels.interface import Kernels
    from ..radix_cache.pool import KVPool
    from ..radix_cache.slots import Ints
    from .batch import ForwardBatch
    from .models.llama import LlamaModel

MAX_DEFAULT_SLOTS = 65_536  # of the pool, when nobody says how many; memory is touched only when a slot is used
MEMORY_SHARE = 0.25  # of what is available now


class Runner(Protocol):
    """What the engine needs of a model. `vocab_size` is the width of the logits."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def context_length(self) -> int: ...
    @property
    def slots(self) -> int: ...

    def build(self, plan: Plan) -> ForwardBatch: ...

    def forward(self, batch: ForwardBatch) -> Tensor:
        """(logit rows, vocab_size) float32."""
        ...

    def mask_logits(self, logits: Tensor, bits: Tensor) -> None: ...

    def describe(self) -> str:
        """One line: which device and kernels, and why."""
        ...

    def check(self) -> None:
        """Raises EngineClosedError if it can compute no more. Called often."""
        ...

    def close(self) -> None:
        """Ends what computes outside of this process. Twice is once."""
        ...


@runtime_checkable
class Copying(Protocol):
    """A runner that can move KV to other positions (`runtime.joins`)."""

    def copy_kv(self, source: Ints, target: Ints, shifts: Ints) -> None:
        """The KV of `source` slots to `target`, as if each token had been computed so many positions later."""
        ...


@dataclass(slots=True)
class ModelRunner:
    """A model on one device."""

    model: LlamaModel
    pool: KVPool
    kernels: Kernels
    context_length: int
    tree_attention: bool = True
    staged: bool = False  # passes are copied to the pool's device; else their tensors are used where `build_batch` made them

    @property
    def vocab_size(self) -> int:
        return self.model.config.vocab_size

    @property
    def slots(self) -> int:
        return self.pool.slots

    def build(self, plan: Plan) -> ForwardBatch:
        from .batch import ForwardBatch, build_batch

        batch = build_batch(plan, tree_attention=self.tree_attention)
        if not self.staged:
            return batch
        return ForwardBatch(staged(batch.inputs, self.pool.k.device), batch.row_start)

    def forward(self, batch: ForwardBatch) -> Tensor:
        return self.model.forward(batch.inputs, self.pool.k, self.pool.v)

    def mask_logits(self, logits: Tensor, bits: Tensor) -> None:
        self.kernels.mask_logits(logits, bits)

    def copy_kv(self, source: Ints, target: Ints, shifts: Ints) -> None:
        """See `Copying`. Every scaling in `models.rope` turns a pair of dimensions by an angle that is proportional to the position, so
        that rotations add up; one whose frequencies depend on the length of the text (dynamic NTK, longrope) would not fit here."""
        from .models.rope import turn_by

        self.pool.copy(source, target, turn_by(self.model.weights.rope, shifts))

    def describe(self) -> str:
        return f"{self.kernels.name}: {self.kernels.why}"

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass

    def fingerprint(self) -> str:
        """Differs where the KV of the same ids would."""
        from .fingerprint import fingerprint

        return fingerprint(self.model.weights, self.kernels, self.pool.k.dtype)


def available_memory() -> int:
    """Bytes that this process may still use: the machine's, or its cgroup's if that is less."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        free = min(free, limit - used)
    except (OSError, ValueError):
        pass
    return max(free, 0)


def host_memory(context_length: int) -> Memory:
    """Of what a pool on the host is made."""
    return Memory(available_memory(), MEMORY_SHARE, max(MAX_DEFAULT_SLOTS, context_length))
