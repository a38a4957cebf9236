"""From an `EngineConfig` to a model that can compute: files, weights, kernels, pool, tokenizer."""
from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from .config import EngineConfig
from .errors import ConfigError
from .model_runner import ModelRunner, pool_slots

if TYPE_CHECKING:
    from .tokenizer import Tokenizer


def open_runner(config: EngineConfig) -> tuple[ModelRunner, Tokenizer]:
    """Finds (or pulls), reads and places everything. Raises ModelError, ConfigError."""
    _import_torch()
    from ..kernels import KernelError, get_kernels
    from ..radix_cache.pool import KVPool
    from .hub import resolve
    from .models.llama import LlamaModel
    from .tokenizer_files import load_tokenizer
    from .weights import load_model

    if config.device == "cuda":
        raise ConfigError("device='cuda': the GPU kernels have not run on a card yet; leave device out, or use device='cpu'")
    files = resolve(config.model_path)
    tokenizer = load_tokenizer(files, config)
    try:
        kernels = get_kernels("cpu", config.kernels, config.dtype, config.threads)
    except KernelError as error:
        raise ConfigError(str(error)) from error
    if kernels.name == "reference" and config.kernels == "auto":
        print(f"ramet: slow kernels: {kernels.why}", file=sys.stderr)
    loaded = load_model(files, config)
    shape = loaded.config
    slots = pool_slots(config, shape.context_length, shape.kv_bytes(kernels.kv_dtype.itemsize))
    pool = KVPool(layers=shape.n_layers, slots=slots, kv_heads=shape.n_kv_heads, head_dim=shape.head_dim, dtype=kernels.kv_dtype)
    return ModelRunner(LlamaModel(shape, loaded.weights, kernels), pool, kernels, shape.context_length), tokenizer


def _import_torch() -> None:
    """torch's threads would spin between its few small operations and take the core from our kernels. Its OpenMP library reads the
    policy once, when it is loaded; left in the environment, it would slow the OpenMP programs that the user starts."""
    if "torch" in sys.modules or "OMP_WAIT_POLICY" in os.environ:
        return
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    try:
        import torch  # noqa: F401
    finally:
        del os.environ["OMP_WAIT_POLICY"]
