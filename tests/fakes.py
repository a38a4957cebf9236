"""A model and a tokenizer that need no download and make every mistake of the engine visible.

FakeRunner stores the token ids themselves as "KV" and reads the context back through the slot tables. Its logits are a
hash of what it read: a wrong slot, a stale slot, a wrong position or a neighbour's row changes the answer.
"""
from __future__ import annotations

import hashlib

import numpy as np
import tokenizers
import torch

from ramet.runtime.batch import ForwardBatch, build_batch
from ramet.runtime.config import EngineConfig
from ramet.runtime.engine import Engine
from ramet.runtime.request import Plan
from ramet.runtime.tokenizer import _BYTE_OF, Tokenizer

EOS = 256


def byte_tokenizer() -> Tokenizer:
    """ids 0..255 are the bytes; 256 is end-of-text."""
    of_byte = {b: c for c, b in _BYTE_OF.items()}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({chr(of_byte[b]): b for b in range(256)}, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens([tokenizers.AddedToken("<eos>", special=True, normalized=False)])
    return Tokenizer(backend, eos_ids=frozenset({EOS}))


class FakeRunner:
    """`vocab_size` logits from a hash of the context. `fail_at`: forward passes (counted from 1) that raise."""

    def __init__(self, slots: int = 512, context_length: int = 2048, vocab_size: int = 257, fail_at: frozenset[int] = frozenset()) -> None:
        self.vocab_size, self.context_length, self.slots = vocab_size, context_length, slots
        self.fail_at = fail_at
        self.token = np.full(slots, -1, dtype=np.int64)
        self.position = np.full(slots, -1, dtype=np.int64)
        self.passes = 0
        self.rows = 0

    def build(self, plan: Plan) -> ForwardBatch:
        return build_batch(plan)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        self.passes += 1
        if self.passes in self.fail_at:
            raise RuntimeError("the fake model was told to fail")
        inputs, meta = batch.inputs, batch.inputs.attn
        self.rows += len(inputs.input_ids)
        slots = inputs.write_slots.numpy()
        assert len(set(slots.tolist())) == len(slots), "two rows write one slot"
        self.token[slots] = inputs.input_ids.numpy()
        self.position[slots] = inputs.positions.numpy()
        self._check_segments(meta)
        owner = np.repeat(np.arange(len(meta.context_len)), np.diff(meta.query_start.numpy()))
        logits = np.empty((len(inputs.logit_rows), self.vocab_size), dtype=np.float32)
        for i, row in enumerate(inputs.logit_rows.tolist()):
            stop = int(inputs.positions[row]) + 1
            table = meta.tables[owner[row], :stop].numpy()
            assert (self.position[table] == np.arange(stop)).all(), "a slot holds another position's KV"
            logits[i] = fake_logits(self.token[table], self.vocab_size)
        return torch.from_numpy(logits)

    def copy_kv(self, source: np.ndarray, target: np.ndarray, shifts: np.ndarray) -> None:
        assert not set(source.tolist()) & set(target.tolist())
        self.token[target] = self.token[source]
        self.position[target] = self.position[source] + shifts

    def mask_logits(self, logits: torch.Tensor, bits: torch.Tensor) -> None:
        words = bits.numpy().view(np.uint32)
        allowed = (words[:, :, None] >> np.arange(32, dtype=np.uint32)) & 1
        logits[torch.from_numpy(allowed.reshape(len(words), -1)[:, : self.vocab_size] == 0)] = -torch.inf

    def describe(self) -> str:
        return "fake: tests only"

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass

    @staticmethod
    def _check_segments(meta) -> None:
        if meta.segments is None:
            return
        s = meta.segments
        covered = np.zeros_like(s.tail_start.numpy())
        for i in range(len(s.start)):
            start, stop, owner = int(s.start[i]), int(s.stop[i]), int(s.owner[i])
            for member in s.members[int(s.member_start[i]) : int(s.member_start[i + 1])].tolist():
                assert (meta.tables[member, start:stop] == meta.tables[owner, start:stop]).all(), "members see other slots"
                rows = int(meta.query_start[member + 1] - meta.query_start[member])
                assert stop <= int(meta.context_len[member]) - rows, "a row does not see all of its segment"
                covered[member] += stop - start
        assert (covered == s.tail_start.numpy()).all(), "segments do not tile the shared part"


def fake_logits(ids: np.ndarray, vocab_size: int) -> np.ndarray:
    """The logits that follow a context, by FakeRunner's rule: (vocab_size,) float32."""
    digest = hashlib.blake2b(np.ascontiguousarray(ids, dtype=np.int64).tobytes(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest, "little")).standard_normal(vocab_size).astype(np.float32)


def fake_engine(slots: int = 512, context_length: int = 2048, **config) -> Engine:
    fail_at = config.pop("fail_at", frozenset())
    return Engine(FakeRunner(slots, context_length, fail_at=fail_at), byte_tokenizer(), EngineConfig(**config))
