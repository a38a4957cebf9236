"""API speculative execution: asking a remote service for more than a gen needs, so that later gens need no call.

    s += "Name:" + gen("name", stop="\\n") + "\\nBorn:" + gen("born", stop="\\n")      one call: " Ada\\nBorn: 1815\\n..."

The call leaves the stops out and asks for more tokens. What was written beyond the gen's own text is kept with the branch
(`Ahead`, immutable, so forks share it). A fill that it begins with consumes it, another one throws it away, and a gen is
read from it if it says all that the service would have said; else the service is asked. So speculation changes what is
paid, never what is answered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..runtime.errors import BackendError
from ..runtime.protocol import Chunk, FinishReason, GenerateRequest, SamplingParams, Timings, Usage
from . import ir
from .backends.base import ChunkSink

if TYPE_CHECKING:
    from .branch import Branch

TRIES = 3  # at a chat message that must begin with given text


@dataclass(frozen=True, slots=True)
class Ahead:
    """Text that the service has written beyond the branch. `pieces`: its tokens' texts, if they are known."""

    text: str
    pieces: tuple[str, ...] | None
    tokens: int  # at most so many
    ended: bool  # whether the service had no more to say after it
    params: SamplingParams  # with which it was drawn, without limits and stops

    def after(self, count: int) -> Ahead:
        """Without its first `count` characters."""
        if self.pieces is None:
            return replace(self, text=self.text[count:])
        left, pieces = count, list(self.pieces)
        while pieces and left >= len(pieces[0]):
            left -= len(pieces.pop(0))
        if left:
            pieces[0] = pieces[0][left:]
        return replace(self, text=self.text[count:], pieces=tuple(pieces), tokens=len(pieces))

    def covering(self, count: int) -> int:
        """How many tokens the first `count` characters take, at most."""
        if self.pieces is None:
            return min(self.tokens, len(self.text[:count].encode()))
        used = 0
        for number, piece in enumerate(self.pieces, 1):
            used += len(piece)
            if used >= count:
                return number if count else 0
        return len(self.pieces)


def cut(ahead: Ahead, params: SamplingParams) -> tuple[str, FinishReason] | None:
    """What the service would have answered to `params` where `ahead` begins, or None if it cannot be told."""
    found = [(at, stop) for stop in params.stop if (at := ahead.text.find(stop)) >= 0]
    if found:
        at, stop = min(found, key=lambda f: (f[0] + len(f[1]), f[0]))
        if ahead.covering(at + len(stop)) <= params.max_new_tokens:
            return ahead.text[:at], FinishReason("stop", stop)
    if ahead.pieces is not None and len(ahead.pieces) >= params.max_new_tokens:
        text = "".join(ahead.pieces[: params.max_new_tokens])
        return (text, FinishReason("length")) if not any(stop in text for stop in params.stop) else None
    if not found and ahead.ended and ahead.covering(len(ahead.text)) <= params.max_new_tokens:
        return ahead.text, FinishReason("stop")
    return None


def fits(node: ir.Gen, params: SamplingParams, wants: ir.Logprobs) -> bool:
    """Whether a gen can be served from more text than it asked for."""
    return (
        params.n == 1
        and params.constraint is None
        and not params.stop_regex
        and not params.stop_token_ids
        and not wants.wanted
        and not node.tools
    )


def drawn_with(params: SamplingParams) -> SamplingParams:
    """What must be equal for a text to have been drawn in the same way."""
    return replace(params, max_new_tokens=0, min_new_tokens=0, stop=())


def read_ahead(branch: Branch, params: SamplingParams) -> tuple[str, FinishReason] | None:
    """A gen's answer from what is known already; takes it off. Forgets what does not help."""
    ahead: Ahead | None = branch.ahead
    if ahead is None:
        return None
    answer = cut(ahead, params) if ahead.params == drawn_with(params) else None
    branch.ahead = ahead.after(len(answer[0])) if answer is not None else None
    return answer


def consume(branch: Branch, text: str) -> None:
    """A fill was said: what is ahead begins after it, or is of no use."""
    ahead: Ahead | None = branch.ahead
    if ahead is not None and text:
        branch.ahead = ahead.after(len(text)) if ahead.text.startswith(text) else None


class Asking:
    """One over-asking call for a gen: gathers the service's answer, gives the gen its own text of it, keeps the rest.

    What is the gen's own is only sure once all of it is there, so nothing is shown before.
    """

    def __init__(self, branch: Branch, request: GenerateRequest, spec_tokens: int) -> None:
        self.branch, self.own, self.plain = branch, request.params, request
        self.pieces: list[str] = []
        self.head = ""  # what the answer must begin with, as it cannot be given to the service
        prompt = request.prompt
        backend: Any = branch.run.backend
        begun = "".join(branch.message) if branch.role == "assistant" else ""
        if begun and getattr(backend, "is_chat_model", False) and not getattr(backend, "prefill", False):
            self.head, prompt = begun, prompt[: len(prompt) - len(backend.encode(begun))]
        wider = replace(self.own, stop=(), max_new_tokens=max(self.own.max_new_tokens, spec_tokens))
        self.request = replace(request, prompt=prompt, params=wider)

    def submit(self, sink: ChunkSink, tries: int = TRIES) -> None:
        """Asks; `sink` gets one chunk, as if the gen had been asked for itself."""

        def take(chunk: Chunk) -> None:
            if chunk.text:
                self.pieces.append(chunk.text)
            if chunk.error is not None:
                sink(chunk)
            elif chunk.last:
                self._end(chunk, sink, tries)

        self.branch.run.backend.submit(self.request, take)

    def _end(self, chunk: Chunk, sink: ChunkSink, tries: int) -> None:
        assert chunk.finish is not None
        usage, whole = chunk.usage or Usage(), "".join(self.pieces)
        if not whole.startswith(self.head):
            self._again(sink, tries, whole)
            return
        exact = 0 <= usage.completion_tokens - len(self.pieces) <= 1  # a piece is a token, and end-of-text may count
        tokens = len(self.pieces) if exact else usage.completion_tokens or len(whole.encode())
        ahead = Ahead(whole, tuple(self.pieces) if exact else None, tokens, chunk.finish.type == "stop", drawn_with(self.own)).after(
            len(self.head)
        )
        answer = cut(ahead, self.own)
        if answer is None:  # it cannot be told where the gen would have ended: ask for it alone
            self.branch.run.backend.submit(self.plain, sink)
            return
        text, finish = answer
        self.branch.ahead = ahead.after(len(text))
        sink(
            replace(
                known(chunk.rid, answer, tuple(self.branch.run.backend.encode(text))), finish=finish, usage=usage, timings=chunk.timings
            )
        )

    def _again(self, sink: ChunkSink, tries: int, whole: str) -> None:
        if tries > 1:
            self.pieces.clear()
            self.submit(sink, tries - 1)
            return
        error = BackendError(
            f"the service was to begin its message with {self.head!r} and in {TRIES} tries did not; last it wrote {whole[:80]!r}"
        )
        sink(Chunk(self.plain.rid, error=error))


def known(rid: str, answer: tuple[str, FinishReason], ids: tuple[int, ...]) -> Chunk:
    """An answer that cost no call, as the one chunk of a request."""
    return Chunk(rid, 0, answer[0], ids, finish=answer[1], usage=Usage(), timings=Timings())
