"""What every token id writes, as raw bytes: the only view of a token that masks and states ever use."""
from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from typing import Any

from .errors import GrammarError


class Vocabulary:
    """The bytes of every id (None: special or padding, never written by a grammar) and the ids that end a text. Immutable."""

    def __init__(self, token_bytes: list[bytes | None], eos_ids: Iterable[int]) -> None:
        self.token_bytes = tuple(token_bytes)
        self.eos_ids = frozenset(eos_ids)
        if not self.token_bytes:
            raise GrammarError("a vocabulary needs at least one token")
        if bad := [i for i in self.eos_ids if not 0 <= i < len(self.token_bytes)]:
            raise GrammarError(f"eos id {min(bad)} is outside the vocabulary of {len(self.token_bytes)} tokens")
        if self.eos_ids:
            self.token_bytes = tuple([None if i in self.eos_ids else text for i, text in enumerate(self.token_bytes)])
        self.views: dict[Any, Any] = {}  # what engines make of it on first use, by their own keys

    def __len__(self) -> int:
        return len(self.token_bytes)

    @property
    def words(self) -> int:
        """32-bit words of one mask row."""
        return (len(self.token_bytes) + 31) // 32

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, *, eos_ids: Iterable[int] | None = None) -> Vocabulary:
        """From a transformers fast tokenizer, a `tokenizers.Tokenizer`, or a tiktoken `Encoding`.

        Byte-level BPE and sentencepiece with byte fallback are undone to raw bytes. `eos_ids` overrides the tokenizer's own;
        a bare `tokenizers.Tokenizer` does not know its own, so there it must be given.
        Raises GrammarError for a tokenizer whose tokens do not say their bytes (WordPiece)."""
        if hasattr(tokenizer, "decode_single_token_bytes"):
            return cls._from_tiktoken(tokenizer, eos_ids)
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        if not hasattr(backend, "get_vocab") or not hasattr(backend, "decoder"):
            raise GrammarError(f"{type(tokenizer).__name__} is not a fast tokenizer: pass one that the `tokenizers` library backs, or tiktoken")
        if eos_ids is None:
            known = getattr(tokenizer, "eos_token_id", None)
            if known is None:
                raise GrammarError("the tokenizer names no end-of-text token: pass eos_ids")
            eos_ids = known if isinstance(known, (list, tuple)) else [known]
        added = backend.get_added_tokens_decoder()
        special = {i for i, token in added.items() if token.special} | set(getattr(tokenizer, "all_special_ids", ()))
        undo = _decoder_of(backend)
        vocab = backend.get_vocab(with_added_tokens=True)
        texts: list[bytes | None] = [None] * (max(vocab.values()) + 1)
        for text, i in vocab.items():
            if i not in special:
                texts[i] = text.encode() if i in added else undo(text)
        return cls(texts, eos_ids)

    @classmethod
    def _from_tiktoken(cls, encoding: Any, eos_ids: Iterable[int] | None) -> Vocabulary:
        special = {encoding.encode_single_token(text) for text in encoding.special_tokens_set}
        texts: list[bytes | None] = []
        for i in range(encoding.n_vocab):
            try:
                texts.append(None if i in special else encoding.decode_single_token_bytes(i))
            except KeyError:  # a hole in the numbering
                texts.append(None)
        return cls(texts, [encoding.eot_token] if eos_ids is None else eos_ids)


def _decoder_of(backend: Any) -> Any:
    """A function from a vocabulary entry to the bytes it stands for."""
    parts = [backend.decoder, backend.pre_tokenizer]
    described = json.dumps([json.loads(part.__getstate__()) for part in parts if part is not None])
    if '"ByteLevel"' in described:
        return _from_byte_level
    if '"WordPiece"' in described:
        raise GrammarError("WordPiece tokens do not say their bytes: spaces are guessed when decoding")
    if '"Metaspace"' in described or '"ByteFallback"' in described or "\\u2581" in described:
        return _from_sentencepiece
    return str.encode


@cache
def _byte_of_character() -> dict[str, int]:
    """The byte-level BPE alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 on, in order (GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + n): b for n, b in enumerate(others)}


def _from_byte_level(text: str) -> bytes:
    table = _byte_of_character()
    try:
        return bytes([table[c] for c in text])
    except KeyError:
        return text.encode()  # an entry outside the alphabet is plain text


def _from_sentencepiece(text: str) -> bytes:
    if re.fullmatch(r"<0x[0-9A-Fa-f]{2}>", text):
        return bytes([int(text[3:5], 16)])
    return text.replace("\u2581", " ").encode()
