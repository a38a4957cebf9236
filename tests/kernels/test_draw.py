"""Drawing on the device draws what the host draws: the same logits, parameters, seed and position give the same id."""
from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.kernels import KernelError
from ramet.kernels.interface import Kernels, Sampler, SamplingRows
from ramet.runtime import sampler as host
from ramet.runtime.philox import uniform
from ramet.runtime.protocol import SamplingParams

ROUNDING = 1e-5  # of the whole weight: so near to the border between two ids either may be drawn


@pytest.fixture(scope="session")
def device(interpreted: Kernels) -> Sampler:
    sampler = interpreted.sampler()
    assert sampler is not None
    return sampler


def a_request(params: SamplingParams, prompt: list[int], output: list[int], seed: int) -> Any:
    """What the host's sampler reads of a Request."""
    ids = np.array([*prompt, *output], dtype=np.int64)
    tokens = type("Ids", (), {"view": ids, "__len__": lambda self: len(ids)})()
    return SimpleNamespace(params=params, ids=tokens, prompt_len=len(prompt), output_len=len(output), seed=seed, eos_ids=())


def rows_of(requests: list[Any], vocabulary: int, bits: torch.Tensor | None = None, *, plain: bool = False) -> SamplingRows:
    """The requests as the device is told of them; tables in another order than the rows, with an unused first entry of garbage."""
    each = [r.params for r in requests]
    n = len(each)
    places = torch.arange(n, 0, -1, dtype=torch.int32)
    seen = torch.full((n + 1, vocabulary), 77, dtype=torch.int32)
    bias = torch.full((n + 1, vocabulary), float("nan"))
    for place, r in zip(places.tolist(), requests, strict=True):
        seen[place], bias[place] = 0, 0.0
        for i in r.ids.view[: r.prompt_len]:
            seen[place, i] |= 1
        for i in r.ids.view[r.prompt_len :]:
            seen[place, i] += 2
        for i, value in r.params.logit_bias.items():
            bias[place, i] = value
    tables: dict[str, Any] = {} if plain else dict(  # noqa: C408
        bias_row=places, bias=bias, seen_row=places, seen=seen,
        penalties=torch.tensor([[p.repetition_penalty, p.presence_penalty, p.frequency_penalty] for p in each], dtype=torch.float64),
    )  # fmt: skip
    if bits is not None:
        tables |= {"bits": bits, "bits_row": torch.arange(n, dtype=torch.int32)}
    floats = (torch.tensor([getattr(p, name) for p in each], dtype=torch.float32) for name in ("temperature", "top_p", "min_p"))
    temperature, top_p, min_p = floats
    return SamplingRows(
        temperature, torch.tensor([p.top_k for p in each], dtype=torch.int32), top_p, min_p,
        torch.tensor([r.seed - 2**64 if r.seed >= 2**63 else r.seed for r in requests]), torch.tensor([len(r.ids) for r in requests]), **tables,
    )  # fmt: skip


def host_ids(logits: torch.Tensor, requests: list[Any], bits: torch.Tensor | None = None) -> list[int]:
    rows = logits.float().clone()
    if bits is not None:
        from ramet.kernels.reference import ReferenceKernels

        ReferenceKernels("").mask_logits(rows, bits)
    return host.sample(rows.numpy(), requests)


