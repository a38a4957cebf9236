"""For a server process: the real engine on the fake model."""

from __future__ import annotations

from fakes import byte_tokenizer, fake_engine

from ramet.runtime.config import EngineConfig
from ramet.runtime.loop import EngineLoop
from ramet.runtime.tokenizer import Tokenizer


def open_loop(config: EngineConfig) -> EngineLoop:
    return EngineLoop(fake_engine(4096, 2048))


def open_tokenizer(config: EngineConfig) -> Tokenizer:
    return byte_tokenizer()
