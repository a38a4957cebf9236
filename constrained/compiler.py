"""GrammarCompiler: from what a caller asks (kind and source) to a Grammar, with a cache and limits."""
from __future__ import annotations

import gc
import json
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from .engines import get_engine, ramet_native
from .errors import GrammarError
from .grammar import GrammarSource, words
from .json_schema import compile_schema
from .matcher import Matcher
from .python_types import schema_of
from .regex import from_regex
from .schema.style import style
from .vocabulary import Vocabulary

KINDS = ("json_schema", "regex", "choice", "json_object", "ebnf", "lark")


MEASURED, DROPPED = 8, 2
"""Remembered grammars that one call measures anew, and those that it lets go, as long as the limit is not passed."""


class Automaton(Protocol):
    """What an engine gives: states (opaque, immutable, never None; -1 is dead) and the moves between them. Thread-safe."""

    start: Any

    def advance(self, state: Any, token: int) -> Any: ...
    def advance_bytes(self, state: Any, text: bytes) -> Any: ...
    def fill(self, state: Any, address: int, budget: int) -> None:
        """Writes ceil(V / 32) int32 words at `address`. budget < 0: none."""
        ...

    def accepting(self, state: Any) -> bool: ...
    def finished(self, state: Any) -> bool: ...
    def forced(self, state: Any) -> bytes: ...
    def need(self, state: Any) -> int | None: ...
    def live_bytes(self, state: Any) -> bytes: ...
    @property
    def sizes(self) -> tuple[int, int, int]: ...


@dataclass(frozen=True)
class Limits:
    """Per compiler. Passing one is a LimitError, at compile time or while the grammar is used (states are made when visited)."""

    source_bytes: int = 4 << 20  # of a schema, regex or grammar
    grammar_bytes: int = 128 << 20  # of one grammar's automaton, and of what it adds to the shared store
    seconds: float = 2.0  # of one call: compiling, or one mask
    cache_bytes: int = 256 << 20  # of all grammars kept for reuse
    store_bytes: int = 256 << 20  # of terms and masks shared by all grammars


@dataclass(frozen=True)
class Grammar:
    """A compiled constraint. Shared by all its matchers; grows as states are visited, never changes an answer."""

    kind: str
    source: Any
    vocabulary: Vocabulary
    automaton: Automaton = field(repr=False)
    warnings: tuple[str, ...] = ()
    engine: str = "ramet"

    def matcher(self) -> Matcher:
        return Matcher(self)

    @property
    def min_tokens(self) -> int:
        """The least budget that always suffices to write a whole document, the end token included where one is needed.

        Raises GrammarError if no tokens of the vocabulary are known to write one."""
        need = self.automaton.need(self.automaton.start)
        if need is None:
            raise GrammarError("no sequence of this vocabulary's tokens is known to write a document of this constraint")
        return need

    @property
    def states(self) -> int:
        """States made so far."""
        return self.automaton.sizes[0]

    @property
    def bytes(self) -> int:
        """Memory held so far, what is shared with other grammars apart."""
        return self.automaton.sizes[1]


