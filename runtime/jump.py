"""Jump-forward: text that the grammar forces is appended without sampling (compressed FSM, arXiv 2312.07104, section 4).

Forced bytes are tokenized together with the last few tokens before them, as the tokenizer would tokenize the whole, so
that the model sees the ids it was trained on; tokens at the end that could still merge with what follows are left to
the model. Only whole tokens are given back, never those of the prompt or those already handed to the user.
"""
from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .request import Request

if TYPE_CHECKING:
    from ..constrained import Matcher
    from .tokenizer import Tokenizer

WINDOW = 4  # tokens before the forced text that may be tokenized anew
MERGE = 4  # tokens at its end that may be left to the model
PROBES = 64  # longer tokens that are tried before a merge is taken for possible


@dataclass(frozen=True, slots=True)
class Jump:
    """Replace the last `give_back` ids by `ids`; their bytes and `new_bytes` after them are the same text."""

    give_back: int
    ids: tuple[int, ...]
    new_bytes: bytes


class JumpForward:
    """Plans jumps for one tokenizer. Shared by all requests, changes nothing."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._mask_words = (tokenizer.vocab_size + 31) // 32
        self._sorted = sorted({b for b in tokenizer.all_token_bytes() if b})

    def plan(self, request: Request) -> Jump | None:
        """What the grammar forces after the request's last id; None if that is nothing."""
        assert request.matcher is not None
        forced = request.matcher.forced()
        if not forced:
            return None
        window = self._window(request)
        tail = [self._tokenizer.token_bytes(i) for i in window]
        while True:
            text = b"".join(tail) + forced
            ids = self._encode(text)
            if ids is not None:
                break
            if not tail:
                return None
            window, tail = window[1:], tail[1:]  # the window may begin inside a character
        kept = self._without_merges(ids, request.matcher, forced)
        same = 0
        while same < min(len(window), len(kept)) and window[same] == kept[same]:
            same += 1
        new = b"".join(self._tokenizer.token_bytes(i) for i in kept)[len(b"".join(tail)) :]
        jump = Jump(len(window) - same, tuple(kept[same:]), new)
        return jump if new and self._fits(request, jump) else None

    def _fits(self, request: Request, jump: Jump) -> bool:
        """True if the token limit allows the jump, and what must follow it still fits; a stop id among its ids rules it out."""
        left = request.max_new_tokens - request.output_len + jump.give_back - len(jump.ids)
        if left < 0 or set(jump.ids) & set(request.params.stop_token_ids):
            return False
        if not request.must_finish:
            return True
        assert request.matcher is not None
        after = request.matcher.fork()
        after.advance_bytes(jump.new_bytes)
        if after.finished:
            return True
        row = np.zeros(self._mask_words, dtype=np.int32)
        after.fill(row, budget=left)
        return bool(row.any())

    def _window(self, request: Request) -> list[int]:
        """The last ids of the output that may still change."""
        begin = max(request.prompt_len + request.emitted, len(request.ids) - WINDOW)
        window = request.ids.view[begin:].tolist()
        while window and any(not self._tokenizer.token_bytes(i) for i in window):
            window = window[1:]
        return window

    def _encode(self, text: bytes) -> list[int] | None:
        """Ids whose bytes are exactly `text`, or None if the tokenizer has none such."""
        try:
            ids = self._tokenizer.encode(text.decode())
        except UnicodeDecodeError:
            return None
        return ids if b"".join(self._tokenizer.token_bytes(i) for i in ids) == text else None

    def _without_merges(self, ids: list[int], matcher: Matcher, forced: bytes) -> list[int]:
        """`ids` less the last ones that a longer token could swallow together with an allowed continuation."""
        after = matcher.fork()
        after.advance_bytes(forced)
        if after.finished:
            return ids
        cut, suffix = 0, b""
        for n in range(1, min(MERGE, len(ids)) + 1):
            suffix = self._tokenizer.token_bytes(ids[-n]) + suffix
            if self._may_grow(suffix, after):
                cut = n
        return ids[: len(ids) - cut]

    def _may_grow(self, suffix: bytes, after: Matcher) -> bool:
        """True if some token begins with `suffix` and goes on with what the grammar allows then."""
        begin = bisect_right(self._sorted, suffix)
        for tried, longer in enumerate(self._sorted[begin : begin + PROBES + 1]):
            if not longer.startswith(suffix):
                return False
            if tried == PROBES or after.fork().advance_bytes(longer[len(suffix) :]):
                return True
        return False
