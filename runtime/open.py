"""From an `EngineConfig` to a model that can compute: files, weights, kernels, pool, tokenizer."""
from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .config import EngineConfig
from .device import check_device, device_memory
from .errors import ConfigError
from .model_runner import ModelRunner, Runner, host_memory

if TYPE_CHECKING:
    from ..kernels.interface import Kernels
    from .hub import ModelFiles
    from .models.share import Ranks
    from .tokenizer import Tokenizer
    from .weights import LoadedModel


def open_runner(config: EngineConfig) -> tuple[Runner, Tokenizer]:
    """Finds (or pulls), reads and places everything. Raises ModelError, ConfigError; EngineClosedError where a rank does not start."""
    _import_torch()
    from .hub import resolve
    from .tokenizer_files import load_tokenizer

    device = check_device(config)
    files = resolve(config.model_path)
    tokenizer = load_tokenizer(files, config)
    kernels = open_kernels(config)
    if kernels.name == "reference" and config.kernels == "auto":
        print(f"ramet: slow kernels: {kernels.why}", file=sys.stderr)
    if config.tensor_parallel_size > 1:
        from .parallel.runner import open_parallel

        return open_parallel(files, config, kernels), tokenizer
    part = open_part(files, config, kernels)
    slots = part.slots(config)
    if device != "cpu":
        print(f"ramet: {kernels.name} kernels on {device}: a KV pool of {slots} tokens, {part.gib(slots):.1f} GiB", file=sys.stderr)
    return part.runner(slots), tokenizer


def open_kernels(config: EngineConfig) -> Kernels:
    """The peer that `config` names, with its part of the threads where several ranks compute. Raises ConfigError."""
    from ..kernels import KernelError, get_kernels
    from ..kernels.cpu.peer import usable_cores

    threads, ranks = config.threads, config.tensor_parallel_size
    if ranks > 1:
        threads = max(1, (threads or usable_cores()) // ranks)
    try:
        return get_kernels(check_device(config), config.kernels, config.dtype, threads)
    except KernelError as error:
        raise ConfigError(str(error)) from error


@dataclass(frozen=True, slots=True)
class Part:
    """A model's weights, or a rank's share of them, in their place, and what computes with them."""

    loaded: LoadedModel
    kernels: Kernels
    device: str

    def slots(self, config: EngineConfig) -> int:
        """How many fit. On a CPU the ranks' pools lie in the same memory: a slot is that of the whole model. Raises ConfigError."""
        memory = host_memory(self.loaded.config.context_length) if self.device == "cpu" else device_memory(self.device)
        return memory.slots(config.max_total_tokens, self._bytes_per_slot)

    def gib(self, slots: int) -> float:
        return slots * self._bytes_per_slot / 2**30

    @property
    def _bytes_per_slot(self) -> int:
        return self.loaded.config.kv_bytes(self.kernels.kv_dtype.itemsize)

    def runner(self, slots: int, ranks: Ranks | None = None) -> ModelRunner:
        """With a pool for the KV heads that it computes."""
        from ..radix_cache.pool import KVPool
        from .models.llama import LlamaModel

        shape, weights, kernels = self.loaded.config, self.loaded.weights, self.kernels
        pool = KVPool(
            layers=shape.n_layers, slots=slots, kv_heads=weights.n_kv_heads, head_dim=shape.head_dim, dtype=kernels.kv_dtype, device=self.device
        )
        staged = kernels.name == "triton" or self.device != "cpu"  # interpreted, too: the same way as on a GPU
        return ModelRunner(LlamaModel(shape, weights, kernels, ranks), pool, kernels, shape.context_length, staged=staged)


def open_part(files: ModelFiles, config: EngineConfig, kernels: Kernels, rank: int = 0) -> Part:
    """Reads what a rank holds. Raises ModelError, ConfigError."""
    from .weights import load_model

    device = check_device(config)
    if device != "cpu" and config.dtype == "auto":  # expanded before the pool takes what is free; no GPU kernel reads packed weights
        config = replace(config, dtype=str(kernels.activation_dtype).removeprefix("torch."))
    return Part(load_model(files, config, device=device, rank=rank), kernels, device)


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
