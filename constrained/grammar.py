"""The terms a grammar is made of: what a schema or a regex is turned into, and what the automaton runs.

A term is a set of strings of Unicode code points (surrogates excluded). Terms are immutable, compare by structure, hash in
constant time, and are normalised when made, so that equal things are mostly equal terms:

    lit("ab")  chars([(48, 57)])  ANY_CHAR  EMPTY  NOTHING       one string, one character, no character, no string
    words(["ab", "c"])                                           any one of some strings, however many
    seq(a, b)  alt(a, b)  rep(a, 2, 5)  ref("rule")              concatenation, choice, bounded repeat, use of a rule
    pick([(a, True), (b, False)], separator)                     members in any order, each at most once
    both(a, b)  complement(a)  minus(a, b)  json_string(a)       of regular terms only: those with no ref and no pick inside

A repeat is a counter, never copies: rep(ANY_CHAR, 0, 100_000) is as small as rep(ANY_CHAR, 0, 5).
"""
from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from .errors import GrammarError

MAX_CODE_POINT = 0x10FFFF
MAX_REPEAT = 2**30  # counters are 32-bit in the automaton


class Term:
    """A node, never changed once it is made. `op` names the kind and `args` holds what that kind needs (below). Made by the functions of this module only.

    lit: (str,)   words: (str, ...)   chars: ((lo, hi), ...)   seq, alt, both: terms   rep: (term, lo, hi or None)   ref: (name,)
    not: (term,)   json: (term,)   empty, nothing: ()
    pick: (number of required items, lo, hi or None, items..., extra, separator)"""

    __slots__ = ("op", "args", "regular", "_hash")
    op: str
    args: tuple[Any, ...]
    regular: bool
    _hash: int

    def __init__(self, op: str, args: tuple[Any, ...], regular: bool = True) -> None:
        self.op, self.args, self.regular = op, args, regular

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:  # worked out when first asked for; its parts keep theirs
            self._hash = hash((self.op, self.args))
            return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Term) and hash(self) == hash(other) and self.op == other.op and self.args == other.args

    def __repr__(self) -> str:
        return f"{self.op}({', '.join(map(repr, self.args))})"


EMPTY = Term("empty", ())
"""The empty string alone."""
NOTHING = Term("nothing", ())
"""No string at all."""
ANY_CHAR = Term("chars", ((0, 0xD7FF), (0xE000, MAX_CODE_POINT)))
"""Any one code point that UTF-8 can write."""


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """Rules by name, and the name of the one that documents match. Rules may recurse, not on the left."""

    rules: Rules
    start: str = "start"


Rules = dict[str, Term]


def lit(text: str | bytes) -> Term:
    """Exactly `text`. Raises GrammarError for bytes that are not UTF-8 and for lone surrogates."""
    try:
        if isinstance(text, bytes):
            text = text.decode()
        elif not text.isascii():
            text.encode()
    except UnicodeError as error:
        raise GrammarError(f"a literal must be text that UTF-8 can write: {error}") from error
    return Term("lit", (text,)) if text else EMPTY


def words(texts: Iterable[str]) -> Term:
    """Any one of `texts`: what alt(*map(lit, texts)) is, but one term for all of them. Raises GrammarError for lone surrogates."""
    listed = dict.fromkeys(texts)
    if len(listed) < 2:
        return lit(next(iter(listed))) if listed else NOTHING
    if "" in listed:
        del listed[""]
        return alt(EMPTY, words(listed))
    lit("".join(listed))  # for what it refuses
    return Term("words", tuple(listed))


def chars(ranges: Iterable[tuple[int, int]]) -> Term:
    """One code point out of inclusive ranges, in any order; surrogates are taken out. No range: NOTHING."""
    merged: list[tuple[int, int]] = []
    for lo, hi in sorted(ranges):
        if not 0 <= lo <= hi <= MAX_CODE_POINT:
            raise GrammarError(f"not a range of code points: {lo:#x}-{hi:#x}")
        for low, high in ((lo, min(hi, 0xD7FF)), (max(lo, 0xE000), hi)):
            if low > high:
                continue
            if merged and low <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], high))
            else:
                merged.append((low, high))
    if not merged:
        return NOTHING
    if len(merged) == 1 and merged[0][0] == merged[0][1]:
        return Term("lit", (chr(merged[0][0]),))
    return Term("chars", tuple(merged))


def ref(rule_name: str) -> Term:
    """Whatever the rule of that name matches."""
    return Term("ref", (rule_name,), False)


def seq(*terms: Term) -> Term:
    """One after the other."""
    if len(terms) == 2 and terms[1].op in _APART and (terms[0].op in _APART or terms[0].op == "lit"):
        return Term("seq", terms, terms[0].regular and terms[1].regular)
    flat: list[Term] = []
    texts: list[str] = []  # of a run of literals, which become one
    for term in terms:
        op = term.op
        if op == "lit":
            texts.append(term.args[0])
            continue
        if op == "empty":
            continue
        if op == "nothing":
            return NOTHING
        for part in term.args if op == "seq" else (term,):
            if part.op == "lit":
                texts.append(part.args[0])
                continue
            if texts:
                flat.append(Term("lit", ("".join(texts),)))
                texts.clear()
            flat.append(part)
    if texts:
        flat.append(Term("lit", ("".join(texts),)))
    if len(flat) < 2:
        return flat[0] if flat else EMPTY
    return Term("seq", tuple(flat), all(part.regular for part in flat))


_APART = frozenset(("chars", "words", "alt", "rep", "ref", "pick", "both", "not", "json", "compare", "multiple"))
"""What no neighbour in a sequence is joined with."""


