"""A schema document: every schema in it checked once, numbered, and found again by $ref. Nothing is ever fetched."""
from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from ..errors import GrammarError, LimitError
from .checks import CHECKS, DATA, IN_PLACE, MAPS, REFERENCES

NOT_ENFORCED = "; not enforced"
"""How the warning ends about a keyword that was refused, but the caller is lenient."""
MAX_SCHEMAS = 100_000
_LISTS = frozenset(("type", "enum", "required"))
"""Keywords whose list is no list of schemas."""
OLD_DRAFT = re.compile(r"json-schema\.org/draft-0[3467]/")

FALSE = 1
"""The literal of the schema `false`. `true` is number 0, and its literal 0 is left out of every node."""

Literal = int
"""A schema that must hold (2 * number) or must not (2 * number + 1)."""


Where = str | tuple[int, tuple[str | int, ...]]
"""A JSON pointer, or a schema and the way from it: written out only for an error."""


class Held(int):
    """A literal, where a schema that the compiler wrote itself has one in place of a schema."""


class Document:
    """Numbers the schemas of one document as they are reached. Not shared between threads."""

    def __init__(self, root: Any, *, lenient: bool = False, embedded_ids: bool = False) -> None:
        """`embedded_ids`: whether a schema below the root may have an $id, so that `#/...` in it starts there."""
        self.root = root
        for keyword in ("$defs", "definitions"):
            if isinstance(root, dict) and not isinstance(held := root.get(keyword, {}), dict):
                raise GrammarError(f"{keyword!r} at # must be an object of schemas, not {describe(held)}", place=f"/{keyword}")
        self.embedded_ids = embedded_ids
        self.lenient = lenient
        self.warnings: list[str] = []
        self._reference_alone = isinstance(root, dict) and OLD_DRAFT.search(str(root.get("$schema"))) is not None
        self._sources: dict[int, dict[str, Any]] = {}  # of the schemas of which only the $ref counts
        self.schemas: list[dict[Any, Any]] = [{}]
        self._where: list[Where] = [""]
        self.numbers: dict[int, int] = {}
        self._contents: dict[frozenset[Any], int] = {}
        self._targets: dict[tuple[int, str] | str, Literal] = {}
        self._names: Index | None = None
        self._acyclic: set[int] = set()

    def place(self, number: int) -> str:
        """Where schema `number` lies, as a JSON pointer."""
        place = self._where[number] = self._pointer(self._where[number])
        return place

    def _pointer(self, where: Where) -> str:
        if isinstance(where, str):
            return where
        number, path = where
        return self.place(number) + "".join([f"/{escape(str(part))}" for part in path])

    def literal(self, schema: Any, where: Where) -> Literal:
        """The literal that says "`schema` holds". Raises GrammarError if it is not a schema."""
        number = self.numbers.get(id(schema))
        if number is not None:
            return 2 * number
        if schema is True or schema is False:
            return 0 if schema else FALSE
        if not isinstance(schema, dict):
            place = self._pointer(where)
            raise GrammarError(f"not a schema at {place or '#'}: an object or a boolean is due, not {describe(schema)}", place=place)
        if not schema:
            return 0
        content: list[tuple[Any, ...]] | None = []
        for keyword, value in schema.items():
            check = CHECKS.get(keyword)
            if check is None:
                continue
            if wrong := check(value):
                place = self._pointer(where)
                raise GrammarError(f"{keyword!r} at {place or '#'} {wrong}, not {describe(value)}", place=f"{place}/{keyword}")
            if content is not None:
                kind = type(value)
                if kind is list and keyword in _LISTS:
                    content.append((keyword, list, *[(type(item), item) for item in value]))
                elif kind is dict or kind is list or keyword in REFERENCES and self.embedded_ids:
                    content = None
                else:
                    content.append((keyword, kind, value))
        if self._reference_alone and "$ref" in schema and len(schema) > 1:
            return self._alone(schema, self._pointer(where))
        if content is not None and (number := self._alike(content)) is not None:
            self.numbers[id(schema)] = number  # the root keeps the schema alive
            return 2 * number
        return self._add(schema, where)

    def _alike(self, content: list[tuple[Any, ...]]) -> int | None:
        """The number of an earlier schema with that content: one that takes no look into other schemas.

        So the same small schema is one literal wherever it stands, and `not` it is seen to contradict it."""
        try:
            number = self._contents.setdefault(frozenset(content), len(self.schemas))
        except TypeError:  # an enum of arrays or objects
            return None
        return number if number < len(self.schemas) else None

    def refers_alone(self, schema: dict[str, Any]) -> bool:
        """Whether a schema is nothing but a $ref, and what that means is the same all over the document."""
        return not self.embedded_ids and type(schema["$ref"]) is str and len(CHECKS.keys() & schema.keys()) == 1

    def _alone(self, schema: dict[str, Any], place: str) -> Literal:
        """A $ref under a draft that knows nothing beside it (drafts 3 to 7: "all other properties [...] SHALL be ignored")."""
        ignored = sorted(CHECKS.keys() & schema.keys() - {"$ref"})
        if ignored:
            self.warn(f"{', '.join(map(repr, ignored))} beside '$ref' at {place or '#'}: ignored, as the draft that $schema names has it")
        literal = self._add({"$ref": schema["$ref"]}, place)
        self.numbers[id(schema)] = literal >> 1
        self._sources[literal >> 1] = schema
        return literal

    def made(self, schema: dict[Any, Any], number: int) -> Literal:
        """The literal of a schema that the compiler wrote itself for schema `number`."""
        return self._add(schema, (number, ())) if schema else 0

    def _add(self, schema: dict[Any, Any], where: Where) -> Literal:
        number = len(self.schemas)
        if number > MAX_SCHEMAS:
            raise LimitError(f"more than {MAX_SCHEMAS} schemas in one document", place=self._pointer(where))
        self.numbers[id(schema)] = number
        self.schemas.append(schema)  # also keeps the object alive, and so its id its own
        self._where.append(where)
        return 2 * number

    def refuse(self, keyword: str, place: str, why: str) -> None:
        """Raises GrammarError for a keyword that cannot be enforced, or keeps a warning if the caller is lenient."""
        message = f"{keyword!r} at {place or '#'} {why}"
        if not self.lenient:
            raise GrammarError(message, place=f"{place}/{keyword}")
        self.warn(message + NOT_ENFORCED)

    def warn(self, message: str) -> None:
        if message not in self.warnings:
            self.warnings.append(message)

    # ---- references -----------------------------------------------------------------------------------------------------------

    def target(self, owner: int, reference: str) -> Literal:
        """The literal of what `$ref: reference` in schema number `owner` means.

        Raises GrammarError if it is remote, leads nowhere, or leads back to itself without content."""
        literal = self._resolve(owner, reference)
        self._check_acyclic(literal >> 1)
        return literal

    def known_target(self, schema: Any) -> Literal | None:
        """What a schema that is nothing but a $ref means, where another one like it was asked for before."""
        if type(schema) is not dict or "$ref" not in schema or not self.refers_alone(schema):
            return None
        known = self._targets.get(schema["$ref"])
        return known if known is not None and known >> 1 in self._acyclic else None

    def _resolve(self, owner: int, reference: str) -> Literal:
        key = (owner, reference) if self.embedded_ids or not reference.startswith("#") else reference
        known = self._targets.get(key)
        if known is None:
            known = self._targets[key] = self.literal(*self._find(reference, owner))
        return known

    def _find(self, reference: str, owner: int) -> tuple[Any, str]:
        if "$ref" not in self.schemas[owner] and (self.embedded_ids or reference[1:] in self._index().ambiguous):
            place = self.place(owner)
            keyword = "$dynamicRef" if "$dynamicRef" in self.schemas[owner] else "$recursiveRef"
            raise GrammarError(f"{keyword!r} at {place or '#'} has more than one possible target: use '$ref'", place=f"{place}/{keyword}")
        if reference == "#" or reference.startswith("#/"):
            if not self.embedded_ids:
                return self._follow(self.root, "", reference, owner)
            base = self._base(owner)
        else:
            base, fragment = urldefrag(joined(self._base(owner), reference))
            if fragment and not fragment.startswith("/"):
                base, reference = f"{base}#{fragment}", "#"
            else:
                reference = "#" + fragment
        found = self._index().names.get(base)
        if found is None:
            place = self.place(owner)
            why = "leads nowhere" if not base or "#" in base else "is remote, and nothing is ever fetched: put that schema under $defs"
            raise GrammarError(f"'$ref' at {place or '#'} {why} ({(base + reference).removesuffix('#')!r})", place=f"{place}/$ref")
        try:
            return self._follow(*found, reference, owner)
        except GrammarError:
            if not base:
                raise
            return self._follow(self.root, "", reference, owner)  # an $id that was meant as a label

    def _base(self, number: int) -> str:
        return self._index().bases.get(id(self._sources.get(number, self.schemas[number])), "")

    def _follow(self, schema: Any, at: str, pointer: str, owner: int) -> tuple[Any, str]:
        """What a fragment (`#` or `#/a/b`) means inside `schema`, which lies at `at`; `owner` is whose $ref it is."""
        parts = (unquote(pointer) if "%" in pointer else pointer).split("/")[1:]
        for escaped in parts:
            part = escaped.replace("~1", "/").replace("~0", "~") if "~" in escaped else escaped
            try:
                schema = schema[_position(part)] if isinstance(schema, list) else schema[part]
            except (KeyError, IndexError, ValueError, TypeError):
                place = self.place(owner)
                raise GrammarError(f"'$ref' at {place or '#'} leads nowhere: {pointer!r} has no {part!r}", place=f"{place}/$ref") from None
        return schema, "/".join((at, *parts))

    def _index(self) -> Index:
        if self._names is None:
            self._names = Index(self.root)
        return self._names

    def _check_acyclic(self, start: int) -> None:
        """Refuses a schema that is applied to the very value that it is being applied to (Core 9.4.1)."""
        if start in self._acyclic:
            return
        if IN_PLACE.isdisjoint(self.schemas[start]):
            self._acyclic.add(start)
            return
        path, open_now = [(start, iter(self._applied_in_place(start)))], {start}
        while path:
            number, following = path[-1]
            for child in following:
                if child in open_now:
                    place = self.place(child)
                    raise GrammarError(f"'$ref' at {place or '#'} leads back to itself before any value is read", place=f"{place}/$ref")
                if child not in self._acyclic:
                    open_now.add(child)
                    path.append((child, iter(self._applied_in_place(child))))
                    break
            else:
                path.pop()
                open_now.remove(number)
                self._acyclic.add(number)

    def _applied_in_place(self, number: int) -> list[int]:
        """The schemas that schema `number` applies to the same value."""
        schema = self.schemas[number]
        found: list[Literal] = []
        for keyword in IN_PLACE & schema.keys():
            value = schema[keyword]
            if keyword in REFERENCES:
                found.append(self._resolve(number, value))
            elif isinstance(value, list):
                found += [self.literal(s, (number, (keyword, i))) for i, s in enumerate(value)]
            elif keyword in MAPS:
                found += [self.literal(s, (number, (keyword, k))) for k, s in value.items() if not isinstance(s, list)]
            else:
                found.append(self.literal(value, (number, (keyword,))))
        return [literal >> 1 for literal in found if literal > FALSE]


