"""The peers under test, and ragged passes to try them on."""
from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from ramet.kernels import KernelError, get_kernels
from ramet.kernels.cpu.library import INSTRUCTION_SETS
from ramet.kernels.cpu.peer import CpuKernels
from ramet.kernels.interface import AttnMeta, Kernels, Segments
from ramet.kernels.reference import ReferenceKernels


def cpu_kernels(**options: object) -> CpuKernels:
    """The cpu peer; where nothing compiles, the test is skipped with the reason."""
    try:
        return CpuKernels(**options)  # type: ignore[arg-type]
    except KernelError as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def reference() -> ReferenceKernels:
    return ReferenceKernels("the oracle of the tests")


@pytest.fixture(scope="session")
def cpu() -> CpuKernels:
    return cpu_kernels(threads=2)


@pytest.fixture(scope="session")
def exact() -> CpuKernels:
    return cpu_kernels(dtype="float32", threads=2)


@pytest.fixture(scope="session")
def interpreted() -> Kernels:
    """The triton peer under Triton's interpreter."""
    try:
        return get_kernels("cpu", "triton")
    except KernelError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session", params=["reference", "exact", "interpreted"])
def peer(request: pytest.FixtureRequest) -> Kernels:
    """Each peer in its exact form."""
    return request.getfixturevalue(request.param)


@dataclass(frozen=True)
class Sequence:
    """`rows` last tokens of a context of `length`; `path` names who shares its first positions: (name, up to position)."""

    rows: int
    length: int
    path: tuple[tuple[str, int], ...] = ()


def ragged(sequences: list[Sequence], slots: int, *, share: bool, seed: int = 0) -> AttnMeta:
    """A pass over scattered slots. Sequences with equal parts of `path` get equal slots there, and segments if `share`."""
    generator = torch.Generator().manual_seed(seed)
    free = torch.randperm(slots, generator=generator).tolist()
    longest = max((s.length for s in sequences), default=0)
    tables = torch.full((len(sequences), longest), 2**30, dtype=torch.int32)  # garbage beyond the context
    parts: dict[tuple[tuple[str, int], ...], tuple[int, int, list[int], list[int]]] = {}
    tail_start = []
    for i, s in enumerate(sequences):
        begin = 0
        for depth, (_, stop) in enumerate(s.path):
            key = s.path[: depth + 1]
            if key not in parts:
                parts[key] = (begin, stop, [free.pop() for _ in range(stop - begin)], [])
            tables[i, begin:stop] = torch.tensor(parts[key][2], dtype=torch.int32)
            parts[key][3].append(i)
            begin = stop
        tail_start.append(begin)
        tables[i, begin : s.length] = torch.tensor([free.pop() for _ in range(s.length - begin)], dtype=torch.int32)
    starts = [0]
    for s in sequences:
        starts.append(starts[-1] + s.rows)
    return AttnMeta(
        ints(starts), ints([s.length for s in sequences]), tables, longest, max((s.rows for s in sequences), default=0),
        _segments(list(parts.values()), tail_start) if share and parts else None,
    )  # fmt: skip


def _segments(parts: list[tuple[int, int, list[int], list[int]]], tail_start: list[int]) -> Segments:
    member_start = [0]
    for part in parts:
        member_start.append(member_start[-1] + len(part[3]))
    return Segments(
        ints([p[0] for p in parts]), ints([p[1] for p in parts]), ints([p[3][0] for p in parts]), ints(member_start),
        ints([m for p in parts for m in p[3]]), ints(tail_start),
    )  # fmt: skip


def ints(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def poisoned_pool(meta: AttnMeta, slots: int, groups: int, size: int, dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values where the tables point; NaN in every slot that no sequence of the pass owns."""
    generator = torch.Generator().manual_seed(seed)
    used = torch.zeros(slots, dtype=torch.bool)
    for s, length in enumerate(meta.context_len.tolist()):
        used[meta.tables[s, :length].long()] = True
    pools = [torch.randn(slots, groups, size, generator=generator).to(dtype) for _ in range(2)]
    for pool in pools:
        pool[~used] = float("nan")
    return pools[0], pools[1]


def instruction_sets() -> list[str]:
    """Every instruction set known for this machine; those that it lacks are skipped when opened."""
    import platform

    return [each.name for each in INSTRUCTION_SETS.get(platform.machine(), ())]