class GrammarCompiler:
    """Compiles constraints for one vocabulary, and remembers them, failures too. Thread-safe."""

    def __init__(self, vocabulary: Vocabulary, *, limits: Limits | None = None) -> None:
        self.vocabulary = vocabulary
        self.limits = limits or Limits()
        ramet_native.prepare(vocabulary, self.limits)
        self._cache: OrderedDict[tuple[Any, ...], Grammar | GrammarError] = OrderedDict()
        self._held: dict[tuple[Any, ...], int] = {}  # bytes of each in the cache, when it was last measured
        self._to_measure: Iterator[tuple[Any, ...]] = iter(())
        self._lock = threading.Lock()
        self.compiled = 0  # grammars built, or found to be wrong
        self.hits = 0  # grammars found built
        self.seconds = 0.0  # spent building
        self.timed: Callable[[float], None] | None = None  # is told the seconds of each

    def compile(
        self, kind: str, source: Any, *, whitespace: str = "json", lenient: bool = False, engine: str | None = None
    ) -> Grammar:
        """The grammar of `source`: text, or what is natural for the kind (a dict or type for json_schema, a list for choice).

        whitespace and lenient are for the JSON kinds. engine: a name, or None for the kind's own.
        Raises GrammarError; LimitError if a limit was passed."""
        if kind not in KINDS:
            raise GrammarError(f"unknown constraint kind {kind!r}: choose from {', '.join(KINDS)}")
        style(whitespace)  # is there such a one?
        text = _canonical(kind, source)
        if len(text) > self.limits.source_bytes:
            raise GrammarError(f"the {kind} source is {len(text)} characters long; the limit is {self.limits.source_bytes}")
        key = (kind, text, whitespace, lenient, engine)
        with self._lock:
            if (found := self._cache.get(key)) and self._worn(found):
                found = None  # whoever uses it goes on with it; who comes now begins a new one
            elif found:
                self._cache.move_to_end(key)
                self.hits += 1
        if found is None:
            begin = time.perf_counter()
            with _uncollected():
                found = self._compile(kind, source, text, whitespace=whitespace, lenient=lenient, engine=engine)
            spent = time.perf_counter() - begin
            with self._lock:
                self.compiled += 1
                self.seconds += spent
            if self.timed is not None:
                self.timed(spent)
            self._remember(key, found)
        if isinstance(found, GrammarError):
            raise type(found)(*found.args, place=found.place)
        return found

    def _compile(self, kind: str, source: Any, text: str, *, whitespace: str, lenient: bool, engine: str | None) -> Grammar | GrammarError:
        try:
            name, build = get_engine(kind, engine)
            terms, warnings = self._terms(kind, source, text, whitespace=whitespace, lenient=lenient)
            automaton = build(self.vocabulary, kind, text, terms, self.limits)
            return Grammar(kind, source, self.vocabulary, automaton, tuple(warnings), name)
        except GrammarError as error:
            return error.with_traceback(None)

    def _terms(self, kind: str, source: Any, text: str, *, whitespace: str, lenient: bool) -> tuple[GrammarSource | None, list[str]]:
        if kind == "regex":
            return GrammarSource({"start": from_regex(text)}), []
        if kind == "choice":
            return GrammarSource({"start": words(json.loads(text))}), []
        if kind == "json_schema" or kind == "json_object":
            return compile_schema({"type": "object"} if kind == "json_object" else text, whitespace=whitespace, lenient=lenient)
        return None, []  # lark and ebnf: the engine reads the text

    def _worn(self, found: Grammar | GrammarError) -> bool:
        """Whether a grammar has grown so far in use that its next users might meet a limit that is not theirs."""
        if isinstance(found, GrammarError):
            return False
        _, held, shared = found.automaton.sizes
        return held > self.limits.grammar_bytes // 2 or shared > self.limits.store_bytes

    def _remember(self, key: tuple[Any, ...], found: Grammar | GrammarError) -> None:
        """Grammars grow while they are used, so each call measures a few anew, and lets go of a few: no caller pays for all."""
        with self._lock:
            self._cache[key] = found
            for old in (key, *islice(self._to_measure, MEASURED)):
                if old in self._cache:
                    self._held[old] = _bytes_held(self._cache[old])
            if len(self._cache) > 1 and next(self._to_measure, None) is None:
                self._to_measure = iter(list(self._cache))
            held, dropped = sum(self._held.values()), 0
            while len(self._cache) > 1 and (held > self.limits.cache_bytes or held > self.limits.cache_bytes * 3 // 4 and dropped < DROPPED):
                held -= self._held.pop(self._cache.popitem(last=False)[0])
                dropped += 1

    @property
    def held_bytes(self) -> int:
        """Memory of the grammars that are remembered."""
        with self._lock:
            return sum(map(_bytes_held, self._cache.values()))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the cycle collector: a schema makes tens of thousands of objects that live for milliseconds, and most of them without
    cycles. Looking for some in a large heap has cost 100 ms."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _bytes_held(found: Grammar | GrammarError) -> int:
    return 1024 + (found.bytes if isinstance(found, Grammar) else 0)


_UNUSABLE = re.compile("[\0\ud800-\udfff]")


def _canonical(kind: str, source: Any) -> str:
    """The text that stands for the source: what is compiled, or for JSON kinds what it is remembered by."""
    if kind == "json_object":
        if source not in (None, ""):
            raise GrammarError(f"json_object: any object, so there is no source to give, and not {str(source)[:60]!r}; for a schema use json_schema")
        return ""
    if kind == "choice":
        if isinstance(source, str):
            try:
                source = json.loads(source)
            except ValueError as error:
                raise GrammarError(f"choice: not a JSON list of strings: {error}") from None
        if not isinstance(source, (list, tuple)) or not source or not all(isinstance(choice, str) for choice in source):
            raise GrammarError("choice: a list of at least one string is needed")
        return json.dumps(list(source))
    if kind == "json_schema":
        try:
            return source if isinstance(source, str) else json.dumps(schema_of(source), ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise GrammarError(f"json_schema: not JSON: {error}") from None
    if not isinstance(source, str):
        raise GrammarError(f"{kind}: text is needed, not {type(source).__name__}")
    if bad := _UNUSABLE.search(source):
        what = "NUL" if bad[0] == "\0" else "half of a surrogate pair, which UTF-8 cannot write,"
        raise GrammarError(f"{kind}: {what} in the source at position {bad.start()}", place=f"position {bad.start()}")
    return source
