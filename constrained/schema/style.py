"""Where a document may have whitespace, and how much."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import GrammarError
from ..grammar import EMPTY, Term, chars, framed, lit, rep, seq

MAX_SPACE = 16
"""The most whitespace characters between two tokens of JSON in the flexible style."""
MAX_DEPTH = 24
"""The pretty style indents no further than this; what lies deeper is written at that indent."""


@dataclass(frozen=True)
class Style:
    """Separators as terms, by nesting depth (0 at the top of the document)."""

    name: str
    key: Term
    """Between a name and its value."""
    item: Callable[[int], Term]
    """Between two members of a list at that depth."""
    before: Callable[[int], Term]
    """Between an opening bracket and the first member."""
    after: Callable[[int], Term]
    """Between the last member and the closing bracket."""
    empty: Term = EMPTY
    """Between the brackets of an empty list."""
    tight: bool = False
    """Whether nothing stands beside the brackets."""

    def deeper(self, depth: int) -> int:
        """The depth of what lies inside a list at `depth`; all depths are one where the style does not tell them apart."""
        return min(depth + 1, MAX_DEPTH) if self.name == "pretty" else 0

    def enclose(self, brackets: str, body: Term, may_be_empty: bool, depth: int) -> Term:
        """`body` (members with separators, at least one) in brackets."""
        full = body if self.tight else seq(self.before(depth), body, self.after(depth))
        if may_be_empty:
            if full.op == "nothing":
                full = self.empty
            else:
                full = Term("alt", (self.empty, full), full.regular)  # as alt() makes it, but without a look for equal terms
        return framed(brackets[0], full, brackets[1])


def _plain(name: str, item: str, key: str) -> Style:
    separator = lit(item)
    return Style(name, lit(key), lambda depth: separator, lambda depth: EMPTY, lambda depth: EMPTY, tight=True)


def _pretty(indent: int) -> Style:
    def line(depth: int) -> str:
        return "\n" + " " * (indent * depth)

    return Style(
        "pretty",
        lit(": "),
        lambda depth: lit("," + line(depth + 1)),
        lambda depth: lit(line(depth + 1)),
        lambda depth: lit(line(depth)),
    )


def _flexible() -> Style:
    space = rep(chars([(9, 10), (13, 13), (32, 32)]), 0, MAX_SPACE)
    comma = seq(space, lit(","), space)
    return Style("flexible", seq(space, lit(":"), space), lambda depth: comma, lambda depth: space, lambda depth: space, space)


_STYLES = {
    "json": _plain("json", ", ", ": "),
    "compact": _plain("compact", ",", ":"),
    "pretty": _pretty(2),
    "flexible": _flexible(),
}


def style(name: str) -> Style:
    """One of json (as json.dumps writes it), compact, pretty (json.dumps with indent=2) and flexible."""
    try:
        return _STYLES[name]
    except (KeyError, TypeError):
        raise GrammarError(f"no whitespace style {name!r}; the styles are {', '.join(_STYLES)}", place="whitespace") from None
