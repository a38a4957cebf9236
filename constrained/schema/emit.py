"""Facts as grammar terms: a rule for every array and object node, made when first referred to."""
from __future__ import annotations

import json
from functools import cache
from json.encoder import encode_basestring
from typing import Any, cast

from ..errors import GrammarError, LimitError
from ..grammar import ANY_CHAR, EMPTY, NOTHING, Term, alt, both, complement, framed, json_string, lit, pick_of, ref, rep, seq, words
from . import numbers, plain
from .document import FALSE, Document, Literal
from .facts import (
    ARRAY,
    BOOLEAN,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    ArrayFacts,
    BooleanFacts,
    Facts,
    Names,
    Node,
    NumberFacts,
    ObjectFacts,
    StringFacts,
    ValuedFacts,
    exact,
    kind_of,
)  # fmt: skip
from .keywords import joined_alternatives
from .lists import Need, needy, partitions, picked, repeated
from .logic import Solver
from .plain import ANY_TEXT, QUOTE, SCALARS
from .style import Style, style

MAX_CLASSES = 64
MAX_WITNESSES = 5
ANY = frozenset[Literal]()


class Emitter:
    """Builds the rules of one document. `rules` is complete when `finish` returns."""

    def __init__(self, document: Document, solver: Solver, style: Style) -> None:
        self.document, self.solver, self.style = document, solver, style
        self.rules: dict[str, Term] = {}
        self._terms: dict[tuple[Node, int], Term] = {}
        self._todo: list[tuple[str, Node, int]] = []
        self._properties: dict[tuple[str, tuple[Literal, ...] | None, int, int], Term] = {}
        self._extras: dict[tuple[object, ...], Term] = {}
        self.lists: dict[tuple[int, int, int | None, int], tuple[Term, Term]] = {}
        self._others: dict[frozenset[str], Term] = {}
        self._pairs: dict[tuple[str, int], tuple[Term, Term]] = {}
        self._refs: dict[tuple[str, int], Term] = {}
        self._writing: Node = ANY

    @property
    def _place(self) -> str:
        """Where the schema lies whose rule is being written."""
        return self.document.place(min(self._writing) >> 1) if self._writing else ""

    def finish(self) -> None:
        """Writes the rules of all nodes referred to so far, and of those that these refer to."""
        while self._todo:
            name, node, depth = self._todo.pop()
            self._writing = node
            try:
                term = self._plain(node, depth)
                if term is None:
                    term = self._solved(node, depth)
            except GrammarError as error:
                raise self._placed(error, node) from error.__cause__
            self.rules[name] = term

    def _placed(self, error: GrammarError, node: Node) -> GrammarError:
        """The error with the place of the schema that is written, if it does not know a place."""
        place = self.document.place(min(node) >> 1) if node else ""
        return error if error.place or not place else type(error)(f"{error} (in the schema at {place})", place=place)

    def value(self, node: Node, depth: int = 0) -> Term:
        """The term of a value that satisfies `node`; NOTHING if there is none."""
        key = (node, depth)
        term = self._terms.get(key)
        if term is None:
            term = self._terms[key] = self._value(node, depth)
        return term

    def _value(self, node: Node, depth: int) -> Term:
        if FALSE in node:
            return NOTHING
        if not node and self.style.name != "pretty":
            self.rules["any"] = _any_value(self.style.name)
            return ref("any")
        if len(node) == 1:
            (literal,) = node
            if not literal & 1:
                schema = self.document.schemas[literal >> 1]
                if plain.is_large(schema):
                    return self._later(node, depth)
                term = plain.scalar(schema) or plain.listed(schema) or self._union(literal >> 1, schema, depth)
                if term is not None:
                    return term
        if not self.solver.kinds(node) & (ARRAY | OBJECT):
            return self._solved(node, depth)
        return self._later(node, depth)

    def _solved(self, node: Node, depth: int) -> Term:
        """The alternatives of `node` side by side. Those of strings are one language: so they have one state and one mask."""
        languages, terms = list[Term](), list[Term]()
        for facts in self.solver.alternatives(node):
            if isinstance(facts, StringFacts) and facts.values is None:
                languages.append(string_language(facts))
            else:
                try:
                    terms.append(self._facts_term(facts, depth))
                except GrammarError as error:
                    raise self._placed(error, node) from error.__cause__
        return alt(*terms, in_quotes(alt(*languages)))

    def _later(self, node: Node, depth: int) -> Term:
        """A reference to a rule that is written when those before it are."""
        name = f"n{len(self._terms)}"
        self._todo.append((name, node, depth))
        return ref(name)

    def _union(self, number: int, schema: dict[Any, Any], depth: int) -> Term | None:
        """The term of a schema that is an anyOf, or a oneOf of schemas that exclude each other, and nothing else: theirs, side by side."""
        if not ("anyOf" in schema or "oneOf" in schema) or len(keywords := self.solver.keywords(schema)) != 1:
            return None
        literals = joined_alternatives(self.solver, number, *keywords)
        if "oneOf" in keywords and any(len(way) > 1 for way in self.solver.exactly_one(literals)):
            return None
        return alt(*[self.value(frozenset((literal,)) if literal else ANY, depth) for literal in literals])

    def _plain(self, node: Node, depth: int) -> Term | None:
        """The term of a plain schema of objects or arrays; None for any other node."""
        if len(node) != 1:
            return None
        (literal,) = node
        return None if literal & 1 else plain.large(self, literal >> 1, self.document.schemas[literal >> 1], depth)

    def child(self, number: int, schema: Any, depth: int, *path: str) -> Term:
        """The term of a schema inside schema `number`."""
        reference = None
        if type(schema) is dict:
            if term := plain.scalar(schema):
                return term
            if "$ref" in schema and self.document.refers_alone(schema):
                reference = schema["$ref"]
                if known := self._refs.get((reference, depth)):
                    return known
        literal = self.solver.child(number, schema, *path)
        term = self.value(frozenset((literal,)) if literal else ANY, depth)
        if reference is not None:
            self._refs[reference, depth] = term
        return term

    # ---- scalars ----------------------------------------------------------------------------------------------------------------

    def _facts_term(self, facts: Facts, depth: int) -> Term:
        match facts.kind:
            case 1:
                return SCALARS["null"]
            case 2:
                values = cast(BooleanFacts, facts).values
                excluded = cast(BooleanFacts, facts).excluded
                return alt(*[lit(json.dumps(v)) for v in (True, False) if (values is None or v in values) and v not in excluded])
            case 4:
                return numbers.term(cast(NumberFacts, facts))
            case 8:
                return string_term(cast(StringFacts, facts))
            case 16:
                return self._array(cast(ArrayFacts, facts), depth)
            case _:
                return self._object(cast(ObjectFacts, facts), depth)

    # ---- arrays -----------------------------------------------------------------------------------------------------------------

    def _array(self, facts: ArrayFacts, depth: int) -> Term:
        inner, separator = self.style.deeper(depth), self.style.item(depth)
        length = max([len(first) for first, _ in facts.items], default=0)
        lo, hi = facts.lo, facts.hi

        def node(index: int) -> Node:
            literals = [first[index] if index < len(first) else others for first, others in facts.items]
            return frozenset([literal for literal in literals if literal])

        first = [self.value(node(i), inner) for i in range(length)]
        others = self.value(node(length), inner)
        for index, term in enumerate([*first, others]):
            if term.op == "nothing":
                hi = index if hi is None else min(hi, index)
                break
        if hi is not None and lo > hi:
            return NOTHING
        unique = self._unique(facts, first, node(length), lo, hi, depth) if facts.unique and (hi is None or hi > 1) else None
        if unique is not None:
            body = unique
        elif facts.witnesses:
            body = self._with_witnesses(facts, node, length, lo, hi, depth)
        else:
            body = self._items(first, others, separator, lo, hi)
        return self.style.enclose("[]", body, lo == 0 and not any(witness.lo for witness in facts.witnesses), depth)

    def _items(self, first: list[Term], others: Term, separator: Term, lo: int, hi: int | None) -> Term:
        length = len(first) if hi is None else min(len(first), hi)
        if length == 0:
            return repeated(others, separator, lo, hi, started=False)
        rest = None if hi is None else hi - length
        body = repeated(others, separator, max(lo - length, 0), rest, started=True)
        for index in range(length - 1, -1, -1):
            body = seq(separator if index else EMPTY, first[index], body)
            if index and index >= lo:
                body = alt(EMPTY, body)
        return body

    def _with_witnesses(self, facts: ArrayFacts, node: Any, length: int, lo: int, hi: int | None, depth: int) -> Term:
        inner, witnesses = self.style.deeper(depth), facts.witnesses

        def item(index: int, met: frozenset[int], unmet: frozenset[int]) -> Term:
            literals = {witnesses[i].literal for i in met} | {witnesses[i].literal ^ 1 for i in unmet}
            return self.value(node(min(index, length)) | frozenset(literal for literal in literals if literal), inner)

        needs = [Need(witness.lo, witness.hi, witness.start) for witness in witnesses]
        name = f"c{len(self.rules)}"
        return needy(item, 0, self.style.item(depth), needs, lo, hi, length, self.rules.__setitem__, name)

    def _unique(self, facts: ArrayFacts, first: list[Term], others: Node, lo: int, hi: int | None, depth: int) -> Term | None:
        """Each of a list of values at most once. None: refused, and the caller is lenient."""
        values = None if first or facts.witnesses else self._domain(others)
        if values is None:
            self.document.refuse("uniqueItems", self._place, "needs items that are listed values (enum, const, boolean)")
            return None
        return picked({}, [lit(json.dumps(value, ensure_ascii=False)) for value in values], NOTHING, self.style.item(depth), lo, hi)

    def _domain(self, node: Node) -> list[Any] | None:
        """The scalar values that satisfy `node`, if they can be listed."""
        values: list[Any] = []
        for facts in self.solver.alternatives(node):
            if facts.kind == NULL:
                values.append(None)
            elif facts.kind == BOOLEAN:
                booleans = cast(BooleanFacts, facts)
                values += [v for v in (True, False) if (booleans.values is None or v in booleans.values) and v not in booleans.excluded]
            elif isinstance(facts, NumberFacts) and facts.values is None and (whole := numbers.integers(facts)) is not None:
                values += whole
            elif isinstance(facts, StringFacts) and facts.values is None and facts.hi == 0:
                values += [""] if facts.admits("") else []
            elif not isinstance(facts, ValuedFacts) or facts.values is None:
                return None
            elif isinstance(facts, NumberFacts):
                values += [value for key, value in facts.values.items() if facts.admits(key)]
            else:
                values += facts.values
        return list({(kind := kind_of(value), exact(value) if kind == NUMBER else value): value for value in values}.values())

    # ---- objects ----------------------------------------------------------------------------------------------------------------

    def _object(self, facts: ObjectFacts, depth: int) -> Term:
        inner, separator = self.style.deeper(depth), self.style.item(depth)
        needed, others = dict[str, Term](), list[Term]()
        known, rules = self._properties, id(facts.rules)  # the solver keeps the rules alive, and so their id their own
        for name in {**facts.properties, **facts.required}:
            key = (name, facts.properties.get(name), rules, inner)
            term = known.get(key)
            if term is None:  # made once, as the alternatives of a schema share most of theirs
                term = known[key] = self.member(name, self.value(self.solver.property_node(facts, name), inner))
            if term.op == "nothing" or facts.names and not self.solver.names_admit(facts.names, name):
                if name in facts.required:
                    return NOTHING
            elif name in facts.required:
                needed[name] = term
            else:
                others.append(term)
        extra = self._extra(facts, inner)
        lo, hi = facts.lo, facts.hi
        if hi is not None and extra.op == "nothing" and hi >= len(needed) + len(others):
            hi = None
        if lo <= len(needed):
            lo = 0
        counted = 1 + len(needed) + (0 if facts.undeclared_witnesses else len(others))  # undeclared names may be equal: together they count as one
        if lo > counted and extra.op != "nothing":
            why = "needs several properties that are not declared, and nothing keeps their names apart"
            self.document.refuse("minProperties", self._place, why)
            lo = counted
        if facts.undeclared_witnesses:
            return self._object_with_witnesses(facts, [*needed.values()], others, hi, depth)  # `lo` is no more than they are
        body = picked(needed, others, extra, separator, lo, hi, facts.required)
        return self.style.enclose("{}", body, lo == 0 and not needed, depth)

    def member(self, name: str, value: Term) -> Term:
        """A declared name and its value."""
        return self._valued(encode_basestring(name), value)

    def _valued(self, text: str, value: Term) -> Term:
        """A name, or the end of one, and its value; made once, as large schemas repeat most of theirs."""
        key = (text, id(value))
        known = self._pairs.get(key)
        if known is None:
            between = self.style.key
            if between.op != "lit":
                term = seq(lit(text), between, value)
            elif value.op == "ref":
                term = Term("seq", (Term("lit", (text + between.args[0],)), value), False)
            else:
                term = framed(text + between.args[0], value)
            known = self._pairs[key] = term, value  # which keeps the value alive, and so its id its own
        return known[0]

    def named(self, names: Term, value: Term) -> Term:
        """Any of the names, as a JSON string, and a value."""
        ending = self._valued('"', value)
        if names.op == "nothing" or ending.op != "seq":
            return seq(QUOTE, json_string(names), ending)
        return Term("seq", (QUOTE, json_string(names), *ending.args), ending.regular)  # as seq() makes it, without a look for more literals

    def _extra(self, facts: ObjectFacts, depth: int, names: tuple[Names, ...] = (), value: Node = ANY) -> Term:
        """A property with a name that no place is kept for; of a name in all of `names`, with a value that satisfies `value` too."""
        declared = frozenset((*facts.properties, *facts.required))
        key = (declared, id(facts.rules), facts.names, depth, names, value)
        term = self._extras.get(key)
        if term is None:
            options = [(name, self.value(node | value, depth)) for name, node in self._classes(facts, declared, names)]
            term = self._extras[key] = alt(*[self.named(name, term) for name, term in options if term.op != "nothing"])
        return term

    def _classes(self, facts: ObjectFacts, declared: frozenset[str], names: tuple[Names, ...]) -> list[tuple[Term, Node]]:
        """The undeclared names, divided by what their values must satisfy: by the patterns that they match."""
        patterns = list(dict.fromkeys([p for rule, _ in facts.rules for p in (*rule.patterns, *rule.not_patterns)]))
        if not patterns and any(literal == FALSE for _, literal in facts.rules):
            return []
        base = self.undeclared(declared)
        if facts.names:
            base = both(base, self._names_term(facts.names))
        for some in names:
            base = both(base, self._names_set(some))
        classes: list[tuple[Term, frozenset[str]]] = [(base, frozenset())]
        for pattern in patterns:
            term = self.solver.pattern(pattern, 0)
            inside = [(both(names, term), matched | {pattern}) for names, matched in classes]
            outside = [(both(names, complement(term)), matched) for names, matched in classes]
            classes = [(names, matched) for names, matched in inside + outside if names.op != "nothing"]
            if len(classes) > MAX_CLASSES:
                why = f"'patternProperties' at {self._place or '#'} has more than {MAX_CLASSES} combinations of patterns"
                raise LimitError(why, place=self._place)
        found: dict[Node, list[Term]] = {}
        for term, matched in classes:
            node = frozenset(
                literal for rule, literal in facts.rules if matched.issuperset(rule.patterns) and matched.isdisjoint(rule.not_patterns)
            )
            if FALSE not in node:
                found.setdefault(node, []).append(term)
        return [(alt(*terms), node) for node, terms in found.items()]

    def undeclared(self, declared: frozenset[str]) -> Term:
        """All names but these."""
        if declared not in self._others:
            self._others[declared] = complement(words(sorted(declared)))
        return self._others[declared]

    def _names_term(self, node: Node) -> Term:
        """The strings that satisfy `node`, as names."""
        return alt(*[string_language(cast(StringFacts, facts)) for facts in self.solver.solve(node, STRING)])

    def _names_set(self, names: Names) -> Term:
        terms = [self.solver.pattern(p, 0) for p in names.patterns]
        terms += [complement(self.solver.pattern(p, 0)) for p in names.not_patterns]
        if names.without:
            terms.append(complement(words(sorted(names.without))))
        if names.literals:
            terms.append(self._names_term(names.literals))
        return both(*terms)

    def _object_with_witnesses(self, facts: ObjectFacts, needed: list[Term], others: list[Term], hi: int | None, depth: int) -> Term:
        """One property may satisfy several needs, so each way to divide the needs among properties is a list of its own."""
        inner, witnesses, extra = self.style.deeper(depth), facts.undeclared_witnesses, self._extra(facts, self.style.deeper(depth))
        if len(witnesses) > MAX_WITNESSES:
            why = f"the object needs more than {MAX_WITNESSES} undeclared properties that satisfy something"
            raise LimitError(why)
        ways = []
        for groups in partitions(witnesses):
            found = [self._extra(facts, inner, tuple([names for names, _ in group]), frozenset([v for _, v in group if v])) for group in groups]
            if NOTHING not in found:
                ways.append(pick_of([*needed, *found], others, self.style.item(depth), extra, 0, hi))
        return self.style.enclose("{}", alt(*ways), False, depth)


