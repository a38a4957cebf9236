"""The parts of a decoder, written over the kernels. x is (T, hidden): one row a token, all sequences together."""

from __future__ import annotations

from torch import Tensor

from ...kernels.interface import DecoderInput, DecoderWeights, Kernels, LayerWeights
from .share import Ranks


def embed(kernels: Kernels, ids: Tensor, weights: DecoderWeights, ranks: Ranks | None = None) -> Tensor:
    """(T, hidden). Each of several ranks knows a run of the ids: it gives zeros for those of the others, and the sum is whole."""
    if ranks is None:
        return kernels.embed(ids, weights.embed)
    known = ranks.share.vocab
    own = (ids >= known.start) & (ids < known.stop)
    rows = kernels.embed((ids - known.start).where(own, 0), weights.embed)
    return ranks.sum(rows.masked_fill_(~own.unsqueeze(1), 0))


def attention(
    kernels: Kernels, x: Tensor, layer: LayerWeights, weights: DecoderWeights, batch: DecoderInput, pool_k: Tensor, pool_v: Tensor
) -> Tensor:
    """Grouped-query attention of every row to its own sequence. Pools are (slots, G, D) of this layer; K and V are stored first."""
    heads, kv_heads, size = weights.n_heads, weights.n_kv_heads, weights.head_dim
    q = kernels.linear(x, layer.q).view(-1, heads, size)
    k = kernels.linear(x, layer.k).view(-1, kv_heads, size)
    v = kernels.linear(x, layer.v).view(-1, kv_heads, size)
    if layer.q_norm is not None and layer.k_norm is not None:
        q = kernels.rms_norm(q, layer.q_norm, weights.rms_eps)
        k = kernels.rms_norm(k, layer.k_norm, weights.rms_eps)
    kernels.rope(q, k, batch.positions, weights.rope)
    kernels.store_kv(k, v, pool_k, pool_v, batch.write_slots)
    mixed = kernels.attention(q, pool_k, pool_v, batch.attn, size**-0.5)
    return kernels.linear(mixed.reshape(-1, heads * size), layer.o)


def feed_forward(kernels: Kernels, x: Tensor, layer: LayerWeights) -> Tensor:
    """down(silu(gate(x)) * up(x))."""
    return kernels.linear(kernels.silu_mul(kernels.linear(x, layer.gate), kernels.linear(x, layer.up)), layer.down)
