"""The border between model and device: what a peer must compute, and the types it is given.

Shapes use T tokens (rows) of all sequences of a pass, S sequences, H query heads, G KV heads, D head size.
A pass is ragged: sequence s owns rows query_start[s]:query_start[s+1], the last tokens of its context.
Every peer gives a row the same result whatever other rows are in the pass (no result depends on its neighbours).
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PackedWeight:
    """A matrix as its file holds it. `kind` is a GGML block type: Q8_0, Q4_0, Q4_1, Q4_K, Q6_K (see blocks.py).

    Compared by identity: a peer may keep its own form of a weight as long as the weight lives.

    data: uint8 (out_features, bytes of one row), contiguous. Blocks lie along in_features.
    """

    kind: str
    data: Tensor
    in_features: int

    @property
    def out_features(self) -> int:
        return self.data.shape[0]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Linear:
    """y = x @ weight.T + bias. weight: (out, in) float32, bfloat16 or float16, or packed."""

    weight: Tensor | PackedWeight
    bias: Tensor | None = None

    @property
    def out_features(self) -> int:
        return self.weight.out_features if isinstance(self.weight, PackedWeight) else self.weight.shape[0]

    @property
    def in_features(self) -> int:
        return self.weight.in_features if isinstance(self.weight, PackedWeight) else self.weight.shape[1]


@dataclass(frozen=True, slots=True)
class Segments:
    """KV runs that several sequences share, so that each is read once for all their rows (tree attention).

    Segment i is positions start[i]:stop[i] of sequence owner[i] (any member: all members have the same slots there),
    seen in full by every row of its members: members[member_start[i]:member_start[i+1]]. A sequence's segments are
    disjoint and tile positions 0:tail_start[s]; the rest, tail_start[s]:context_len[s], is its own causal tail.
    """

    start: Tensor  # (N,) int32
    stop: Tensor  # (N,) int32
    owner: Tensor  # (N,) int32, a sequence
    member_start: Tensor  # (N+1,) int32
    members: Tensor  # (sum of members,) int32, sequences
    tail_start: Tensor  # (S,) int32; 0 where a sequence shares nothing


@dataclass(frozen=True, slots=True)
class AttnMeta:
    """Who attends to what in one pass. All int32 and contiguous: `tables` on the device, the rest anywhere (peers that plan read it on the host).

    The row of sequence s at position p sees the slots tables[s, 0:p+1]. Rows are the last of their context:
    row r of s stands at position context_len[s] - (query_start[s+1] - r).
    """

    query_start: Tensor  # (S+1,)
    context_len: Tensor  # (S,) KV length of each sequence, the rows of this pass included
    tables: Tensor  # (S, at least max context_len) slot of each position; garbage beyond context_len
    max_context: int
    max_query: int
    segments: Segments | None = None  # None: nothing is shared, or sharing does not pay


@dataclass(frozen=True, slots=True)
class RopeTable:
    """cos and sin by position: (max positions, rotary_dim / 2) float32 each. Halves are rotated (NeoX order):
    out[i] = x[i] cos - x[i + d/2] sin;  out[i + d/2] = x[i + d/2] cos + x[i] sin, over the first rotary_dim entries."""

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer of the Llama family, heads in NeoX rotary order."""

    attn_norm: Tensor  # (hidden,) float32, as all norms
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    mlp_norm: Tensor
    gate: Linear
    up: Linear
    down: Linear
    q_norm: Tensor | None = None  # (D,): Qwen3 normalises each head of q and k before rope
    k_norm: Tensor | None = None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights of a decoder, and the numbers its arithmetic needs."""

    embed: Tensor | PackedWeight  # (vocab, hidden)
    layers: tuple[LayerWeights, ...]
    norm: Tensor  # (hidden,)
    head: Linear  # (vocab, hidden); shares storage with embed when tied
    rope: RopeTable
    n_heads: int
    n_kv_heads: int
    head_dim: int
    rms_eps: float
    sliding_window: int | None = None  # refused at load where a model needs it


@dataclass(frozen=True, slots=True)
class DecoderInput:
    """One pass. Rows are tokens; logits are computed for `logit_rows` only."""

    input_ids: Tensor  # (T,) int32
    positions: Tensor  # (T,) int32
    write_slots: Tensor  # (T,) int32: where each row's K and V go, before any row attends
    logit_rows: Tensor  # (R,) int32, may be empty
    attn: AttnMeta


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """How an id is drawn from each of R rows of logits. On the device, contiguous.

    The order is that of a sampler on the host: bias, penalties, mask; then temperature, top_k, top_p, min_p; then the uniform
    number of (seed, position), the first two words of Philox4x32-10, picks by inverse distribution: over the ids in their
    order, or with top_k, top_p or min_p over those that they leave, the likeliest first and of equals the lower id.
    Tables belong to whoever keeps the requests; a row without an entry has -1. Ids that end an answer, and may not yet, are
    0 in its mask (min_new_tokens).
    """

    temperature: Tensor  # (R,) float32; below 1e-6, and with top_k 1, the largest logit is taken, of equals the lowest id
    top_k: Tensor  # (R,) int32; 0 or less: all
    top_p: Tensor  # (R,) float32
    min_p: Tensor  # (R,) float32
    seed: Tensor  # (R,) int64
    position: Tensor  # (R,) int64, of the id that is drawn
    bits_row: Tensor | None = None  # (R,) int32, rows of `bits`; None: no row has a mask
    bits: Tensor | None = None  # (N, ceil(vocab / 32)) int32; an id whose bit is 0 is not drawn
    bias_row: Tensor | None = None  # (R,) int32, rows of `bias`
    bias: Tensor | None = None  # (N, vocab) float32, added
    seen_row: Tensor | None = None  # (R,) int32, rows of `seen`
    seen: Tensor | None = None  # (N, vocab) int32: twice how often an id is in the output, plus 1 if it is in the prompt
    penalties: Tensor | None = None  # (R, 3) float64: repetition (1: none), presence, frequency; with `seen`


class Kernels(Protocol):
    """Arithmetic of one device. Tensors are on that device; x is (T, ...) in the peer's activation dtype."""

    name: str
    why: str  # one line: why this peer was chosen, or what its absence costs
    activation_dtype: torch.dtype
    kv_dtype: torch.dtype  # what the pool should hold unless the user says otherwise

    def linear(self, x: Tensor, w: Linear) -> Tensor: ...

    def embed(self, ids: Tensor, table: Tensor | PackedWeight) -> Tensor: ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / sqrt(mean(x^2) + eps) * weight over the last dimension, summed in float32."""
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """residual += x in place; returns rms_norm(residual)."""
        ...

    def rope(self, q: Tensor, k: Tensor, positions: Tensor, table: RopeTable) -> None:
        """Rotates q (T, H, D) and k (T, G, D) in place."""
        ...

    def store_kv(self, k: Tensor, v: Tensor, pool_k: Tensor, pool_v: Tensor, slots: Tensor) -> None:
        """pool_k[slots] = k, pool_v[slots] = v; pools are (slots, G, D) of one layer. Rounds to the nearest; a float16 pool holds its
        largest number in place of infinity."""
        ...

    def attention(self, q: Tensor, pool_k: Tensor, pool_v: Tensor, meta: AttnMeta, scale: float) -> Tensor:
        """softmax(scale q k^T, causal) v by AttnMeta: (T, H, D). Query head h reads KV head h // (H // G)."""
        ...

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor: ...

    def mask_logits(self, logits: Tensor, bits: Tensor) -> None:
        """logits (R, vocab) float32 = -inf in place where bit (id % 32) of bits[r, id // 32] (int32) is 0."""
        ...

    def decoder(self, weights: DecoderWeights) -> Decoder | None:
        """The whole stack as one call, if the peer has it; None: the model runs layer by layer over the calls above."""
        ...

    def sampler(self) -> Sampler | None:
        """Draws where the logits are, if the peer can; None: rows are drawn from on the host."""
        ...


class Decoder(Protocol):
    """A decoder stack fused by a peer."""

    def forward(self, batch: DecoderInput, pool_k: Tensor, pool_v: Tensor) -> Tensor:
        """(R, vocab) float32 logits. Pools are (layers, slots, G, D); K and V of this pass are stored there."""
        ...


class Sampler(Protocol):
    """Ids and logprobs of rows of logits that do not leave the device. Nothing here waits for the device."""

    def draw(self, logits: Tensor, rows: SamplingRows) -> Tensor:
        """(R,) int32: the next id of each row of logits (R, vocab), which stay as they are; -1 where every id is forbidden or a
        logit is not a number."""
        ...

    def note(self, ids: Tensor, rows: SamplingRows) -> None:
        """Counts each drawn id (R,) in its row of `rows.seen`, so that the next step's penalties know it. -1 is not counted."""
        ...

    def logprobs(self, logits: Tensor, ids: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities under raw rows: of ids (R, N) int32 (NaN where -1), and the `top` likeliest ids, (R, top) int32, of
        equals the lower, with theirs. (R, N) and (R, top) float32."""
        ...