def near_a_border(row: np.ndarray, request: Any, ids: tuple[int, int]) -> bool:
    """In float64: does u fall so near to where one of the two ids ends and the other begins, or where top-p or min-p cut, that rounding decides?"""
    params, wide = request.params, row.astype(np.float32).copy()
    host._adjust(wide, request)
    scaled = wide.astype(np.float64) / np.float32(params.temperature)
    weights = np.exp(scaled - scaled.max())
    order = np.arange(len(row)) if params.top_k <= 0 and params.top_p >= 1 and params.min_p <= 0 else np.argsort(-scaled, kind="stable")
    if params.top_k > 0:
        order = order[: params.top_k]
    shares = weights[order] / weights[order].sum()
    before = np.cumsum(shares) - shares
    if params.top_p < 1.0 and np.abs(before - np.float32(params.top_p)).min() < ROUNDING:
        return True
    if params.min_p > 0.0 and np.abs(weights[order] - np.float32(params.min_p)).min() < ROUNDING:
        return True
    kept = (before < np.float32(params.top_p) if params.top_p < 1.0 else True) & (weights[order] >= np.float32(params.min_p))
    u = uniform(request.seed, len(request.ids)) * shares[kept].sum()
    borders = [edge for i in ids for at in np.flatnonzero(order == i) for edge in (before[at], before[at] + shares[at])]
    return len(borders) == 4 and min(abs(u - edge) for edge in borders) < ROUNDING


def check(device: Sampler, logits: torch.Tensor, requests: list[Any], bits: torch.Tensor | None = None, *, plain: bool = False) -> torch.Tensor:
    """Returns the ids drawn; each is the host's, but for those on a border."""
    before = logits.clone()
    got = device.draw(logits, rows_of(requests, logits.shape[1], bits, plain=plain))
    assert torch.equal(logits, before)
    masked = logits.float().clone()
    if bits is not None:
        allowed = (bits.repeat_interleave(32, 1)[:, : logits.shape[1]] >> (torch.arange(logits.shape[1]) % 32)) & 1
        masked[allowed == 0] = float("-inf")
    for row, request, ours, theirs in zip(masked, requests, got.tolist(), host_ids(logits, requests, bits), strict=True):
        assert 0 <= ours < logits.shape[1] and row[ours] > float("-inf")
        assert ours == theirs or near_a_border(row.numpy(), request, (ours, theirs))
    return got


PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.6, top_p=0.9),
    SamplingParams(temperature=1.3, top_k=40),
    SamplingParams(temperature=0.8, top_k=7, top_p=0.5),
    SamplingParams(temperature=1.0, min_p=0.05),
    SamplingParams(temperature=5.0, top_p=0.99),
    SamplingParams(temperature=1.0, top_k=1),
    SamplingParams(temperature=2.0, top_k=10_000, top_p=0.97, min_p=0.001),
    SamplingParams(temperature=0.3, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=-0.2, top_p=0.8),
    SamplingParams(temperature=0.0, frequency_penalty=2.0, logit_bias={3: 100.0, 5: 99.9}),
]  # fmt: skip


