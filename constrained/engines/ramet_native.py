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


def prepare(vocabulary: Vocabulary, limits: Limits) -> None:
    """Makes what all grammars of the vocabulary share, so that the first one does not wait for it. Nothing without a C++ compiler."""
    try:
        library()
    except NativeUnavailable:
        return
    _shared(vocabulary, limits)


def build(vocabulary: Vocabulary, kind: str, text: str, terms: GrammarSource | None, limits: Limits) -> Automaton:
    assert terms is not None
    try:
        library()
    except NativeUnavailable as error:
        from . import python

        warnings.warn(f"constraints run in pure Python, some hundred times slower: {error}", RuntimeWarning, stacklevel=2)
        return python.build(vocabulary, kind, text, terms, limits)
    whole = kind in ("regex", "choice")
    return NativeAutomaton(_shared(vocabulary, limits), terms, whole=whole, byte_limit=limits.grammar_bytes, seconds=limits.seconds)


def _shared(vocabulary: Vocabulary, limits: Limits) -> NativeVocabulary:
    found = vocabulary.views.get(limits.store_bytes)
    if found is None:
        found = vocabulary.views.setdefault(limits.store_bytes, NativeVocabulary(vocabulary, limits.store_bytes))
    return found
