"""Numbers as terms: the JSON grammar, cut down to the values that bounds, multiples and exclusions leave.

Without such facts a number may be spelled in every legal way. With them it is written as a plain decimal, without an exponent and not as
a negative zero; among those spellings the value decides exactly. A small automaton reads the characters: one part knows the grammar, one
part for each bound or excluded value compares, one part for each multiple keeps a remainder. Its states become terms.
"""
from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from functools import cache, lru_cache, partial
from math import ceil, floor, lcm
from typing import Any

from ..errors import LimitError
from ..grammar import EMPTY, NOTHING, Term, alt, chars, lit, ref, rep, seq, words
from .facts import NumberFacts

DIGIT = chars([(48, 57)])
INTEGER = seq(alt(EMPTY, lit("-")), alt(lit("0"), seq(chars([(49, 57)]), rep(DIGIT))))
NUMBER = seq(
    INTEGER,
    alt(EMPTY, seq(lit("."), rep(DIGIT, 1))),
    alt(EMPTY, seq(chars([(69, 69), (101, 101)]), alt(EMPTY, chars([(43, 43), (45, 45)])), rep(DIGIT, 1))),
)
MAX_STATES = 4_000
MAX_LISTED = 200
MAX_TURNS = 40
SMALL = 60
"""Automata of at most so many states are written without rules."""

State = tuple[Any, ...]
Table = list[tuple[bool, dict[int, list[str]]]]
"""By state: whether a numeral may end there, and the characters that lead to each next state. State 0 is the first."""


def term(facts: NumberFacts, rules: Callable[[object, Callable[[str], dict[str, Term]]], Term]) -> Term:
    """The numerals whose value satisfies `facts`. `rules(key, make)` keeps the rules of what needs them, and refers to the first."""
    if facts.values is not None:
        return words([text for key, value in facts.values.items() if facts.admits(key) for text in _spellings(value)])
    steps = facts.multiples | ({Fraction(1)} if facts.integral else frozenset())
    step = Fraction(lcm(*[s.numerator for s in steps]), 1) if all(s.denominator == 1 for s in steps) else _common(steps)
    integral = True if steps and step.denominator == 1 else facts.integral
    least = None if facts.least is None else (facts.least, facts.least_open)
    most = None if facts.most is None else (facts.most, facts.most_open)
    if step == 1 and least is most is None and integral is not False and not facts.excluded and not facts.not_multiples:
        return INTEGER if integral else NUMBER
    if step != 1 and least and most and (listed := _listed(facts, step, least[0], most[0])) is not None:
        return listed
    conditions = (integral, step if steps else None, least, most, facts.excluded, facts.not_multiples)
    return _as_term(conditions) or rules(conditions, lambda name: _as_rules(_table(conditions), name))


def _spellings(value: int | float) -> list[str]:
    """How a listed number may be written: as in the schema, and without a fraction that is zero."""
    return [json.dumps(value), *([str(int(value))] if isinstance(value, float) and value.is_integer() else [])]


def _common(steps: frozenset[Fraction] | set[Fraction]) -> Fraction:
    """The least number that is a multiple of all; 1 if there are none."""
    result = Fraction(1)
    for i, step in enumerate(steps):
        result = step if i == 0 else Fraction(lcm(result.numerator * step.denominator, step.numerator * result.denominator),
                                              result.denominator * step.denominator)  # fmt: skip
    return result


