"""What KV depends on besides ids: the model's weights and shape, and the kernels that compute with them."""
from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ..kernels.interface import DecoderWeights, Kernels

SAMPLES = 64  # places of a tensor that are looked at
SAMPLE_BYTES = 64


def fingerprint(weights: DecoderWeights, kernels: Kernels, kv_dtype: torch.dtype) -> str:
    """32 hex digits that differ where KV would: of all shapes, of places all over every tensor, of the numbers beside them, of the kernels.

    Weights are sampled, not read whole: models that share all samples of all tensors would share KV."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{kernels.name} {getattr(kernels, 'instruction_set', '')} {kernels.activation_dtype} {kv_dtype}".encode())
    for name, value in _leaves("", weights):
        digest.update(name.encode())
        if isinstance(value, Tensor):
            digest.update(f"{tuple(value.shape)} {value.dtype}".encode())
            digest.update(_sample(value))
        else:
            digest.update(repr(value).encode())
    return digest.hexdigest()


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """All tensors and plain values below a dataclass or tuple, with their names."""
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _leaves(f"{name}.{field.name}", getattr(value, field.name))
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from _leaves(f"{name}.{i}", item)
    else:
        yield name, value


def _sample(tensor: Tensor) -> bytes:
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    starts = torch.linspace(0, max(0, raw.numel() - SAMPLE_BYTES), SAMPLES).long().unique().tolist()
    return b"".join(raw[start : start + SAMPLE_BYTES].numpy().tobytes() for start in starts)
