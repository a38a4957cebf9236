"""Terms that read a decimal numeral: those that compare with a bound as wanted, and the multiples of a step.

Such a term keeps how far it has read, so that one character on is a term again. It counts on a term beside it (grammar.both) that says
what a numeral is, without a zero in front; where nothing more can change its answer, any text may follow. Not for JSON strings: it knows
one spelling of a digit.
"""
from __future__ import annotations

from fractions import Fraction

from .errors import LimitError
from .grammar import ANY_STRING, NOTHING, Term

CHARACTERS = "-.0123456789"
MAX_MODULUS = 10**17
"""Remainders and one more digit fit into 64 bits."""

LESS, EQUAL, MORE = 1, 2, 4
_BITS = {-1: LESS, 0: EQUAL, 1: MORE}


def compare(bound: Fraction, wanted: int) -> Term:
    """The numerals whose value is less than, equal to or more than `bound`, a finite decimal: those of the three that `wanted` names."""
    whole, point = digits(abs(bound))
    return Term("compare", (bound < 0, whole, point, wanted, (False, False, 0, 0)))


def multiple(step: Fraction, wanted: bool = True) -> Term:
    """The numerals whose value is a multiple of `step`, a finite decimal; those whose value is not."""
    whole, point = digits(step)
    modulus = int(whole + point)
    if modulus > MAX_MODULUS:
        raise LimitError(f"multiples of a number of more than {len(str(MAX_MODULUS)) - 1} digits cannot be told")
    return Term("multiple", (modulus, len(point), wanted, (-1, 0)))


def digits(value: Fraction) -> tuple[str, str]:
    """The digits before and after the point, the latter without zeros at the end, of a finite decimal of 0 or more."""
    places = 0
    while value.denominator != 1:
        value, places = value * 10, places + 1
    text = str(value.numerator).rjust(places + 1, "0")
    return text[: len(text) - places], text[len(text) - places :]


def step(term: Term, character: str) -> Term:
    """What remains of such a term after one character."""
    if character not in CHARACTERS:
        return NOTHING
    return _compare_step(term, character) if term.op == "compare" else _multiple_step(term, character)


def accepts(term: Term) -> bool:
    """Whether the numeral may end here."""
    if term.op == "compare":
        _, whole, point, _, (negative, fraction, position, order) = term.args
        if not fraction:
            order = -1 if position < len(whole) else order or (-1 if point else 0)
        elif position < len(point):
            order = -1
        return _decided(term, negative, order) is ANY_STRING
    modulus, places, wanted, (read, remainder) = term.args
    return (remainder * 10 ** (places - max(read, 0)) % modulus == 0) is wanted


def _decided(term: Term, negative: bool, order: int) -> Term:
    """`order` is that of the magnitudes."""
    bound_negative, _, _, wanted, _ = term.args
    result = (-order if negative else order) if negative == bound_negative else -1 if negative else 1
    return ANY_STRING if wanted & _BITS[result] else NOTHING


def _compare_step(term: Term, character: str) -> Term:
    """State: a minus was read, the point was read, digits read since (of the bound's at most), order of the magnitudes so far."""
    bound_negative, whole, point, wanted, (negative, fraction, position, order) = term.args

    def at(*state: bool | int) -> Term:
        return Term("compare", (bound_negative, whole, point, wanted, state))

    if character == "-":
        return NOTHING if negative or fraction or position else at(True, False, 0, 0)
    if negative != bound_negative:
        return _decided(term, negative, 1)
    if character == ".":
        order = order if position == len(whole) else -1
        return NOTHING if fraction else _decided(term, negative, order) if order else at(negative, True, 0, 0)
    if fraction:
        order = _order(character, point[position] if position < len(point) else "0")
        return _decided(term, negative, order) if order else at(negative, True, min(position + 1, len(point)), 0)
    if position == len(whole):
        return _decided(term, negative, 1)
    return at(negative, False, position + 1, order or _order(character, whole[position]))


def _multiple_step(term: Term, character: str) -> Term:
    """State: digits read after the point, -1 before it, and the remainder of all digits read."""
    modulus, places, wanted, (read, remainder) = term.args
    if character == "-":
        return term
    if character == ".":
        return NOTHING if read >= 0 else Term("multiple", (modulus, places, wanted, (0, remainder)))
    if read == places:
        return term if character == "0" else NOTHING if wanted else ANY_STRING
    remainder = (remainder * 10 + int(character)) % modulus
    if remainder and str(modulus).rstrip("0") == "1":  # of a power of ten only the zeros at the end count
        remainder = 10 ** (len(str(remainder)) - len(str(remainder).rstrip("0")))
    return Term("multiple", (modulus, places, wanted, (read + (read >= 0), remainder)))


def _order(a: str, b: str) -> int:
    return (a > b) - (a < b)
