"""From an `EngineConfig` to a model that can compute: files, weights, kernels, pool, tokenizer."""
from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .config import EngineConfig
from .model_runner import ModelRunner, context_limit, pool_slots

if TYPE_CHECKING:
    from .tokenizer import Tokenizer


def open_runner(config: EngineConfig) -> tuple[ModelRunner, Tokenizer]:
    """Finds (or pulls), reads and places everything. Raises ModelError, ConfigError."""
    import torch

    from ..kernels import get_kernels
    from ..radix_cache.pool import KVPool
    from .hub import resolve
    from .models.llama import LlamaModel
    from .tokenizer import Tokenizer
    from .weights import load_model

    files = resolve(config.model_path)
    tokenizer = Tokenizer.open(resolve(config.tokenizer_path) if config.tokenizer_path else files, chat_template=_template(config))
    loaded = load_model(files, config)
    kernels = get_kernels(config.device, config.kernels, config.dtype, config.threads)
    shape = loaded.config
    dtype = torch.float32 if config.dtype == "float32" or kernels.name == "reference" else torch.bfloat16
    context = context_limit(config, shape)
    slots = pool_slots(config, context, shape.kv_bytes(dtype.itemsize))
    pool = KVPool(layers=shape.n_layers, slots=slots, kv_heads=shape.n_kv_heads, head_dim=shape.head_dim, dtype=dtype)
    return ModelRunner(LlamaModel(shape, loaded.weights, kernels), pool, kernels, context), tokenizer


def _template(config: EngineConfig) -> str | None:
    """A chat template given as a file or as text."""
    text = config.chat_template
    if text is not None and "{" not in text:
        return Path(text).read_text(encoding="utf-8")
    return text
