"""Solves a conjunction of schemas into alternatives, each plain facts about one kind of value.

A *literal* says that one schema holds, or that it does not; a *node* is a set of literals that hold together. Whatever joins schemas
(allOf, anyOf, oneOf, not, if, dependencies, $ref) is dissolved here: literals that must hold are assumed, choices are propagated as in DPLL
(an alternative that contradicts the facts is dropped, a choice that is met already is forgotten, one that is left is assumed), and what
remains is split. So sibling keywords always combine, and `not` reaches each keyword as that keyword's own opposite.
"""
from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import islice
from typing import Any

from ..errors import GrammarError, LimitError
from ..grammar import Term
from ..regex import from_regex
from .document import FALSE, NOT_ENFORCED, Document, Held, Literal
from .facts import ANY_KIND, ARRAY, FACTS, KINDS, OBJECT, STRING, Facts, Names, Node, ObjectFacts, StringFacts, kind_of
from .keywords import DENY, ENFORCE
from .match import matches
from .state import UNDECLARED, Alternative, Choice, Enforcer, State, type_bits
from .tags import Tags, apart
from .unevaluated import settle

MAX_BRANCHES = 500
MAX_STEPS = 100_000
_BEYOND_REF = ENFORCE.keys() - {"$ref"}
_BEYOND_ALL_OF = ENFORCE.keys() - {"allOf"}
_OPEN = {"type", "properties", "required"}


