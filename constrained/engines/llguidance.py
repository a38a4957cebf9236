"""llguidance behind the Automaton protocol: context-free grammars, in its Lark dialect or as EBNF (GBNF, `root ::= ...`).

A state is an LLMatcher that is never changed: to move is to copy and consume. It does not know how far the end is, so `need` is None
and budgets do not narrow its masks. Where text is forced, its own mask holds only the token that its tokenizer would choose; here
all tokens that write the text or a part of it are allowed, as everywhere.
"""
from __future__ import annotations

import ctypes
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..errors import GrammarError, LimitError

if TYPE_CHECKING:
    from ..compiler import Automaton, Limits
    from ..grammar import GrammarSource
    from ..vocabulary import Vocabulary


def build(vocabulary: Vocabulary, kind: str, text: str, terms: GrammarSource | None, limits: Limits) -> Automaton:
    import llguidance

    if kind == "ebnf":
        from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

        try:
            grammar = gbnf_to_lark(text)
        except GbnfToLarkError as error:
            raise GrammarError(f"ebnf: {error}") from None
    elif kind == "lark":
        grammar = text
    elif kind == "regex":
        grammar = llguidance.LLMatcher.grammar_from_regex(text)
    else:
        overrides: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
        try:
            grammar = llguidance.LLMatcher.grammar_from_json_schema(text, overrides=overrides)
        except ValueError as error:
            raise GrammarError(f"{kind}: {error}") from None
    tokenizer = tokenizer_of(vocabulary)
    start = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
    if start.is_error():
        message = start.get_error().strip().splitlines()
        raise GrammarError(f"{kind}: {message[0] if message else 'not a grammar'}")
    return LlguidanceAutomaton(vocabulary, tokenizer, start)


def tokenizer_of(vocabulary: Vocabulary) -> Any:
    """llguidance's view of the vocabulary, made once."""
    import llguidance

    made = vocabulary.views.get("llguidance")
    if made is None:
        wrapped = llguidance.TokenizerWrapper(_Tokens(vocabulary))
        made = vocabulary.views.setdefault("llguidance", llguidance.LLTokenizer(wrapped, eos_token=sorted(vocabulary.eos_ids)))
    return made


class _Tokens:
    """The vocabulary as llguidance's TokenizerWrapper reads it; text is cut into the longest tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = [token or b"\xff<%d>" % i for i, token in enumerate(vocabulary.token_bytes)]  # \xff: reached by no text
        self.special_token_ids = [i for i, token in enumerate(vocabulary.token_bytes) if not token]
        self.eos_token_id, self.bos_token_id = min(vocabulary.eos_ids), None
        self._ids = {token: i for i, token in enumerate(vocabulary.token_bytes) if token}
        self._longest = max(map(len, self._ids), default=1)
        self._sorted = sorted((token, i) for i, token in enumerate(vocabulary.token_bytes) if token)

    def writing(self, text: bytes, may_follow: Callable[[bytes], bool]) -> Iterator[int]:
        """The ids of all beginnings of `text`, and of what goes on from it as may_follow says."""
        for size in range(1, min(self._longest, len(text)) + 1):
            at = bisect_left(self._sorted, (text[:size], -1))
            while at < len(self._sorted) and self._sorted[at][0] == text[:size]:
                yield self._sorted[at][1]
                at += 1
        at = bisect_left(self._sorted, (text, -1))
        while at < len(self._sorted) and self._sorted[at][0].startswith(text):
            if self._sorted[at][0] != text and may_follow(self._sorted[at][0]):
                yield self._sorted[at][1]
            at += 1

    def __call__(self, text: bytes) -> list[int]:
        ids, at = [], 0
        while at < len(text):
            size = next((n for n in range(min(self._longest, len(text) - at), 0, -1) if text[at : at + n] in self._ids), 0)
            if not size:
                raise GrammarError(f"no token writes the byte {text[at]:#04x}")
            ids.append(self._ids[text[at : at + size]])
            at += size
        return ids


class LlguidanceAutomaton:
    def __init__(self, vocabulary: Vocabulary, tokenizer: Any, start: Any) -> None:
        self.start = start
        self._vocabulary = vocabulary
        self._tokenizer = tokenizer
        self._lock = threading.Lock()  # a shared state computes masks in place

    def advance(self, state: Any, token: int) -> Any:
        if not self._vocabulary.token_bytes[token]:
            return -1
        with self._lock:
            after = state.deep_copy()
        if after.try_consume_tokens([token]) == 1:
            return after
        self._check(after)
        return -1

    def advance_bytes(self, state: Any, text: bytes) -> Any:
        if not text:
            return state
        tokens = self._tokens(text)
        with self._lock:
            after = state.deep_copy()
        if after.try_consume_tokens(tokens) == len(tokens):
            return after
        self._check(after)
        return -1

    @cached_property
    def _tokens(self) -> _Tokens:
        return _Tokens(self._vocabulary)

    def fill(self, state: Any, address: int, budget: int) -> None:
        size = 4 * self._vocabulary.words
        with self._lock:
            if state.is_stopped():
                ctypes.memset(address, 0, size)
            else:
                state.unsafe_compute_mask_ptr(address, size)
            self._check(state)
            accepting = state.is_accepting()
        row = (ctypes.c_uint32 * self._vocabulary.words).from_address(address)
        if text := self.forced(state):
            ctypes.memset(address, 0, size)
            for token in self._tokens.writing(text, lambda longer: self.advance_bytes(state, longer) != -1):
                row[token // 32] |= 1 << token % 32
        for token in self._vocabulary.eos_ids:
            if accepting and budget:
                row[token // 32] |= 1 << token % 32
            else:
                row[token // 32] &= ~(1 << token % 32)

    def accepting(self, state: Any) -> bool:
        with self._lock:
            return bool(state.is_accepting())

    def finished(self, state: Any) -> bool:
        return self.accepting(state) and (state.is_stopped() or not self.live_bytes(state))

    def forced(self, state: Any) -> bytes:
        if self.accepting(state):
            return b""
        with self._lock:
            text: bytes = state.compute_ff_bytes()
        return text.decode(errors="ignore").encode() if not _ends_whole(text) else text

    def need(self, state: Any) -> int | None:
        return None

    def live_bytes(self, state: Any) -> bytes:
        row = (ctypes.c_uint32 * self._vocabulary.words)()
        self.fill(state, ctypes.addressof(row), -1)
        texts = self._vocabulary.token_bytes
        return bytes(sorted({text[0] for i, text in enumerate(texts) if text and row[i // 32] >> i % 32 & 1}))

    @property
    def sizes(self) -> tuple[int, int, int]:
        return 0, 1 << 16, 0  # not told; a guess for the cache

    def _check(self, state: Any) -> None:
        if state.is_error() and "limit" in state.get_error():
            raise LimitError(state.get_error().strip().splitlines()[0])


def _ends_whole(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
