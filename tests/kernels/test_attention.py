"""Attention over ragged passes and shared segments, against float64 and against itself."""
from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.kernels import KernelError
from ramet.kernels.cpu.peer import CpuKernels
from ramet.kernels.interface import AttnMeta, Kernels

from .conftest import Sequence, cpu_kernels, instruction_sets, poisoned_pool, ragged

SLOTS = 4096
CHUNKS = [Sequence(5, 5), Sequence(1, 100), Sequence(0, 0), Sequence(64, 200), Sequence(1, 1), Sequence(40, 129), Sequence(0, 30), Sequence(3, 700)]
TREE = [
    Sequence(1, 301, (("root", 200), ("left", 290))),
    Sequence(1, 333, (("root", 200), ("left", 290))),
    Sequence(7, 260, (("root", 200),)),
    Sequence(40, 240, (("root", 200),)),  # too many rows to gain from sharing
    Sequence(1, 90),
    Sequence(1, 201, (("root", 200),)),
    Sequence(2, 400, (("other", 130), ("deep", 140), ("deeper", 390))),
    Sequence(2, 143, (("other", 130), ("deep", 140))),
    Sequence(0, 140, (("other", 130), ("deep", 140))),
]


def naive(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, meta: AttnMeta, scale: float) -> torch.Tensor:
    """One row after the other in float64."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    starts = meta.query_start.tolist()
    for s, length in enumerate(meta.context_len.tolist()):
        for row in range(starts[s], starts[s + 1]):
            slots = meta.tables[s, : length - (starts[s + 1] - row) + 1].long()
            keys, values = k[slots].double(), v[slots].double()
            for head in range(q.shape[1]):
                group = head // (q.shape[1] // k.shape[1])
                weights = torch.softmax(keys[:, group] @ q[row, head].double() * scale, dim=0)
                out[row, head] = weights @ values[:, group]
    return out


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize(("heads", "groups", "size"), [(9, 3, 64), (4, 4, 80), (6, 1, 96), (8, 2, 128), (2, 1, 24), (3, 3, 7)])
@pytest.mark.parametrize("sequences", [CHUNKS, TREE], ids=["chunks", "tree"])
def test_against_float64(peer: Kernels, sequences: list[Sequence], heads: int, groups: int, size: int, share: bool) -> None:
    if peer.name == "triton":  # interpreted, each program takes milliseconds
        sequences = [s for s in sequences if s.rows <= 8]
    meta = ragged(sequences, SLOTS, share=share)
    k, v = poisoned_pool(meta, SLOTS, groups, size, torch.float32)
    q = torch.randn(int(meta.query_start[-1]), heads, size)
    got = peer.attention(q, k, v, meta, size**-0.5)
    torch.testing.assert_close(got.double(), naive(q, k, v, meta, size**-0.5), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", instruction_sets())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_cache_type_and_instruction_set(name: str, dtype: torch.dtype) -> None:
    fast = cpu_kernels(instruction_set=name, threads=2)
    meta = ragged(TREE, SLOTS, share=True)
    k, v = poisoned_pool(meta, SLOTS, 3, 64, dtype)
    q = torch.randn(int(meta.query_start[-1]), 9, 64)
    torch.testing.assert_close(fast.attention(q, k, v, meta, 0.125).double(), naive(q, k, v, meta, 0.125), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_sharing_and_threads_do_not_change_a_bit(cpu: CpuKernels, threads: int) -> None:
    plain, tree = (ragged(TREE, SLOTS, share=share) for share in (False, True))
    k, v = poisoned_pool(plain, SLOTS, 3, 64, torch.float16)
    q = torch.randn(int(plain.query_start[-1]), 9, 64)
    want = cpu.attention(q, k, v, plain, 0.125)
    other = cpu_kernels(threads=threads)
    assert torch.equal(other.attention(q, k, v, plain, 0.125), want)
    assert torch.equal(other.attention(q, k, v, tree, 0.125), want)


def alone(meta: AttnMeta, s: int, begin: int, end: int) -> AttnMeta:
    """Rows begin..end of sequence s as a pass of their own."""
    length = int(meta.context_len[s] - (meta.query_start[s + 1] - meta.query_start[s])) + end
    table = meta.tables[s : s + 1, :length].contiguous()
    return AttnMeta(torch.tensor([0, end - begin], dtype=torch.int32), torch.tensor([length], dtype=torch.int32), table, length, end - begin)


def test_a_row_has_the_same_bits_alone_and_in_any_chunk(cpu: CpuKernels) -> None:
    meta = ragged(TREE, SLOTS, share=True)
    k, v = poisoned_pool(meta, SLOTS, 3, 64, torch.bfloat16)
    q = torch.randn(int(meta.query_start[-1]), 9, 64)
    whole = cpu.attention(q, k, v, meta, 0.125)
    for s in range(len(TREE)):
        first, rows = int(meta.query_start[s]), TREE[s].rows
        for begin, end in [(0, rows), (0, 1), (rows - 1, rows), (rows // 3, rows)] if rows else []:
            part = cpu.attention(q[first + begin : first + end], k, v, alone(meta, s, begin, end), 0.125)
            assert torch.equal(part, whole[first + begin : first + end])


def test_a_context_of_thousands_of_positions(cpu: CpuKernels) -> None:
    meta = ragged([Sequence(1, 3000), Sequence(2, 17)], SLOTS, share=False)
    k, v = poisoned_pool(meta, SLOTS, 2, 64, torch.float16)
    q = torch.randn(3, 4, 64) * 3
    torch.testing.assert_close(cpu.attention(q, k, v, meta, 0.125).double(), naive(q, k, v, meta, 0.125), rtol=1e-4, atol=1e-5)


def test_large_scores_do_not_overflow(peer: Kernels) -> None:
    meta = ragged([Sequence(2, 300)], SLOTS, share=False)
    k, v = poisoned_pool(meta, SLOTS, 1, 64, torch.float32)
    q = torch.randn(2, 2, 64) * 1e4
    torch.testing.assert_close(peer.attention(q, k, v, meta, 1.0).double(), naive(q, k, v, meta, 1.0), rtol=1e-3, atol=1e-3)


def test_nan_in_one_sequence_stays_there(cpu: CpuKernels) -> None:
    meta = ragged([Sequence(1, 80), Sequence(1, 90)], SLOTS, share=False)
    k, v = poisoned_pool(meta, SLOTS, 1, 64, torch.float32)
    q = torch.randn(2, 1, 64)
    want = cpu.attention(q, k, v, meta, 1.0)
    k[meta.tables[0, 40].long()] = float("nan")
    got = cpu.attention(q, k, v, meta, 1.0)
    assert got[0].isnan().all() and torch.equal(got[1], want[1])


def test_an_empty_pass(peer: Kernels) -> None:
    meta = ragged([Sequence(0, 5)], SLOTS, share=False)
    pool = torch.zeros(SLOTS, 1, 64)
    assert peer.attention(torch.empty(0, 2, 64), pool, pool, meta, 1.0).shape == (0, 2, 64)


@pytest.mark.parametrize("spoil", ["slot", "context", "rows", "table"])
def test_a_pass_that_does_not_fit_is_refused(cpu: CpuKernels, spoil: str) -> None:
    meta = ragged([Sequence(2, 20), Sequence(1, 30)], SLOTS, share=False)
    if spoil == "slot":
        meta.tables[1, 29] = SLOTS
    if spoil == "context":
        meta.context_len[0] = 1
    if spoil == "rows":
        meta.query_start[-1] = 7
    if spoil == "table":
        meta.context_len[1] = 31
    pool = torch.zeros(SLOTS, 1, 64)
    with pytest.raises(KernelError):
        cpu.attention(torch.zeros(3, 1, 64), pool, pool, meta, 1.0)


@st.composite
def trees(draw: st.DrawFn) -> list[Sequence]:
    """Sequences that descend from a few shared roots, with a few rows or a chunk of their own."""
    cuts = {name: sorted(draw(st.lists(st.integers(1, 260), min_size=1, max_size=3, unique=True))) for name in "ab"}
    sequences = []
    for _ in range(draw(st.integers(1, 7))):
        name = draw(st.sampled_from("ab"))
        depth = draw(st.integers(0, len(cuts[name])))
        path = tuple((name, stop) for stop in cuts[name][:depth])
        shared = path[-1][1] if path else 0
        rows = draw(st.sampled_from([0, 1, 1, 1, 2, 8, 9, 17]))
        sequences.append(Sequence(rows, shared + rows + draw(st.integers(0, 90)), path))
    return sequences


@settings(max_examples=40, deadline=None)
@given(trees(), st.sampled_from([(4, 2, 16), (3, 1, 64), (2, 2, 20)]))
def test_any_tree(cpu: CpuKernels, reference: Kernels, sequences: list[Sequence], shape: tuple[int, int, int]) -> None:
    heads, groups, size = shape
    plain, tree = (ragged(sequences, SLOTS, share=share) for share in (False, True))
    k, v = poisoned_pool(plain, SLOTS, groups, size, torch.float32)
    q = torch.randn(int(plain.query_start[-1]), heads, size, generator=torch.Generator().manual_seed(1))
    got = cpu.attention(q, k, v, tree, 0.3)
    assert torch.equal(got, cpu.attention(q, k, v, plain, 0.3))
    torch.testing.assert_close(got, reference.attention(q, k, v, tree, 0.3), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got, reference.attention(q, k, v, plain, 0.3), rtol=1e-4, atol=1e-5)


def test_sharing_changes_no_bits_under_triton(interpreted: Kernels) -> None:
    """Whole splits are shared, so a row's sums are the same ones in the same order; also where rows need more than one tile."""
    sequences = [Sequence(1, 601, (("root", 590),)), Sequence(2, 640, (("root", 590),)), Sequence(1, 300), Sequence(40, 129)]
    results = []
    for share in (True, False):
        meta = ragged(sequences, SLOTS, share=share)
        k, v = poisoned_pool(meta, SLOTS, 2, 16, torch.float32)
        q = torch.randn(44, 4, 16, generator=torch.Generator().manual_seed(5))
        results.append(interpreted.attention(q, k, v, meta, 0.25))
    assert torch.equal(*results)
    torch.testing.assert_close(results[0].double(), naive(q, k, v, meta, 0.25), rtol=1e-4, atol=1e-5)
