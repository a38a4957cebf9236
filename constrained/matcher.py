"""One request's place in a grammar. All the state there is lies here; grammars are shared."""
from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import GrammarError

if TYPE_CHECKING:
    from .compiler import Grammar

_ENDED = None  # the state after an end token


class Matcher:
    """Walks a grammar token by token. Changed by `advance`, `advance_bytes` and `rollback` only. Not shared between threads."""

    __slots__ = ("grammar", "_automaton", "_eos", "_size", "_path", "_row", "_address")

    def __init__(self, grammar: Grammar, path: list[Any] | None = None) -> None:
        self.grammar = grammar
        self._automaton = grammar.automaton
        self._eos = grammar.vocabulary.eos_ids
        self._size = len(grammar.vocabulary)
        self._path: list[Any] = path or [self._automaton.start]  # the state after each accepted step
        self._row: np.ndarray | None = None  # the row last filled, and where it lies: the same one comes again and again
        self._address = 0

    def fill(self, mask_row: np.ndarray, budget: int | None = None) -> None:
        """Writes which ids may come next: mask_row is int32, contiguous, at least ceil(V / 32) words; bit set = allowed.

        Allowed are exactly the ids whose bytes keep the text a prefix of a document, and the end tokens where it is one.
        `budget` = tokens that may still be sampled, the end token among them unless no continuation is left; the row then holds
        only ids after which the document can still be finished in time (never empty while budget >= `need`)."""
        if mask_row is not self._row:
            self._check(mask_row)
        state = self._path[-1]
        if state is _ENDED:
            mask_row[:] = 0
            return
        self._automaton.fill(state, self._address, -1 if budget is None else max(budget, 0))

    def _check(self, row: np.ndarray) -> None:
        words = self.grammar.vocabulary.words
        if row.dtype != np.int32 or row.ndim != 1 or row.size < words or not row.flags.c_contiguous or not row.flags.writeable:
            raise GrammarError(f"mask_row must be a writable contiguous int32 row of at least {words} words")
        if row.size > words:
            row[words:] = 0
        self._row, self._address = row, row.ctypes.data

    def advance(self, token: int) -> bool:
        """Takes one id. False, and nothing changes, if it is not allowed here."""
        state = self._path[-1]
        if state is _ENDED or not 0 <= token < self._size:
            return False
        if token in self._eos:
            if not self._automaton.accepting(state):
                return False
            self._path.append(_ENDED)
            return True
        after = self._automaton.advance(state, token)
        if after == -1:
            return False
        self._path.append(after)
        return True

    def advance_tokens(self, tokens: Iterable[int]) -> int:
        """Takes ids one after the other, up to the first that is not allowed; how many were taken (a draft's accepted part)."""
        taken = 0
        for token in tokens:
            if not self.advance(token):
                break
            taken += 1
        return taken

    def advance_bytes(self, text: bytes) -> bool:
        """Takes text as one step, whatever tokens it is made of. False, and nothing changes, if it is not allowed here."""
        state = self._path[-1]
        if state is _ENDED:
            return not text
        after = self._automaton.advance_bytes(state, text)
        if after == -1:
            return False
        self._path.append(after)
        return True

    def forced(self) -> bytes:
        """The bytes that every continuation starts with, up to an accepting state or a choice; whole characters only."""
        state = self._path[-1]
        return b"" if state is _ENDED else self._automaton.forced(state)

    @property
    def accepting(self) -> bool:
        """The text so far is a document (and has perhaps more to come)."""
        state = self._path[-1]
        return state is _ENDED or self._automaton.accepting(state)

    @property
    def finished(self) -> bool:
        """The text so far is a document and nothing can follow."""
        state = self._path[-1]
        return state is _ENDED or self._automaton.finished(state)

    @property
    def need(self) -> int | None:
        """Ids that suffice to finish from here, the end token included where one is needed. None: no sequence of ids is known to."""
        state = self._path[-1]
        return 0 if state is _ENDED else self._automaton.need(state)

    def live_bytes(self) -> bytes:
        """The bytes that may come next, in order; for explaining a refusal."""
        state = self._path[-1]
        return b"" if state is _ENDED else self._automaton.live_bytes(state)

    def rollback(self, n: int) -> None:
        """Takes back the last n steps. Raises GrammarError beyond the start."""
        if not 0 <= n < len(self._path):
            raise GrammarError(f"cannot roll back {n} of {len(self._path) - 1} steps")
        if n:
            del self._path[-n:]

    def fork(self) -> Matcher:
        """An independent copy at the same place."""
        return Matcher(self.grammar, self._path.copy())
