"""Weights of a decoder, from a GGUF file, a folder of safetensors, or drawn at random.

Files are mapped, not read: a tensor's pages come in when it is first touched. Blocks of GGUF stay packed unless `dtype`
asks for plain numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ..kernels.interface import DecoderWeights, LayerWeights, Linear, PackedWeight
from .config import EngineConfig
from .errors import ConfigError, CorruptModelError, ModelNotFoundError, UnsupportedError
from .gguf_reader import PACKED, GGUFFile, dequantize
from .hub import ModelFiles
from .models.config import ModelConfig
from .models.rope import rope_table
from .models.share import Share, shares

FLOATS = (torch.float32, torch.float16, torch.bfloat16)

# role: name in a GGUF file, name in safetensors
OUTER = {"embed": ("token_embd", "model.embed_tokens"), "norm": ("output_norm", "model.norm"), "head": ("output", "lm_head")}
LAYER = {
    "attn_norm": ("attn_norm", "input_layernorm"),
    "q": ("attn_q", "self_attn.q_proj"),
    "k": ("attn_k", "self_attn.k_proj"),
    "v": ("attn_v", "self_attn.v_proj"),
    "o": ("attn_output", "self_attn.o_proj"),
    "q_norm": ("attn_q_norm", "self_attn.q_norm"),
    "k_norm": ("attn_k_norm", "self_attn.k_norm"),
    "mlp_norm": ("ffn_norm", "post_attention_layernorm"),
    "gate": ("ffn_gate", "mlp.gate_proj"),
    "up": ("ffn_up", "mlp.up_proj"),
    "down": ("ffn_down", "mlp.down_proj"),
}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """`config.context_length` is the length that positions are tabled for. `config` is of the whole model, `weights` are `share`."""

    config: ModelConfig
    weights: DecoderWeights
    share: Share


class Source(Protocol):
    """Where tensors come from."""

    path: Path

    @property
    def tensors(self) -> Mapping[str, Any]: ...

    def load(self, name: str) -> Tensor | PackedWeight: ...


def load_model(files: ModelFiles, config: EngineConfig, *, device: str = "cpu", rank: int = 0) -> LoadedModel:
    """Opens a model's weights, or of `tensor_parallel_size` shares that of `rank`. `device` is where they go ("cpu" leaves them mapped).

    Raises ModelNotFoundError (no weights), CorruptModelError, UnknownArchitectureError, UnsupportedError, ConfigError."""
    gguf = GGUFFile(files.gguf) if files.gguf else None
    shape = ModelConfig.from_gguf(gguf) if gguf else ModelConfig.from_folder(files.path)
    shape = _with_context(shape, config.context_length)
    block = max((PACKED[t.kind][1] for t in gguf.tensors.values() if t.kind in PACKED), default=1) if gguf else 1
    share = shares(shape, config.tensor_parallel_size, block)[rank]
    source = "cpu" if share.size > 1 else device  # only a rank's share goes to its device
    if config.load_format == "dummy":
        tensors: _Tensors = _Dummy(shape, config, source)
    else:
        tensors = _FromFile(gguf or SafetensorsFolder(files.path), shape, config, source)
    if share.size > 1:
        tensors = _Shared(tensors, shape, share, device)
    return LoadedModel(shape, _assemble(shape, tensors, share), share)


def _with_context(shape: ModelConfig, wanted: int | None) -> ModelConfig:
    if wanted is not None and wanted > shape.context_length:
        raise ConfigError(f"context_length={wanted}: this model knows {shape.context_length} positions")
    length = wanted or shape.context_length
    if shape.sliding_window is not None and shape.sliding_window < length:
        raise UnsupportedError(
            f"this model attends in a sliding window of {shape.sliding_window} tokens, which is not implemented; "
            f"open it with context_length={shape.sliding_window} or less",
            field="context_length",
        )
    return replace(shape, context_length=length, sliding_window=None)


# --- putting a decoder together


class _Tensors(Protocol):
    """Hands out the parts of a decoder, checked, in the wanted dtype and place. Roles are those of OUTER and LAYER."""

    def matrix(self, role: str, layer: int | None, rows: int, columns: int) -> Tensor | PackedWeight: ...

    def vector(self, role: str, layer: int | None, size: int, *, part: str = "weight") -> Tensor: ...

    def rope_factors(self) -> Tensor | None: ...

    def finish(self) -> None:
        """Raises CorruptModelError if the source holds tensors that nobody asked for."""
        ...


def _assemble(shape: ModelConfig, tensors: _Tensors, share: Share) -> DecoderWeights:
    embed = tensors.matrix("embed", None, shape.vocab_size, shape.hidden_size)
    layers = tuple(_layer(shape, tensors, i) for i in range(shape.n_layers))
    norm = tensors.vector("norm", None, shape.hidden_size)
    head = Linear(embed if shape.tied else tensors.matrix("head", None, shape.vocab_size, shape.hidden_size))
    rope = rope_table(shape.head_dim, shape.rope_theta, shape.rope_scaling, shape.context_length, tensors.rope_factors())
    tensors.finish()
    rope = replace(rope, cos=rope.cos.to(norm.device), sin=rope.sin.to(norm.device))
    kv_heads = len(share.kv_heads)
    heads = kv_heads * (shape.n_heads // shape.n_kv_heads)
    return DecoderWeights(embed, layers, norm, head, rope, heads, kv_heads, shape.head_dim, shape.rms_eps)


def _layer(shape: ModelConfig, tensors: _Tensors, i: int) -> LayerWeights:
    hidden, mlp, queries, keys = (
        shape.hidden_size,
        shape.intermediate_size,
        shape.n_heads * shape.head_dim,
        shape.n_kv_heads * shape.head_dim,
    )

    def linear(role: str, out: int, inner: int, biased: bool) -> Linear:
        return Linear(tensors.matrix(role, i, out, inner), tensors.vector(role, i, out, part="bias") if biased else None)

    return LayerWeights(
        attn_norm=tensors.vector("attn_norm", i, hidden),
        q=linear("q", queries, hidden, shape.qkv_bias),
        k=linear("k", keys, hidden, shape.qkv_bias),
        v=linear("v", keys, hidden, shape.qkv_bias),
        o=linear("o", hidden, queries, shape.o_bias),
        mlp_norm=tensors.vector("mlp_norm", i, hidden),
        gate=linear("gate", mlp, hidden, shape.mlp_bias),
        up=linear("up", mlp, hidden, shape.mlp_bias),
        down=linear("down", hidden, mlp, shape.mlp_bias),
        q_norm=tensors.vector("q_norm", i, shape.head_dim) if shape.qk_norm else None,
        k_norm=tensors.vector("k_norm", i, shape.head_dim) if shape.qk_norm else None,
    )


class _FromFile:
    """Tensors of a file, by role."""

    def __init__(self, source: Source, shape: ModelConfig, config: EngineConfig, device: str) -> None:
        self._source, self._shape, self._device = source, shape, device
        self._dtype = None if config.dtype == "auto" else getattr(torch, config.dtype)
        self._is_gguf = isinstance(source, GGUFFile)
        self._unused = set(source.tensors)

    def matrix(self, role: str, layer: int | None, rows: int, columns: int) -> Tensor | PackedWeight:
        name = self._name(role, layer, "weight")
        value = self._take(name)
        found = (value.out_features, value.in_features) if isinstance(value, PackedWeight) else tuple(value.shape)
        self._check(name, found, (rows, columns))
        if isinstance(value, PackedWeight) and self._dtype is None:
            return replace(value, data=self._rows(role, value.data).to(self._device))
        plain = dequantize(value) if isinstance(value, PackedWeight) else value
        return self._rows(role, plain).to(self._device, self._dtype or plain.dtype)

    def vector(self, role: str, layer: int | None, size: int, *, part: str = "weight") -> Tensor:
        name = self._name(role, layer, part)
        value = self._take(name)
        if isinstance(value, PackedWeight):
            raise CorruptModelError(f"{self._source.path}: {name} is packed; a plain vector is needed")
        self._check(name, tuple(value.shape), (size,))
        return self._rows(role, value).to(self._device, torch.float32)

    def rope_factors(self) -> Tensor | None:
        if not self._is_gguf or "rope_freqs.weight" not in self._unused:
            return None
        value = self._take("rope_freqs.weight")
        assert isinstance(value, Tensor)  # one-dimensional tensors are never packed
        self._check("rope_freqs.weight", tuple(value.shape), (self._shape.head_dim // 2,))
        return value

    def finish(self) -> None:
        unused = sorted(
            n for n in self._unused if not n.endswith("rotary_emb.inv_freq") and not (self._shape.tied and n == "lm_head.weight")
        )
        if unused:
            some = ", ".join(unused[:3]) + (f" and {len(unused) - 3} more" if len(unused) > 3 else "")
            raise CorruptModelError(
                f"{self._source.path}: tensors that a {self._shape.family.name} model of this config does not have: {some}"
            )

    def _name(self, role: str, layer: int | None, part: str) -> str:
        stem = (OUTER if layer is None else LAYER)[role][0 if self._is_gguf else 1]
        prefix = "" if layer is None else f"blk.{layer}." if self._is_gguf else f"model.layers.{layer}."
        return f"{prefix}{stem}.{part}"

    def _take(self, name: str) -> Tensor | PackedWeight:
        if name not in self._source.tensors:
            raise CorruptModelError(f"{self._source.path}: tensor {name} is missing")
        self._unused.discard(name)
        return self._source.load(name)

    def _check(self, name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
        if found != wanted:
            raise CorruptModelError(f"{self._source.path}: tensor {name} is of shape {found}; the config asks for {wanted}")

    def _rows(self, role: str, value: Tensor) -> Tensor:
        """Rows of q and k with each head's two halves one after the other, where the file has them in pairs."""
        if role not in ("q", "k") or not (self._is_gguf and self._shape.family.gguf_interleaved):
            return value
        heads = self._shape.n_heads if role == "q" else self._shape.n_kv_heads
        order = torch.arange(len(value)).view(heads, -1, 2).transpose(1, 2).flatten()
        rows = value.reshape(len(value), -1).view(torch.uint8).numpy()
        # numpy copies whole rows in this thread; torch would wake all of its own for each of these small copies
        return torch.from_numpy(rows[order.numpy()]).view(value.dtype).view(value.shape)


