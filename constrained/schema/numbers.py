"""Numbers as terms: the JSON grammar, cut down to the values that bounds, multiples and exclusions leave.

Without such facts a number may be spelled in every legal way. With them it is written as a plain decimal, without an exponent and not as
a negative zero; among those spellings the value decides exactly (decimals).
"""
from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from math import ceil, floor

from ..decimals import EQUAL, LESS, MORE, compare, multiple
from ..errors import LimitError
from ..grammar import EMPTY, NOTHING, Term, alt, both, chars, lit, rep, seq, words
from .facts import NumberFacts

DIGIT, SIGN, POINT = chars([(48, 57)]), lit("-"), lit(".")
POSITIVE = seq(chars([(49, 57)]), rep(DIGIT))
NATURAL = alt(lit("0"), POSITIVE)
INTEGER = seq(alt(EMPTY, SIGN), NATURAL)
NUMBER = seq(
    INTEGER,
    alt(EMPTY, seq(POINT, rep(DIGIT, 1))),
    alt(EMPTY, seq(chars([(69, 69), (101, 101)]), alt(EMPTY, chars([(43, 43), (45, 45)])), rep(DIGIT, 1))),
)
_FRACTION = seq(POINT, rep(lit("0")), POSITIVE)
"""One that is not zero."""
_ANY_FRACTION = alt(EMPTY, seq(POINT, rep(DIGIT, 1)))
_PLAIN = {
    True: alt(NATURAL, seq(SIGN, POSITIVE)),
    False: seq(alt(EMPTY, SIGN), NATURAL, _FRACTION),
    None: alt(seq(NATURAL, _ANY_FRACTION), seq(SIGN, alt(seq(POSITIVE, _ANY_FRACTION), seq(lit("0"), _FRACTION)))),
}
"""The plain decimals, and no negative zeros: whole numbers, all others, all."""
MAX_LISTED = 200
MAX_STEP = 50_000
"""Of more between two bounds, the remainders that a number may have on its way would pass the limits."""


def term(facts: NumberFacts) -> Term:
    """The numerals whose value satisfies `facts`."""
    if facts.values is not None:
        return words([text for key, value in facts.values.items() if facts.admits(key) for text in _spellings(value)])
    step, integral = facts.step, facts.integral
    if step is not None and step.denominator == 1:
        if integral is False:
            return NOTHING
        integral = True
        if step > 1 and (few := integers(replace(facts, integral=True))) is not None:
            return words([str(n) for n in few])
    parts = [multiple(step)] if step is not None and not (step == 1 and integral) else []
    bounded = facts.least is not None and facts.most is not None
    if bounded and step is not None and step.numerator > MAX_STEP and str(step.numerator).rstrip("0") != "1":  # powers of ten only count zeros
        raise LimitError(f"more than {MAX_LISTED} multiples of {step} between two bounds cannot be told")
    if facts.least is not None:
        parts.append(compare(facts.least, MORE if facts.least_open else MORE | EQUAL))
    if facts.most is not None:
        parts.append(compare(facts.most, LESS if facts.most_open else LESS | EQUAL))
    parts += [compare(value, LESS | MORE) for value in sorted(facts.excluded)]
    parts += [multiple(value, wanted=False) for value in sorted(facts.not_multiples)]
    if not parts and integral is not False:
        return INTEGER if integral else NUMBER
    return both(_PLAIN[integral], *parts)


def _spellings(value: int | float) -> list[str]:
    """How a listed number may be written: as in the schema, and without a fraction that is zero."""
    return [json.dumps(value), *([str(int(value))] if isinstance(value, float) and value.is_integer() else [])]


def integers(facts: NumberFacts) -> list[int] | None:
    """The values one by one, if they are whole numbers and few."""
    if facts.integral is not True or facts.least is None or facts.most is None:
        return None
    step = int(facts.step) if facts.step is not None and facts.step.denominator == 1 else 1
    first, last = ceil(facts.least / step), floor(facts.most / step)
    if last - first > MAX_LISTED:
        return None
    return [n * step for n in range(first, last + 1) if facts.admits(Fraction(n * step))]
