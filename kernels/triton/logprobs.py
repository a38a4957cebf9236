"""Log-probabilities of raw rows: the log-sum-exp of a row by blocks, chosen ids, and the likeliest by a knock-out among the blocks' best."""
from __future__ import annotations

import triton
import triton.language as tl

BLOCK = tl.constexpr(1024)  # ids of a program


@triton.jit
def survey(logits, best, best_id, sums, vocabulary, blocks):
    """A row and block a program: its largest value (NaN if one is), the lowest id of it, and the sum of exp(x - largest). All (R, blocks)."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row * vocabulary + at, mask=at < vocabulary, other=float("-inf")).to(tl.float32)
    broken = tl.sum((x != x).to(tl.int32)) > 0
    top = tl.max(x, 0)
    to = row * blocks + block
    tl.store(best + to, tl.where(broken, float("nan"), top))
    tl.store(best_id + to, tl.min(tl.where(x == top, at, vocabulary), 0))
    tl.store(sums + to, tl.where(top == float("-inf"), 0.0, tl.sum(tl.exp(x - top), 0)))


@triton.jit
def pick(
    logits, best, best_id, sums, ids, chosen, top_ids, top_values, n_ids, top, vocabulary, blocks, NB: tl.constexpr, IDS: tl.constexpr,
):  # fmt: skip
    """A row a program. chosen (R, n_ids): logprobs of `ids`; top_ids and top_values (R, top): the likeliest, -1 and NaN where there are no more."""
    row = tl.program_id(0).to(tl.int64)
    every = tl.arange(0, NB)
    there = every < blocks
    value = tl.load(best + row * blocks + every, mask=there, other=float("-inf"))
    broken = tl.sum((value != value).to(tl.int32)) > 0
    largest = tl.max(tl.where(value == value, value, float("-inf")), 0)
    share = tl.load(sums + row * blocks + every, mask=there, other=0.0) * tl.exp(value - largest)
    norm = largest + tl.log(tl.sum(tl.where(there, share, 0.0), 0))
    norm = tl.where(broken | (largest == float("-inf")), float("nan"), norm)

    slot = tl.arange(0, IDS)
    wanted = tl.load(ids + row * n_ids + slot, mask=slot < n_ids, other=-1)
    asked = tl.load(logits + row * vocabulary + wanted, mask=wanted >= 0, other=float("nan")).to(tl.float32)
    tl.store(chosen + row * n_ids + slot, asked - norm, mask=slot < n_ids)

    which = tl.load(best_id + row * blocks + every, mask=there, other=vocabulary)
    for i in range(top):
        first = tl.max(tl.where(value == value, value, float("-inf")), 0)
        drawn = tl.min(tl.where(value == first, which, vocabulary), 0)
        over = broken | (first == float("-inf"))
        tl.store(top_ids + row * top + i, tl.where(over, -1, drawn))
        tl.store(top_values + row * top + i, tl.where(over, float("nan"), first - norm))
        block = drawn // BLOCK  # gave its best: its next one enters
        at = block * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(logits + row * vocabulary + at, mask=at < vocabulary, other=float("-inf")).to(tl.float32)
        after = (x < first) | ((x == first) & (at > drawn))
        following = tl.max(tl.where(after, x, float("-inf")), 0)
        its_id = tl.min(tl.where(after & (x == following), at, vocabulary), 0)
        value = tl.where(every == block, following, value)
        which = tl.where(every == block, its_id, which)
