"""Reads a regex into a small syntax tree. What the tree means is decided in regex.py.

Own parser, because the dialect is the common ground of Python's `re` and of ECMA-262 patterns, with both spellings where only the
spelling differs ((?P<n>..) and (?<n>..), \\uXXXX and \\u{X}), and because code point ranges must stay ranges.
"""
from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from .errors import GrammarError
from .grammar import MAX_REPEAT

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Literal:
    """A run of characters that stand for themselves."""

    text: str


@dataclass(frozen=True, slots=True)
class Class:
    """One character. `parts` are ranges and class escapes ("d", "W", "p{L}", ...); `dot` is the class that `.` writes."""

    parts: tuple[tuple[int, int] | str, ...]
    negated: bool = False
    dot: bool = False
    ignore_case: bool = False


@dataclass(frozen=True, slots=True)
class Anchor:
    kind: str  # "^" or "$"
    place: int


@dataclass(frozen=True, slots=True)
class Look:
    inner: Node
    behind: bool
    negative: bool
    place: int


@dataclass(frozen=True, slots=True)
class Repeat:
    inner: Node
    lo: int
    hi: int | None


@dataclass(frozen=True, slots=True)
class Seq:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    options: tuple[Node, ...]


Node = Literal | Class | Anchor | Look | Repeat | Seq | Alt

MAX_DEPTH = 150  # of groups: a parser that recurses must stop before Python does
_RUN = re.compile(r"[^\\^$.|?*+()\[{\ud800-\udfff]{2,}(?![*+?{])")  # the longest one whose last character is not repeated
_PLAIN_CLASS = re.compile(r"\[\^?[^\[\]\\^]+\]")
"""A class of characters and ranges, which all dialects read alike."""
_SIGNS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_CONTROL = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}


def parse(pattern: str, *, ecma: bool) -> Node:
    """The tree of `pattern`. `ecma` settles what the two dialects read differently: `[]` and `[^]`, \\p, \\c, \\A, \\Z, flags.

    Raises GrammarError with the position."""
    parser = _Parser(pattern, ecma)
    node = parser.alternatives(0)
    if parser.at < len(pattern):
        raise parser.error("unbalanced parenthesis")
    return node


