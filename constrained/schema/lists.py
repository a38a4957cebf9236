"""Lists of members between separators: repeated, picked from named ones, or with some that must occur.

The bodies made here hold at least one member and stand without brackets; `started` terms continue a list that has members already.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations
from typing import TypeVar

from ..errors import LimitError
from ..grammar import EMPTY, NOTHING, Term, alt, pick_of, ref, rep, seq

MAX_STATES = 4_000
T = TypeVar("T")


def repeated(item: Term, separator: Term, lo: int, hi: int | None, started: bool) -> Term:
    """`lo` to `hi` more members. A list that has not started yet gets at least one."""
    if hi is not None and (hi < lo or not started and hi < 1):
        return NOTHING
    more = seq(separator, item)
    if started:
        return rep(more, lo, hi)
    return seq(item, rep(more, max(lo - 1, 0), None if hi is None else hi - 1))


def picked(
    needed: dict[str, Term], others: list[Term], extra: Term, separator: Term, lo: int, hi: int | None, order: Iterable[str] = ()
) -> Term:
    """Members, `needed` ones by name and `others`, each at most once, and any number of extras, `lo` to `hi` of them in all.

    Where all are needed they come in the given order, or in that of the names in `order`: so they are forced text. Where some may be left
    out the writer chooses anyway, and so it may choose the order too."""
    if others:
        return pick_of(needed.values(), others, separator, extra, max(lo, 1), hi)
    n = len(needed)
    orders = [list(needed.values()), [needed[name] for name in order if name in needed]]
    if orders[0] == orders[1]:
        orders.pop()
    lists = alt(*[seq(*[part for term in terms for part in (separator, term)][1:]) for terms in orders if len(terms) == n])
    more = max(lo - n, 0), None if hi is None else hi - n
    if n and more == (0, 0):
        return lists
    return seq(lists if n else EMPTY, repeated(extra, separator, *more, started=n > 0))


@dataclass(frozen=True, slots=True)
class Need:
    """From member `start` on, at least `lo` and at most `hi` members satisfy something."""

    lo: int = 1
    hi: int | None = None
    start: int = 0


def needy(
    item: Callable[[int, frozenset[int], frozenset[int]], Term],
    first: int,
    separator: Term,
    needs: list[Need],
    lo: int,
    hi: int | None,
    fixed: int,
    rule: Callable[[str, Term], None],
    prefix: str,
) -> Term:
    """A list, `first` members of which are written already, whose members fulfil needs.

    `item(i, met, unmet)` is the term of member i that meets some needs and fails others; from member `fixed` on all i are alike. A rule is
    made for each state: the number of members and how often each need was met, as far as these still matter."""
    top = max([fixed, lo, 0 if hi is None else hi, 1, *[need.start for need in needs]])
    bounds = [need.lo if need.hi is None else need.hi + 1 for need in needs]
    begin = (first, (0,) * len(needs))
    names, todo = {begin: prefix}, [begin]

    @cache
    def member_of(written: bool, index: int, fulfilled: frozenset[int], unmet: frozenset[int]) -> Term:
        return seq(separator if written else EMPTY, item(index, fulfilled, unmet))

    while todo:
        state = todo.pop()
        index, met = state
        ends = index >= max(lo, 1) and all(count >= need.lo for count, need in zip(met, needs, strict=True))
        ways: list[Term] = [EMPTY] if ends else []
        loop = NOTHING
        for fulfilled in subsets([i for i, need in enumerate(needs) if index >= need.start]) if hi is None or index < hi else ():
            after = tuple(min(n + (i in fulfilled), bounds[i]) for i, n in enumerate(met))
            if any(need.hi is not None and n > need.hi for n, need in zip(after, needs, strict=True)):
                continue
            following = (min(index + 1, top), after)
            unmet = frozenset(i for i, need in enumerate(needs) if need.hi is not None and index >= need.start and i not in fulfilled)
            if following == state:  # counts at their bounds: nothing new is learnt
                fulfilled = frozenset()
            member = member_of(index > 0, min(index, fixed), fulfilled, unmet)
            if member.op == "nothing":
                continue
            if following == state:
                loop = alt(loop, member)
                continue
            if following not in names:
                if len(names) >= MAX_STATES:
                    raise LimitError(f"contains, with these bounds, needs more than {MAX_STATES} states")
                names[following] = f"{prefix}.{len(names)}"
                todo.append(following)
            ways.append(seq(member, ref(names[following])))
        rule(names[state], seq(rep(loop), alt(*ways)))
    return ref(prefix)


def subsets(items: list[int]) -> Iterator[frozenset[int]]:
    return map(frozenset, chain.from_iterable(combinations(items, n) for n in range(len(items) + 1)))


def partitions(items: Sequence[T]) -> Iterator[list[tuple[T, ...]]]:
    """Every way to divide `items` into groups."""
    if not items:
        yield []
        return
    for groups in partitions(items[1:]):
        yield [(items[0],), *groups]
        for i, group in enumerate(groups):
            yield [*groups[:i], (items[0], *group), *groups[i + 1 :]]
