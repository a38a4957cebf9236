"""A fingerprint is the same for the same model and kernels, and another one wherever KV would differ."""
from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from ramet.kernels import get_kernels
from ramet.kernels.interface import DecoderWeights, LayerWeights, Linear, PackedWeight, RopeTable
from ramet.runtime.fingerprint import fingerprint

KERNELS = get_kernels("cpu", "reference", "float32")


def weights(seed: int = 0, layers: int = 2) -> DecoderWeights:
    draw = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> Linear:
        return Linear(torch.randn(rows, columns, generator=draw))

    def layer() -> LayerWeights:
        return LayerWeights(torch.ones(32), matrix(32, 32), matrix(16, 32), matrix(16, 32), matrix(32, 32), torch.ones(32),
                            matrix(64, 32), matrix(64, 32), matrix(32, 64))  # fmt: skip

    packed = PackedWeight("Q8_0", torch.randint(0, 255, (100, 34), generator=draw, dtype=torch.uint8), 32)
    rope = RopeTable(torch.rand(64, 4, generator=draw), torch.rand(64, 4, generator=draw))
    return DecoderWeights(packed, tuple(layer() for _ in range(layers)), torch.ones(32), Linear(packed), rope, 4, 2, 8, 1e-5)


def mark(of: DecoderWeights, dtype: torch.dtype = torch.float32, kernels=KERNELS) -> str:
    return fingerprint(of, kernels, dtype)


def test_the_same_model_is_the_same():
    assert mark(weights()) == mark(weights()) and len(mark(weights())) == 32


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("name", ["q", "k", "v", "o", "gate", "up", "down"])
def test_every_matrix_of_every_layer_counts(name, layer):
    base = weights()
    changed = list(base.layers)
    changed[layer] = replace(changed[layer], **{name: Linear(getattr(changed[layer], name).weight * 1.001)})
    assert mark(replace(base, layers=tuple(changed))) != mark(base)


def test_so_do_numbers_tables_types_and_kernels():
    base = weights()
    other = SimpleNamespace(name="reference", instruction_set="avx9", activation_dtype=KERNELS.activation_dtype)
    marks = [
        mark(base), mark(weights(1)), mark(weights(layers=3)), mark(base, torch.bfloat16), mark(replace(base, rms_eps=1e-6)),
        mark(replace(base, n_heads=2)), mark(replace(base, rope=RopeTable(base.rope.cos * 2, base.rope.sin))), mark(base, kernels=other),
    ]  # fmt: skip
    assert len(set(marks)) == len(marks)
