"""Logits of one step to ids and logprobs. Every row by itself: its parameters, its penalties, its seed.

Order: raw logprobs are read first; then logit_bias, penalties, min_new_tokens and the grammar's mask change the logits; then
temperature, top-k, top-p, min-p; then one uniform number of (seed, position) picks by inverse distribution.

Rows are numpy arrays: one thread, one order of summation, so that an answer does not change with the number of threads.
"""
from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .philox import uniform
from .protocol import TokenLogprob
from .request import Request

Row = NDArray[np.float32]  # (vocab,) logits

GREEDY_BELOW = 1e-6  # temperatures below this pick the most likely id
BLOCK = 256  # entries that are summed together before one of them is picked
HEADS = (256, 4096)  # how many of the most likely ids are sorted first, in the hope that top-p lies within


def sample(logits: NDArray[np.float32], requests: list[Request]) -> list[int]:
    """The next id of each row. logits: (rows, vocab), already masked; changed in place."""
    return [_next(row, request) for row, request in zip(logits, requests, strict=True)]


def raw_logprobs(row: Row, token_id: int, top: int) -> TokenLogprob:
    """Logprob of `token_id` and the `top` best under one row of raw logits."""
    norm = _logsumexp(row)
    best = _best(row, min(top, len(row))) if top else np.empty(0, dtype=np.int64)
    pairs = tuple((int(i), float(row[i] - norm)) for i in best)
    return TokenLogprob(token_id, float(row[token_id] - norm), pairs)


def ids_logprobs(row: Row, ids: tuple[int, ...]) -> tuple[tuple[int, float], ...]:
    """(id, logprob) of chosen ids under one row of raw logits."""
    norm = _logsumexp(row)
    return tuple((i, float(row[i] - norm)) for i in ids)


def _next(row: Row, request: Request) -> int:
    _adjust(row, request)
    params = request.params
    if params.temperature < GREEDY_BELOW or params.top_k == 1:
        return int(row.argmax())
    u = uniform(request.seed, len(request.ids))
    row /= np.float32(params.temperature)  # in place: a new array of this size is new pages from the system each time
    if params.top_k <= 0 and params.top_p >= 1.0 and params.min_p <= 0.0:
        row -= row.max()
        return _pick(np.exp(row, out=row), u)
    probs, ids = _truncated(row, params.top_k, params.top_p, params.min_p)
    return int(ids[_pick(probs, u)])


def _adjust(row: Row, request: Request) -> None:
    """Bias, penalties and min_new_tokens, in place. Masked ids stay at -inf."""
    params = request.params
    if params.logit_bias:
        row[list(params.logit_bias)] += np.array(list(params.logit_bias.values()), dtype=row.dtype)
    if params.repetition_penalty != 1.0:  # of prompt and output (arXiv 1909.05858, section 4.1)
        seen = np.unique(request.ids.view)
        penalty = np.float32(params.repetition_penalty)
        row[seen] = np.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)
    if params.frequency_penalty or params.presence_penalty:  # of the output alone, as OpenAI defines them
        ids, counts = np.unique(request.ids.view[request.prompt_len :], return_counts=True)
        row[ids] -= (params.frequency_penalty * counts + params.presence_penalty).astype(row.dtype)
    if request.output_len < params.min_new_tokens:
        row[[*request.eos_ids, *params.stop_token_ids]] = -np.inf


def _truncated(scaled: Row, top_k: int, top_p: float, min_p: float) -> tuple[Row, NDArray[np.int64]]:
    """The ids that top-k, then top-p, then min-p leave, best first, and their (unnormalised) probabilities."""
    vocab = len(scaled)
    total = scaled.max() if top_k > 0 or top_p >= 1.0 else _logsumexp(scaled)  # only top-p alone is a share of the whole
    counts = (min(top_k, vocab),) if top_k > 0 else (*[n for n in HEADS if n < vocab], vocab)
    for count in counts:
        ids = _best(scaled, count)
        probs = np.exp(scaled[ids] - total)
        if top_k > 0:
            probs = probs / probs.sum()  # top-p is a share of what top-k left
        before = np.cumsum(probs) - probs
        keep = (probs >= min_p * probs[0]) & ((before < top_p) if top_p < 1.0 else True)
        if not keep[-1]:  # all that may be kept is among these
            break
    keep[0] = True
    return probs[keep], ids[keep]


def _best(values: Row, count: int) -> NDArray[np.int64]:
    """Ids of the `count` largest values, best first; of equals the lower id. Fewer where the others are -inf.

    The count-th largest of the maxima of blocks bounds them from below, and is quickly found."""
    size = len(values) // (3 * count)
    least = np.float32(-np.inf)
    if size > 1:
        n = len(values) // size
        maxima = values[: n * size].reshape(n, size).max(axis=1)
        least = np.partition(maxima, n - count)[n - count]
    candidates = np.flatnonzero(values >= least if least > -np.inf else values > least)
    return candidates[np.argsort(-values[candidates], kind="stable")][:count]


def _logsumexp(row: Row) -> np.float32:
    top = row.max()
    return top + np.log(np.exp(row - top).sum())


def _pick(weights: Row, u: float) -> int:
    """Index of the first entry whose cumulated share passes u; never one of weight 0.

    First the block of BLOCK entries, then the entry in it: sums of blocks cost a tenth of sums of all beginnings."""
    whole = len(weights) // BLOCK * BLOCK
    sums = np.append(weights[:whole].reshape(-1, BLOCK).sum(axis=1), weights[whole:].sum())
    cumulated = np.cumsum(sums, dtype=np.float64)
    target = u * cumulated[-1]
    block = _passing(sums, cumulated, target)
    begin = block * BLOCK
    inside = weights[begin : begin + BLOCK]
    before = cumulated[block - 1] if block else 0.0
    return begin + _passing(inside, np.cumsum(inside, dtype=np.float64), target - before)


def _passing(weights: Row, cumulated: NDArray[np.float64], target: float) -> int:
    index = int(np.searchsorted(cumulated, target, side="right"))
    while index >= len(weights) or weights[index] == 0:  # the target was rounded up to the total
        index -= 1
    return index
