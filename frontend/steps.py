"""What the nodes that wait for a backend have in common, and how a branch's text becomes ids."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .branch import Branch, Variable


class Step:
    """A node in flight. An executor that wants to wait for it and its answer meet here: the second one goes on."""

    __slots__ = ("_over", "_parked", "begun", "branch")

    def __init__(self, branch: Branch) -> None:
        self.branch = branch
        self.begun = time.monotonic()
        self._parked = self._over = False

    def park(self) -> bool:
        """Called by the executor. False: the answer is there, go on at once."""
        with self.branch.signal.lock:
            self._parked = not self._over
            return self._parked

    def end(self, variable: Variable) -> None:
        """Called with the answer, all of it in the branch and in the variable: whoever waits for it may go on."""
        self.branch.rid = None
        variable.done = True
        with self.branch.signal.lock:
            self._over = True
            parked = self._parked
        if parked:
            self.branch.go_on()


def read_value(name: str | None, read: Callable[[str], Any], text: str) -> Any:
    """The value behind a text. Raises what `read` raises, with the text in the notes."""
    try:
        return read(text)
    except Exception as exc:
        exc.add_note(f"the text of {name!r} was {text!r}; it may have run out of max_tokens")
        raise


def settle(branch: Branch) -> tuple[int, ...]:
    """Ids of all that the branch has said. Text is tokenized here, everything since the last ids at once."""
    if branch.pending:
        branch.ids += tuple(tokens(branch, "".join(branch.pending)))
        branch.pending = []
    return branch.ids


def tokens(branch: Branch, text: str) -> list[int]:
    """Ids of `text` after the branch's ids. The first of all get what the tokenizer puts before a text, never a second BOS."""
    backend = branch.run.backend
    if branch.ids:
        return backend.encode(text)
    ids, bos = backend.encode(text, add_special=True), backend.bos_id
    return ids[1:] if bos is not None and ids[:2] == [bos, bos] else ids


def settle_most(branch: Branch, least: int = 400) -> None:
    """Tokenizes a long pending text but for its last word, where cutting changes no token, so that forks need not."""
    text = "".join(branch.pending)
    cut = text.rfind(" ", 0, len(text) - 1)
    if len(text) < least or cut <= 0 or text[cut - 1].isspace() or text[cut + 1].isspace():
        return
    whole, head = tokens(branch, text), tokens(branch, text[:cut])
    if whole[: len(head)] == head:
        branch.ids, branch.pending = branch.ids + tuple(head), [text[cut:]]
