"""The automaton in plain Python: the oracle of the tests, and the way out where no C++ compiler is to be had. Clear, and slow.

A state is what may still be written, as a term, beside the bytes of an unfinished character. One character on is the term's
derivative (Brzozowski 1964), refs unfolded as they are met. JSON strings are first rewritten into plain terms.
"""
from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import lru_cache
from heapq import heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from .. import decimals
from ..errors import GrammarError
from ..grammar import ANY_CHAR, EMPTY, MAX_CODE_POINT, NOTHING, GrammarSource, Term, alt, both, chars, complement, lit, rep, seq

if TYPE_CHECKING:
    from ..compiler import Automaton, Limits
    from ..vocabulary import Vocabulary

FAR = 1 << 30
_PICKS = ("pick", "picked")
_NUMERALS = ("compare", "multiple")
_NUMERAL_CUTS = frozenset(ord(c) + n for c in decimals.CHARACTERS for n in (0, 1))


def build(vocabulary: Vocabulary, kind: str, text: str, terms: GrammarSource | None, limits: Limits) -> Automaton:
    assert terms is not None
    return PythonAutomaton(vocabulary, terms)


class State(NamedTuple):
    term: Term
    pending: bytes = b""


class PythonAutomaton:
    """The Automaton protocol over derivatives. Caches are per grammar and bounded."""

    def __init__(self, vocabulary: Vocabulary, source: GrammarSource) -> None:
        self.vocabulary = vocabulary
        self.rules = {name: _plain(term) for name, term in source.rules.items()}
        self.lengths = self._rule_lengths()
        for name in ("derive", "_nullable", "_least", "_cuts", "_live", "need", "_step"):
            setattr(self, name, lru_cache(1 << 16)(getattr(self, name)))
        try:
            self.start = State(self.rules[source.start])
            if not self._live(self.start.term):
                raise GrammarError("the constraint has no document: nothing can satisfy it")
            self._nullable(self.start.term)
        except KeyError as error:
            raise GrammarError(f"the grammar has no rule {error}") from None
        except RecursionError:
            raise GrammarError("left recursion, or terms nested too deep") from None

    # ---- terms

    def derive(self, term: Term, c: int) -> Term:
        """What remains of `term` after the code point c."""
        op, args = term.op, term.args
        if op == "lit":
            return lit(args[0][1:]) if ord(args[0][0]) == c else NOTHING
        if op == "chars":
            return EMPTY if any(lo <= c <= hi for lo, hi in args) else NOTHING
        if op == "seq":
            rest = seq(*args[1:])
            after = seq(self.derive(args[0], c), rest)
            return alt(after, self.derive(rest, c)) if self._nullable(args[0]) else after
        if op == "alt":
            return alt(*[self.derive(part, c) for part in args])
        if op == "rep":
            body, lo, hi = args
            if self._nullable(body):
                lo = 0
            return seq(self.derive(body, c), rep(body, max(lo - 1, 0), None if hi is None else hi - 1))
        if op == "both":
            return both(*[self.derive(part, c) for part in args])
        if op == "not":
            return complement(self.derive(args[0], c))
        if op == "ref":
            return self.derive(self.rules[args[0]], c)
        if op in _NUMERALS:
            return decimals.step(term, chr(c))
        return self.derive(_unfold(term), c) if op in _PICKS else NOTHING

    def _nullable(self, term: Term) -> bool:
        op, args = term.op, term.args
        if op == "rep":
            return args[1] == 0 or self._nullable(args[0])
        if op == "not":
            return not self._nullable(args[0])
        if op == "ref":
            return self._nullable(self.rules[args[0]])
        if op == "pick":
            return args[0] == 0 and args[1] == 0
        if op in _NUMERALS:
            return decimals.accepts(term)
        return op == "empty" or op in ("seq", "both") and all(map(self._nullable, args)) or op == "alt" and any(map(self._nullable, args))

    def _cuts(self, term: Term) -> frozenset[int]:
        """Code points where the derivative may change: between two of them it is the same."""
        op, args = term.op, term.args
        if op == "lit":
            return frozenset((ord(args[0][0]), ord(args[0][0]) + 1))
        if op == "chars":
            return frozenset(bound for lo, hi in args for bound in (lo, hi + 1))
        if op in _NUMERALS:
            return _NUMERAL_CUTS
        if op == "ref":
            return self._cuts(self.rules[args[0]])
        if op in _PICKS:
            return self._cuts(_unfold(term))
        parts = args[:1] if op in ("rep", "not") else args if op in ("alt", "both") else ()
        if op == "seq":
            parts = args[: next((i + 1 for i, part in enumerate(args) if not self._nullable(part)), len(args))]
        return frozenset[int]().union(*map(self._cuts, parts))

    def _moves(self, term: Term) -> Iterator[tuple[int, int, Term]]:
        """(first, last, derivative) for ranges of code points, live ones only."""
        for low, high in self._classes(term):
            after = self.derive(term, low)
            if self._live(after):
                yield low, high, after

    def _classes(self, term: Term) -> Iterator[tuple[int, int]]:
        cuts = sorted(self._cuts(term) | {0, 0xD800, 0xE000, MAX_CODE_POINT + 1})
        return ((low, high - 1) for low, high in pairwise(cuts) if not 0xD800 <= low < 0xE000)

    def _live(self, term: Term) -> bool:
        return self._least(term) < FAR

    def _least(self, term: Term) -> int:
        """Fewest bytes of a string of `term`; FAR if it has none."""
        op, args = term.op, term.args
        if op == "lit":
            return len(args[0].encode())
        if op == "chars":
            return len(chr(args[0][0]).encode())
        if op == "alt":
            return min(map(self._least, args))
        if op == "seq":
            return min(FAR, sum(map(self._least, args)))
        if op == "rep":
            return min(FAR, args[1] * self._least(args[0])) if args[1] else 0
        if op == "ref":
            return self.lengths[args[0]]
        if op == "pick":
            return 0 if self._nullable(term) else self._least(Term("picked", (False, *args), False))
        if op == "picked":
            extras, required, lo, hi, *items, extra, separator = args
            wanted = max(lo - required, 0)
            costs = sorted(map(self._least, items[required:] if extras else [*items[required:], extra]))[:wanted]
            if required + wanted == 0:
                return min(map(self._least, [*items, extra]))
            if len(costs) < wanted or hi is not None and required + wanted > hi:
                return FAR
            return min(FAR, sum(map(self._least, items[:required])) + sum(costs) + (required + wanted - 1) * self._least(separator))
        if op in ("both", "not", *_NUMERALS):
            return self._search(term)
        return 0 if op == "empty" else FAR

    def _search(self, term: Term) -> int:
        queue, seen = [(0, 0, term)], {term: 0}
        while queue:
            cost, _, at = heappop(queue)
            if self._nullable(at):
                return cost
            for low, _ in self._classes(at):
                after, price = self.derive(at, low), cost + len(chr(low).encode())
                if after.op != "nothing" and seen.get(after, FAR) > price:
                    seen[after] = price
                    heappush(queue, (price, len(seen), after))
        return FAR

    def _rule_lengths(self) -> dict[str, int]:
        self.lengths = dict.fromkeys(self.rules, FAR)
        while True:
            found = {name: self._least(term) for name, term in self.rules.items()}
            if found == self.lengths:
                return found
            self.lengths = found

    # ---- states

    def _step(self, state: State, byte: int) -> State | None:
        pending = state.pending + bytes([byte])
        low, high = _completions(pending)
        if low > high:
            return None
        if low == high and len(chr(low).encode()) == len(pending):
            after = self.derive(state.term, low)
            return State(after) if self._live(after) else None
        return State(state.term, pending) if any(lo <= high and low <= hi for lo, hi, _ in self._moves(state.term)) else None

    def advance_bytes(self, state: State, text: bytes) -> State | int:
        at: State | None = state
        for byte in text:
            at = self._step(at, byte) if at is not None else None
        return -1 if at is None else at

    def advance(self, state: State, token: int) -> State | int:
        text = self.vocabulary.token_bytes[token]
        return self.advance_bytes(state, text) if text else -1

    def accepting(self, state: State) -> bool:
        return not state.pending and self._nullable(state.term)

    def finished(self, state: State) -> bool:
        return self.accepting(state) and not self.live_bytes(state)

    def live_bytes(self, state: State) -> bytes:
        return bytes(byte for byte in range(256) if self._step(state, byte) is not None)

    def forced(self, state: State) -> bytes:
        text, whole = b"", 0
        while not self.accepting(state) and len(text) < 1 << 14 and len(ways := self.live_bytes(state)) == 1:
            text += ways
            state = self._step(state, ways[0])  # type: ignore[assignment]
            whole = whole if state.pending else len(text)
        return text[:whole]

    def fill(self, state: State, address: int, budget: int) -> None:
        row = (ctypes.c_uint32 * self.vocabulary.words).from_address(address)
        ctypes.memset(address, 0, ctypes.sizeof(row))
        known = self.need(state) is not None
        for token, text in enumerate(self.vocabulary.token_bytes):
            after = self.advance_bytes(state, text) if text else -1
            if isinstance(after, State) and (budget < 0 or not known or (self.need(after) or 0) < budget):
                row[token // 32] |= 1 << token % 32
        if self.accepting(state) and budget:
            for token in self.vocabulary.eos_ids:
                row[token // 32] |= 1 << token % 32

    def need(self, state: State) -> int | None:
        """Tokens along one shortest text, and one for the end where the text could go on."""
        path, text = [state], b""
        tokens = {token for token in self.vocabulary.token_bytes if token}
        while not self.accepting(path[-1]):
            at = path[-1]
            byte = min(self.live_bytes(at), key=lambda b: (self._left(self._step(at, b)), bytes([b]) not in tokens))  # type: ignore[arg-type]
            text += bytes([byte])
            path.append(self._step(at, byte))  # type: ignore[arg-type]
        longest = max(map(len, tokens))
        least = [FAR] * len(text) + [0 if self.finished(path[-1]) else 1]
        for i in reversed(range(len(text))):
            least[i] = min([least[j] + 1 for j in range(i + 1, min(len(text), i + longest) + 1) if text[i:j] in tokens], default=FAR)
        return least[0] if least[0] < FAR else None

    def _left(self, state: State) -> int:
        if not state.pending:
            return self._least(state.term)
        low, high = _completions(state.pending)
        more = len(chr(low).encode()) - len(state.pending)
        return min(more + self._least(after) for lo, hi, after in self._moves(state.term) if lo <= high and low <= hi)

    @property
    def sizes(self) -> tuple[int, int, int]:
        made = self.derive.cache_info().currsize  # type: ignore[attr-defined]
        return made, 500 * made, 0


def _completions(pending: bytes) -> tuple[int, int]:
    """First and last code point whose UTF-8 starts with `pending`; (1, 0) if there is none."""
    lead = pending[0]
    size = 1 if lead < 0x80 else 2 if 0xC2 <= lead < 0xE0 else 3 if 0xE0 <= lead < 0xF0 else 4 if 0xF0 <= lead < 0xF5 else 0
    if not size or len(pending) > size or any(not 0x80 <= b < 0xC0 for b in pending[1:]):
        return 1, 0
    value = lead if size == 1 else lead & (0x7F >> size)
    for byte in pending[1:]:
        value = value << 6 | byte & 0x3F
    bits = 6 * (size - len(pending))
    low, high = value << bits, (value + 1 << bits) - 1
    return max(low, (0, 0x80, 0x800, 0x10000)[size - 1]), min(high, MAX_CODE_POINT)


def _unfold(term: Term) -> Term:
    """A pick as nothing, or its first member and what follows. "picked" is a pick that must go on; its first argument says whether
    an extra was among the members, as only the first of them counts."""
    if term.op == "pick":
        required, lo = term.args[:2]
        return alt(EMPTY if required == 0 and lo == 0 else NOTHING, Term("picked", (False, *term.args), False))
    extras, required, lo, hi, *items, extra, separator = term.args
    options = []
    for i, member in enumerate([*items, extra]):
        left = required - (i < required)
        wanted = max(lo - (i < len(items) or not extras), 0)
        if member == NOTHING or hi is not None and 1 + max(left, wanted) > hi:
            continue
        others = (extras or i == len(items), left, wanted, None if hi is None else hi - 1, *items[:i], *items[i + 1 :], extra, separator)
        more = NOTHING if hi == 1 else seq(separator, Term("picked", others, False))
        options.append(seq(member, alt(EMPTY if left == 0 and wanted == 0 else NOTHING, more)))
    return alt(*options)


# ---- JSON strings as plain terms: each character by its spellings. Spellings decode in one way only, so sets keep their algebra.


def _plain(term: Term) -> Term:
    op, args = term.op, term.args
    if op == "json":
        return _spelled(_plain(args[0]))
    if op == "words":
        return alt(*map(lit, args))
    if op in ("seq", "alt", "both"):
        return {"seq": seq, "alt": alt, "both": both}[op](*map(_plain, args))
    if op == "rep":
        return rep(_plain(args[0]), *args[1:])
    if op == "not":
        return complement(_plain(args[0]))
    return Term("pick", (*args[:3], *map(_plain, args[3:])), False) if op == "pick" else term


def _spelled(term: Term) -> Term:
    op, args = term.op, term.args
    if op == "lit":
        return seq(*[_spelled_class(((ord(c), ord(c)),)) for c in args[0]])
    if op == "chars":
        return _spelled_class(args)
    if op in ("seq", "alt", "both"):
        return {"seq": seq, "alt": alt, "both": both}[op](*map(_spelled, args))
    if op == "rep":
        return rep(_spelled(args[0]), *args[1:])
    if op == "not":
        return both(rep(_spelled(ANY_CHAR)), complement(_spelled(args[0])))
    return term


@lru_cache(256)
def _spelled_class(ranges: tuple[tuple[int, int], ...]) -> Term:
    plain = [(max(lo, low), min(hi, high)) for lo, hi in ranges for low, high in ((0x20, 0x21), (0x23, 0x5B), (0x5D, MAX_CODE_POINT))]
    short = [written for written, meant in zip('"\\/bfnrt', '"\\/\b\f\n\r\t', strict=True) if any(lo <= ord(meant) <= hi for lo, hi in ranges)]
    units = [seq(lit("\\u"), _hex(lo, min(hi, 0xFFFF), 4)) for lo, hi in ranges if lo <= 0xFFFF]
    for lo, hi in ranges:
        low, high = max(lo, 0x10000) - 0x10000, hi - 0x10000
        for lead in sorted({low >> 10, high >> 10, *((), (-1,))[high >> 10 > (low >> 10) + 1]}) if low <= high else ():
            first, last, one = (low >> 10) + 1, (high >> 10) - 1, lead >= 0
            leads = _hex(0xD800 + lead, 0xD800 + lead, 4) if one else _hex(0xD800 + first, 0xD800 + last, 4)
            tail = (max(low, lead << 10) & 0x3FF, min(high, (lead << 10) + 0x3FF) & 0x3FF) if one else (0, 0x3FF)
            units.append(seq(lit("\\u"), leads, lit("\\u"), _hex(0xDC00 + tail[0], 0xDC00 + tail[1], 4)))
    return alt(chars([pair for pair in plain if pair[0] <= pair[1]]), *[lit("\\" + c) for c in short], *units)


def _hex(low: int, high: int, digits: int) -> Term:
    """The numbers low..high in so many hexadecimal digits, either case."""
    if digits == 0:
        return EMPTY
    size, options = 1 << 4 * (digits - 1), []
    for digit in range(16):
        first, last = max(low, digit * size), min(high, (digit + 1) * size - 1)
        if first <= last:
            written = alt(*[lit(c) for c in {f"{digit:x}", f"{digit:X}"}])
            options.append(seq(written, _hex(first - digit * size, last - digit * size, digits - 1)))
    return alt(*options)
