"""Philox4x32-10 (Salmon et al., SC 2011): random numbers by counter, so that a token's draw depends on (seed, position) only."""
from __future__ import annotations

_MASK = 0xFFFFFFFF


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Four 32-bit words for a 128-bit counter and a 64-bit key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _MASK, (p0 >> 32) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, the same on every machine."""
    high, low, _, _ = philox4x32((position & _MASK, position >> 32, 0, 0), (seed & _MASK, (seed >> 32) & _MASK))
    return ((high << 21) | (low >> 11)) * 2.0**-53


def fold(seed: int, index: int) -> int:
    """Another seed for the index-th of n outputs; index 0 keeps the seed."""
    if index == 0:
        return seed
    a, b, _, _ = philox4x32((index, 0, 0, 1), (seed & _MASK, (seed >> 32) & _MASK))
    return (a << 32) | b
