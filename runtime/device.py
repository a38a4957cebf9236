"""A device beside the host: whether there is one, how a pass gets there, how much of its memory the KV pool takes."""
from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING

from .config import EngineConfig
from .errors import ConfigError

if TYPE_CHECKING:
    import torch

    from ..kernels.interface import DecoderInput

SHARE = 0.85  # of what is free beside the weights; the rest is for a pass's activations and logits
WORDS = 4  # tensors begin at multiples of 16 bytes: Triton compiles a kernel anew for pointers that do not


@dataclass(frozen=True, slots=True)
class Memory:
    """Of what a KV pool is made: bytes that are free, which share of them it takes, and its most slots when nobody says how many."""

    free: int
    share: float
    most: int | None = None

    def slots(self, wanted: int | None, bytes_per_slot: int) -> int:
        """How many slots the pool gets, `wanted` being `max_total_tokens`. Raises ConfigError where what was asked for cannot fit."""
        if wanted is not None:
            if wanted * bytes_per_slot > self.free:
                raise ConfigError(
                    f"max_total_tokens={wanted}: needs {wanted * bytes_per_slot / 2**30:.1f} GiB, "
                    f"{self.free / 2**30:.1f} GiB are free; at most {self.free // bytes_per_slot} fit"
                )
            return wanted
        slots = int(self.free * self.share) // bytes_per_slot
        if slots < 1:
            raise ConfigError(f"no memory for a KV pool: {self.free / 2**30:.2f} GiB are free")
        return slots if self.most is None else min(self.most, slots)


def check_device(config: EngineConfig) -> str:
    """Where the engine computes, as torch names it: "cpu", also for "auto", or "cuda". Raises ConfigError where there is no such thing."""
    if config.device != "cuda":
        return "cpu"
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        raise ConfigError("device='cuda': torch was built without CUDA; install a torch that was built with it, or leave device out")
    if not torch.cuda.is_available():
        raise ConfigError("device='cuda': no GPU seen by torch (nvidia-smi shows whether the driver sees one); or leave device out")
    if config.tensor_parallel_size > 1:
        raise ConfigError(f"tensor_parallel_size={config.tensor_parallel_size}: several ranks have not met on GPUs yet; use device='cpu', or 1")
    if config.cache_dir or config.host_cache_bytes:
        raise ConfigError("device='cuda': KV of a GPU is not written out yet; leave cache_dir and host_cache_bytes out")
    return "cuda"


def device_memory(device: str) -> Memory:
    """What is free on a GPU now, the weights being there. All of it may be used: unlike a host's, nobody else waits for it."""
    import torch

    torch.cuda.empty_cache()  # what reading the weights has left
    return Memory(torch.cuda.mem_get_info(device)[0], SHARE)


def staged(batch: DecoderInput, device: torch.device) -> DecoderInput:
    """The pass with its rows and slot tables on the device, views of one buffer that one copy has filled.

    From a page-locked buffer the copy is queued, and the host does not wait for it. What only plans the pass (which rows are whose, how
    long contexts are, which segments are shared) stays on the host, where peers read it."""
    import torch

    parts = (batch.input_ids, batch.positions, batch.write_slots, batch.logit_rows, batch.attn.tables)
    sizes = [-(-part.numel() // WORDS) * WORDS for part in parts]
    begins = list(accumulate(sizes, initial=0))
    host = torch.empty(begins[-1], dtype=torch.int32, pin_memory=device.type == "cuda")
    for part, begin in zip(parts, begins, strict=False):
        host[begin : begin + part.numel()] = part.reshape(-1)
    there = host.to(device, non_blocking=True)
    input_ids, positions, write_slots, logit_rows, tables = (
        there[begin : begin + prod(part.shape)].view(part.shape) for part, begin in zip(parts, begins, strict=False)
    )
    return replace(
        batch, input_ids=input_ids, positions=positions, write_slots=write_slots, logit_rows=logit_rows, attn=replace(batch.attn, tables=tables)
    )
