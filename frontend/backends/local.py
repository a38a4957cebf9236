"""The engine in this process, as a backend for programs."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from ...runtime.protocol import GenerateRequest, SamplingParams, ScoreRequest
from .base import ChunkSink, Message, ScoreSink, Worker, compute

DEFAULT_MODEL = "smollm2-135m"


class Runtime:
    """An engine on a thread of its own. `with Runtime() as r:` or `shutdown()` ends it.

    Options are the fields of `runtime.config.EngineConfig`. Raises ConfigError for an unknown or bad option, ModelError
    for a model that cannot be read.
    """

    speculates = False
    joins = True

    def __init__(self, model_path: str = DEFAULT_MODEL, **options: Any) -> None:
        from ...runtime.config import EngineConfig
        from ...runtime.loop import EngineLoop

        self._loop: Any = EngineLoop.open(EngineConfig.of(model_path=model_path, **options))
        self._worker = Worker("ramet-runtime")

    @classmethod
    def on(cls, loop: Any) -> Runtime:
        """A runtime on an `EngineLoop` that is open already, and ends with it."""
        runtime = cls.__new__(cls)
        runtime._loop, runtime._worker = loop, Worker("ramet-runtime")
        return runtime

    @property
    def bos_id(self) -> int | None:
        return self._loop.tokenizer.bos_id

    @property
    def eos_ids(self) -> Sequence[int]:
        return tuple(self._loop.tokenizer.eos_ids)

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        """Token ids of `text`; with `add_special`, with what the tokenizer puts before a text."""
        return list(self._loop.tokenizer.encode(text, add_special=add_special))

    def decode(self, ids: Sequence[int]) -> str:
        return self._loop.tokenizer.decode(ids)

    def render_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str | None:
        tokenizer = self._loop.tokenizer
        if not tokenizer.chat_template:
            return None
        return tokenizer.render_chat(messages, add_generation_prompt=add_generation_prompt, continue_final_message=False)

    def submit(self, request: GenerateRequest, sink: ChunkSink) -> None:
        self._loop.submit(request, sink)

    def score(self, request: ScoreRequest, sink: ScoreSink) -> None:
        self._loop.score(request, sink)

    def abort(self, rid: str) -> None:
        self._loop.abort(rid)

    def defer(self, work: Callable[[], None], delay: float = 0.0) -> None:
        self._worker.post(work, delay)

    def pin(self, ids: Sequence[int], ttl: float, cache_salt: str = "") -> int:
        """See `base.Pinning`."""
        prefill = SamplingParams(max_new_tokens=0)
        compute(self, GenerateRequest(f"pin-{uuid.uuid4().hex}", tuple(ids), prefill, cache_salt=cache_salt))
        return self._loop.pin(ids, ttl, cache_salt)

    def unpin(self, ids: Sequence[int], cache_salt: str = "") -> bool:
        """See `base.Pinning`."""
        return self._loop.unpin(ids, cache_salt)

    def flush_cache(self) -> bool:
        """Empties the prefix cache; False while requests run."""
        return self._loop.flush_cache()

    def get_server_info(self) -> dict[str, Any]:
        return self._loop.server_info()

    def get_stats(self) -> dict[str, Any]:
        """Queues, pool and counters of the engine as they are now."""
        return self._loop.stats()

    def explain(self, prompt: str | Sequence[int], cache_salt: str = "", tenant: str = "") -> dict[str, Any]:
        """Why as much of a prompt (text or ids) is cached as is, and no more: `radix_cache.Explanation` as a dict, with the texts of its ids."""
        ids = self.encode(prompt, add_special=True) if isinstance(prompt, str) else list(prompt)
        return self._loop.explain(ids, cache_salt, tenant)

    def get_tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self._loop.tokenizer

    def generate(self, prompt: str | list[str], sampling_params: Any = None, **options: Any) -> Any:
        """As `Engine.generate`."""
        from ..engine import generate

        return generate(self, prompt, sampling_params, **options)

    async def async_generate(self, prompt: str | list[str], sampling_params: Any = None, **options: Any) -> Any:
        """As `Engine.async_generate`."""
        from ..engine import async_generate

        return await async_generate(self, prompt, sampling_params, **options)

    def cache_prefix(self, prefix: str) -> int:
        """Computes `prefix` so that prompts which begin with it find it cached. Returns how many tokens it has."""
        result = self.generate(prefix, {"max_new_tokens": 0})
        return result["meta_info"]["prompt_tokens"]

    def shutdown(self) -> None:
        """Ends the engine; what still runs gets an EngineClosedError."""
        self._loop.close()
        self._worker.close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