class _Shared:
    """One rank's share of what `whole` (on the CPU) gives, on the rank's device."""

    def __init__(self, whole: _Tensors, shape: ModelConfig, share: Share, device: str) -> None:
        self._whole, self._share, self._device = whole, share, device
        size, group = shape.head_dim, shape.n_heads // shape.n_kv_heads * shape.head_dim  # numbers of a KV head, of its query heads
        keys = range(share.kv_heads.start * size, share.kv_heads.stop * size)
        queries = range(share.kv_heads.start * group, share.kv_heads.stop * group)
        self._rows = {"embed": share.vocab, "head": share.vocab, "q": queries, "k": keys, "v": keys, "gate": share.mlp, "up": share.mlp}
        self._columns = {"o": queries, "down": share.mlp}

    def matrix(self, role: str, layer: int | None, rows: int, columns: int) -> Tensor | PackedWeight:
        value = self._whole.matrix(role, layer, rows, columns)
        data = value.data if isinstance(value, PackedWeight) else value
        if role in self._rows:
            data, inner = _run(data, self._rows[role], 0), columns
        else:
            wanted = self._columns[role]
            data, inner = _run(data, self._bytes(value, wanted) if isinstance(value, PackedWeight) else wanted, 1), len(wanted)
        data = data.contiguous().to(self._device)
        return replace(value, data=data, in_features=inner) if isinstance(value, PackedWeight) else data

    def _bytes(self, weight: PackedWeight, wanted: range) -> range:
        """Where a run of columns lies in a packed row."""
        block, size = next((block, size) for name, block, size in PACKED.values() if name == weight.kind)
        if wanted.start % block or (wanted.stop % block and wanted.stop != weight.in_features):
            raise ConfigError(
                f"tensor_parallel_size={self._share.size}: a share of this model's heads would begin or end inside a {weight.kind} block "
                f"of {block} numbers; use dtype='float32' (or another plain one), or another number of ranks"
            )
        return range(wanted.start // block * size, -(-wanted.stop // block) * size)

    def vector(self, role: str, layer: int | None, size: int, *, part: str = "weight") -> Tensor:
        value = self._whole.vector(role, layer, size, part=part).to(self._device)
        if part == "bias" and role in self._rows:
            return _run(value, self._rows[role], 0).contiguous()
        if part == "bias" and self._share.rank:  # o and down: the sum over the ranks must hold it once
            return torch.zeros_like(value)
        return value

    def rope_factors(self) -> Tensor | None:
        return self._whole.rope_factors()

    def finish(self) -> None:
        self._whole.finish()


def _run(x: Tensor, wanted: range, dim: int) -> Tensor:
    return x.narrow(dim, wanted.start, len(wanted))


class _Dummy:
    """Random weights, the same for the same shape and seed."""

    def __init__(self, shape: ModelConfig, config: EngineConfig, device: str) -> None:
        self._device = device
        self._dtype = torch.bfloat16 if config.dtype == "auto" else getattr(torch, config.dtype)
        self._generator = torch.Generator().manual_seed(config.random_seed or 0)

    def matrix(self, role: str, layer: int | None, rows: int, columns: int) -> Tensor:
        return torch.empty(rows, columns, dtype=self._dtype).normal_(std=0.02, generator=self._generator).to(self._device)

    def vector(self, role: str, layer: int | None, size: int, *, part: str = "weight") -> Tensor:
        fill = torch.zeros if part == "bias" else torch.ones
        return fill(size, dtype=torch.float32, device=self._device)

    def rope_factors(self) -> None:
        return None

    def finish(self) -> None:
        pass


# --- safetensors


class SafetensorsFolder:
    """The tensors of all safetensors files of a folder, mapped. Raises CorruptModelError, ModelNotFoundError."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self._files: dict[Path, Any] = {}
        self.tensors: dict[str, Path] = self._index() or self._scan()

    def load(self, name: str) -> Tensor:
        from safetensors import SafetensorError

        path = self.tensors[name]
        handle = self._open(path)
        try:
            value: Tensor = handle.get_tensor(name)
        except SafetensorError as error:
            raise CorruptModelError(f"{path}: tensor {name} cannot be read: {error}") from error
        if value.dtype not in FLOATS:
            raise UnsupportedError(f"{path}: tensor {name} is {value.dtype}; read are float32, float16, bfloat16", field="model_path")
        return value

    def _index(self) -> dict[str, Path] | None:
        index = self.path / "model.safetensors.index.json"
        if not index.is_file():
            return None
        try:
            shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            placed = {str(name): self.path / shard for name, shard in shards.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptModelError(f"{index}: not an index of shards: {error!r}") from error
        for path in sorted(set(placed.values())):
            if not path.is_file():
                raise CorruptModelError(f"{index}: shard {path.name} is missing; fetch the model again")
        return placed

    def _scan(self) -> dict[str, Path]:
        files = sorted(self.path.glob("*.safetensors"))
        if not files:
            pickled = any(self.path.glob("*.bin")) or any(self.path.glob("*.pth"))
            hint = "pickled weights are never read, convert them to safetensors" if pickled else "model.safetensors is needed"
            raise ModelNotFoundError(f"{self.path} holds no weights: {hint}; or load_format='dummy' for random ones")
        if len(files) > 1:
            raise CorruptModelError(
                f"{self.path}: {len(files)} safetensors files and no model.safetensors.index.json that says which belong together"
            )
        return dict.fromkeys(self._open(files[0]).keys(), files[0])

    def _open(self, path: Path) -> Any:
        from safetensors import SafetensorError, safe_open

        if path not in self._files:
            try:
                self._files[path] = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise CorruptModelError(f"{path}: truncated or damaged: {error}; fetch the file again") from error
        return self._files[path]
