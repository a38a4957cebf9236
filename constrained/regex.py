"""Regex text -> a regular term. One dialect, two ways to apply it: a full match (`regex=`) or ECMA search (`pattern`).

Everything is honoured exactly or refused by name with its position: lookaround is an intersection where the rest of the string is
in sight (at the edges of the pattern), anchors hold at the edges, `$` means the end of the input only. Backreferences, word borders,
inner anchors and possessive repeats are refused.

Class escapes. Full match: \\d \\w \\s are the ASCII characters and \\D \\W \\S exclude all that Python's Unicode classes exclude, so
`re.fullmatch(pattern, output)` always holds. Search: as ECMA-262 defines them. `.` excludes the line ends of the same standard:
only \\n in a full match; \\n, \\r, U+2028 and U+2029 in a search.
"""
from __future__ import annotations

import re
import sys
import unicodedata
from functools import lru_cache

from .errors import GrammarError, LimitError
from .grammar import ANY_CHAR, ANY_STRING, EMPTY, MAX_CODE_POINT, Term, alt, both, chars, complement, lit, rep, seq
from .regex_syntax import Alt, Anchor, Class, Literal, Look, Node, Ranges, Repeat, Seq, parse

MAX_PATTERN = 100_000
"""Characters of a regex."""

FREE, FIXED, INNER = "free", "fixed", "inner"
"""What stands beside a node: anything (a search), the end of the input, or more of the pattern."""

