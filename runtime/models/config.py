"""What a model's files say about its shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CorruptModelError, UnsupportedError
from ..gguf_reader import GGUFFile
from .registry import Family, family
from .rope import RopeScaling


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a decoder of the Llama family. Sizes are in numbers, not bytes."""

    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    context_length: int
    rms_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    tied: bool = False  # the output head is the embedding
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None

    def kv_bytes(self, itemsize: int) -> int:
        """Bytes of K and V of one token in all layers."""
        return 2 * self.n_layers * self.n_kv_heads * self.head_dim * itemsize

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """From config.json. Raises CorruptModelError, UnknownArchitectureError, UnsupportedError."""
        return cls._from_hf(_Fields(folder / "config.json", _read_json(folder / "config.json")))

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> ModelConfig:
        """From the metadata of a GGUF file and the names of its tensors. Raises as `from_folder`."""
        return cls._from_gguf(_Fields(file.path, file.metadata), file)

    @classmethod
    def _from_hf(cls, get: _Fields) -> ModelConfig:
        kind = family((get.optional("architectures", list) or [get.text("model_type")])[0])
        if get.optional("quantization_config", dict):
            raise UnsupportedError(
                f"{get.path}: quantization_config: quantised safetensors are not read; use the model's GGUF file", field="model_path"
            )
        if get.optional("hidden_act", str) not in (None, "silu"):
            raise UnsupportedError(f"{get.path}: hidden_act {get.values['hidden_act']!r}; only silu is computed")
        rope = get.optional("rope_parameters", dict) or {}
        if (rope.get("partial_rotary_factor") or get.optional("partial_rotary_factor", float) or 1.0) != 1.0:
            raise UnsupportedError(f"{get.path}: partial_rotary_factor: only whole heads are rotated")
        hidden, heads, context = get.size("hidden_size"), get.size("num_attention_heads"), get.size("max_position_embeddings")
        bias = bool(get.optional("attention_bias", bool))
        return cls(
            family=kind,
            vocab_size=get.size("vocab_size"),
            hidden_size=hidden,
            intermediate_size=get.size("intermediate_size"),
            n_layers=get.size("num_hidden_layers"),
            n_heads=heads,
            n_kv_heads=get.size("num_key_value_heads", heads),
            head_dim=get.size("head_dim", hidden // heads),
            context_length=context,
            rms_eps=get.number("rms_norm_eps", 1e-6),
            rope_theta=float(rope.get("rope_theta") or get.number("rope_theta", 10000.0)),
            rope_scaling=RopeScaling.from_hf(rope or get.optional("rope_scaling", dict), context),
            tied=bool(get.optional("tie_word_embeddings", bool)),
            qkv_bias=kind.qkv_bias or bias,
            o_bias=bias and not kind.qkv_bias,
            mlp_bias=bool(get.optional("mlp_bias", bool)),
            qk_norm=kind.qk_norm,
            sliding_window=_sliding_window(get),
        )._checked(get.path)

    @classmethod
    def _from_gguf(cls, get: _Fields, file: GGUFFile) -> ModelConfig:
        name = get.text("general.architecture")
        kind, p = family(name), name + "."
        hidden, heads, context = get.size(p + "embedding_length"), get.size(p + "attention.head_count"), get.size(p + "context_length")
        embed = file.tensors.get("token_embd.weight")
        head_dim = get.size(p + "attention.key_length", hidden // heads)
        if get.size(p + "rope.dimension_count", head_dim) != head_dim:
            raise UnsupportedError(f"{get.path}: {p}rope.dimension_count: only whole heads are rotated")
        for expert in ("expert_count", "expert_used_count"):
            if get.optional(p + expert, int):
                raise UnsupportedError(f"{get.path}: {p}{expert}: mixtures of experts are not implemented")
        return cls(
            family=kind,
            vocab_size=embed.shape[0] if embed else get.size(p + "vocab_size"),
            hidden_size=hidden,
            intermediate_size=get.size(p + "feed_forward_length"),
            n_layers=get.size(p + "block_count"),
            n_heads=heads,
            n_kv_heads=get.size(p + "attention.head_count_kv", heads),
            head_dim=head_dim,
            context_length=context,
            rms_eps=get.number(p + "attention.layer_norm_rms_epsilon"),
            rope_theta=get.number(p + "rope.freq_base", 10000.0),
            rope_scaling=_gguf_scaling(get, p, context),
            tied="output.weight" not in file.tensors,
            qkv_bias=kind.qkv_bias or "blk.0.attn_q.bias" in file.tensors,
            o_bias="blk.0.attn_output.bias" in file.tensors,
            mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
            qk_norm=kind.qk_norm,
            sliding_window=get.optional(p + "attention.sliding_window", int) or None,
        )._checked(get.path)

    def _checked(self, path: Path) -> ModelConfig:
        if self.n_heads % self.n_kv_heads:
            raise CorruptModelError(f"{path}: {self.n_heads} query heads cannot share {self.n_kv_heads} KV heads")
        if self.head_dim % 2:
            raise CorruptModelError(f"{path}: heads of {self.head_dim} numbers cannot be rotated in halves")
        return self


@dataclass(frozen=True, slots=True)
class _Fields:
    """Typed access to a config; errors name the file and the field."""

    path: Path
    values: Mapping[str, Any]

    def optional(self, name: str, kind: type) -> Any:
        value = self.values.get(name)
        if value is not None and not isinstance(value, kind):
            raise CorruptModelError(f"{self.path}: {name} is {value!r}, not of type {kind.__name__}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.values.get(name)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise CorruptModelError(f"{self.path}: {name} is {'missing' if value is None else repr(value)}; a number is needed")
        return float(value)

    def size(self, name: str, default: int | None = None) -> int:
        value = self.number(name, default)
        if value < 1 or value != int(value):
            raise CorruptModelError(f"{self.path}: {name} is {value}; a whole number of at least 1 is needed")
        return int(value)

    def text(self, name: str) -> str:
        value = self.values.get(name)
        if not isinstance(value, str):
            raise CorruptModelError(f"{self.path}: {name} is {'missing' if value is None else repr(value)}")
        return value


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorruptModelError(f"{path}: cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise CorruptModelError(f"{path}: not a JSON object")
    return value


def _sliding_window(get: _Fields) -> int | None:
    """Tokens that a row sees, where some layer is limited. Qwen configs carry a window that `use_sliding_window` turns off."""
    layers = get.optional("layer_types", list)
    if get.values.get("use_sliding_window") is False or (layers and "sliding_attention" not in layers):
        return None
    return get.optional("sliding_window", int)


def _gguf_scaling(get: _Fields, prefix: str, context: int) -> RopeScaling | None:
    kind = get.optional(prefix + "rope.scaling.type", str) or ("linear" if get.values.get(prefix + "rope.scale_linear") else "none")
    if kind == "none":
        return None
    keys = {"factor": "factor", "original_max_position_embeddings": "original_context_length", "attention_factor": "attn_factor"}
    values = {name: get.values.get(f"{prefix}rope.scaling.{key}") for name, key in keys.items()}
    values["factor"] = values["factor"] or get.values.get(prefix + "rope.scale_linear")
    return RopeScaling.from_hf({"rope_type": kind, **values}, context)
