"""How a decoder is divided among ranks (tensor parallelism), and what a rank asks of the others.

Shoeybi et al., Megatron-LM (2019), section 3: q, k, v, gate and up are cut by rows, o and down by columns, so that a rank goes
from one to the other alone, and a sum over the ranks ends each half of a layer. A KV head stays with the query heads that read
it; three KV heads on two ranks are two and one. Embedding and head are cut by ids.
"""
from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from torch import Tensor

from ..errors import ConfigError
from .config import ModelConfig


@dataclass(frozen=True, slots=True)
class Share:
    """What rank `rank` of `size` holds: runs of KV heads, of intermediate numbers and of ids."""

    rank: int
    size: int
    kv_heads: range
    mlp: range
    vocab: range


def shares(shape: ModelConfig, size: int, block: int = 1) -> tuple[Share, ...]:
    """One for each rank. `block`: intermediate numbers that must stay together.

    Raises ConfigError where the model has too few heads."""
    if size > shape.n_kv_heads:
        raise ConfigError(f"tensor_parallel_size={size}: this model has {shape.n_kv_heads} KV heads, which are not divided; at most as many")
    if size > -(-shape.intermediate_size // block):
        raise ConfigError(f"tensor_parallel_size={size}: {shape.intermediate_size} intermediate numbers in blocks of {block} are too few")
    cuts = (runs(shape.n_kv_heads, size), runs(shape.intermediate_size, size, block), runs(shape.vocab_size, size))
    return tuple(Share(rank, size, *parts) for rank, parts in enumerate(zip(*cuts, strict=True)))


def runs(total: int, size: int, block: int = 1) -> list[range]:
    """0..total in `size` runs that begin at multiples of `block`, as even as can be, the longer first."""
    least, more = divmod(-(-total // block), size)
    borders = [min((rank * least + min(rank, more)) * block, total) for rank in range(size + 1)]
    return [range(begin, end) for begin, end in pairwise(borders)]


class Ranks(Protocol):
    """The ranks that compute one model together, as one of them sees them. All must make the same calls in the same order."""

    @property
    def share(self) -> Share: ...

    def sum(self, x: Tensor) -> Tensor:
        """The x (T, n) of all ranks, added in their order: every rank gets the same bits, whatever other rows there are."""
        ...

    def gather(self, x: Tensor, total: int) -> Tensor | None:
        """The x (R, n of that rank, by `runs`) of all ranks side by side, (R, total), on rank 0; None on the others."""
        ...
