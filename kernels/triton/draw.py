"""Drawing an id from each row of logits without sorting it, in four launches that every row of a pass shares.

`adjust` lays bias, penalties, mask and temperature over a row in one pass, and finds the largest value of each block of ids. `weigh` turns
values into weights, exp(x - the row's largest), and counts for each block how much lies above each of a ladder of bounds. `gather` takes
the highest bound above which lies all that top-k, top-p or min-p may leave, and packs the ids above it, a few hundred most often. `draw`
picks.

What top-k, top-p and min-p leave is a beginning of the ids in falling order, and so is what lies before the drawn id. So each of them is
one question, the largest value v at which the weight (or the number) of all that is not below v passes a target, and is answered by
searching v digit by digit among 16 pivots at once (pivots instead of sorting: FlashInfer, "Sorting-Free GPU Kernels for LLM Sampling",
2025; several pivots and care for equals: Park et al., "Qrita", arXiv 2602.01518). Nothing is rejected and nothing is drawn
twice: the id is the one that sorting and an inverse distribution give. Blocks and tiles are fixed and a row is added up in the
order of its ids, so its id does not depend on the other rows.
"""
from __future__ import annotations

import triton
import triton.language as tl

BLOCK = tl.constexpr(1024)  # ids of a program, in the launches that divide a row
RUNGS = tl.constexpr(16)  # bounds of the ladder: 1, 2, .. 15 below the largest value, and all that may be drawn
TILE = tl.constexpr(1024)  # gathered ids that are looked at together
PIVOTS = tl.constexpr(16)  # of one round of the search; eight rounds find all 32 bits
LOWEST = tl.constexpr(-(2**31))
DRAW_WARPS = 16  # of a program of `draw`: with fewer it spills registers


@triton.jit
def adjust(
    logits, scaled, largest, temperature, top_k, bits, bits_row, bias, bias_row, seen, seen_row, penalties, vocabulary, words, blocks,
):  # fmt: skip
    """A row and block a program. scaled (R, vocab) float32 = the row as it is drawn from; largest (R, blocks) float32: of each block, NaN if
    a logit is NaN. Tables that no row needs are None."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < vocabulary
    x = tl.load(logits + row * vocabulary + at, mask=inside, other=float("-inf")).to(tl.float32)
    broken = tl.sum((x != x).to(tl.int32)) > 0
    if bias is not None:
        place = tl.load(bias_row + row).to(tl.int64)
        if place >= 0:
            x += tl.load(bias + place * vocabulary + at, mask=inside, other=0.0)
    if seen is not None:
        place = tl.load(seen_row + row).to(tl.int64)
        if place >= 0:
            x = _penalised(x, tl.load(seen + place * vocabulary + at, mask=inside, other=0), penalties + row * 3)
    if bits is not None:
        place = tl.load(bits_row + row).to(tl.int64)
        if place >= 0:
            word = tl.load(bits + place * words + at // 32, mask=inside, other=0)
            x = tl.where(((word >> (at % 32)) & 1) == 1, x, float("-inf"))
    if not _greedy(temperature, top_k, row):
        x = tl.div_rn(x, tl.zeros_like(x) + tl.load(temperature + row))
    tl.store(scaled + row * vocabulary + at, x, mask=inside)
    tl.store(largest + row * blocks + block, tl.where(broken, float("nan"), tl.max(x, 0)))


@triton.jit
def _penalised(x, seen, penalties):
    """Repetition of prompt and output (arXiv 1909.05858, section 4.1); presence and frequency of the output alone."""
    repetition = tl.load(penalties).to(tl.float32)
    presence, frequency = tl.load(penalties + 1), tl.load(penalties + 2)
    repeated = tl.where(x > 0, tl.div_rn(x, tl.zeros_like(x) + repetition), x * repetition)
    x = tl.where(seen != 0, repeated, x)
    times = (seen >> 1).to(tl.float64)
    return tl.where(times > 0, x - (frequency * times + presence).to(tl.float32), x)


@triton.jit
def _greedy(temperature, top_k, row):
    return (tl.load(temperature + row) < 1e-6) | (tl.load(top_k + row) == 1)


@triton.jit
def _truncates(top_k, top_p, min_p, row):
    return (tl.load(top_k + row) > 0) | (tl.load(top_p + row) < 1.0) | (tl.load(min_p + row) > 0.0)


@triton.jit
def _top(largest, row, blocks, NB: tl.constexpr):
    """The row's largest value; NaN where a block has one. NB: `blocks`, up to a power of two."""
    at = tl.arange(0, NB)
    values = tl.load(largest + row * blocks + at, mask=at < blocks, other=float("-inf"))
    broken = tl.sum((values != values).to(tl.int32)) > 0
    return tl.where(broken, float("nan"), tl.max(tl.where(values == values, values, float("-inf")), 0))


