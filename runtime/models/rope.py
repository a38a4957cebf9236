"""Rotary position embedding: the angle of each position and pair of dimensions, and its scalings to longer contexts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...kernels.interface import RopeTable
from ..errors import CorruptModelError, UnsupportedError

KINDS = ("linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How a model stretches its trained positions. Fields that a kind does not use keep their defaults."""

    kind: str  # one of KINDS
    factor: float
    original_context: int = 0  # llama3, yarn: the context it was trained on
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float = 1.0  # yarn: multiplies cos and sin
    truncate: bool = True  # yarn: whole bounds of the ramp

    @classmethod
    def from_hf(cls, values: Mapping[str, Any] | None, context_length: int) -> RopeScaling | None:
        """From `rope_scaling` (or, from transformers 5 on, `rope_parameters`) of config.json; None where nothing is scaled."""
        kind = (values or {}).get("rope_type") or (values or {}).get("type") or "default"
        if values is None or kind == "default":
            return None
        if kind not in KINDS:
            raise UnsupportedError(f"rope scaling {kind!r} is not implemented; known: {', '.join(KINDS)}", field="rope_scaling")
        original = int(values.get("original_max_position_embeddings") or context_length)
        factor = values.get("factor")
        if factor is None and kind == "yarn":
            factor = context_length / original
        if not isinstance(factor, int | float) or factor <= 0:
            raise CorruptModelError(f"rope scaling {kind!r} needs a factor above 0, not {factor!r}")
        named = ("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "truncate")
        given = {name: values[name] for name in named if values.get(name) is not None}
        attention = _yarn_attention(values, factor) if kind == "yarn" else 1.0
        return cls(kind, float(factor), original, attention_factor=attention, **given)


def rope_table(head_dim: int, theta: float, scaling: RopeScaling | None, positions: int, factors: Tensor | None = None) -> RopeTable:
    """cos and sin of positions 0..positions-1. `factors` (head_dim/2,) divide the frequencies, as some GGUF files store llama3."""
    frequencies = _frequencies(head_dim, theta, scaling)
    if factors is not None:
        frequencies = frequencies / factors.float()
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    scale = scaling.attention_factor if scaling else 1.0
    return RopeTable(angles.cos() * scale, angles.sin() * scale)


def turn_by(table: RopeTable, positions: NDArray[np.int32]) -> tuple[Tensor, Tensor]:
    """cos and sin, (n, rotary_dim / 2) each, of the rotations that move keys on by as many positions.

    What a scaling multiplies them by is in the keys already."""
    at = torch.from_numpy(positions.astype(np.int64)).to(table.cos.device)
    cos, sin = table.cos[at], table.sin[at]
    length = torch.hypot(cos, sin)
    return cos / length, sin / length


def _frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """(head_dim / 2,) radians a position, float32 throughout as the models were trained."""
    plain = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return plain / scaling.factor
    if scaling.kind == "llama3":
        return _llama3(plain, scaling)
    return _yarn(plain, head_dim, theta, scaling)


def _llama3(plain: Tensor, scaling: RopeScaling) -> Tensor:
    """Long wavelengths are stretched by the factor, short ones kept, those between blended (Llama 3.1)."""
    turns = scaling.original_context * plain / (2 * math.pi)  # over the trained context
    keep = ((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)).clamp(0, 1)
    return (1 - keep) * plain / scaling.factor + keep * plain


def _yarn(plain: Tensor, head_dim: int, theta: float, scaling: RopeScaling) -> Tensor:
    """Interpolates dimensions of few turns, keeps those of many, ramps between (YaRN, Peng et al. 2023, section 3.2)."""

    def dimension(turns: float) -> float:  # where a dimension makes that many turns over the trained context
        return head_dim * math.log(scaling.original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)).clamp(0, 1)
    return ramp * plain / scaling.factor + (1 - ramp) * plain


def _yarn_attention(values: Mapping[str, Any], factor: float) -> float:
    """The temperature of attention as a factor of cos and sin (YaRN, section 3.4)."""

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if values.get("attention_factor") is not None:
        return float(values["attention_factor"])
    if values.get("mscale") and values.get("mscale_all_dim"):
        return scale(values["mscale"]) / scale(values["mscale_all_dim"])
    return scale(1.0)
