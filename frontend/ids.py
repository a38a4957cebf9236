"""What sequences of token ids have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many ids two sequences of one type share at their beginning. Compares whole slices, as prompts are long."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:  # they agree up to `low`, and not up to `high`
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


def distinct(sequences: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The non-empty ones, each once, in order."""
    return [ids for ids in dict.fromkeys(sequences) if ids]