@triton.jit
def _drawable(top):
    return (top > float("-inf")) & (top < float("inf"))


@triton.jit
def _limit(top, rung):
    """What lies above it is on that rung of the ladder."""
    return tl.where(rung == RUNGS - 1, float("-inf"), top - (rung + 1).to(tl.float32))


@triton.jit
def weigh(scaled, largest, masses, shares, counts, temperature, top_k, top_p, min_p, vocabulary, blocks, NB: tl.constexpr):
    """A row and block a program. masses (R, blocks) float64: its weight; shares float32 and counts int32, both (R, blocks, RUNGS): weight and
    number of its ids above each rung, where the row is truncated."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    top = _top(largest, row, blocks, NB)
    if _greedy(temperature, top_k, row) | (_drawable(top) == 0):
        return
    at = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(scaled + row * vocabulary + at, mask=at < vocabulary, other=float("-inf"))
    weight = tl.exp(x - top)
    tl.store(masses + row * blocks + block, tl.sum(weight.to(tl.float64), 0))
    if _truncates(top_k, top_p, min_p, row):
        rungs = tl.arange(0, RUNGS)
        above = x[None, :] > _limit(top, rungs)[:, None]
        to = (row * blocks + block) * RUNGS + rungs
        tl.store(shares + to, tl.sum(tl.where(above, weight[None, :], 0.0), 1))
        tl.store(counts + to, tl.sum(above.to(tl.int32), 1))


@triton.jit
def gather(
    scaled, largest, masses, shares, counts, values, ids, sizes, temperature, top_k, top_p, min_p, vocabulary, blocks, NB: tl.constexpr,
):  # fmt: skip
    """A row and block a program. values and ids (R, vocab): the row's ids on the rung that suffices, in their order; sizes (R,): how many."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    top = _top(largest, row, blocks, NB)
    if _greedy(temperature, top_k, row) | (_truncates(top_k, top_p, min_p, row) == 0) | (_drawable(top) == 0):
        return
    every, rungs = tl.arange(0, NB), tl.arange(0, RUNGS)
    table = (row * blocks + every)[:, None] * RUNGS + rungs[None, :]
    there = (every < blocks)[:, None]
    count = tl.load(counts + table, mask=there, other=0)
    share = tl.sum(tl.load(shares + table, mask=there, other=0.0).to(tl.float64), 0)
    total = tl.sum(tl.load(masses + row * blocks + every, mask=every < blocks, other=0.0), 0)
    k, p, m = tl.load(top_k + row), tl.load(top_p + row), tl.load(min_p + row)
    enough = rungs == RUNGS - 1
    if k > 0:  # top-p is a share of what top-k leaves: all of that is needed
        enough |= tl.sum(count, 0) >= k
    else:
        if p < 1.0:
            enough |= share >= p * total * (1.0 + 1e-5)
        if m > 0.0:
            enough |= (rungs + 1).to(tl.float32) > 1e-3 - tl.log(m)
    rung = tl.min(tl.where(enough, rungs, RUNGS - 1), 0)
    on_rung = tl.sum(tl.where(rungs[None, :] == rung, count, 0), 1)  # (NB,)
    before = tl.sum(tl.where(every < block, on_rung, 0), 0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(scaled + row * vocabulary + at, mask=at < vocabulary, other=float("-inf"))
    kept = x > _limit(top, rung)
    to = row * vocabulary + before + tl.cumsum(kept.to(tl.int32), 0) - 1
    tl.store(values + to, x, mask=kept)
    tl.store(ids + to, at, mask=kept)
    if block == 0:
        tl.store(sizes + row, tl.sum(on_rung, 0))


@triton.jit
def draw(
    scaled, largest, masses, values, ids, sizes, out, temperature, top_k, top_p, min_p, seed, position, vocabulary, blocks, NB: tl.constexpr,
):  # fmt: skip
    """A row a program. out (R,) int32: the id, or -1."""
    row = tl.program_id(0).to(tl.int64)
    top = _top(largest, row, blocks, NB)
    chosen = tl.full((), -1, tl.int32)
    if _drawable(top):
        if _greedy(temperature, top_k, row):
            chosen = _first(scaled + row * vocabulary, largest + row * blocks, top, vocabulary, blocks, NB)
        else:
            u = uniform(tl.load(seed + row), tl.load(position + row))
            if _truncates(top_k, top_p, min_p, row):
                here = row * vocabulary
                limits = tl.load(top_k + row), tl.load(top_p + row), tl.load(min_p + row)
                at = _among(values + here, tl.load(sizes + row), top, u, masses + row * blocks, blocks, limits[0], limits[1], limits[2], NB)
                chosen = tl.load(ids + here + at)
            else:
                chosen = _anywhere(scaled + row * vocabulary, masses + row * blocks, top, u, vocabulary, blocks, NB)
    tl.store(out + row, chosen)


@triton.jit
def uniform(seed, position):
    """The number in [0, 1) of (seed, position), with 53 random bits: Philox4x32-10 (Salmon et al., SC 2011)."""
    low, high = (position & 0xFFFFFFFF).to(tl.uint32), (position >> 32).to(tl.uint32)
    nothing = low ^ low
    first, second, _, _ = tl.philox(seed, low, high, nothing, nothing)
    return ((first.to(tl.int64) << 21) | (second.to(tl.int64) >> 11)).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def _first(row, largest, top, vocabulary, blocks, NB: tl.constexpr):
    """The lowest id of the largest value."""
    every = tl.arange(0, NB)
    found = tl.load(largest + every, mask=every < blocks, other=float("-inf")) == top
    at = tl.min(tl.where(found, every, NB), 0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(row + at, mask=at < vocabulary, other=float("-inf"))
    return tl.min(tl.where(x == top, at, vocabulary), 0)


@triton.jit
def _anywhere(row, masses, top, u, vocabulary, blocks, NB: tl.constexpr):
    """The id at whose weight the sum over all ids in their order passes u's share of the whole: its block first."""
    every = tl.arange(0, NB)
    mass = tl.load(masses + every, mask=every < blocks, other=0.0)
    passed = tl.cumsum(mass, 0)
    target = u * tl.max(passed, 0)
    block = tl.max(tl.where((mass > 0.0) & (passed - mass <= target), every, 0), 0)
    target -= tl.sum(tl.where(every < block, mass, 0.0), 0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    weight = tl.exp(tl.load(row + at, mask=at < vocabulary, other=float("-inf")) - top)
    before = tl.cumsum(weight.to(tl.float64), 0) - weight
    return tl.max(tl.where((weight > 0.0) & (before <= tl.maximum(target, 0.0)), at, 0), 0)


@triton.jit
def _among(values, n, top, u, masses, blocks, k, p, m, NB: tl.constexpr):
    """Where among the n gathered values the drawn one stands."""
    every = tl.arange(0, NB)
    total = tl.sum(tl.load(masses + every, mask=every < blocks, other=0.0), 0)
    cut, equals = tl.full((), LOWEST, tl.int32), n  # what is left: all above the cut, and so many that are equal to it
    if k > 0:
        k = tl.minimum(k, n)
        cut = _search(values, n, top, k.to(tl.float64), True, True)
        number, mass, equal = _measure(values, n, top, cut)
        equals = k - number
        total = mass + equals * tl.exp(_value(cut) - top)
    if p < 1.0:
        target = p * total
        key = _search(values, n, top, target, False, True)
        number, mass, equal = _measure(values, n, top, key)
        needed = _how_many(target - mass, tl.exp(_value(key) - top), equal, True)
        equals = tl.where(key > cut, needed, tl.where(key == cut, tl.minimum(needed, equals), equals))
        cut = tl.maximum(cut, key)
    if m > 0.0:
        key = _least(values, n, top, m)
        equals = tl.where(key > cut, n, equals)
        cut = tl.maximum(cut, key)
    number, mass, equal = _measure(values, n, top, cut)
    equals = tl.minimum(equals, equal)
    target = u * (mass + equals * tl.exp(_value(cut) - top))
    key = tl.maximum(_search(values, n, top, target, False, False), cut)
    number, mass, equal = _measure(values, n, top, key)
    equal = tl.where(key == cut, equals, equal)
    return _nth(values, n, key, _how_many(target - mass, tl.exp(_value(key) - top), equal, False))


@triton.jit
def _key(x):
    """Whole numbers in the order of the floats, both zeros one."""
    whole = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(whole >= 0, whole, whole ^ 0x7FFFFFFF)


@triton.jit
def _value(key):
    return tl.where(key >= 0, key, key ^ 0x7FFFFFFF).to(tl.float32, bitcast=True)


@triton.jit
def _search(values, n, top, target, COUNTED: tl.constexpr, REACHED: tl.constexpr):
    """The largest key that is there, such that the weight (the number) of what is not below it is more than the target, with REACHED
    at least the target; the least key if there is none."""
    index = tl.arange(0, PIVOTS)
    low = tl.full((), LOWEST, tl.int32)
    for digit in range(8):
        step = 1 << (28 - 4 * digit)
        pivots = low + index * step
        passed = tl.zeros((PIVOTS,), tl.float64)
        for begin in range(0, n, TILE):
            at = begin + tl.arange(0, TILE)
            x = tl.load(values + at, mask=at < n, other=float("-inf"))
            above = (_key(x)[None, :] >= pivots[:, None]) & (at < n)[None, :]
            if COUNTED:
                passed += tl.sum(above.to(tl.int32), 1).to(tl.float64)
            else:
                passed += tl.sum(tl.where(above, tl.exp(x - top)[None, :], 0.0), 1).to(tl.float64)
        if REACHED:
            enough = passed >= target
        else:
            enough = passed > target
        low += (tl.maximum(tl.sum(enough.to(tl.int32), 0), 1) - 1) * step
    least = tl.full((), 2**31 - 1, tl.int32)
    for begin in range(0, n, TILE):
        at = begin + tl.arange(0, TILE)
        key = _key(tl.load(values + at, mask=at < n, other=float("inf")))
        least = tl.minimum(least, tl.min(tl.where((key >= low) & (at < n), key, 2**31 - 1), 0))
    return least


@triton.jit
def _measure(values, n, top, key):
    """Number (int32) and weight (float64) of what is above the key, and how many are equal to it."""
    number, equal = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
    mass = tl.full((), 0.0, tl.float64)
    for begin in range(0, n, TILE):
        at = begin + tl.arange(0, TILE)
        x = tl.load(values + at, mask=at < n, other=float("-inf"))
        above = (_key(x) > key) & (at < n)
        number += tl.sum(above.to(tl.int32), 0)
        equal += tl.sum(((_key(x) == key) & (at < n)).to(tl.int32), 0)
        mass += tl.sum(tl.where(above, tl.exp(x - top), 0.0), 0).to(tl.float64)
    return number, mass, equal


@triton.jit
def _how_many(rest, weight, most, ROUND_UP: tl.constexpr):
    """How many equals of that weight fit in the rest (0..most-1), or with ROUND_UP, how many reach it (1..most)."""
    times = rest / tl.maximum(weight.to(tl.float64), 1e-300)
    times = tl.minimum(tl.maximum(times, 0.0), most.to(tl.float64))
    if ROUND_UP:
        return tl.maximum(tl.ceil(times), 1.0).to(tl.int32)
    return tl.maximum(tl.minimum(times.to(tl.int32), most - 1), 0)


@triton.jit
def _least(values, n, top, m):
    """The least key whose weight is at least m."""
    least = tl.full((), 2**31 - 1, tl.int32)
    for begin in range(0, n, TILE):
        at = begin + tl.arange(0, TILE)
        x = tl.load(values + at, mask=at < n, other=float("-inf"))
        least = tl.minimum(least, tl.min(tl.where((tl.exp(x - top) >= m) & (at < n), _key(x), 2**31 - 1), 0))
    return least


@triton.jit
def _nth(values, n, key, index):
    """Where the index-th (from 0) of the values with that key stands."""
    found, before = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
    for begin in range(0, n, TILE):
        at = begin + tl.arange(0, TILE)
        x = tl.load(values + at, mask=at < n, other=float("-inf"))
        same = ((_key(x) == key) & (at < n)).to(tl.int32)
        rank = before + tl.cumsum(same, 0) - 1
        found = tl.maximum(found, tl.max(tl.where((same == 1) & (rank == index), at, 0), 0))
        before += tl.sum(same, 0)
    return found


@triton.jit
def note(ids, seen, seen_row, vocabulary):
    """A row a program: one more of the drawn id in the output."""
    row = tl.program_id(0).to(tl.int64)
    drawn, place = tl.load(ids + row), tl.load(seen_row + row).to(tl.int64)
    if (drawn >= 0) & (place >= 0):
        to = seen + place * vocabulary + drawn
        tl.store(to, tl.load(to) + 2)