@pytest.mark.parametrize("vocabulary", [6, 1000, 2500])
def test_every_kind_of_row_in_one_pass(device: Sampler, vocabulary: int) -> None:
    generator = np.random.default_rng()
    logits = torch.randn(len(PARAMS), vocabulary) * 3
    requests = [
        a_request(p, generator.integers(0, vocabulary, 5).tolist(), [3, 3, *generator.integers(0, vocabulary, 3).tolist()], int(generator.integers(2**63)))
        for p in PARAMS
    ]
    check(device, logits, requests)
    check(device, logits, requests, torch.randint(-(2**31), 2**31 - 1, (len(PARAMS), (vocabulary + 31) // 32), dtype=torch.int32) | 1)


@st.composite
def passes(draw: st.DrawFn) -> tuple[int, float, int, list[Any]]:
    """Vocabulary, spread of the logits, of how many different values they are, and requests."""
    number = st.one_of(st.just(1.0), st.floats(0.05, 0.999))
    requests = [
        a_request(
            SamplingParams(
                temperature=draw(st.sampled_from([0.0, 0.1, 0.7, 1.0, 4.0])), top_p=draw(number), top_k=draw(st.sampled_from([-1, 1, 2, 5, 60, 5000])),
                min_p=draw(st.sampled_from([0.0, 0.0, 0.01, 0.5, 1.0])), repetition_penalty=draw(st.sampled_from([1.0, 1.5])),
                presence_penalty=draw(st.sampled_from([0.0, 1.0])),
            ),
            [0], [1, 1], draw(st.integers(0, 2**64 - 1)),
        )
        for _ in range(draw(st.integers(1, 3)))
    ]  # fmt: skip
    return draw(st.sampled_from([3, 33, 1025])), draw(st.sampled_from([0.01, 1.0, 8.0])), draw(st.sampled_from([2, 5, 10**6])), requests


@settings(max_examples=30, deadline=None)
@given(passes(), st.integers(0, 2**31))
def test_any_parameters_and_many_equals(device: Sampler, given_pass: tuple[int, float, int, list[Any]], seed: int) -> None:
    vocabulary, spread, different, requests = given_pass
    logits = torch.randn(len(requests), vocabulary, generator=torch.Generator().manual_seed(seed)) * spread
    check(device, torch.round(logits / spread * different) / different * spread, requests)


def test_the_uniform_number_is_the_hosts(device: Sampler) -> None:
    """Two ids of equal weight, and 2000 of them: the one drawn tells u to that precision."""
    seeds = [0, 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]
    requests = [a_request(SamplingParams(), [], [0] * length, seed) for seed in seeds for length in (1, 77)]
    got = device.draw(torch.zeros(len(requests), 2000), rows_of(requests, 2000, plain=True))
    assert got.tolist() == [int(uniform(r.seed, len(r.ids)) * 2000) for r in requests]


def test_greedy_takes_the_lowest_of_equals(device: Sampler) -> None:
    logits = torch.zeros(3, 3000)
    logits[0, [2999, 1500, 1501]] = 2.0
    logits[1, 2999] = 1.0
    requests = [a_request(SamplingParams(temperature=0.0), [], [0], 0)] * 3
    assert device.draw(logits, rows_of(requests, 3000, plain=True)).tolist() == [1500, 2999, 0]


@pytest.mark.parametrize("params", [SamplingParams(temperature=0.0), SamplingParams(), SamplingParams(top_p=0.5)])
def test_a_row_that_cannot_be_drawn_from_says_so(device: Sampler, params: SamplingParams) -> None:
    """A NaN anywhere, or nothing allowed: -1, and the neighbours are drawn all the same."""
    logits = torch.randn(4, 1500)
    logits[1, 1400] = float("nan")
    bits = torch.full((4, 47), -1, dtype=torch.int32)
    bits[2] = 0
    requests = [a_request(params, [], [0], 5)] * 4
    got = device.draw(logits, rows_of(requests, 1500, bits, plain=True)).tolist()
    assert got[1] == got[2] == -1
    good = [0, 3]
    assert [got[i] for i in good] == host_ids(logits[good], [requests[i] for i in good])


def test_a_row_is_drawn_alone_as_in_any_pass(device: Sampler) -> None:
    logits = torch.randn(len(PARAMS), 2100) * 2
    requests = [a_request(p, [1], [2, 2], 10 + i) for i, p in enumerate(PARAMS)]
    together = device.draw(logits, rows_of(requests, 2100)).tolist()
    backwards = device.draw(logits.flip(0), rows_of(requests[::-1], 2100)).tolist()
    assert backwards[::-1] == together
    for i in (1, 2, 4, 9):
        assert device.draw(logits[i : i + 1], rows_of([requests[i]], 2100)).tolist() == [together[i]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_have_many_equals(device: Sampler, dtype: torch.dtype) -> None:
    logits = (torch.randn(len(PARAMS), 1200) * 2).to(dtype)
    check(device, logits, [a_request(p, [1], [2], 99) for p in PARAMS])


def test_drawn_ids_are_counted(device: Sampler) -> None:
    rows = rows_of([a_request(SamplingParams(), [1], [2], 0)] * 3, 9)
    assert rows.seen is not None and rows.seen_row is not None
    rows.seen_row[2] = -1
    want = rows.seen.clone()
    want[3, 4] += 2
    device.note(torch.tensor([4, -1, 5], dtype=torch.int32), rows)
    assert torch.equal(rows.seen, want)


@pytest.mark.parametrize("vocabulary", [5, 1024, 2300])
def test_logprobs(device: Sampler, vocabulary: int) -> None:
    logits = torch.randn(4, vocabulary) * 4
    logits[0, 1:4] = 20.0  # equals: the lower id first
    logits[1, 2:] = float("-inf")
    logits[3, 1] = float("nan")
    ids = torch.tensor([[1, 0, -1], [0, -1, 1], [4, 4, 2], [0, 1, 2]], dtype=torch.int32)
    chosen, top_ids, top_values = device.logprobs(logits, ids, 4)
    want = torch.log_softmax(logits.double(), -1)
    assert chosen[3].isnan().all() and (top_ids[3] == -1).all() and top_values[3].isnan().all()
    for r in range(3):
        for i, value in zip(ids[r].tolist(), chosen[r].tolist(), strict=True):
            assert np.isnan(value) if i < 0 else value == pytest.approx(float(want[r, i]), abs=2e-6)
        there = min(4, int((logits[r] > float("-inf")).sum()))
        best = torch.argsort(-logits[r], stable=True)[:there]
        assert top_ids[r, :there].tolist() == best.tolist() and (top_ids[r, there:] == -1).all()
        torch.testing.assert_close(top_values[r, :there].double(), want[r][best], atol=2e-6, rtol=1e-6)


def test_an_empty_pass_draws_nothing(device: Sampler) -> None:
    rows = rows_of([], 100, plain=True)
    assert device.draw(torch.empty(0, 100), rows).shape == (0,)
    assert device.logprobs(torch.empty(0, 100), torch.empty(0, 2, dtype=torch.int32), 3)[1].shape == (0, 3)


@pytest.mark.parametrize("change", [
    {"bits": torch.ones(2, 3, dtype=torch.int32)}, {"bias": torch.zeros(2, 99)}, {"seen_row": None}, {"penalties": None},
    {"top_p": torch.ones(3)}, {"seed": torch.zeros(1, dtype=torch.int64)},
])  # fmt: skip
def test_tables_that_do_not_fit_are_refused(device: Sampler, change: dict[str, Any]) -> None:
    rows = rows_of([a_request(SamplingParams(), [1], [2], 0)] * 2, 100, torch.full((2, 4), -1, dtype=torch.int32))
    with pytest.raises(KernelError, match=next(iter(change)).split("_")[0]):
        device.draw(torch.zeros(2, 100), replace(rows, **change))


@pytest.mark.parametrize("garbage", [float("nan"), 1e30, -7.0])
def test_what_stood_in_memory_before_changes_nothing(device: Sampler, monkeypatch: pytest.MonkeyPatch, garbage: float) -> None:
    """Every scratch tensor begins as garbage."""
    requests = [a_request(p, [1], [2, 2], 3 + i) for i, p in enumerate(PARAMS)]
    logits = torch.randn(len(PARAMS), 1100) * 2
    want = check(device, logits, requests)
    empty = torch.empty

    def poisoned(*shape: Any, **options: Any) -> torch.Tensor:
        made = empty(*shape, **options)
        return made.fill_(garbage if made.is_floating_point() else -(2**31) if garbage < 0 else 2**31 - 1)

    monkeypatch.setattr(torch, "empty", poisoned)
    assert torch.equal(device.draw(logits, rows_of(requests, 1100)), want)
    chosen, top_ids, top_values = device.logprobs(logits, torch.zeros(len(PARAMS), 1, dtype=torch.int32), 3)
    logprobs = torch.log_softmax(logits.double(), -1)
    torch.testing.assert_close(chosen[:, 0].double(), logprobs[:, 0], atol=2e-6, rtol=1e-6)
    torch.testing.assert_close(top_values.double(), logprobs.gather(1, top_ids.long()), atol=2e-6, rtol=1e-6)
