"""Ramet's own automaton: compiled where a C++ compiler is found, else its pure-Python peer, said once."""
from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from ramet.runtime.native import NativeUnavailable

from ..native import NativeAutomaton, NativeVocabulary, library

if TYPE_CHECKING:
    from ..compiler import Automaton, Limits
    from ..grammar import GrammarSource
    from ..vocabulary import Vocabulary


def build(vocabulary: Vocabulary, kind: str, text: str, terms: GrammarSource | None, limits: Limits) -> Automaton:
    assert terms is not None
    try:
        library()
    except NativeUnavailable as error:
        from . import python

        warnings.warn(f"constraints run in pure Python, some hundred times slower: {error}", RuntimeWarning, stacklevel=2)
        return python.build(vocabulary, kind, text, terms, limits)
    shared = vocabulary.views.get(limits.store_bytes)
    if shared is None:
        shared = vocabulary.views.setdefault(limits.store_bytes, NativeVocabulary(vocabulary, limits.store_bytes))
    return NativeAutomaton(shared, terms, whole=kind in ("regex", "choice"), byte_limit=limits.grammar_bytes, seconds=limits.seconds)
