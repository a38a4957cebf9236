"""Logits of one step to ids and logprobs. Every row by itself: its parameters, its penalties, its seed.

Order: raw logprobs are read first; then logit_bias, penalties, min_new_tokens and the grammar's mask change the logits; then
temperature, top-k, top-p, min-p; then one uniform number of (seed, position) picks by inverse distribution.
"""
from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .philox import uniform
from .protocol import TokenLogprob
from .request import Request

GREEDY_BELOW = 1e-6  # temperatures below this pick the most likely id
HEAD = 256  # how many of the most likely ids are sorted first, in the hope that top-p lies within


def sample(logits: Tensor, requests: list[Request]) -> list[int]:
    """The next id of each row. logits: (rows, vocab) float32, already masked; changed in place."""
    for row, request in enumerate(requests):
        _adjust(logits[row], request)
    greedy = logits.argmax(dim=-1).tolist() if any(_is_greedy(r) for r in requests) else [0] * len(requests)
    return [greedy[i] if _is_greedy(r) else _draw(logits[i], r) for i, r in enumerate(requests)]


def raw_logprobs(row: Tensor, token_id: int, top: int) -> TokenLogprob:
    """Logprob of `token_id` and the `top` best under one row of raw logits (vocab,), float32."""
    norm = torch.logsumexp(row, dim=-1)
    best: tuple[tuple[int, float], ...] = ()
    if top:
        values, ids = torch.topk(row, min(top, row.shape[-1]))
        best = tuple(zip(ids.tolist(), (values - norm).tolist(), strict=True))
    return TokenLogprob(token_id, float(row[token_id] - norm), best)


def ids_logprobs(row: Tensor, ids: tuple[int, ...]) -> tuple[tuple[int, float], ...]:
    """(id, logprob) of chosen ids under one row of raw logits."""
    values = row[torch.tensor(ids)] - torch.logsumexp(row, dim=-1)
    return tuple(zip(ids, values.tolist(), strict=True))


def _is_greedy(request: Request) -> bool:
    return request.params.temperature < GREEDY_BELOW or request.params.top_k == 1


def _adjust(row: Tensor, request: Request) -> None:
    """Bias, penalties and min_new_tokens, in place. Masked ids stay at -inf."""
    params = request.params
    if params.logit_bias:
        ids = torch.tensor(list(params.logit_bias))
        row[ids] += torch.tensor(list(params.logit_bias.values()), dtype=row.dtype)
    if params.repetition_penalty != 1.0:  # of prompt and output (arXiv 1909.05858, section 4.1)
        seen = torch.from_numpy(np.unique(request.ids.view).astype(np.int64))
        values = row[seen]
        row[seen] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if params.frequency_penalty or params.presence_penalty:  # of the output alone, as OpenAI defines them
        ids_np, counts = np.unique(request.ids.view[request.prompt_len :], return_counts=True)
        if len(ids_np):
            penalty = params.frequency_penalty * counts + params.presence_penalty
            row[torch.from_numpy(ids_np.astype(np.int64))] -= torch.from_numpy(penalty).to(row.dtype)
    if request.output_len < params.min_new_tokens:
        ending = [*request.eos_ids, *params.stop_token_ids]
        if ending:
            row[torch.tensor(ending)] = -torch.inf


def _draw(row: Tensor, request: Request) -> int:
    params = request.params
    u = uniform(request.seed, len(request.ids))
    scaled = row / params.temperature
    if params.top_k <= 0 and params.top_p >= 1.0 and params.min_p <= 0.0:
        return _pick(torch.softmax(scaled, dim=-1), u)
    probs, ids = _truncated(scaled, params.top_k, params.top_p, params.min_p)
    return int(ids[_pick(probs, u)])


def _truncated(scaled: Tensor, top_k: int, top_p: float, min_p: float) -> tuple[Tensor, Tensor]:
    """The ids that top-k, then top-p, then min-p leave, best first, and their (unnormalised) probabilities."""
    vocab = scaled.shape[-1]
    total = torch.logsumexp(scaled, dim=-1)
    counts = (min(top_k, vocab),) if top_k > 0 else (min(HEAD, vocab), vocab)
    for count in counts:
        values, ids = torch.topk(scaled, count)
        probs = torch.exp(values - total)
        if top_k > 0:
            probs = probs / probs.sum()  # top-p is a share of what top-k left
        before = torch.cumsum(probs, dim=-1) - probs
        keep = (before < top_p) & (probs >= min_p * probs[0])
        if not keep[-1]:  # all that may be kept is among these
            break
    keep[0] = True
    return probs[keep], ids[keep]


def _pick(probs: Tensor, u: float) -> int:
    """Index of the first entry whose cumulated share passes u; never one of probability 0."""
    cumulated = torch.cumsum(probs, dim=-1, dtype=torch.float64)
    index = int(torch.searchsorted(cumulated, u * float(cumulated[-1]), right=True))
    while index >= len(probs) or probs[index] == 0:  # u * total rounded up to the total
        index -= 1
    return index
