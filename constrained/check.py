"""What a constraint means, for people: `ramet check SCHEMA|REGEX [--text T]`. Works on bytes, so no model is needed."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from .compiler import Grammar, GrammarCompiler
from .errors import GrammarError
from .json_schema import translate
from .matcher import Matcher
from .python_types import schema_of
from .vocabulary import Vocabulary

MAX_SHORTEST = 2_000  # bytes of the shortest document that are worked out and shown
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
    shortest_bytes: int = 0
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
        more = "" if len(self.shortest.encode()) == self.shortest_bytes else "..."
        found += [f"  every document begins: {self.forced!r}"] if self.forced else ["  nothing is forced at the start"]
        found.append(f"  shortest document ({self.shortest_bytes} bytes): {self.shortest}{more}")
        found.append(f"  automaton so far: {self.states} states, {self.bytes:,} bytes")
        if self.text is not None:
            found.append(f"  text: {self.text.message}")
        return found


def check(source: Any, *, kind: str = "json_schema", text: str | None = None, whitespace: str = "json", lenient: bool = False) -> Report:
    """What `source` (as GrammarCompiler.compile takes it) enforces and forces, and whether it accepts `text`. Raises nothing on bad input:
    the report says it."""
    report = Report(kind)
    if kind == "json_schema":
        _check_keywords(report, source, whitespace, lenient)
    try:
        grammar = _compiler().compile(kind, source, **({"whitespace": whitespace, "lenient": lenient} if kind.startswith("json") else {}))
    except GrammarError as error:
        report.error, report.place = str(error), error.place
        return report
    report.warnings = [warning for warning in grammar.warnings if warning not in report.refused]
    matcher = grammar.matcher()
    report.forced = matcher.forced().decode(errors="replace")
    shortest, report.shortest_bytes = _shortest(grammar)
    report.shortest = shortest.decode(errors="replace")
    if text is not None:
        report.text = _check_text(grammar.matcher(), text.encode())
    report.states, report.bytes = grammar.states, grammar.bytes
    return report


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
    report.refused = [warning for warning in document.warnings if warning.endswith("; not enforced")]
    names = {keyword for schema in document.schemas for keyword in schema if isinstance(keyword, str)}
    report.enforced = sorted(names & (ENFORCE.keys() | _PARTNERS))
    report.ignored = sorted(names - ENFORCE.keys() - _PARTNERS - _STRUCTURE)


def _shortest(grammar: Grammar) -> tuple[bytes, int]:
    """A shortest document, or its first MAX_SHORTEST bytes, and its length."""
    automaton, state, text = grammar.automaton, grammar.automaton.start, bytearray()
    need = automaton.need
    length = need(state) - (0 if automaton.finished(state) else _end_cost(automaton, state))  # type: ignore[operator]
    while not automaton.accepting(state) and len(text) < MAX_SHORTEST:
        options = [(need(automaton.advance_bytes(state, bytes([byte]))), byte) for byte in automaton.live_bytes(state)]
        _, byte = min((distance, byte) for distance, byte in options if distance is not None)
        text.append(byte)
        state = automaton.advance_bytes(state, bytes([byte]))
    return bytes(text), len(text) if automaton.accepting(state) else length


def _end_cost(automaton: Any, state: Any) -> int:
    """1 if the shortest document needs an end token, because it could go on; found at the document's end, which is near enough here."""
    return 1 if automaton.accepting(state) else 0


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
