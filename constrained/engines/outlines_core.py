"""outlines-core behind the Automaton protocol: regexes, indexed whole over the vocabulary when compiled. A second opinion.

Its regex dialect is that of the Rust crate; only patterns that Ramet's own dialect accepts come here.
"""
from __future__ import annotations

import ctypes
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..errors import GrammarError

if TYPE_CHECKING:
    from ..compiler import Automaton, Limits
    from ..grammar import GrammarSource
    from ..vocabulary import Vocabulary


def build(vocabulary: Vocabulary, kind: str, text: str, terms: GrammarSource | None, limits: Limits) -> Automaton:
    import outlines_core

    tokens = vocabulary.views.get("outlines-core")
    if tokens is None:
        ids: dict[bytes, list[int]] = {}
        for i, token in enumerate(vocabulary.token_bytes):
            if token:
                ids.setdefault(token, []).append(i)
        tokens = vocabulary.views.setdefault("outlines-core", outlines_core.Vocabulary(min(vocabulary.eos_ids), ids))
    try:
        return OutlinesAutomaton(vocabulary, outlines_core.Index(text, tokens))
    except (ValueError, RuntimeError) as error:
        raise GrammarError(f"regex: outlines-core refuses it: {error}") from None


class OutlinesAutomaton:
    """States are outlines-core's own numbers."""

    def __init__(self, vocabulary: Vocabulary, index: Any) -> None:
        self.start: int = index.get_initial_state()
        self._vocabulary = vocabulary
        self._index = index
        self._transitions: dict[int, dict[int, int]] = index.get_transitions()

    def _ways(self, state: int) -> dict[int, int]:
        eos = self._vocabulary.eos_ids
        return {token: to for token, to in self._transitions.get(state, {}).items() if token not in eos}

    def advance(self, state: int, token: int) -> int:
        return self._transitions.get(state, {}).get(token, -1)

    def advance_bytes(self, state: int, text: bytes) -> int:
        reached: list[int | None] = [state] + [None] * len(text)
        for at, source in enumerate(reached):
            if source is None:
                continue
            for token, to in self._ways(source).items() if at < len(text) else ():
                piece = self._vocabulary.token_bytes[token] or b""
                if text.startswith(piece, at):
                    reached[at + len(piece)] = to
        end = reached[-1]
        return -1 if end is None else end

    def fill(self, state: int, address: int, budget: int) -> None:
        row = (ctypes.c_uint32 * self._vocabulary.words).from_address(address)
        ctypes.memset(address, 0, ctypes.sizeof(row))
        for token, to in self._ways(state).items():
            if budget < 0 or (self.need(to) or 0) < budget:
                row[token // 32] |= 1 << token % 32
        if self.accepting(state) and budget:
            for token in self._vocabulary.eos_ids:
                row[token // 32] |= 1 << token % 32

    def accepting(self, state: int) -> bool:
        return bool(self._index.is_final_state(state))

    def finished(self, state: int) -> bool:
        return self.accepting(state) and not self._ways(state)

    def live_bytes(self, state: int) -> bytes:
        texts = self._vocabulary.token_bytes
        return bytes(sorted({(texts[token] or b"\0")[0] for token in self._ways(state)}))

    def forced(self, state: int) -> bytes:
        return b""  # its edges are tokens: a token that is forced does not show that the text is

    def need(self, state: int) -> int | None:
        return self._needs.get(state)

    @cached_property
    def _needs(self) -> dict[int, int]:
        """State -> tokens to the end, by breadth-first search backwards from the final states."""
        back: dict[int, set[int]] = {}
        for source in self._transitions:
            for to in self._ways(source).values():
                back.setdefault(to, set()).add(source)
        layers: list[set[int]] = [set(), set()]
        for state in self._transitions.keys() | back.keys():
            if self.accepting(state):
                layers[0 if self.finished(state) else 1].add(state)
        found: dict[int, int] = {}
        distance = 0
        while distance < len(layers):
            for state in layers[distance] - found.keys():
                found[state] = distance
                while len(layers) <= distance + 1:
                    layers.append(set())
                layers[distance + 1] |= back.get(state, set()) - found.keys()
            distance += 1
            if distance >= 2 and not layers[distance : distance + 1]:
                break
        return found

    @property
    def sizes(self) -> tuple[int, int, int]:
        edges = sum(map(len, self._transitions.values()))
        return len(self._transitions), 100 * edges, 0