@cache
def _any_value(style_name: str) -> Term:
    """The rule "any": every JSON value, in a style whose separators are the same at all depths."""
    form, value = style(style_name), ref("any")
    pair = seq(ANY_TEXT, form.key, value)
    members, items = (repeated(item, form.item(0), 0, None, started=False) for item in (pair, value))
    lists = form.enclose("[]", items, True, 0), form.enclose("{}", members, True, 0)
    return alt(SCALARS["null"], SCALARS["boolean"], numbers.NUMBER, ANY_TEXT, *lists)


def string_language(facts: StringFacts) -> Term:
    """The strings that satisfy `facts`, as plain text."""
    if facts.values is not None:
        return words(facts.values)
    terms = [*facts.matching, *[complement(term) for term in facts.not_matching]]
    if facts.lo or facts.hi is not None:
        terms.append(rep(ANY_CHAR, facts.lo, facts.hi))
    if facts.excluded:
        terms.append(complement(words(sorted(facts.excluded))))
    return both(*terms)


def string_term(facts: StringFacts) -> Term:
    """The same as JSON writes it, in quotes; listed values in their usual spelling alone."""
    if facts.values is not None:
        return words(map(encode_basestring, facts.values))
    return in_quotes(string_language(facts))


def in_quotes(language: Term) -> Term:
    return NOTHING if language.op == "nothing" else seq(QUOTE, json_string(language), QUOTE)
