"""Sampling by rows: against sorting everything, and against the distribution it is to follow."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ramet.runtime import sampler
from ramet.runtime.protocol import SamplingParams


def rows(seed, size, *, ties=False, masked=0.0):
    rng = np.random.default_rng(seed)
    row = rng.normal(0, 3, size).astype(np.float32)
    if ties:
        row = np.round(row)
    row[rng.random(size) < masked] = -np.inf
    return row


def request(seed=0, ids=(5, 6), prompt_len=1, eos=(), **params):
    ids = SimpleNamespace(view=np.array(ids, dtype=np.int32), __len__=lambda: len(ids))
    params = SamplingParams(**params)

    class Ids(list):
        view = ids.view

    return SimpleNamespace(
        params=params, seed=seed, ids=Ids(ids.view.tolist()), prompt_len=prompt_len, output_len=len(ids.view) - prompt_len, eos_ids=frozenset(eos)
    )


def sorted_ids(row):
    order = np.argsort(-row, kind="stable")
    return order[row[order] > -np.inf]


ROWS = st.builds(rows, st.integers(0, 10**6), st.integers(1, 3000), ties=st.booleans(), masked=st.sampled_from([0.0, 0.7, 0.99]))


@given(ROWS, st.integers(1, 3000))
@settings(max_examples=150, deadline=None)
def test_the_best_are_the_first_of_all_sorted(row, count):
    count = min(count, len(row))
    assert sampler._best(row, count).tolist() == sorted_ids(row)[:count].tolist()


@given(ROWS, st.floats(0, 1, exclude_max=True))
@settings(max_examples=150, deadline=None)
def test_a_pick_is_that_of_the_whole_sum(row, u):
    assume(np.isfinite(row).any())
    weights = np.exp(row - row.max())
    cumulated = np.cumsum(weights, dtype=np.float64)
    picked = sampler._pick(weights, u)
    assert weights[picked] > 0
    share = u * cumulated[-1]
    assert cumulated[picked] - weights[picked] <= share * (1 + 1e-5) and share <= cumulated[picked] * (1 + 1e-5)


@given(ROWS, st.sampled_from([-1, 1, 5, 400]), st.sampled_from([1.0, 0.9, 0.3, 1e-9]), st.sampled_from([0.0, 0.05, 1.0]))
@settings(max_examples=200, deadline=None)
def test_truncation_keeps_what_its_definition_keeps(row, top_k, top_p, min_p):
    assume(np.isfinite(row).any())
    probs, ids = sampler._truncated(row, top_k, top_p, min_p)
    best = sorted_ids(row)[: top_k if top_k > 0 else None]
    exact = np.exp(row[best].astype(np.float64) - row.max())
    exact /= exact.sum()
    before = np.cumsum(exact) - exact
    sure = (before < top_p - 1e-5) & (exact > min_p * exact[0] * (1 + 1e-5))
    maybe = (before < top_p + 1e-5) & (exact > min_p * exact[0] * (1 - 1e-5))
    sure[0] = maybe[0] = True
    assert set(best[sure].tolist()) <= set(ids.tolist()) <= set(best[maybe].tolist())
    assert (np.diff(row[ids]) <= 0).all() and (probs > 0).all()


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 0.5}, {"top_k": 4}, {"top_p": 0.8}, {"min_p": 0.2}, {"temperature": 2.0, "top_k": 6, "top_p": 0.9}]
)
def test_draws_follow_the_distribution(params):
    row = rows(3, 700)
    row[600:] -= 20
    n = 4000
    counts = np.zeros(len(row))
    for seed in range(n):
        counts[sampler.sample(row.copy()[None], [request(seed, **{"temperature": 1.0, **params})])[0]] += 1
    temperature = params.get("temperature", 1.0)
    expected = np.exp((row.astype(np.float64) - row.max()) / temperature)
    _, kept = sampler._truncated(row / np.float32(temperature), params.get("top_k", -1), params.get("top_p", 1.0), params.get("min_p", 0.0))
    allowed = np.zeros(len(row), dtype=bool)
    allowed[kept] = True
    expected[~allowed] = 0
    expected *= n / expected.sum()
    assert not counts[~allowed].any()
    common = expected >= 5
    chi = ((counts - expected)[common] ** 2 / expected[common]).sum()
    freedom = common.sum()
    assert chi < freedom + 5 * np.sqrt(2 * freedom) + 5


def test_greedy_is_the_first_of_the_largest():
    row = np.array([1, 7, 7, 0], dtype=np.float32)
    for params in ({"temperature": 0.0}, {"temperature": 1.0, "top_k": 1}):
        assert sampler.sample(row.copy()[None], [request(**params)]) == [1]


def test_a_row_does_not_see_its_neighbours():
    both = np.stack([rows(1, 500), rows(2, 500)])
    asked = [request(7, temperature=0.9), request(8, temperature=0.9, top_p=0.7)]
    together = sampler.sample(both.copy(), asked)
    assert together == [sampler.sample(row.copy()[None], [r])[0] for row, r in zip(both, asked, strict=True)]


def test_penalties_and_bias():
    row = np.array([2.0, -2.0, 1.0, 1.0], dtype=np.float32)
    asked = request(ids=(0, 1, 2, 2), prompt_len=2, repetition_penalty=2.0, frequency_penalty=0.25, presence_penalty=0.5, logit_bias={3: 5.0})
    sampler._adjust(row, asked)
    assert row.tolist() == [1.0, -4.0, 0.5 - 2 * 0.25 - 0.5, 6.0]


def test_no_end_before_the_least_number_of_tokens():
    row = np.array([9.0, 1.0, 8.0], dtype=np.float32)
    assert sampler.sample(row[None], [request(eos=(0,), temperature=0.0, min_new_tokens=5, stop_token_ids=(2,))]) == [1]