_LITERAL = re.compile(r"(\^?)([\w \-/:@,;'\"=<>&%#!~`]+)(\$?)", re.ASCII)
"""Characters that stand for themselves in all dialects, between anchors or not."""
_ECMA_SPACE = ((9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
               (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF))
_WORD = ((48, 57), (65, 90), (95, 95), (97, 122))
_PYTHON: dict[str, Ranges] = {"d": ((48, 57),), "w": _WORD, "s": ((9, 13), (32, 32))}
_ECMA: dict[str, Ranges] = {"d": ((48, 57),), "w": _WORD, "s": _ECMA_SPACE}


@lru_cache(maxsize=512)
def from_regex(pattern: str, *, search: bool = False) -> Term:
    """The strings that `pattern` matches whole, or, with `search`, those that hold a match (ECMA `pattern` semantics).

    Raises GrammarError for what does not parse or cannot be honoured exactly, LimitError for what is too long."""
    if len(pattern) > MAX_PATTERN:
        raise LimitError(f"a regex of {len(pattern):,} characters; the limit is {MAX_PATTERN:,}")
    edge = FREE if search else FIXED
    if plain := _LITERAL.fullmatch(pattern):  # as most patterns of names are
        start, text, end = plain.groups()
        return _Translator(pattern, search).pad(lit(text), FIXED if start else edge, FIXED if end else edge)
    try:
        return _Translator(pattern, search).wrap(parse(pattern, ecma=search), edge, edge)
    except RecursionError:
        raise GrammarError(f"regex {pattern[:80]!r}: nested too deep") from None


class _Translator:
    def __init__(self, pattern: str, ecma: bool) -> None:
        self.pattern = pattern
        self.ecma = ecma
        self.inverted = False  # inside a negative lookaround, where more characters mean fewer strings

    def refuse(self, what: str, place: int) -> GrammarError:
        return GrammarError(f"regex {self.pattern[:80]!r}: {what} at position {place}", place=f"position {place}")

    def wrap(self, node: Node, left: str, right: str) -> Term:
        """The term of `node` with what a search allows before and after it, given what stands there."""
        if isinstance(node, (Literal, Class)):
            return self.pad(self.plain(node), left, right)
        if isinstance(node, Alt):
            return alt(*[self.wrap(option, left, right) for option in node.options])
        if isinstance(node, Seq):
            return self.sequence(list(node.items), left, right)
        if isinstance(node, (Anchor, Look)):
            return self.sequence([node], left, right)
        if isinstance(node, Repeat) and _has_edges(node.inner):
            if (node.lo, node.hi) == (1, 1):
                return self.wrap(node.inner, left, right)
            if (node.lo, node.hi) == (0, 1):
                return alt(self.wrap(node.inner, left, right), self.wrap(Seq(()), left, right))
            return self.pad(rep(self.wrap(node.inner, INNER, INNER), node.lo, node.hi), left, right)
        return self.pad(self.plain(node), left, right)

    def pad(self, term: Term, left: str, right: str) -> Term:
        if left is not FREE and right is not FREE:
            return term
        return seq(ANY_STRING if left is FREE else EMPTY, term, ANY_STRING if right is FREE else EMPTY)

    def plain(self, node: Node) -> Term:
        """A node without anchors and lookaround inside."""
        if isinstance(node, Literal):
            return lit(node.text)
        if isinstance(node, Class):
            if node.parts and not any(type(part) is str for part in node.parts):
                return _ranged(node)
            return chars(self.ranges(node))
        if isinstance(node, Repeat):
            return rep(self.wrap(node.inner, INNER, INNER), node.lo, node.hi)
        raise AssertionError(node)  # wrap() takes the other kinds

    def sequence(self, items: list[Node], left: str, right: str) -> Term:
        while items and isinstance(items[0], Anchor) and items[0].kind == "^" and left is not INNER:
            left = FIXED
            items = items[1:]
        while items and isinstance(items[-1], Anchor) and items[-1].kind == "$" and right is not INNER:
            right = FIXED
            items = items[:-1]
        for place, item in enumerate(items):
            if isinstance(item, Look):
                return self.look(items[:place], item, items[place + 1 :], left, right)
        if not items:
            return ANY_STRING if FREE in (left, right) and not (left is INNER or right is INNER) else self.pad(EMPTY, left, right)
        return seq(*[self.item(item, left if i == 0 else INNER, right if i == len(items) - 1 else INNER) for i, item in enumerate(items)])

    def item(self, item: Node, left: str, right: str) -> Term:
        if isinstance(item, Anchor):
            raise self.refuse(f"the anchor {item.kind} inside the pattern cannot be honoured", item.place)
        return self.wrap(item, left, right)

    def asked(self, look: Look, left: str, right: str) -> Term:
        self.inverted ^= look.negative
        term = self.wrap(look.inner, left, right)
        self.inverted ^= look.negative
        return complement(term) if look.negative else term

    def look(self, before: list[Node], look: Look, after: list[Node], left: str, right: str) -> Term:
        """before (look) after: what follows, or precedes, is cut with what the lookaround asks of it."""
        if look.behind:
            if left is INNER:
                raise self.refuse("a lookbehind inside a group cannot be honoured", look.place)
            head = both(self.sequence(before, left, INNER), self.asked(look, FREE, INNER))
            return seq(head, self.sequence(after, INNER, right))
        if right is INNER:
            raise self.refuse("a lookahead inside a group cannot be honoured", look.place)
        asked = self.asked(look, INNER if before or left is FREE else left, FREE)
        tail = both(self.sequence(after, INNER, right), asked)
        return seq(self.sequence(before, left, INNER), tail)

    def ranges(self, node: Class) -> Ranges:
        if node.dot:
            return _invert(((10, 10), (13, 13), (0x2028, 0x2029)) if self.ecma else ((10, 10),))
        if not node.parts and not node.negated:
            return () if self.ecma else ANY_CHAR.args  # `[]`, or `.` under the flag s
        found: list[tuple[int, int]] = []
        if any(isinstance(part, str) and part.swapcase() in node.parts for part in node.parts):
            found.append((0, MAX_CODE_POINT))  # [\s\S] is any character, whichever tables \s and \S have
        for part in node.parts:
            if isinstance(part, str):
                found += self.class_escape(part, negated=node.negated ^ self.inverted)
            else:
                found.append(part)
        ranges = tuple(found)
        if node.ignore_case:
            ranges = _with_case(ranges)
        return _invert(ranges) if node.negated else ranges

    def class_escape(self, name: str, *, negated: bool) -> Ranges:
        if name[0] in "pP":
            ranges = _property(name[2:-1])
            if ranges is None:
                raise GrammarError(f"regex {self.pattern[:80]!r}: the Unicode property {name[2:-1]!r} is not known")
            return _invert(ranges) if name[0] == "P" else ranges
        table = _ECMA if self.ecma else _PYTHON
        if self.ecma:
            return _invert(table[name.lower()]) if name.isupper() else table[name]
        if name.isupper() != negated:  # what is left out must be all that Python's Unicode class holds
            unicode = _python_class(name.lower())
            return _invert(unicode) if name.isupper() else unicode
        return _invert(table[name.lower()]) if name.isupper() else table[name]


@lru_cache(maxsize=1024)
def _ranged(node: Class) -> Term:
    """A class without class escapes: it means the same everywhere."""
    return chars(_Translator("", False).ranges(node))


def _has_edges(node: Node) -> bool:
    if isinstance(node, (Anchor, Look)):
        return True
    if isinstance(node, Repeat):
        return _has_edges(node.inner)
    return any(map(_has_edges, node.items if isinstance(node, Seq) else node.options if isinstance(node, Alt) else ()))


def _invert(ranges: Ranges) -> Ranges:
    gaps, low = [], 0
    for lo, hi in sorted(ranges):
        if lo > low:
            gaps.append((low, lo - 1))
        low = max(low, hi + 1)
    if low <= MAX_CODE_POINT:
        gaps.append((low, MAX_CODE_POINT))
    return tuple(gaps)


@lru_cache(maxsize=1)
def _every_character() -> str:
    return "".join(map(chr, range(sys.maxunicode + 1)))


@lru_cache(maxsize=8)
def _python_class(name: str) -> Ranges:
    return tuple((m.start(), m.end() - 1) for m in re.finditer(rf"\{name}+", _every_character()))


@lru_cache(maxsize=64)
def _property(name: str) -> Ranges | None:
    """The code points of a general category: L, Lu, N, Nd, P, ... (also `Letter`-like long names of the five main ones)."""
    name = {"Letter": "L", "Number": "N", "Punctuation": "P", "Symbol": "S", "Separator": "Z", "Mark": "M"}.get(name, name)
    name = name.removeprefix("gc=").removeprefix("General_Category=")
    category = unicodedata.category
    found = [c for c in range(sys.maxunicode + 1) if category(chr(c)).startswith(name)] if name and len(name) < 3 else []
    return chars([(c, c) for c in found]).args if len(found) > 1 else None


@lru_cache(maxsize=1)
def _case_variants() -> dict[int, set[int]]:
    """Code point -> all that fold together with it, itself included; only those with any other."""
    groups: dict[str, set[int]] = {}
    for code_point, c in enumerate(_every_character()):
        if c.lower() != c or c.upper() != c:
            for key in {c.lower(), c.upper().lower()}:
                if len(key) == 1:
                    groups.setdefault(key, {ord(key)}).add(code_point)
    found: dict[int, set[int]] = {}
    for group in groups.values():
        for code_point in group:
            found.setdefault(code_point, set()).update(group)
    return found


def _with_case(ranges: Ranges) -> Ranges:
    found = list(ranges)
    for code_point, variants in _case_variants().items():
        if any(lo <= code_point <= hi for lo, hi in ranges):
            found += [(v, v) for v in variants]
    return tuple(found)