class Solver:
    """Alternatives of the nodes of one document, each worked out once."""

    def __init__(self, document: Document, *, annotates: bool = False) -> None:
        """`annotates`: whether the document asks what was evaluated (unevaluatedProperties, unevaluatedItems)."""
        self.document = document
        self._enforce, self._deny = ENFORCE, DENY
        self.annotates = annotates
        self.steps = 0
        self._solved: dict[tuple[Node, int], list[Facts]] = {}
        self._kinds: dict[Literal, int] = {0: ANY_KIND, FALSE: 0}
        self._asserted: dict[tuple[int, int], list[tuple[Enforcer, Any]]] = {}
        self._denied: dict[tuple[int, int], Choice | None] = {}
        self._patterns: dict[str, Term] = {}
        self._values: dict[int, tuple[Any, Literal]] = {}
        self._made: dict[tuple[int, object], Literal] = {}
        self.properties: dict[int, dict[str, tuple[Literal, ...]]] = {}
        self.additional: dict[int, Names] = {}
        self.listed: dict[tuple[int, int], dict[Any, Any]] = {}
        self.joined: dict[tuple[int, str], list[Literal]] = {}
        self._children: dict[int, Literal] = {}
        self.tags: dict[Literal, Tags] = {}
        self._open: set[Node] = set()
        self._empty: dict[Node, bool] = {}

    # ---- nodes ----------------------------------------------------------------------------------------------------------------

    def alternatives(self, node: Node) -> Iterator[Facts]:
        """All facts that satisfy `node`, kind by kind."""
        possible = self.kinds(node)
        for kind in KINDS:
            if possible & kind:
                yield from self.solve(node, kind)

    def solve(self, node: Node, kind: int) -> list[Facts]:
        """The alternatives of `node` among values of one kind."""
        known = self._solved.get((node, kind))
        if known is None:
            outermost = node not in self._open
            self._open.add(node)
            known = list(islice(self._attempts(node, kind), MAX_BRANCHES + 1))
            if outermost:
                self._open.discard(node)
            if len(known) > MAX_BRANCHES:
                place = self.document.place(min(node) >> 1)
                raise LimitError(f"the schema at {place or '#'} splits into more than {MAX_BRANCHES} alternatives", place=place)
            self._solved[node, kind] = known
        return known

    def _attempts(self, node: Node, kind: int) -> Iterator[Facts]:
        state = State(FACTS[kind](), set(), sorted(node), [])
        if not self._assume(state):
            return
        if not state.choices and kind < ARRAY or not (state.choices or self.annotates or getattr(state.facts, "witnesses", None)):
            if not self._contradicts(state.facts):
                yield state.facts
        else:
            yield from self._search(state)

    def kinds(self, node: Node) -> int:
        """The kinds of value that `node` may admit, at most."""
        possible = ANY_KIND
        for literal in node:
            possible &= self.kinds_of(literal)
        return possible

    def kinds_of(self, literal: Literal) -> int:
        known = self._kinds.get(literal)
        if known is None:
            number = literal >> 1
            schema = self.document.schemas[number]
            known = self._denied_kinds(schema) if literal & 1 else self._allowed_kinds(schema, number)
            self._kinds[literal] = known
        return known

    def _allowed_kinds(self, schema: dict[str, Any], number: int) -> int:
        possible = ANY_KIND
        if "type" in schema:
            possible = type_bits(schema["type"])
        if "const" in schema:
            possible &= kind_of(schema["const"])
        if "enum" in schema:
            possible &= sum({kind_of(value) for value in schema["enum"]})
        if "$ref" in schema:
            possible &= self.kinds_of(self.document.target(number, schema["$ref"]))
        for item, s in enumerate(schema.get("allOf", ())):
            possible &= self.kinds_of(self.child(number, s, "allOf", item))
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                some = 0
                for item, s in enumerate(schema[keyword]):
                    some |= self.kinds_of(self.child(number, s, keyword, item))
                possible &= some
        return possible

    @staticmethod
    def _denied_kinds(schema: dict[str, Any]) -> int:
        """Kinds that may violate a schema: all but those that violating needs a keyword for, when there is `type` alone."""
        if schema.keys() == {"type"} and "integer" not in schema["type"]:
            return ANY_KIND & ~type_bits(schema["type"])
        return ANY_KIND

    def empty(self, node: Node) -> bool:
        """Whether no value can satisfy `node`. A node counts as satisfiable while it is being asked for, so that recursion ends: what is
        empty because it never ends is left to the automaton."""
        if FALSE in node:
            return True
        if not node or node in self._open:
            return False
        known = self._empty.get(node)
        if known is None:
            self._open.add(node)
            possible = self.kinds(node)
            known = self._empty[node] = not any(possible & kind and self._some(node, kind) for kind in KINDS)
            self._open.discard(node)
        return known

    def _some(self, node: Node, kind: int) -> bool:
        solved = self._solved.get((node, kind))
        return bool(solved) if solved is not None else next(self._attempts(node, kind), None) is not None


    # ---- search ---------------------------------------------------------------------------------------------------------------

    def _search(self, state: State) -> Iterator[Facts]:
        while True:
            if not self._assume(state):
                return
            if not state.choices and self.annotates:
                settle(self, state)
            if not state.choices and isinstance(state.facts, ObjectFacts) and state.facts.witnesses:
                state.choices.append(self._place_witness(state.facts))
            if not state.choices:
                if not self._contradicts(state.facts):
                    yield state.facts
                return
            pending: list[Choice] = state.choices
            if len(pending) > 1:
                narrowed = self._narrow(state)
                if narrowed is None:
                    return
                if state.todo or not narrowed:
                    state.choices = narrowed
                    continue
                pending = sorted(narrowed, key=len)
            first, others = pending[0], pending[1:]
            for alternative in first:
                yield from self._search(state.fork(alternative, others.copy()))
            return

    def _narrow(self, state: State) -> list[Choice] | None:
        """Choices that remain when each alternative was tried alone; what is left alone is put on `state.todo`. None: no way out.

        A choice with an alternative that is met already is no choice any more."""
        remaining: list[Choice] = []
        for choice in state.choices:
            live: Choice = []
            for alternative in choice:
                trial = state.fork(alternative, [])
                if not self._assume(trial) or self._contradicts(trial.facts):
                    continue
                if not self.annotates and (not trial.facts.changed and not trial.choices or self._met(state.facts, alternative)):
                    break
                live.append(alternative)
            else:
                if not live:
                    return None
                if len(live) == 1:
                    state.todo += live[0]
                else:
                    remaining.append(live)
        return remaining

    def _met(self, facts: Facts, alternative: Alternative) -> bool:
        """Whether an alternative that only speaks of properties, as most of what `not` turns into, holds already."""
        if not isinstance(facts, ObjectFacts):
            return False
        for literal in alternative:
            schema = self.document.schemas[literal >> 1]
            if literal & 1 or not schema.keys() <= {"required", "properties"}:
                return False
            if not facts.required.keys() >= set(schema.get("required", ())):
                return False
            for name, wanted in schema.get("properties", {}).items():
                if type(wanted) is not Held:
                    return False
                node = self.property_node(facts, name)
                if wanted not in node and not self.empty(node | {wanted ^ 1}):
                    return False
        return True

    def _assume(self, state: State) -> bool:
        """Turns the literals on `state.todo` into facts and choices. False: they contradict."""
        todo, state.todo = state.todo, []
        for literal in todo:
            if not self.assume(state, literal):
                return False
        if state.unions:  # waited until it was known which properties are required
            required = state.facts.required if isinstance(state.facts, ObjectFacts) else ()
            state.choices += [self.exactly_one(literals, required) for literals in state.unions]
            state.unions = []
        return not state.facts.impossible

    def assume(self, state: State, literal: Literal) -> bool:
        """Turns one literal into facts and choices, keyword by keyword in the order of the schema. False: it contradicts the others."""
        seen, kind = state.seen, state.facts.kind
        if literal == 0 or literal in seen:
            return True
        kinds = self._kinds.get(literal)
        if literal ^ 1 in seen or not (self.kinds_of(literal) if kinds is None else kinds) & kind:
            return False
        seen.add(literal)
        self.steps += 1
        if self.steps > MAX_STEPS:
            place = self.document.place(literal >> 1)
            why = f"the schema takes too long to solve (more than {MAX_STEPS} steps, the last of them for {place or '#'})"
            raise LimitError(why, place=place)
        number = literal >> 1
        if literal & 1:
            ways = self._ways_to_deny(number, kind)
            if ways is None:
                return True
            if len(ways) != 1:
                state.choices.append(ways)
                return bool(ways)
            for way in ways[0]:  # noqa: SIM110 - all() with a generator costs twice this loop, here and below
                if not self.assume(state, way):
                    return False
            return True
        asserted = self._asserted.get((number, kind))
        if asserted is None:
            entries = [(self._enforce.get(keyword), value) for keyword, value in self.document.schemas[number].items()]
            asserted = self._asserted[number, kind] = [(entry[1], value) for entry, value in entries if entry and entry[0] & kind]
        for enforce, value in asserted:  # noqa: SIM110
            if enforce(self, state, number, value) is False:
                return False
        return True

    def _contradicts(self, facts: Facts) -> bool:
        """A look one level down: whether a required property can have no value."""
        if facts.impossible:
            return True
        if isinstance(facts, ObjectFacts):
            for name in facts.required:
                if not facts.rules and len(facts.properties.get(name, ())) < 2:
                    continue  # `impossible` has looked for FALSE
                node = self.property_node(facts, name)
                if FALSE in node or len(node) > 1 and self.empty(node):
                    return True
            return bool(facts.names) and not all(self.names_admit(facts.names, name) for name in facts.required)
        return False

    def _ways_to_deny(self, number: int, kind: int) -> Choice | None:
        """Alternatives, one of which must hold where schema `number` does not. None: it fails for every value of this kind."""
        key = (number, kind)
        if key not in self._denied:
            schema = self.document.schemas[number]
            ways: Choice | None = []
            if "type" in schema and not type_bits(schema["type"]) & kind:
                ways = None
            else:
                for keyword, value in schema.items():
                    entry = self._deny.get(keyword)
                    if entry and entry[0] & kind:
                        ways += entry[1](self, number, kind, value)  # type: ignore[operator]
            self._denied[key] = ways
        return self._denied[key]

    def keywords(self, schema: dict[Any, Any]) -> set[Any]:
        """The keywords of `schema` that assert something."""
        return self._enforce.keys() & schema.keys()

    # ---- for the handlers -------------------------------------------------------------------------------------------------------

    def child(self, number: int, schema: Any, *path: str | int) -> Literal:
        """The literal of a schema inside schema `number`; of what it refers to, if it does nothing else."""
        known = self._children.get(id(schema))
        if known is None:
            if type(schema) is Held:
                return schema
            literal = self.document.known_target(schema) or self.document.literal(schema, (number, path))
            known = self.plain(literal)
            if literal > FALSE:  # then the document keeps the schema, and with it its id
                self._children[id(schema)] = known
        return known

    def plain(self, literal: Literal) -> Literal:
        """An equal literal: the target of a schema that has a $ref, or an allOf of one, and no other keyword."""
        while True:
            number = literal >> 1
            schema = self.document.schemas[number]
            if "$ref" in schema and _BEYOND_REF.isdisjoint(schema):
                literal = self.document.target(number, schema["$ref"])
            elif "allOf" in schema and len(schema["allOf"]) == 1 and _BEYOND_ALL_OF.isdisjoint(schema):
                literal = self.child(number, schema["allOf"][0], "allOf", 0)
            else:
                return literal

    def made(self, number: int, schema: dict[Any, Any], key: object = None) -> Literal:
        """The literal of a schema written here, on behalf of schema `number`. With a `key`, made once."""
        if key is None:
            return self.document.made(schema, number)
        known = self._made.get((number, key))
        if known is None:
            known = self._made[number, key] = self.document.made(schema, number)
        return known

    def pattern(self, pattern: str, number: int, keyword: str = "pattern") -> Term:
        """The strings in which `pattern` is found. Raises GrammarError for what the dialect has not."""
        term = self._patterns.get(pattern)
        if term is None:
            try:
                term = self._patterns[pattern] = from_regex(pattern, search=True)
            except LimitError:
                raise
            except GrammarError as error:
                place = self.document.place(number)
                why = f"{keyword!r} at {place or '#'} cannot be enforced: {error}"
                raise GrammarError(why, place=f"{place}/{keyword}") from error
        return term

    def pattern_or_refuse(self, pattern: str, number: int, keyword: str) -> Term | None:
        """The same; None if the caller is lenient and the pattern cannot be enforced."""
        try:
            return self.pattern(pattern, number, keyword)
        except GrammarError as error:
            if not self.document.lenient:
                raise
            self.document.warn(str(error) + NOT_ENFORCED)
            return None

    def exactly_one(self, literals: list[Literal], required: Container[str] = ()) -> Choice:
        """One alternative for each literal, that the others fail; not said where they cannot hold together anyway, given that the
        `required` properties are there."""
        ways: Choice = [[literal] for literal in literals]
        for i, a in enumerate(literals):
            for j in range(i):
                if not self.disjoint(a, literals[j], required):
                    ways[i].append(literals[j] ^ 1)
                    ways[j].append(a ^ 1)
        return ways

    def disjoint(self, a: Literal, b: Literal, required: Container[str] = ()) -> bool:
        """Whether it is plain that no value satisfies both. Where it is not, they may still exclude each other."""
        kinds = self.kinds_of(a) & self.kinds_of(b)
        if not kinds or kinds == OBJECT and apart(self, a, b, required):
            return True
        first, second = self.document.schemas[a >> 1], self.document.schemas[b >> 1]
        names = first.get("properties", {}).keys()
        if (self.keywords(first) | self.keywords(second)) <= _OPEN and names.isdisjoint(second.get("properties", ())):
            return False  # they speak of different properties
        return self.empty(frozenset((a, b)))

    def value_literal(self, number: int, value: Any) -> Literal:
        """The literal of "equals this array or object"."""
        known = self._values.get(id(value))
        if known is None:
            schema: dict[Any, Any]
            if isinstance(value, list):
                schema = {"type": "array", "minItems": len(value), "maxItems": len(value)}
                if value:
                    schema["prefixItems"] = [{"const": item} for item in value]
            else:
                schema = {
                    "type": "object",
                    "properties": {name: {"const": item} for name, item in value.items()},
                    "required": list(value),
                    "additionalProperties": False,
                }
            known = self._values[id(value)] = (value, self.made(number, schema))
        return known[1]

    # ---- objects ----------------------------------------------------------------------------------------------------------------

    def property_node(self, facts: ObjectFacts, name: str) -> Node:
        """All that the value of property `name` must satisfy."""
        literals = facts.properties.get(name, ())
        if facts.rules:
            literals = (*literals, *[literal for names, literal in facts.rules if self.is_among(names, name)])
        return frozenset(literals)

    def is_among(self, names: Names, name: str) -> bool:
        return (
            name not in names.without
            and all(matches(self._patterns[p], name) for p in names.patterns)
            and not any(matches(self._patterns[p], name) for p in names.not_patterns)
            and (not names.literals or self.names_admit(names.literals, name))
        )

    def names_admit(self, node: Node, name: str) -> bool:
        """Whether `name`, as a string, satisfies `node`."""
        return any(facts.admits(name) for facts in self.solve(node, STRING) if isinstance(facts, StringFacts))

    def _place_witness(self, facts: ObjectFacts) -> Choice:
        """Where the first of the witnesses may be: at a declared name, or at an undeclared one."""
        (names, literal), facts.witnesses = facts.witnesses[0], facts.witnesses[1:]
        number, held = literal >> 1, Held(literal)
        ways: Choice = [
            [self.made(number, {"required": [name], "properties": {name: held}}, ("at", name, literal))]
            for name in {**facts.properties, **facts.required}
            if self.is_among(names, name)
        ]
        return [*ways, [self.made(number, {UNDECLARED: (names, literal)}, (names, literal))]]

