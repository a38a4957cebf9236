"""For a server process: the real engine on the fake model, with a sentencepiece vocabulary, or with passes that take long.

`--model-path` says which: a .gguf file whose vocabulary is used, or "slow-SECONDS", where each pass of 32 rows or more takes so long."""

from __future__ import annotations

import time

from fakes import FakeRunner, byte_tokenizer

from ramet.runtime.config import EngineConfig
from ramet.runtime.engine import Engine
from ramet.runtime.hub import resolve
from ramet.runtime.loop import EngineLoop
from ramet.runtime.tokenizer import Tokenizer
from ramet.runtime.tokenizer_files import load_tokenizer


class SlowRunner(FakeRunner):
    def __init__(self, seconds: float, slots: int, context_length: int, vocab_size: int) -> None:
        super().__init__(slots, context_length, vocab_size)
        self.seconds = seconds

    def forward(self, batch):
        if len(batch.inputs.input_ids) >= 32:
            time.sleep(self.seconds)
        return super().forward(batch)


def open_loop(config: EngineConfig) -> EngineLoop:
    tokenizer = open_tokenizer(config)
    seconds = float(config.model_path.removeprefix("slow-")) if config.model_path.startswith("slow-") else 0.0
    runner = SlowRunner(seconds, config.max_total_tokens or 4096, config.context_length or 2048, tokenizer.vocab_size)
    return EngineLoop(Engine(runner, tokenizer, config))


def open_tokenizer(config: EngineConfig) -> Tokenizer:
    return load_tokenizer(resolve(config.model_path), config) if config.model_path.endswith(".gguf") else byte_tokenizer()
