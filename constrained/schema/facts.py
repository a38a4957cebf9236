"""What a conjunction of schemas says about one kind of JSON value. Facts only grow stronger; `changed` tells whether one did."""
from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor, lcm
from typing import Any

from ..grammar import MAX_REPEAT, Term
from .match import matches, matching

NULL, BOOLEAN, NUMBER, STRING, ARRAY, OBJECT = 1, 2, 4, 8, 16, 32
ANY_KIND = 63
KINDS = (NULL, BOOLEAN, NUMBER, STRING, ARRAY, OBJECT)

FEW = 8
"""So many numbers are looked at one by one."""

Node = frozenset[int]
"""Literals that hold together: what one value must satisfy. The empty node is any JSON value."""


def kind_of(value: Any) -> int:
    """The kind of a parsed JSON value."""
    if value is None:
        return NULL
    if isinstance(value, bool):
        return BOOLEAN
    if isinstance(value, int | float):
        return NUMBER
    return STRING if isinstance(value, str) else ARRAY if isinstance(value, list) else OBJECT


def exact(value: int | float) -> Fraction:
    """A JSON number by its decimal digits: 0.1 is one tenth."""
    return Fraction(value) if isinstance(value, int) else Fraction(repr(value))


@dataclass
class Facts:
    """The base: a range of sizes (characters, items, properties) and whether something was learnt since `changed` was cleared."""

    lo: int = 0
    hi: int | None = None
    changed: bool = False

    kind = 0

    def fork(self) -> Facts:
        """A copy that may grow on its own, with nothing learnt yet. (copy.copy takes several times as long.)"""
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        new.changed = False
        return new

    def at_least(self, count: int) -> None:
        if count > self.lo:
            self.lo, self.changed = count, True

    def at_most(self, count: int) -> None:
        if count <= MAX_REPEAT and (self.hi is None or count < self.hi):  # no document is so long that a larger bound counts
            self.hi, self.changed = count, True

    @property
    def impossible(self) -> bool:
        return self.hi is not None and self.lo > self.hi


@dataclass
class NullFacts(Facts):
    kind = NULL


@dataclass
class ValuedFacts(Facts):
    """Facts that may be a list of values: in their order, by a key that is equal exactly when the values are."""

    values: dict[Any, Any] | None = None
    excluded: frozenset[Any] = frozenset()

    def among(self, values: dict[Any, Any]) -> None:
        kept = values if self.values is None else {key: value for key, value in self.values.items() if key in values}
        if self.values is None or len(kept) < len(self.values):
            self.values, self.changed = kept, True

    def exclude(self, keys: frozenset[Any]) -> None:
        if not keys <= self.excluded:
            self.excluded, self.changed = self.excluded | keys, True

    @property
    def impossible(self) -> bool:
        return self.values is not None and self.excluded.issuperset(self.values) or self.hi is not None and self.lo > self.hi


@dataclass
class BooleanFacts(ValuedFacts):
    kind = BOOLEAN

    @property
    def impossible(self) -> bool:
        return self.excluded.issuperset((True, False) if self.values is None else self.values)


