"""Finds stop strings and stop regexes in text that arrives in pieces, and holds back what may become one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .errors import RequestError

WINDOW = 256  # characters that a match of a stop regex may span; text is never held back longer
PATIENCE = 0.2  # seconds that one search for a stop regex may take


class StopScanner:
    """Where an output ends, the same however its text is cut into pieces: at the first character that completes a stop.

    Of stops completed by the same character the one that begins first counts. `push` gives out text that can no longer
    be part of a stop, never the match itself. After a match nothing more may be pushed.
    Stop regexes see the last WINDOW characters; `^` is the start of the output, `$` the end of what there is so far.
    """

    def __init__(self, stops: Iterable[str] = (), regexes: Iterable[str] = ()) -> None:
        """Raises RequestError for an empty stop, or a regex that does not parse or matches nothing at all."""
        self._stops = tuple(stops)
        if "" in self._stops:
            raise RequestError("stop: an empty string would end every output at once", field="stop")
        self._initials = {stop[0] for stop in self._stops}
        self._longest = max(map(len, self._stops), default=0)
        self._patterns = [_compile(source) for source in regexes]
        self._held = ""  # seen and not given out; a match begins in here or later
        self._before = ""  # given out; as much as a regex can still look back on

    def push(self, text: str) -> tuple[str, str | None]:
        """(text to give out, the stop that was matched or None). Raises RequestError if a stop regex takes too long."""
        if not text:
            return "", None
        if not self._stops and not self._patterns:
            return text, None
        buffer = self._held + text
        found = self._first(buffer, len(self._held))
        if found:
            start, end = found
            self._held = ""
            return buffer[:start], buffer[start:end]
        keep = min(self._open_stop(buffer), self._open_match(buffer))
        self._before = (self._before + buffer[:keep])[-WINDOW:] if self._patterns else ""
        self._held = buffer[keep:]
        return buffer[:keep], None

    def flush(self) -> str:
        """What is still held back, when the output ends for another reason."""
        held, self._held = self._held, ""
        return held

    def _first(self, buffer: str, known: int) -> tuple[int, int] | None:
        """(start, end) of the stop that is completed first, given that none is in buffer[:known]."""
        found: list[tuple[int, int, int]] = []  # (where it is complete, start, end)
        for stop in self._stops:
            start = buffer.find(stop, max(0, known - len(stop) + 1))
            if start >= 0:
                found.append((start + len(stop), start, start + len(stop)))
        for pattern in self._patterns:
            found += self._first_match(pattern, buffer, known, min(found)[0] if found else len(buffer))
        return min(found)[1:] if found else None

    def _first_match(self, pattern: Any, buffer: str, known: int, limit: int) -> list[tuple[int, int, int]]:
        """At most one. Each prefix of the text is searched, so that the answer does not depend on the pieces."""
        offset, seen = len(self._before), self._before + buffer
        for complete in range(offset + known + 1, offset + limit + 1):
            # no match can begin in text given out before: nothing there could begin one, or it is too long ago
            match = self._search(pattern, seen, max(offset, complete - WINDOW), complete)
            if match and match.end() > match.start():
                return [(complete - offset, match.start() - offset, match.end() - offset)]
        return []

    def _open_stop(self, buffer: str) -> int:
        """Where the earliest unfinished stop string begins; the buffer's length if there is none."""
        for start in range(max(0, len(buffer) - self._longest + 1), len(buffer)):
            if buffer[start] in self._initials:
                tail = buffer[start:]
                if any(stop.startswith(tail) for stop in self._stops):
                    return start
        return len(buffer)

    def _open_match(self, buffer: str) -> int:
        """The same for stop regexes, at most WINDOW characters back."""
        offset, seen = len(self._before), self._before + buffer
        begin = max(offset, len(seen) - WINDOW + 1)
        found = [match.start() for p in self._patterns if (match := self._search(p, seen, begin, len(seen), partial=True))]
        return min(found, default=len(seen)) - offset

    def _search(self, pattern: Any, text: str, begin: int, end: int, *, partial: bool = False) -> Any:
        try:
            return pattern.search(text, begin, end, partial=partial, timeout=PATIENCE)
        except TimeoutError as error:
            message = f"stop_regex {pattern.pattern!r} takes too long to search for; write it without nested repeats"
            raise RequestError(message, field="stop_regex") from error


def _compile(source: str) -> Any:
    import regex  # unlike re it finds partial matches, which tell what to hold back, and can be timed out

    try:
        pattern = regex.compile(source)
    except regex.error as error:
        raise RequestError(f"stop_regex {source!r} does not parse: {error}", field="stop_regex") from error
    if pattern.search(""):
        raise RequestError(f"stop_regex {source!r} matches the empty string and would end every output at once", field="stop_regex")
    return pattern
