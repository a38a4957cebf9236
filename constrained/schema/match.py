"""Whether a regular term matches one text: for the few texts that a schema itself names (properties, enums)."""
from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from ..grammar import ANY_CHAR, Term


@lru_cache(maxsize=4096)
def matches(term: Term, text: str) -> bool:
    """Whether `term`, which uses no rule and no json_string, matches the whole of `text`."""
    return len(text) in _Walk(text).ends(term, 0)


def matching(term: Term, texts: Collection[str]) -> list[str]:
    """Those of `texts` that `term` matches whole."""
    if term.op == "lit":
        return [text for text in term.args if text in texts]
    if term.op == "words":
        listed = frozenset(term.args)
        return [text for text in texts if text in listed]
    return [text for text in texts if matches(term, text)]


class _Walk:
    """Where a term that starts at a position of `text` may end, each asked once."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._known: dict[tuple[int, int], frozenset[int]] = {}

    def ends(self, term: Term, start: int) -> frozenset[int]:
        key = (id(term), start)  # the term keeps its parts alive
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = getattr(self, "_" + term.op)(term.args, start)
        return known

    def _empty(self, args: tuple[()], start: int) -> frozenset[int]:
        return frozenset((start,))

    def _nothing(self, args: tuple[()], start: int) -> frozenset[int]:
        return frozenset()

    def _lit(self, args: tuple[str], start: int) -> frozenset[int]:
        return frozenset((start + len(args[0]),) if self.text.startswith(args[0], start) else ())

    def _words(self, args: tuple[str, ...], start: int) -> frozenset[int]:
        return frozenset([start + len(word) for word in args if self.text.startswith(word, start)])

    def _chars(self, args: tuple[tuple[int, int], ...], start: int) -> frozenset[int]:
        if start < len(self.text):
            code = ord(self.text[start])
            if any(lo <= code <= hi for lo, hi in args):
                return frozenset((start + 1,))
        return frozenset()

    def _seq(self, args: tuple[Term, ...], start: int) -> frozenset[int]:
        here = frozenset((start,))
        for term in args:
            here = frozenset().union(*[self.ends(term, position) for position in here])
        return here

    def _alt(self, args: tuple[Term, ...], start: int) -> frozenset[int]:
        return frozenset().union(*[self.ends(term, start) for term in args])

    def _rep(self, args: tuple[Term, int, int | None], start: int) -> frozenset[int]:
        term, lo, hi = args
        if term.op == "chars":
            most = len(self.text) if hi is None else min(start + hi, len(self.text))
            return frozenset(range(start + lo, (most if term == ANY_CHAR else self._run(term.args, start, most)) + 1))
        here, found, count = frozenset((start,)), frozenset[int](), 0
        while True:  # `here`: the ends of exactly `count` repeats; it dies out or comes to rest, as no repeat goes back
            if count >= lo:
                found |= here
            if count == hi:
                return found
            after = frozenset[int]().union(*[self.ends(term, position) for position in here])
            if after == here or not after or (hi is None and count >= lo and after <= found):
                return found | after if count + 1 >= lo or after == here else found
            here, count = after, count + 1

    def _run(self, ranges: tuple[tuple[int, int], ...], start: int, most: int) -> int:
        """Where the characters of a class end."""
        for at in range(start, most):
            code = ord(self.text[at])
            for lo, hi in ranges:
                if lo <= code <= hi:
                    break
            else:
                return at
        return most

    def _both(self, args: tuple[Term, ...], start: int) -> frozenset[int]:
        first, *others = [self.ends(term, start) for term in args]
        return first.intersection(*others)

    def _not(self, args: tuple[Term], start: int) -> frozenset[int]:
        return frozenset(range(start, len(self.text) + 1)) - self.ends(args[0], start)
