"""What a constraint means, for people: `ramet check SCHEMA|REGEX [--text T]`. Works on bytes, so no model is needed."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from . import formats
from .compiler import Grammar, GrammarCompiler
from .errors import GrammarError
from .json_schema import translate
from .matcher import Matcher
from .python_types import schema_of
from .schema.document import NOT_ENFORCED
from .vocabulary import Vocabulary

MAX_SHORTEST = 2_000  # bytes of the shortest document that are worked out and shown
MAX_SHOWN = 300
_STRUCTURE = {"$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$defs", "definitions", "$vocabulary"}
_PARTNERS = {"then", "else", "minContains", "maxContains", "additionalItems"}  # enforced by the keyword that they go with


@dataclass
class TextCheck:
    """How far a text is accepted."""

    accepted: bool
    at: int
    """Bytes that are the beginning of a document: all of them, or those before the first that may not come."""
    allowed: str
    """The bytes that could have come there, as characters and ranges; empty: none."""
    message: str


@dataclass
class Report:
    """What `check` found. `error` is why the constraint is refused; what does not apply then is empty."""

    kind: str
    error: str = ""
    place: str = ""
    refused: list[str] = field(default_factory=list)
    enforced: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    forced: str = ""
    shortest: str = ""
    shortest_whole: bool = True
    """False: `shortest` is only its beginning."""
    tokens: int | str = ""
    """The least budget that always suffices, if a vocabulary was given."""
    states: int = 0
    bytes: int = 0
    text: TextCheck | None = None

    @property
    def ok(self) -> bool:
        """Whether the constraint compiles and, if a text was given, accepts it."""
        return not self.error and (self.text is None or self.text.accepted)

    def lines(self) -> list[str]:
        """The report as plain text, one finding a line."""
        found = [f"{self.kind}: refused. {self.error}" if self.error else f"{self.kind}: compiles"]
        found += [f"  cannot be enforced: {line}" for line in self.refused]
        found += [f"  enforced: {', '.join(self.enforced)}"] if self.enforced else []
        found += [f"  annotations, not enforced: {', '.join(self.ignored)}"] if self.ignored else []
        found += [f"  note: {line}" for line in self.warnings]
        if self.error:
            return found
        size = f"{len(self.shortest.encode())} bytes" if self.shortest_whole else f"more than {MAX_SHORTEST} bytes"
        found += [f"  every document begins: {self.forced!r}"] if self.forced else ["  nothing is forced at the start"]
        cut = self.shortest if len(self.shortest) <= MAX_SHOWN else self.shortest[:MAX_SHOWN] + "..."
        found.append(f"  shortest document ({size}{self.tokens and f', {self.tokens} tokens'}): {cut}")
        found.append(f"  automaton so far: {self.states} states, {self.bytes:,} bytes")
        if self.text is not None:
            found.append(f"  text: {self.text.message}")
        return found


def check(
    source: Any,
    *,
    kind: str = "json_schema",
    text: str | None = None,
    whitespace: str = "json",
    lenient: bool = False,
    vocabulary: Vocabulary | None = None,
) -> Report:
    """What `source` (as GrammarCompiler.compile takes it) enforces and forces, and whether it accepts `text`.

    A `vocabulary` adds how many of its tokens a document needs. Bad input raises nothing: the report says it."""
    report = Report(kind)
    if kind == "json_schema":
        _check_keywords(report, source, whitespace, lenient)
    options: dict[str, Any] = {"whitespace": whitespace, "lenient": lenient} if kind.startswith("json") else {}
    try:
        grammar = _compiler().compile(kind, source, **options)
    except GrammarError as error:
        report.error, report.place = str(error), error.place
        return report
    report.warnings = [warning for warning in grammar.warnings if not warning.endswith(NOT_ENFORCED)]
    matcher = grammar.matcher()
    report.forced = matcher.forced().decode(errors="replace")
    shortest, report.shortest_whole = _shortest(grammar)
    report.shortest = shortest.decode(errors="replace")
    if vocabulary is not None:
        report.tokens = GrammarCompiler(vocabulary).compile(kind, source, **options).min_tokens
    if text is not None:
        report.text = _check_text(grammar.matcher(), text.encode())
    report.states, report.bytes = grammar.states, grammar.bytes
    return report


def report(kind: str, source: Any, tokenizer: Any = None, *, text: str | None = None) -> bool:
    """Prints what `check` finds, with the counts of `tokenizer` (one of runtime.tokenizer_files) if there is one; returns Report.ok."""
    vocabulary = None if tokenizer is None else Vocabulary(tokenizer.all_token_bytes(), tokenizer.eos_ids)
    found = check(source, kind=kind, text=text, vocabulary=vocabulary)
    print("\n".join(found.lines()))
    return found.ok


@cache
def _compiler() -> GrammarCompiler:
    """For a vocabulary whose tokens are the 256 bytes, so that a token is a byte."""
    return GrammarCompiler(Vocabulary([bytes([byte]) for byte in range(256)] + [None], [256]))


def _check_keywords(report: Report, source: Any, whitespace: str, lenient: bool) -> None:
    """Which keywords the schema uses: those enforced, those that say nothing about validity, those that cannot be enforced."""
    from .schema.keywords import ENFORCE

    try:
        _, document = translate(schema_of(source), whitespace=whitespace, lenient=True)
    except GrammarError:
        return  # `check` reports it
    report.refused = [warning.removesuffix(NOT_ENFORCED) for warning in document.warnings if warning.endswith(NOT_ENFORCED)]
    refused = {line.split("'")[1] for line in report.refused if line.startswith("'")}
    names = {keyword for schema in document.schemas for keyword in schema if isinstance(keyword, str)}
    report.enforced = sorted(names & (ENFORCE.keys() | _PARTNERS) - refused)
    report.ignored = sorted(names - ENFORCE.keys() - _PARTNERS - _STRUCTURE)
    used = {schema["format"] for schema in document.schemas if "format" in schema}
    unknown = used - formats.NAMES
    report.ignored += [f"format {name!r}" for name in sorted(unknown)]
    if used == unknown:
        report.enforced = [name for name in report.enforced if name != "format"]


def _shortest(grammar: Grammar) -> tuple[bytes, bool]:
    """A shortest document, and True; or its first MAX_SHORTEST bytes, and False."""
    automaton, state, text = grammar.automaton, grammar.automaton.start, bytearray()
    row = np.zeros(grammar.vocabulary.words, dtype=np.int32)
    while not automaton.accepting(state):
        if len(text) == MAX_SHORTEST:
            return bytes(text), False
        automaton.fill(state, row.ctypes.data, automaton.need(state) or -1)  # the bytes that leave just enough room
        byte = int(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))[0])
        text.append(byte)
        state = automaton.advance_bytes(state, bytes([byte]))
    return bytes(text), True


def _check_text(matcher: Matcher, text: bytes) -> TextCheck:
    automaton, state = matcher.grammar.automaton, matcher.grammar.automaton.start
    for at in range(len(text)):
        after = automaton.advance_bytes(state, text[at : at + 1])
        if after == -1:
            allowed = _described(automaton.live_bytes(state))
            wrong = repr(text[at : at + 12].decode(errors="replace"))
            end = " (the document may end here)" if automaton.accepting(state) else ""
            return TextCheck(False, at, allowed, f"refused at byte {at}, {wrong}; allowed there: {allowed or 'nothing more'}{end}")
        state = after
    if automaton.accepting(state):
        return TextCheck(True, len(text), _described(automaton.live_bytes(state)), "accepted")
    allowed = _described(automaton.live_bytes(state))
    return TextCheck(False, len(text), allowed, f"not complete: it ends after byte {len(text)}, where this may come: {allowed}")


def _described(values: Iterable[int]) -> str:
    """Bytes as characters and ranges."""
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and runs[-1][1] == value - 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return " ".join(_shown(lo) if lo == hi else f"{_shown(lo)}-{_shown(hi)}" for lo, hi in runs)


def _shown(value: int) -> str:
    return chr(value) if 0x20 < value < 0x7F else "space" if value == 0x20 else f"\\x{value:02x}"
