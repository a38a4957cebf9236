"""For a server process: the real engine on the fake model."""

from __future__ import annotations

import torch
from fakes import FakeRunner, byte_tokenizer, fake_engine

from ramet.runtime.batch import ForwardBatch
from ramet.runtime.config import EngineConfig
from ramet.runtime.loop import EngineLoop
from ramet.runtime.tokenizer import Tokenizer


def open_loop(config: EngineConfig) -> EngineLoop:
    engine = fake_engine(4096, 2048)
    if config.model_path == "letters":
        _write_letters_only(engine.runner)
    return EngineLoop(engine)


def _write_letters_only(runner: FakeRunner) -> None:
    """For clients that get text: what the model writes turns into the same ids again."""
    forward = runner.forward

    def letters(batch: ForwardBatch) -> torch.Tensor:
        logits = forward(batch)
        logits[:, :32] = logits[:, 127:] = -30.0
        return logits

    runner.forward = letters  # type: ignore[method-assign]


def open_tokenizer(config: EngineConfig) -> Tokenizer:
    return byte_tokenizer()
