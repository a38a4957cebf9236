"""Options of an engine. Standard library only; names are those that SGLang's users know where the meaning is the same."""
from __future__ import annotations

from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from .errors import ConfigError

DEFAULT_MODEL = "smollm2-135m"

CHOICES = {
    "load_format": ("auto", "dummy"),
    "dtype": ("auto", "float32", "bfloat16", "float16"),
    "device": ("auto", "cpu", "cuda"),
    "kernels": ("auto", "reference", "cpu", "triton"),
    "schedule_policy": ("lpm", "fcfs"),
}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything an in-process engine is opened with. Raises ConfigError naming the field."""

    # which model, and how it is read
    model_path: str = DEFAULT_MODEL  # a known name, a folder, a .gguf file, or a hub id
    tokenizer_path: str | None = None  # default: beside the model
    load_format: str = "auto"
    dtype: str = "auto"  # activations and plain weights; "auto": what is fastest here, packed weights used as they are
    device: str = "auto"
    kernels: str = "auto"
    threads: int | None = None  # default: the cores this process may use
    chat_template: str | None = None  # Jinja text or a file; default: the tokenizer's own
    trust_remote_code: bool = False  # refused when True: no code from model folders is ever run

    # how much is kept and computed at a time
    context_length: int | None = None  # default: the model's
    max_total_tokens: int | None = None  # KV slots of the pool; default: from free memory
    max_running_requests: int = 256
    max_queued_requests: int = 100_000
    chunked_prefill_size: int = 512  # token budget of one step, decode rows included

    # how it is scheduled and cached
    schedule_policy: str = "lpm"
    disable_radix_cache: bool = False
    jump_forward: bool = True

    random_seed: int | None = None  # seeds of requests that bring none; None: drawn from the system
    served_model_name: str | None = None

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise ConfigError(f"{name}={value!r}: choose one of {', '.join(choices)}")
        for name in ("threads", "context_length", "max_total_tokens", "max_running_requests", "max_queued_requests", "chunked_prefill_size"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ConfigError(f"{name}={value!r}: a whole number of at least 1 is needed")
        if self.trust_remote_code:
            raise ConfigError("trust_remote_code=True: Ramet never runs code from a model's folder; use a supported architecture")

    @classmethod
    def of(cls, **options: Any) -> EngineConfig:
        """From keyword options; an unknown one raises ConfigError with the nearest known name."""
        known = [f.name for f in fields(cls)]
        for name in options:
            if name not in known:
                near = get_close_matches(name, known, 1)
                raise ConfigError(f"unknown option {name!r}" + (f": did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"))
        return cls(**options)