def _listed(facts: NumberFacts, step: Fraction, least: Fraction, most: Fraction) -> Term | None:
    """The multiples of `step` one by one, if they are few."""
    low, high = -(-least // step), most // step
    if high - low > MAX_LISTED:
        return None
    values = (n * step for n in range(low, high + 1))
    return words([text for value in values if facts.admits(value) and (text := plain(value))])


def integers(facts: NumberFacts) -> list[int] | None:
    """The values one by one, if they are whole numbers and few."""
    if facts.integral is not True or facts.least is None or facts.most is None or facts.most - facts.least > MAX_LISTED:
        return None
    return [n for n in range(ceil(facts.least), floor(facts.most) + 1) if facts.admits(Fraction(n))]


def plain(value: Fraction) -> str:
    """A finite decimal fraction in digits."""
    whole, point = _digits(abs(value))
    return ("-" if value < 0 else "") + whole + ("." + point if point else "")


def _digits(value: Fraction) -> tuple[str, str]:
    """The digits before and after the point, the latter without zeros at the end."""
    places = 0
    while value.denominator != 1:
        value, places = value * 10, places + 1
    text = str(value.numerator).rjust(places + 1, "0")
    return text[: len(text) - places], text[len(text) - places :]


# ---- parts: start(), step(state, character) -> state or None, accepts(state) -----------------------------------------------------


class Shape:
    """The grammar of plain decimals without negative zeros. `integral`: no fraction; False: a fraction that is not zero."""

    def __init__(self, integral: bool | None) -> None:
        self.integral = integral
        self.start: State = ("start", False, False, False)

    def step(self, state: State, character: str) -> State | None:
        phase, negative, nonzero, broken = state
        if character == "-":
            return ("sign", True, False, False) if phase == "start" else None
        if character == ".":
            return ("point", negative, nonzero, False) if phase in ("zero", "whole") and self.integral is not True else None
        some = nonzero or character != "0"
        if phase in ("start", "sign"):
            return ("zero" if character == "0" else "whole", negative, some, False)
        if phase == "whole":
            return state
        return None if phase == "zero" else ("fraction", negative, some, broken or character != "0")

    def accepts(self, state: State) -> bool:
        phase, negative, nonzero, broken = state
        return phase in ("zero", "whole", "fraction") and (nonzero or not negative) and (broken or self.integral is not False)


class Compare:
    """How the value compares with `bound`: the result (-1, 0, 1) must be in `wanted`."""

    def __init__(self, bound: Fraction, wanted: tuple[int, ...]) -> None:
        self.negative, self.wanted = bound < 0, wanted
        self.whole, self.point = _digits(abs(bound))
        self.start: State = (False, "whole", 0, 0)

    def _decided(self, negative: bool, order: int) -> State | None:
        """`order` is that of the magnitudes."""
        result = (-order if negative else order) if negative == self.negative else -1 if negative else 1
        return (negative, "decided", 0, order) if result in self.wanted else None

    def step(self, state: State, character: str) -> State | None:
        negative, phase, position, order = state
        if character == "-":
            return (True, "whole", 0, 0)
        if phase == "decided":
            return state
        if negative != self.negative:
            return self._decided(negative, 1)
        if character == ".":
            order = order if position == len(self.whole) else -1
            return (negative, "point", 0, 0) if order == 0 else self._decided(negative, order)
        if phase == "whole":
            if position == len(self.whole):
                return self._decided(negative, 1)
            order = order or _order(character, self.whole[position])
            return (negative, "whole", position + 1, order)
        order = _order(character, self.point[position] if position < len(self.point) else "0")
        return self._decided(negative, order) if order else (negative, "point", min(position + 1, len(self.point)), 0)

    def accepts(self, state: State) -> bool:
        negative, phase, position, order = state
        if phase == "decided":
            return True
        if phase == "whole":
            order = -1 if position < len(self.whole) else order or (-1 if self.point else 0)
        elif position < len(self.point):
            order = -1
        return self._decided(negative, order) is not None


class Remainder:
    """Whether the value is a multiple of `step`."""

    def __init__(self, step: Fraction, wanted: bool) -> None:
        whole, point = _digits(step)
        self.places, self.modulus, self.wanted = len(point), int(whole + point), wanted
        self.decimal = str(self.modulus).rstrip("0") == "1"
        self.start: State = ("whole", 0, 0)

    def step(self, state: State, character: str) -> State | None:
        phase, places, remainder = state
        if character == "-" or phase == "never":
            return state
        if character == ".":
            return ("point", 0, remainder)
        if phase == "point":
            if places == self.places:
                return state if character == "0" else None if self.wanted else ("never", 0, 0)
            places += 1
        remainder = (remainder * 10 + int(character)) % self.modulus
        if self.decimal and remainder:  # of a power of ten only the zeros at the end count
            remainder = 10 ** (len(str(remainder)) - len(str(remainder).rstrip("0")))
        return (phase, places, remainder)

    def accepts(self, state: State) -> bool:
        phase, places, remainder = state
        return (phase != "never" and remainder * 10 ** (self.places - places) % self.modulus == 0) is self.wanted


CHARACTERS = "-.0123456789"


def _ways(part: Any, state: State) -> list[State | None]:
    """Where each of the characters leads."""
    return [part.step(state, character) for character in CHARACTERS]


def _order(a: str, b: str) -> int:
    return (a > b) - (a < b)


# ---- from parts to terms ----------------------------------------------------------------------------------------------------------


def _parts(conditions: tuple[Any, ...]) -> list[Any]:
    integral, step, least, most, excluded, not_multiples = conditions
    parts: list[Any] = [Shape(integral)]
    if least:
        parts.append(Compare(least[0], (1,) if least[1] else (0, 1)))
    if most:
        parts.append(Compare(most[0], (-1,) if most[1] else (-1, 0)))
    parts += [Compare(value, (-1, 1)) for value in sorted(excluded)]
    if step is not None and not (step == 1 and integral):
        parts.append(Remainder(step, True))
    return parts + [Remainder(value, False) for value in sorted(not_multiples)]


@lru_cache(maxsize=512)
def _table(conditions: tuple[Any, ...]) -> Table:
    """The product of the parts, without states from which no numeral ends."""
    parts = _parts(conditions)
    start = tuple(part.start for part in parts)
    numbers = {start: 0}
    order, edges = [start], list[dict[int, list[str]]]()
    ways = [cache(partial(_ways, part)) for part in parts]  # a part has few states, the product many
    for states in order:
        row: dict[int, list[str]] = {}
        for character, reached in zip(CHARACTERS, zip(*[way(state) for way, state in zip(ways, states, strict=True)], strict=True), strict=True):
            if None in reached:
                continue
            if reached not in numbers:
                if len(numbers) >= MAX_STATES:
                    raise LimitError(f"the bounds and multiples of a number need more than {MAX_STATES} states")
                numbers[reached] = len(order)
                order.append(reached)
            row.setdefault(numbers[reached], []).append(character)
        edges.append(row)
    ends = [all(part.accepts(state) for part, state in zip(parts, states, strict=True)) for states in order]
    alive = {number for number, end in enumerate(ends) if end}
    before: dict[int, list[int]] = {}
    for number, row in enumerate(edges):
        for after in row:
            before.setdefault(after, []).append(number)
    todo = list(alive)
    while todo:
        for number in before.get(todo.pop(), ()):
            if number not in alive:
                alive.add(number)
                todo.append(number)
    kept = {number: i for i, number in enumerate(sorted(alive | {0}))}
    return _minimal([(ends[n], {kept[after]: cs for after, cs in edges[n].items() if after in alive}) for n in kept])


def _minimal(table: Table) -> Table:
    """The same language in the fewest states: those that nothing tells apart become one (Moore 1956).

    A table that takes long, as one with bounds of many digits does, is left as it is: it has little to join."""
    classes, count = [int(ends) for ends, _ in table], 0
    turns = 0
    while count < (count := len(set(classes))):
        if turns == MAX_TURNS:
            return table
        turns += 1
        seen: dict[Any, int] = {}
        refined = []
        for state, (_, row) in enumerate(table):
            ways = frozenset((character, classes[after]) for after, characters in row.items() for character in characters)
            refined.append(seen.setdefault((classes[state], ways), len(seen)))
        classes = refined
    merged: Table = []
    for number in dict.fromkeys(classes):  # numbered in the order of the states, so the first stays first
        ends, row = table[classes.index(number)]
        joined: dict[int, list[str]] = {}
        for after, characters in row.items():
            joined.setdefault(classes[after], []).extend(characters)
        merged.append((ends, joined))
    return merged


def _loops(table: Table) -> bool:
    """Whether a state can be left and reached again; those that lead straight to themselves do not count."""
    waiting = [0] * len(table)
    for state, (_, row) in enumerate(table):
        for after in row:
            waiting[after] += after != state
    ready, done = [state for state, n in enumerate(waiting) if n == 0], 0
    while ready:
        state = ready.pop()
        done += 1
        for after in table[state][1]:
            if after != state:
                waiting[after] -= 1
                if not waiting[after]:
                    ready.append(after)
    return done < len(table)


def _state_term(table: Table, state: int, after: Callable[[int], Term]) -> Term:
    ends, row = table[state]
    ways = [seq(_class(cs), after(number)) for number, cs in row.items() if number != state]
    return seq(rep(_class(row.get(state, []))), alt(*([EMPTY] if ends else []), *ways))


def _class(characters: list[str]) -> Term:
    return chars([(ord(c), ord(c)) for c in characters])


@lru_cache(maxsize=512)
def _as_term(conditions: tuple[Any, ...]) -> Term | None:
    """The automaton as one term. None if it is large or loops, and so needs rules."""
    table, known = _table(conditions), dict[int, Term]()
    if len(table) > SMALL or _loops(table):
        return None

    def of(state: int) -> Term:
        if state not in known:
            known[state] = _state_term(table, state, of)
        return known[state]

    return of(0)


def _as_rules(table: Table, name: str) -> dict[str, Term]:
    return {f"{name}.{n}": _state_term(table, n, lambda number: ref(f"{name}.{number}")) for n in range(len(table))}


__all__ = ["INTEGER", "NUMBER", "NOTHING", "integers", "plain", "term"]