def framed(before: str, term: Term, after: str = "") -> Term:
    """seq(lit(before), term, lit(after)), at a third of its cost: for schemas, which do it for every name and bracket.

    The texts must be without lone surrogates, and `before` not empty."""
    op = term.op
    if op == "nothing":
        return NOTHING
    if op == "lit" or op == "empty":
        return Term("lit", (before + "".join(term.args) + after,))
    parts = term.args if op == "seq" else (term,)
    first, last = parts[0], parts[-1]
    if first.op == "lit":
        parts = (Term("lit", (before + first.args[0],)), *parts[1:])
    else:
        parts = (Term("lit", (before,)), *parts)
    if after:
        if last.op == "lit" and last is not first:
            parts = (*parts[:-1], Term("lit", (last.args[0] + after,)))
        else:
            parts = (*parts, Term("lit", (after,)))
    return Term("seq", parts, term.regular)


def alt(*terms: Term) -> Term:
    """Any one of them. No terms: NOTHING."""
    options: dict[Term | int, Term] = {}  # what is built of rules by identity alone, as to compare it takes long
    single: list[tuple[int, int]] = []  # choices of one character become one class
    n_single = 0
    for term in terms:
        for part in term.args if term.op == "alt" else (term,):
            if part.op == "chars":
                single += part.args
            elif part.op == "lit" and len(part.args[0]) == 1:
                single.append((ord(part.args[0]),) * 2)
            elif part.op != "nothing":
                options[part if part.regular or part.op == "ref" else id(part)] = part
                continue
            else:
                continue
            n_single += 1
    if n_single:
        options[-1] = chars(single)
    parts = tuple(options.values())
    if len(parts) < 2:
        return parts[0] if parts else NOTHING
    return Term("alt", parts, all(part.regular for part in parts))


def rep(term: Term, lo: int = 0, hi: int | None = None) -> Term:
    """`lo` to `hi` times (None: without bound). Raises GrammarError for bounds out of order or too large."""
    if lo < 0 or (hi is not None and hi < lo):
        raise GrammarError(f"a repeat from {lo} to {hi} times: the bounds are out of order")
    if lo > MAX_REPEAT or (hi or 0) > MAX_REPEAT:
        raise GrammarError(f"a repeat of more than {MAX_REPEAT} times is too large")
    if hi == 0 or term.op == "empty":
        return EMPTY
    if term.op == "nothing":
        return NOTHING if lo else EMPTY
    if term.op == "rep":
        if merged := _merge_repeats(term.args, lo, hi):
            return merged
    if lo == hi == 1:
        return term
    return Term("rep", (term, lo, hi), term.regular)


def _merge_repeats(inner: tuple[Any, ...], lo: int, hi: int | None) -> Term | None:
    """(x{a,b}){lo,hi} as one repeat, where the counts it allows have no gap: k*b + 1 >= (k+1)*a from k = lo on."""
    term, a, b = inner
    if lo == hi or b is None and (lo or a <= 1) or b is not None and lo * b + 1 >= (lo + 1) * a:
        low, high = lo * a, None if b is None or hi is None else b * hi
        if low <= MAX_REPEAT and (high or 0) <= MAX_REPEAT:
            return rep(term, low, high)
    return None


def pick(items: Iterable[tuple[Term, bool]], separator: Term, extra: Term = NOTHING, lo: int = 0, hi: int | None = None) -> Term:
    """A list in any order: each of `items` (term, required) at most once, `extra` any number of times.

    At most `hi` members in all, and at least `lo` that are different: extras may be equal, so all of them count as one. No member may be
    empty, nor the separator between them. What was used is part of the automaton's state and is never expanded."""
    listed = list(items)
    return pick_of([term for term, needed in listed if needed], [term for term, needed in listed if not needed], separator, extra, lo, hi)


def pick_of(
    required: Collection[Term], others: Iterable[Term], separator: Term, extra: Term = NOTHING, lo: int = 0, hi: int | None = None
) -> Term:
    """The same, of items that are divided already."""
    if hi is not None and max(lo, len(required)) > hi:
        return NOTHING
    return Term("pick", (len(required), lo, hi, *required, *others, extra, separator), False)


def both(*terms: Term) -> Term:
    """The strings in all of them: an intersection. No terms: every string."""
    parts: dict[Term, None] = {}
    for term in terms:
        for part in _regular(term, "both").args if term.op == "both" else (_regular(term, "both"),):
            parts[part] = None
    if NOTHING in parts:
        return NOTHING
    parts.pop(ANY_STRING, None)
    if len(parts) < 2:
        return next(iter(parts), ANY_STRING)
    return Term("both", tuple(parts))


def complement(term: Term) -> Term:
    """Every string of code points that `term` does not match."""
    if _regular(term, "complement").op == "not":
        return term.args[0]  # type: ignore[no-any-return]
    if term.op == "nothing":
        return ANY_STRING
    return NOTHING if term == ANY_STRING else Term("not", (term,))


def minus(a: Term, b: Term) -> Term:
    """The strings in `a` that are not in `b`."""
    return both(a, complement(b))


def json_string(term: Term) -> Term:
    """The strings of `term` as the inside of a JSON string, without the quotes, in every legal spelling.

    A character may stand for itself or be escaped (two-character escapes, \\uXXXX in either case, surrogate pairs); quote,
    backslash and controls must be. Lone surrogates are refused (RFC 8259, sections 7 and 8.2)."""
    if _regular(term, "json_string").op in ("empty", "nothing"):
        return term
    return Term("json", (term,))


def _regular(term: Term, user: str) -> Term:
    if not term.regular:
        raise GrammarError(f"{user} works on regular terms only, and this one uses a rule")
    return term


ANY_STRING = rep(ANY_CHAR)
"""Every string."""
