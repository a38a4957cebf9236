"""What a server is made of besides itself: the engine that the worker opens, and the tokenizer that the HTTP process uses.

`factory` in a ServerConfig names a module with these two functions, so that tests serve an engine without a model.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..config import EngineConfig
from ..protocol import Chunk, GenerateRequest, ScoreRequest, Scores

DEFAULT_FACTORY = "ramet.runtime.server.parts"


class Loop(Protocol):
    """An engine on its own thread, as `runtime.loop.EngineLoop` is one. Methods may be called from any thread."""

    def submit(self, request: GenerateRequest, sink: Callable[[Chunk], None]) -> None:
        """Validates, encodes, compiles and queues. Raises RequestError at once; `sink` gets the chunks, one by one."""

    def score(self, request: ScoreRequest, sink: Callable[[Scores], None]) -> None: ...

    def abort(self, rid: str) -> None: ...

    def compile(self, kind: Any, source: str, whitespace: str = "json") -> None: ...

    def flush_cache(self) -> bool: ...

    def server_info(self) -> dict[str, Any]: ...

    def tree(self, depth: int, min_tokens: int) -> dict[str, Any]: ...

    def stats(self) -> dict[str, Any]: ...

    def close(self) -> None: ...


class Text(Protocol):
    """The tokenizer, as `runtime.tokenizer.Tokenizer` is one. Used from several threads."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def eos_ids(self) -> frozenset[int]: ...

    @property
    def chat_template(self) -> str | None: ...

    def encode(self, text: str, *, add_special: bool = False) -> Sequence[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def token_text(self, token_id: int) -> str: ...

    def render_chat(self, messages: Sequence[dict[str, Any]], **options: Any) -> str: ...

    def encode_chat(self, messages: Sequence[dict[str, Any]], **options: Any) -> Sequence[int]: ...


def open_loop(config: EngineConfig) -> Loop:
    """The engine, warm: the first grammar compiles the native automaton on a new machine, which may take half a minute."""
    from ..loop import EngineLoop

    loop = EngineLoop.open(config)
    loop.compile("choice", '["a"]')
    return loop


def open_tokenizer(config: EngineConfig) -> Text:
    from ..hub import resolve
    from ..tokenizer_files import load_tokenizer

    return load_tokenizer(resolve(config.model_path), config)


def factory(name: str) -> Any:
    """The module with `open_loop` and `open_tokenizer`."""
    return importlib.import_module(name)
