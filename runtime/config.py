"""Options of an engine. Standard library only; names are those that SGLang's users know where the meaning is the same."""
from __future__ import annotations

from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from .errors import ConfigError

DEFAULT_MODEL = "smollm2-135m"

CHOICES = {
    "load_format": ("auto", "dummy"),
    "dtype": ("auto", "float32", "bfloat16", "float16"),
    "device": ("auto", "cpu", "cuda"),
    "kernels": ("auto", "reference", "cpu", "triton"),
    "eviction_policy": ("lru", "lfu", "slru", "cost-aware"),
    "schedule_policy": ("lpm", "fcfs", "dfs", "priority", "shortest"),
}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything an in-process engine is opened with. Raises ConfigError naming the field."""

    # which model, and how it is read
    model_path: str = DEFAULT_MODEL  # a known name, a folder, a .gguf file, or a hub id
    tokenizer_path: str | None = None  # default: beside the model
    load_format: str = "auto"
    dtype: str = "auto"  # activations and plain weights; "auto": what is fastest here, packed weights used as they are
    device: str = "auto"  # "auto" is the CPU; "cuda" is tested under Triton's interpreter only, and has not run on a card yet
    kernels: str = "auto"
    threads: int | None = None  # default: the cores this process may use
    tensor_parallel_size: int = 1  # ranks that compute the model together, each a process with its own device (or its part of the threads)
    chat_template: str | None = None  # Jinja text or a file; default: the tokenizer's own
    trust_remote_code: bool = False  # refused when True: no code from model folders is ever run

    # how much is kept and computed at a time
    context_length: int | None = None  # default: the model's
    max_total_tokens: int | None = None  # KV slots of the pool; default: from free memory
    max_running_requests: int = 256
    max_queued_requests: int = 100_000
    chunked_prefill_size: int | None = None  # tokens of one step, decode rows included; None: 512, fewer beside streams: docs/scheduler.md

    # what is kept of the cache outside the pool
    cache_dir: str | None = None  # a folder: KV is kept there over restarts, and where it was evicted
    cache_dir_bytes: int = 4 << 30  # of one model
    host_cache_bytes: int = 0  # host memory for evicted KV; on a CPU the pool itself is host memory, so off

    # how it is scheduled and cached
    schedule_policy: str = "lpm"  # who is admitted next: docs/scheduler.md
    schedule_conservativeness: float = 1.0  # more: fewer requests at a time, and fewer that must give way when answers are long
    tpot_target: float | None = None  # milliseconds between the tokens of a stream, kept by smaller steps and fewer streams
    disable_radix_cache: bool = False
    eviction_policy: str = "lru"  # which cached prefixes give way first: docs/cache.md
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
        for name, least in (("cache_dir_bytes", 1), ("host_cache_bytes", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(f"{name}={value!r}: a whole number of bytes, at least {least}, is needed")
        ranks = self.tensor_parallel_size
        if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 1:
            raise ConfigError(f"tensor_parallel_size={ranks!r}: a whole number of at least 1 is needed")
        if ranks > 1 and (self.cache_dir or self.host_cache_bytes):
            raise ConfigError(f"tensor_parallel_size={ranks}: KV of several ranks is not written out; leave cache_dir and host_cache_bytes out")
        if self.cache_dir is not None and not self.cache_dir.strip():
            raise ConfigError("cache_dir is empty: name a folder, or leave it out")
        if not 0 <= self.schedule_conservativeness < float("inf"):
            raise ConfigError(f"schedule_conservativeness={self.schedule_conservativeness!r}: a number of at least 0 is needed")
        if self.tpot_target is not None and not 0 < self.tpot_target < float("inf"):
            raise ConfigError(f"tpot_target={self.tpot_target!r}: a number of milliseconds above 0 is needed")
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


SERVER_CHOICES = {"log_level": ("critical", "error", "warning", "info", "debug"), "log_format": ("json", "text")}


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Everything a server is started with besides its engine. Raises ConfigError naming the field. Times are in seconds."""

    engine: EngineConfig = EngineConfig()

    # where it listens, and who may ask
    host: str = "127.0.0.1"
    port: int = 30000  # 0: a free one, printed at start
    api_key: str | None = field(default=None, repr=False)
    public_page: bool = False  # with an api_key: serve the page's own files without it
    cors_origins: tuple[str, ...] = ()
    allow_request_templates: bool = False

    # how much one request may ask for
    max_body_bytes: int = 16 * 1024 * 1024
    max_prompts: int = 256  # prompts in one body
    max_n: int = 64
    body_timeout: float = 30.0  # for the headers and the body of a request to arrive
    stall_timeout: float = 60.0  # for a reader to take the next piece of a stream
    request_timeout: float | None = None  # deadline of requests that bring none
    max_sessions: int = 1024
    session_ttl: float = 600.0  # of a session that nobody uses

    # how it answers, starts and ends
    stream_interval: int = 1  # tokens an event of a stream carries at least
    incremental_streaming_output: bool = False  # /generate streams deltas instead of the text so far
    drain_timeout: float = 30.0  # for running requests at SIGTERM
    worker_restarts: int = 1
    watchdog_timeout: float = 300.0  # without an answer from the step loop, after which the engine process gives up

    log_level: str = "info"
    log_format: str = "text"
    log_requests: bool = True
    factory: str = "ramet.runtime.server.parts"  # module that opens the engine and the tokenizer; another one in tests

    def __post_init__(self) -> None:
        for name, choices in SERVER_CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name}={getattr(self, name)!r}: choose one of {', '.join(choices)}")
        for name in ("max_body_bytes", "max_prompts", "max_n", "max_sessions", "stream_interval"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)!r}: at least 1 is needed")
        for name in ("body_timeout", "stall_timeout", "session_ttl", "request_timeout", "watchdog_timeout"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name}={value!r}: a number of seconds above 0 is needed")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port={self.port!r}: a number from 0 to 65535 is needed")
        if self.drain_timeout < 0 or self.worker_restarts < 0:
            raise ConfigError("drain_timeout and worker_restarts may not be negative")
        if self.api_key is not None and not self.api_key.strip():
            raise ConfigError("api_key is empty: leave it out, or give one")
