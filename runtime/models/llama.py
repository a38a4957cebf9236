"""The Llama family: Llama, SmolLM2, Mistral, Qwen2 and Qwen3 differ in their config only."""

from __future__ import annotations

import torch
from torch import Tensor

from ...kernels.interface import DecoderInput, DecoderWeights, Kernels
from .config import ModelConfig
from .layers import attention, embed, feed_forward
from .share import Ranks


class LlamaModel:
    """A decoder on one device. Holds no state of any sequence: KV lives in the pools that the caller passes.

    With `ranks`, `weights` are one rank's share, and the pools hold its KV heads; the logits are whole on rank 0 and empty elsewhere."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights, kernels: Kernels, ranks: Ranks | None = None) -> None:
        self.config = config
        self.weights = weights
        self._kernels = kernels
        self._ranks = ranks
        self._decoder = None if ranks else kernels.decoder(weights)  # the whole stack in one call, where the device has it

    def forward(self, batch: DecoderInput, pool_k: Tensor, pool_v: Tensor) -> Tensor:
        """(R, vocab) float32 logits of `batch.logit_rows`. Pools are (layers, slots, G, D); this pass's K and V are stored there."""
        if self._decoder is not None:
            return self._decoder.forward(batch, pool_k, pool_v)
        return self._layer_by_layer(batch, pool_k, pool_v)

    def _layer_by_layer(self, batch: DecoderInput, pool_k: Tensor, pool_v: Tensor) -> Tensor:
        kernels, weights, eps, ranks = self._kernels, self.weights, self.weights.rms_eps, self._ranks
        residual = embed(kernels, batch.input_ids, weights, ranks)  # (T, hidden), grows by what each half adds
        x = kernels.rms_norm(residual, weights.layers[0].attn_norm, eps)
        norms_after = [layer.attn_norm for layer in weights.layers[1:]]
        for i, layer in enumerate(weights.layers):
            x = attention(kernels, x, layer, weights, batch, pool_k[i], pool_v[i])
            x = kernels.add_rms_norm(ranks.sum(x) if ranks else x, residual, layer.mlp_norm, eps)
            x = feed_forward(kernels, x, layer)
            x = ranks.sum(x) if ranks else x
            if i < len(norms_after):
                x = kernels.add_rms_norm(x, residual, norms_after[i], eps)
        nothing = torch.empty(0, self.config.vocab_size, device=x.device)
        if not len(batch.logit_rows):  # a chunk inside a prompt: only its K and V were wanted
            return nothing
        x = kernels.add_rms_norm(x[batch.logit_rows], residual[batch.logit_rows], weights.norm, eps)
        logits = kernels.linear(x, weights.head).float()
        if ranks is None:
            return logits
        whole = ranks.gather(logits, self.config.vocab_size)
        return nothing if whole is None else whole
