"""The ways a row may go through the triton peer's attention: whole, in splits, in shared splits, in buffers that are filled again."""
from __future__ import annotations

from dataclasses import astuple

import pytest
import torch

from ramet.kernels import KernelError
from ramet.kernels.interface import AttnMeta, Kernels

from .conftest import Sequence, poisoned_pool, ragged
from .test_attention import alone, naive

SLOTS = 3000


@pytest.fixture(scope="module")
def attention(interpreted: Kernels):
    from ramet.kernels.triton import attention

    return attention


def work(meta: AttnMeta, per_group: int, **options):
    from ramet.kernels.triton.plan import plan

    return plan(meta, per_group, torch.device("cpu"), **options)


def a_pass(sequences: list[Sequence], *, share: bool = False, heads: int = 4, groups: int = 1, size: int = 16):
    meta = ragged(sequences, SLOTS, share=share)
    k, v = poisoned_pool(meta, SLOTS, groups, size, torch.float32)
    q = torch.randn(int(meta.query_start[-1]), heads, size, generator=torch.Generator().manual_seed(5))
    return meta, k, v, q


def test_a_chunk_has_the_same_bits_whole_and_in_splits(interpreted: Kernels) -> None:
    """130 rows are folded in one program; the same rows a few at a time go by way of partial results.
    Parts begin where a tile does: the interpreter multiplies by numpy, whose sums depend on where in the matrix a row stands."""
    meta, k, v, q = a_pass([Sequence(130, 700), Sequence(2, 100)])
    planned = work(meta, 4)
    assert planned.sizes.whole == 10 and planned.sizes.tiles == 0
    got = interpreted.attention(q, k, v, meta, 0.25)
    torch.testing.assert_close(got.double(), naive(q, k, v, meta, 0.25), rtol=1e-4, atol=1e-5)
    for begin, end in ((0, 3), (64, 81), (128, 130)):
        part = alone(meta, 0, begin, end)
        assert work(part, 4).sizes.whole == 0
        assert torch.equal(interpreted.attention(q[begin:end], k, v, part, 0.25), got[begin:end])


def test_short_contexts_leave_no_partial_results() -> None:
    assert work(a_pass([Sequence(1, 256), Sequence(1, 3)])[0], 4).sizes.partials == 0
    assert work(a_pass([Sequence(1, 257)])[0], 4).sizes.partials == 2


def test_shared_splits_are_read_once() -> None:
    """Eight branches under 512 positions: two programs for all, and one for what each has alone."""
    sequences = [Sequence(1, 520 + i, (("root", 515),)) for i in range(8)]
    shared, plain = (work(ragged(sequences, SLOTS, share=share), 4).sizes for share in (True, False))
    assert (shared.tiles, shared.rows, shared.partials) == (1 + 8, 16, 2 * 8 + 8)
    assert (plain.tiles, plain.partials) == (8, 3 * 8)


def test_a_pass_in_buffers_of_another(attention) -> None:
    """As a captured graph replays it: smaller passes, with sharing and without, in the buffers of a large one; nothing left over is done."""
    from ramet.kernels.triton.plan import Sizes

    passes = [[Sequence(1, 600, (("root", 520),)), Sequence(1, 530, (("root", 520),)), Sequence(1, 40)], [Sequence(1, 300)], [Sequence(3, 513)]]
    first, k, v, q = a_pass(passes[0], share=True)
    tables = torch.full((3, 600), 2**30, dtype=torch.int32)
    tables[:, : first.tables.shape[1]] = first.tables
    room = Sizes(whole=5, tiles=9, rows=20, parts=20, joined=8, positions=4, splits=4, partials=40)
    buffers = work(first, 4, room=room, tables=tables)
    pointers = [getattr(buffers, name).data_ptr() for name in ("whole", "tiles", "rows", "joined", "parts", "positions", "tables")]
    for sequences in [*passes, *passes[::-1]]:
        meta, k, v, q = a_pass(sequences, share=True)
        buffers.fill(meta, 4)
        padded = torch.full((4, 4, 16), float("nan"))
        padded[: len(q)] = q
        want = attention.attend(q, k, v, work(meta, 4), 0.25, wide=True)
        assert torch.equal(attention.attend(padded, k, v, buffers, 0.25, wide=True)[: len(q)], want)
    assert pointers == [getattr(buffers, name).data_ptr() for name in ("whole", "tiles", "rows", "joined", "parts", "positions", "tables")]


