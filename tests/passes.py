"""One forward pass of whole sequences, for tests of models."""

import torch

from ramet.kernels.interface import AttnMeta, DecoderInput
from ramet.kernels.reference import ReferenceKernels
from ramet.runtime.models.llama import LlamaModel


def i32(values):
    return torch.tensor(values, dtype=torch.int32)


def whole(sequences: list[list[int]]) -> DecoderInput:
    """All rows of all sequences, computed from nothing; logits of every row."""
    lengths = [len(s) for s in sequences]
    starts = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    tables = torch.zeros(len(lengths), max(lengths), dtype=torch.int32)
    for i, length in enumerate(lengths):
        tables[i, :length] = torch.arange(starts[i], starts[i] + length)
    meta = AttnMeta(i32(starts), i32(lengths), tables, max(lengths), max(lengths))
    positions = [p for n in lengths for p in range(n)]
    rows = i32(range(starts[-1]))
    return DecoderInput(i32([i for ids in sequences for i in ids]), i32(positions), rows, rows, meta)


def logits(loaded, sequences: list[list[int]]) -> list[torch.Tensor]:
    """(length, vocab) float32 of each sequence, on the reference kernels."""
    config, total = loaded.config, sum(map(len, sequences))
    model = LlamaModel(config, loaded.weights, ReferenceKernels("test"))
    pool_k = torch.zeros(config.n_layers, total, config.n_kv_heads, config.head_dim)
    out = model.forward(whole(sequences), pool_k, torch.zeros_like(pool_k))
    return list(out.split([len(s) for s in sequences]))