@dataclass
class NumberFacts(ValuedFacts):
    kind = NUMBER

    least: Fraction | None = None
    least_open: bool = False
    most: Fraction | None = None
    most_open: bool = False
    integral: bool | None = None
    multiples: frozenset[Fraction] = frozenset()
    not_multiples: frozenset[Fraction] = frozenset()

    def above(self, bound: Fraction, open_: bool) -> None:
        if self.least is None or (bound, open_) > (self.least, self.least_open):
            self.least, self.least_open, self.changed = bound, open_, True

    def below(self, bound: Fraction, open_: bool) -> None:
        if self.most is None or (-bound, open_) > (-self.most, self.most_open):
            self.most, self.most_open, self.changed = bound, open_, True

    def be_integral(self, yes: bool) -> bool:
        """Whether that is possible."""
        if self.integral is None:
            self.integral, self.changed = yes, True
        return self.integral is yes

    def multiple_of(self, step: Fraction, yes: bool = True) -> None:
        known = self.multiples if yes else self.not_multiples
        if step in known:
            return
        self.changed = True
        if yes:
            self.multiples = known | {step}
        else:
            self.not_multiples = known | {step}

    def admits(self, value: Fraction) -> bool:
        return not (
            value in self.excluded
            or (self.least is not None and (value < self.least or self.least_open and value == self.least))
            or (self.most is not None and (value > self.most or self.most_open and value == self.most))
            or (self.integral is not None and self.integral is not (value.denominator == 1))
            or any(value % step for step in self.multiples)
            or any(value % step == 0 for step in self.not_multiples)
        )

    @property
    def impossible(self) -> bool:
        if self.values is not None:
            return not any(self.admits(value) for value in self.values)
        if self.least is None or self.most is None:
            return False
        if self.least >= self.most:
            return self.least > self.most or not self.admits(self.least)
        step = self.step
        if step is None or self.most - self.least > FEW * step:
            return False
        return not any(self.admits(n * step) for n in range(ceil(self.least / step), floor(self.most / step) + 1))

    @property
    def step(self) -> Fraction | None:
        """The largest number that all values are multiples of; None if there is none."""
        steps = {*self.multiples, Fraction(1)} if self.integral else self.multiples
        if len(steps) < 2:
            return next(iter(steps), None)
        scale = lcm(*[step.denominator for step in steps])
        return Fraction(lcm(*[step.numerator * (scale // step.denominator) for step in steps]), scale)


@dataclass
class StringFacts(ValuedFacts):
    """Of listed values only those are kept that satisfy all else; nothing else is remembered once there are some."""

    kind = STRING

    matching: tuple[Term, ...] = ()
    not_matching: tuple[Term, ...] = ()

    def among(self, values: dict[str, str]) -> None:
        first = self.values is None
        super().among(values)
        if first:  # what is known already is now asked of them
            self.at_least(self.lo)
            if self.hi is not None:
                self.at_most(self.hi)
            self.exclude(self.excluded)
            for term in self.matching:
                self.match(term)
            for term in self.not_matching:
                self.match(term, yes=False)

    def _keep(self, texts: list[str]) -> None:
        if self.values is not None and len(texts) < len(self.values):
            self.values, self.changed = dict.fromkeys(texts), True

    def at_least(self, count: int) -> None:
        if self.values is None:
            super().at_least(count)
        elif count:
            self._keep([text for text in self.values if len(text) >= count])

    def at_most(self, count: int) -> None:
        if self.values is None:
            super().at_most(count)
        else:
            self._keep([text for text in self.values if len(text) <= count])

    def exclude(self, keys: frozenset[str]) -> None:
        if self.values is None:
            super().exclude(keys)
        elif keys:
            self._keep([text for text in self.values if text not in keys])

    def match(self, term: Term, yes: bool = True) -> None:
        if self.values is not None:
            found = matching(term, self.values)
            self._keep(found if yes else [text for text in self.values if text not in frozenset(found)])
            return
        known = self.matching if yes else self.not_matching
        if term in known:
            return
        self.changed = True
        if yes:
            self.matching = (*known, term)
        else:
            self.not_matching = (*known, term)

    def admits(self, text: str) -> bool:
        if self.values is not None:
            return text in self.values
        return (
            self.lo <= len(text)
            and (self.hi is None or len(text) <= self.hi)
            and text not in self.excluded
            and all(matches(term, text) for term in self.matching)
            and not any(matches(term, text) for term in self.not_matching)
        )

    @property
    def impossible(self) -> bool:
        return not self.values if self.values is not None else self.hi is not None and self.lo > self.hi


@dataclass(slots=True)
class Witness:
    """At least `lo` and at most `hi` items from index `start` on that satisfy `literal`."""

    literal: int
    lo: int = 1
    hi: int | None = None
    start: int = 0


@dataclass
class ArrayFacts(Facts):
    kind = ARRAY

    items: tuple[tuple[tuple[int, ...], int], ...] = ()
    """(literals of the first items, literal of the others), one for each schema that speaks of items."""
    witnesses: tuple[Witness, ...] = ()
    unique: bool = False
    unevaluated: tuple[tuple[int, int], ...] = ()
    """(schema, literal of its unevaluatedItems), until all that holds is known."""

    def each(self, first: tuple[int, ...], others: int) -> None:
        if (others or any(first)) and (first, others) not in self.items:
            self.items, self.changed = (*self.items, (first, others)), True

    def witness(self, witness: Witness) -> None:
        if witness not in self.witnesses:
            self.witnesses, self.changed = (*self.witnesses, witness), True


@dataclass(frozen=True, slots=True)
class Names:
    """A set of property names: those that match all of `patterns` and none of `not_patterns`, are not among `without`, and satisfy
    `literals`."""

    patterns: tuple[str, ...] = ()
    not_patterns: tuple[str, ...] = ()
    without: frozenset[str] = frozenset()
    literals: Node = frozenset()


@dataclass
class ObjectFacts(Facts):
    kind = OBJECT

    properties: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Literals by name, in the order of declaration."""
    required: dict[str, None] = field(default_factory=dict)
    rules: tuple[tuple[Names, int], ...] = ()
    """(names, literal): each property of such a name satisfies it."""
    names: Node = frozenset()
    """What each name, as a string, satisfies."""
    witnesses: tuple[tuple[Names, int], ...] = ()
    """(names, literal): at least one property of such a name satisfies it."""
    undeclared_witnesses: tuple[tuple[Names, int], ...] = ()
    """Those that a property with no place in `properties` must fulfil."""
    unevaluated: tuple[tuple[int, int], ...] = ()
    """(schema, literal of its unevaluatedProperties), until all that holds is known."""

    def fork(self) -> ObjectFacts:
        new = Facts.fork(self)
        assert isinstance(new, ObjectFacts)
        new.properties, new.required = self.properties.copy(), self.required.copy()
        return new

    def declare(self, properties: dict[str, tuple[int, ...]]) -> None:
        """Each with at most one literal."""
        if not self.properties:
            self.properties = properties.copy()
            self.changed = self.changed or any(properties.values())
            return
        for name, literals in properties.items():
            known = self.properties.get(name)
            if not known:
                self.properties[name] = literals
                self.changed = self.changed or bool(literals)
            elif literals and literals[0] not in known:
                self.properties[name], self.changed = known + literals, True

    def require(self, names: list[str]) -> None:
        before = len(self.required)
        self.required |= dict.fromkeys(names)
        self.changed = self.changed or len(self.required) > before

    def rule(self, names: Names, literal: int) -> None:
        if literal and (names, literal) not in self.rules:
            self.rules, self.changed = (*self.rules, (names, literal)), True

    def witness(self, names: Names, literal: int) -> None:
        if (names, literal) not in self.witnesses:
            self.witnesses, self.changed = (*self.witnesses, (names, literal)), True

    @property
    def impossible(self) -> bool:
        if self.hi is not None and max(self.lo, len(self.required)) > self.hi:
            return True
        properties = self.properties
        for name in self.required:  # noqa: SIM110 - a generator costs several times this loop, and every assumption asks
            if name in properties and 1 in properties[name]:
                return True
        return False


FACTS: dict[int, type[Facts]] = {
    NULL: NullFacts, BOOLEAN: BooleanFacts, NUMBER: NumberFacts, STRING: StringFacts, ARRAY: ArrayFacts, OBJECT: ObjectFacts,
}  # fmt: skip
