"""Quantised blocks mean what the gguf package says they mean."""
from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants

from ramet.kernels import KernelError
from ramet.kernels.blocks import FORMATS, check, dequantize
from ramet.kernels.interface import PackedWeight


def random_packed(kind: str, rows: int, inputs: int, seed: int = 0) -> PackedWeight:
    """Blocks of any bits, but with finite scales of a weight's size."""
    entries, size, _ = FORMATS[kind]
    raw = np.random.default_rng(seed).integers(0, 256, (rows, inputs // entries, size), dtype=np.uint8)
    scales = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q4_K": [0, 2], "Q6_K": [208]}[kind]
    spread = 0.0003 if kind.endswith("K") else 0.01  # K kinds multiply it with a scale of up to 63 or 127
    for at in scales:
        half = np.random.default_rng(seed + at).normal(0, spread, raw.shape[:2]).astype(np.float16)
        raw[..., at : at + 2] = half[..., None].view(np.uint8)
    return PackedWeight(kind, torch.from_numpy(raw.reshape(rows, -1)), inputs)


@pytest.mark.parametrize("kind", FORMATS)
def test_dequantized_like_gguf(kind: str) -> None:
    weight = random_packed(kind, 9, 768)
    want = quants.dequantize(weight.data.numpy(), getattr(GGMLQuantizationType, kind))
    assert np.array_equal(dequantize(weight).numpy(), want)


@pytest.mark.parametrize("kind", FORMATS)
def test_only_the_rows_asked_for(kind: str) -> None:
    weight = random_packed(kind, 9, 256)
    rows = torch.tensor([8, 0, 8], dtype=torch.int32)
    assert torch.equal(dequantize(weight, rows), dequantize(weight)[rows.long()])


@pytest.mark.parametrize("bad", [
    PackedWeight("Q5_0", torch.zeros(2, 22, dtype=torch.uint8), 32),
    PackedWeight("Q8_0", torch.zeros(2, 34, dtype=torch.uint8), 64),
    PackedWeight("Q8_0", torch.zeros(2, 33, dtype=torch.uint8), 32),
    PackedWeight("Q4_K", torch.zeros(2, 144, dtype=torch.uint8), 128),
    PackedWeight("Q8_0", torch.zeros(2, 34, dtype=torch.int8), 32),
])  # fmt: skip
def test_wrong_blocks_are_refused(bad: PackedWeight) -> None:
    with pytest.raises(KernelError):
        check(bad)
