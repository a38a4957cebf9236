"""The Llama family: Llama, SmolLM2, Mistral, Qwen2 and Qwen3 differ in their config only."""

from __future__ import annotations

import torch
from torch import Tensor

from ...kernels.interface import DecoderInput, DecoderWeights, Kernels
from .config import ModelConfig
from .layers import attention, feed_forward


class LlamaModel:
    """A decoder on one device. Holds no state of any sequence: KV lives in the pools that the caller passes."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights, kernels: Kernels) -> None:
        self.config = config
        self.weights = weights
        self._kernels = kernels
        self._decoder = kernels.decoder(weights)  # the whole stack in one call, where the device has it

    def forward(self, batch: DecoderInput, pool_k: Tensor, pool_v: Tensor) -> Tensor:
        """(R, vocab) float32 logits of `batch.logit_rows`. Pools are (layers, slots, G, D); this pass's K and V are stored there."""
        if self._decoder is not None:
            return self._decoder.forward(batch, pool_k, pool_v)
        return self._layer_by_layer(batch, pool_k, pool_v)

    def _layer_by_layer(self, batch: DecoderInput, pool_k: Tensor, pool_v: Tensor) -> Tensor:
        kernels, weights, eps = self._kernels, self.weights, self.weights.rms_eps
        residual = kernels.embed(batch.input_ids, weights.embed)  # (T, hidden), grows by what each half adds
        x = kernels.rms_norm(residual, weights.layers[0].attn_norm, eps)
        norms_after = [layer.attn_norm for layer in weights.layers[1:]]
        for i, layer in enumerate(weights.layers):
            x = attention(kernels, x, layer, weights, batch, pool_k[i], pool_v[i])
            x = kernels.add_rms_norm(x, residual, layer.mlp_norm, eps)
            x = feed_forward(kernels, x, layer)
            if i < len(norms_after):
                x = kernels.add_rms_norm(x, residual, norms_after[i], eps)
        if not len(batch.logit_rows):  # a chunk inside a prompt: only its K and V were wanted
            return torch.empty(0, weights.head.out_features, device=x.device)
        x = kernels.add_rms_norm(x[batch.logit_rows], residual[batch.logit_rows], weights.norm, eps)
        return kernels.linear(x, weights.head).float()
