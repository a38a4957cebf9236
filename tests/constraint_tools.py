"""What the tests of constraints share: a small vocabulary, and masks as sets."""

import numpy as np

from ramet.constrained import Vocabulary

WORDS = [b"ab", b"ba", b"aaa", b'"', b'",', b'": ', b'{"', b'"}', b"}}", b"true", b" 1", b"12", b"\xc3", b"\xe7\xba", b"\xa9x", b"\\u", b"00"]


def small_vocabulary():
    """Every byte, a few longer tokens, padding, and an end token."""
    texts = [bytes([b]) for b in range(256)] + WORDS + [None, None]
    return Vocabulary(texts, [len(texts) - 1])


def allowed(matcher, budget=None):
    """The ids of the matcher's mask."""
    row = np.full(matcher.grammar.vocabulary.words, -1, dtype=np.int32)
    matcher.fill(row, budget)
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


def accepts(grammar, text):
    """Whether the whole text is a document."""
    matcher = grammar.matcher()
    return matcher.advance_bytes(text.encode()) and matcher.accepting


def finish_randomly(matcher, budget, choose):
    """Samples within the budget until the document ends; returns its bytes, or None if the tokens ran out first."""
    texts, eos = matcher.grammar.vocabulary.token_bytes, matcher.grammar.vocabulary.eos_ids
    out = b""
    while not matcher.finished:
        if budget == 0:
            return None
        ids = sorted(allowed(matcher, budget))
        assert ids, f"no way on after {out!r} with {budget} tokens left"
        token = choose(ids)
        assert matcher.advance(token)
        budget -= 1
        if token in eos:
            break
        out += texts[token]
    return out