class _Parser:
    def __init__(self, pattern: str, ecma: bool) -> None:
        self.text = pattern
        self.ecma = ecma
        self.at = 0
        self.flags: frozenset[str] = frozenset()
        self.names: set[str] = set()

    def error(self, what: str, at: int | None = None) -> GrammarError:
        at = self.at if at is None else at
        shown = self.text if len(self.text) <= 80 else self.text[:77] + "..."
        return GrammarError(f"regex {shown!r}: {what} at position {at}", place=f"position {at}")

    def peek(self, n: int = 1) -> str:
        return self.text[self.at : self.at + n]

    def take(self, prefix: str) -> bool:
        if self.text.startswith(prefix, self.at):
            self.at += len(prefix)
            return True
        return False

    def alternatives(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise self.error("groups nested too deep")
        flags, options = self.flags, [self.sequence(depth)]
        while self.take("|"):
            options.append(self.sequence(depth))
        self.flags = flags
        return options[0] if len(options) == 1 else Alt(tuple(options))

    def sequence(self, depth: int) -> Node:
        items: list[Node] = []
        while (c := self.peek()) and c not in "|)":
            start = self.at
            if (run := _RUN.match(self.text, start)) and "i" not in self.flags:
                items.append(Literal(run[0]))
                self.at = run.end()
                continue
            item = self.atom(depth)
            if item is not None:
                items.append(self.quantified(item, start))
        return items[0] if len(items) == 1 else Seq(tuple(items))

    def atom(self, depth: int) -> Node | None:
        start, c = self.at, self.peek()
        self.at += 1
        if c == "(":
            return self.group(start, depth)
        if c == "[":
            plain = _PLAIN_CLASS.match(self.text, start)
            if plain and (known := _plain_class(plain[0], "i" in self.flags)):
                self.at = plain.end()
                return known
            return self.bracket(start)
        if c == "\\":
            return self.escape(start)
        if c == ".":
            return Class((), dot="s" not in self.flags)
        if c in "^$":
            return Anchor(c, start)
        if c in "*+?":
            raise self.error("nothing to repeat", start)
        return self.one(ord(c))

    def one(self, code_point: int) -> Class:
        return Class(((code_point, code_point),), ignore_case="i" in self.flags)

    def quantified(self, item: Node, start: int) -> Node:
        bounds = self.quantifier()
        if bounds is None:
            return item
        if isinstance(item, (Anchor, Look)):
            raise self.error("a repeated anchor or lookaround cannot be honoured", start)
        if self.take("+"):
            raise self.error("possessive repeats cannot be honoured")
        self.take("?")  # lazy: the same strings
        if self.quantifier() is not None:
            raise self.error("multiple repeat")
        return Repeat(item, *bounds)

    def quantifier(self) -> tuple[int, int | None] | None:
        sign = self.peek()
        if sign in _SIGNS:
            self.at += 1
            return _SIGNS[sign]
        if sign != "{":
            return None
        end = self.text.find("}", self.at)
        low, comma, high = self.text[self.at + 1 : max(end, 0)].partition(",")
        if end < 0 or not (low + high) or not _is_number(low) or not _is_number(high) or (self.ecma and not low):
            return None  # a literal brace, as in both dialects
        start, self.at = self.at, end + 1
        if len(low) > 10 or len(high) > 10 or int(low or 0) > MAX_REPEAT or int(high or 0) > MAX_REPEAT:
            raise self.error("the repeat count is too large", start)
        lo, hi = int(low or 0), (int(high) if high else None) if comma else int(low)
        if hi is not None and hi < lo:
            raise self.error("the repeat's minimum is above its maximum", start)
        return lo, hi

    def group(self, start: int, depth: int) -> Node | None:
        outer = self.flags
        look: tuple[bool, bool] | None = None
        if self.take("?"):
            if self.take("#"):
                end = self.text.find(")", self.at)
                if end < 0:
                    raise self.error("missing )", start)
                self.at = end + 1
                return None
            for sign, kind in (("=", (False, False)), ("!", (False, True)), ("<=", (True, False)), ("<!", (True, True))):
                if self.take(sign):
                    look = kind
                    break
            else:
                if not self.extension(start):
                    return None
        inner = self.alternatives(depth + 1)
        if not self.take(")"):
            raise self.error("missing ), unterminated group", start)
        self.flags = outer
        return Look(inner, *look, start) if look else inner

    def extension(self, start: int) -> bool:
        """After `(?`: a name, flags or `:`. False when the group is closed already: flags for the rest."""
        if self.take(":"):
            return True
        if self.take("P<") or self.take("<"):
            end = self.text.find(">", self.at)
            name = self.text[self.at : max(end, 0)]
            if not name.isidentifier() or name in self.names:
                raise self.error("a bad or repeated group name", start)
            self.names.add(name)
            self.at = end + 1
            return True
        if self.peek() == ">" or self.peek(2) in ("P=", "P>") or self.peek() in ("(", "R", "&"):
            raise self.error("atomic groups, backreferences, conditions and recursion cannot be honoured", start)
        end = self.at
        while end < len(self.text) and self.text[end] in "aiLmsux-":
            end += 1
        added, _, removed = self.text[self.at : end].partition("-")
        if end == self.at or self.text[end : end + 1] not in (":", ")"):
            raise self.error("unknown group extension", start)
        if bad := set(added + removed) - set("is"):
            raise self.error(f"the flag {min(bad)!r} cannot be honoured (known: i, s)", start)
        if self.text[end] == ")" and start:
            raise self.error("flags for the whole pattern must stand at its start", start)
        self.flags = (self.flags | set(added)) - set(removed)
        self.at = end + 1
        return self.text[end] == ":"

    def bracket(self, start: int) -> Class:
        negated = self.take("^")
        parts: list[tuple[int, int] | str] = []
        first = True
        while True:
            if not self.peek():
                raise self.error("unterminated character class", start)
            if self.peek() == "]" and (not first or self.ecma):
                self.at += 1
                return Class(tuple(parts), negated, ignore_case="i" in self.flags)
            if self.peek(2) in ("[:", "[.", "[="):
                raise self.error("POSIX classes such as [:alpha:] cannot be honoured")
            first = False
            low = self.class_item()
            if self.peek() == "-" and self.peek(2) not in ("-]", "-"):
                dash = self.at
                self.at += 1
                high = self.class_item()
                if isinstance(low, str) or isinstance(high, str) or low > high:
                    raise self.error("a bad character range", dash)
                parts.append((low, high))
            else:
                parts.append(low if isinstance(low, str) else (low, low))

    def class_item(self) -> int | str:
        start, c = self.at, self.peek()
        self.at += 1
        if c != "\\":
            return ord(c)
        item = self.escaped(start, inside=True)
        if isinstance(item, Anchor):
            raise self.error("an anchor inside a character class", start)
        return item

    def escape(self, start: int) -> Node:
        item = self.escaped(start, inside=False)
        if isinstance(item, Anchor):
            return item
        if isinstance(item, str):
            return Class((item,), ignore_case="i" in self.flags)
        return self.one(item)

    def escaped(self, start: int, *, inside: bool) -> int | str | Anchor:
        """After a backslash: a code point, the name of a class escape, or an anchor."""
        c = self.peek()
        self.at += 1
        if not c:
            raise self.error("a lone backslash at the end", start)
        if c in "dDwWsS":
            return c
        if c in "xuU":
            return self.hexadecimal(c, start)
        if c in "pP" and self.ecma:
            end = self.text.find("}", self.at)
            if not self.take("{") or end < 0:
                raise self.error("\\p needs a property in braces", start)
            name, self.at = self.text[self.at : end], end + 1
            return f"{c}{{{name}}}"
        if c == "c" and self.ecma and self.peek().isascii() and self.peek().isalpha():
            self.at += 1
            return ord(self.text[self.at - 1]) % 32
        if c == "0" and not self.peek().isdigit():
            return 0
        if c.isdigit():
            raise self.error("backreferences and octal escapes cannot be honoured", start)
        if not inside and c in "AZz" and not self.ecma:
            return Anchor("^" if c == "A" else "$", start)
        if not inside and c in "bB":
            raise self.error("word borders cannot be honoured", start)
        if c in _CONTROL and not (self.ecma and c == "a"):
            return _CONTROL[c]
        if c.isascii() and c.isalpha():
            raise self.error(f"the escape \\{c} cannot be honoured", start)
        return ord(c)

    def hexadecimal(self, kind: str, start: int) -> int:
        if kind == "u" and self.take("{"):
            end = self.text.find("}", self.at)
            digits = self.text[self.at : max(end, self.at)]
            self.at = end + 1
            wanted = len(digits)
        else:
            wanted = {"x": 2, "u": 4, "U": 8}[kind]
            digits = self.peek(wanted)
            self.at += wanted
        if not digits or len(digits) != wanted or any(d not in "0123456789abcdefABCDEF" for d in digits):
            raise self.error(f"an incomplete \\{kind} escape", start)
        value = int(digits, 16)
        if 0xD800 <= value < 0xDC00 and self.take("\\u"):  # a surrogate pair, as ECMA writes one character
            low = self.hexadecimal("u", start)
            if not 0xDC00 <= low < 0xE000:
                raise self.error("a high surrogate without its low one", start)
            value = 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00)
        if value > 0x10FFFF:
            raise self.error("an escape beyond the last code point", start)
        return value


@lru_cache(maxsize=1024)
def _plain_class(text: str, ignore_case: bool) -> Class | None:
    """None if it is wrong."""
    parser = _Parser(text, False)
    parser.at, parser.flags = 1, frozenset("i" if ignore_case else "")
    try:
        return parser.bracket(0)
    except GrammarError:
        return None


def _is_number(text: str) -> bool:
    return not text or (text.isascii() and text.isdigit())
