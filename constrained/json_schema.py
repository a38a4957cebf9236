"""JSON Schema -> grammar: 2020-12, and the spellings of the drafts 4 to 2019-09. Every keyword is enforced exactly or refused by name.

    source, warnings = compile_schema({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})

The document's language is a subset of the schema's: one whitespace style, one spelling of names and listed values, properties in
declared order and then additional ones (or in any order, where whether they are there is a choice). See docs/constrained.md.
"""
from __future__ import annotations

import json
from typing import Any

from .errors import GrammarError, LimitError
from .grammar import NOTHING, GrammarSource
from .schema.document import Document, describe, escape
from .schema.emit import Emitter
from .schema.logic import Solver
from .schema.style import style

MAX_TEXT = 1_000_000
"""Characters of a schema."""

Schema = dict[str, Any] | bool | str


def compile_schema(schema: Schema, *, whitespace: str = "json", lenient: bool = False) -> tuple[GrammarSource, list[str]]:
    """The grammar of the documents that satisfy `schema` (a dict, a bool or JSON text), and warnings.

    `whitespace` is "json" (`", "` and `": "`, as json.dumps writes), "compact", "pretty" or "flexible" (bounded). `lenient`: what cannot be
    enforced is left out and named in the warnings. Raises GrammarError with a JSON pointer as its place for what is not a schema, cannot
    be enforced, refers to nothing or to the network, or admits no document; LimitError for what is too large."""
    source, document = translate(schema, whitespace=whitespace, lenient=lenient)
    return source, document.warnings


def translate(schema: Schema, *, whitespace: str = "json", lenient: bool = False) -> tuple[GrammarSource, Document]:
    """The same, and the document with the schemas that were met on the way."""
    text, parsed = _read(schema)
    try:
        document = Document(parsed, lenient=lenient, embedded_ids=text.count('"$id"') > (isinstance(parsed, dict) and "$id" in parsed))
        solver = Solver(document, annotates='"unevaluated' in text)
        emitter = Emitter(document, solver, style(whitespace))
        start = emitter.value(frozenset((solver.plain(document.literal(parsed, "")),)) - {0})
        emitter.finish()
    except RecursionError:
        raise LimitError("the schema is nested too deep") from None
    if start.op == "ref":
        start = emitter.rules[start.args[0]]
    if start == NOTHING:
        raise GrammarError("the schema is unsatisfiable: no document could be valid")
    return GrammarSource({**emitter.rules, "start": start}), document


def _read(schema: Schema) -> tuple[str, Any]:
    """The schema as text and as values. Both ways round, so that what JSON cannot hold is refused here."""
    try:
        if isinstance(schema, str):
            text, parsed = schema, json.loads(schema) if len(schema) <= MAX_TEXT else None
        elif isinstance(schema, dict | bool):
            text, parsed = json.dumps(schema, ensure_ascii=False), schema
        else:
            raise GrammarError(f"not a schema: an object, a boolean or JSON text is due, not {describe(schema)} (for types: schema_of)")
    except RecursionError:
        raise LimitError("the schema is nested too deep") from None
    except (ValueError, TypeError) as error:
        raise GrammarError(f"the schema is not JSON: {error}") from error
    try:
        text.encode()
        if "\\u" in text and ("\\ud" in text or "\\uD" in text):
            json.dumps(parsed, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        _refuse_surrogates(parsed)
    if len(text) > MAX_TEXT:
        raise LimitError(f"the schema has {len(text):,} characters; the limit is {MAX_TEXT:,}")
    return text, parsed


def _refuse_surrogates(schema: Any) -> None:
    """Half of a surrogate pair is no character: no UTF-8 text can hold it (RFC 8259, section 8.2)."""
    todo = [("", schema)]
    while todo:
        place, value = todo.pop()
        if isinstance(value, dict):
            todo += [(f"{place}/{escape(key)}", item) for key, item in value.items()] + [(place, key) for key in value]
        elif isinstance(value, list):
            todo += [(f"{place}/{i}", item) for i, item in enumerate(value)]
        elif isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
            at = place.encode(errors="replace").decode()
            raise GrammarError(f"a lone surrogate in a string at {at or '#'}: it cannot be written as UTF-8", place=at)