class Index:
    """Every schema that has a name ($id, $anchor, draft-04 id), by absolute name, and the base of every schema."""

    def __init__(self, root: Any) -> None:
        self.names: dict[str, tuple[Any, str]] = {"": (root, "")}
        self.bases: dict[int, str] = {}
        self.ambiguous: set[str] = set()
        dynamic: set[str] = set()
        todo: list[tuple[Any, Way, str]] = [(root, (), "")]
        while todo:
            value, way, base = todo.pop()
            if isinstance(value, list):
                todo += [(item, (way, i), base) for i, item in enumerate(value) if type(item) in _NESTED]
                continue
            for keyword in ("$id", "id"):
                if isinstance(name := value.get(keyword), str):
                    full = joined(base, name)
                    self.names.setdefault(full.removesuffix("#"), (value, _pointer(way)))
                    base = full.split("#")[0]
                    break
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(name := value.get(keyword), str):
                    self.names.setdefault(f"{base}#{name}", (value, _pointer(way)))
                    if keyword == "$dynamicAnchor":
                        (self.ambiguous if name in dynamic else dynamic).add(name)
            self.bases[id(value)] = base
            todo += [(item, (way, key), base) for key, item in value.items() if type(item) in _NESTED and key not in DATA]


_NESTED = (dict, list)
Way = tuple[Any, ...]
"""(the way to what holds it, its key); () to the root. Written out only for what has a name."""


def _pointer(way: Way) -> str:
    parts = []
    while way:
        way, key = way
        parts.append(escape(str(key)))
    return "".join([f"/{part}" for part in reversed(parts)])


def joined(base: str, reference: str) -> str:
    """A reference made absolute; a bare fragment too where the base is no hierarchy (urn:...), which urljoin leaves as it is."""
    return base.split("#")[0] + reference if reference.startswith("#") else urljoin(base, reference)


def _position(part: str) -> int:
    """A place in a list, as JSON pointers write it (RFC 6901, section 4). Raises ValueError."""
    if not (part.isascii() and part.isdigit()) or part != "0" and part.startswith("0"):
        raise ValueError(part)
    return int(part)


def escape(key: str) -> str:
    """A key as a part of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def describe(value: Any) -> str:
    """A value in an error message: short, and as JSON would write it where it can."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 60 else text[:57] + "..."