def test_a_pass_larger_than_its_buffers_is_refused() -> None:
    small, large = (a_pass([Sequence(1, length)])[0] for length in (300, 1300))
    buffers = work(small, 4)
    with pytest.raises(KernelError, match="does not fit"):
        buffers.fill(large, 4)
    assert astuple(buffers.sizes) == astuple(work(small, 4).sizes)


@pytest.mark.parametrize("length", [80, 700])
def test_nan_in_one_sequence_stays_there(interpreted: Kernels, length: int) -> None:
    """In a context of one split and in one of several, in the keys and in the values."""
    meta, k, v, q = a_pass([Sequence(1, length), Sequence(1, 90)], heads=2)
    want = interpreted.attention(q, k, v, meta, 1.0)
    for pool in (k, v):
        kept = pool[meta.tables[0, 40].long()].clone()
        pool[meta.tables[0, 40].long()] = float("nan")
        got = interpreted.attention(q, k, v, meta, 1.0)
        assert got[0].isnan().all() and torch.equal(got[1], want[1])
        pool[meta.tables[0, 40].long()] = kept


@pytest.mark.parametrize("heads", [(6, 2), (16, 1), (3, 3)])
@pytest.mark.parametrize("size", [64, 80, 96, 128, 256])
def test_every_head_size(interpreted: Kernels, size: int, heads: tuple[int, int]) -> None:
    meta, k, v, q = a_pass([Sequence(1, 301), Sequence(4, 4), Sequence(0, 7), Sequence(2, 257)], heads=heads[0], groups=heads[1], size=size)
    got = interpreted.attention(q, k, v, meta, size**-0.5)
    torch.testing.assert_close(got.double(), naive(q, k, v, meta, size**-0.5), rtol=1e-4, atol=1e-5)


def test_an_eight_bit_cache(interpreted: Kernels) -> None:
    """float8 (e4m3) holds its largest number in place of what is larger, and is read as what it holds."""
    x = (torch.randn(6, 2, 16) * 20).to(torch.float8_e4m3fn).float()  # the interpreter rounds what lies between wrongly
    x[0, 0, :2] = torch.tensor([1e5, -1e5])
    pools = [torch.zeros(SLOTS, 2, 16, dtype=torch.float8_e4m3fn) for _ in range(2)]
    slots = torch.randperm(SLOTS)[:6].int()
    interpreted.store_kv(x, -x, pools[0], pools[1], slots)
    assert torch.equal(pools[0][slots.long()].float(), x.clamp(-448, 448)) and torch.equal(pools[1][slots.long()].float(), -x.clamp(-448, 448))
    meta = AttnMeta(torch.tensor([0, 2], dtype=torch.int32), torch.tensor([6], dtype=torch.int32), slots[None].contiguous(), 6, 2)
    q = torch.randn(2, 4, 16)
    got = interpreted.attention(q, pools[0], pools[1], meta, 0.25)
    torch.testing.assert_close(got.double(), naive(q, pools[0].float(), pools[1].float(), meta, 0.25), rtol=1e-4, atol=1e-5)


def test_what_stood_in_memory_before_changes_nothing(interpreted: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partial results and outputs begin as NaN."""
    meta, k, v, q = a_pass([Sequence(1, 601, (("root", 590),)), Sequence(2, 640, (("root", 590),)), Sequence(1, 30), Sequence(20, 290)], share=True)
    want = naive(q, k, v, meta, 0.25)
    empty, empty_like = torch.empty, torch.empty_like

    def nan(made: torch.Tensor) -> torch.Tensor:
        return made.fill_(float("nan") if made.is_floating_point() else 2**31 - 1)

    monkeypatch.setattr(torch, "empty", lambda *shape, **options: nan(empty(*shape, **options)))
    monkeypatch.setattr(torch, "empty_like", lambda like, **options: nan(empty_like(like, **options)))
    got = interpreted.attention(q, k, v, meta, 0.25)
    monkeypatch.undo()
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)
