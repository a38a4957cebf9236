"""What comes back for one request: chunks gathered into texts, ids and meta info, and the ids worth keeping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..runtime.protocol import Chunk, FinishReason, Scores, Timings, TokenLogprob, Usage
from .backends.base import Backend


class Answer:
    """The `n` outputs of one request while their chunks arrive. Fed by the backend's thread, read when `over`."""

    def __init__(self, n: int) -> None:
        self.texts: list[list[str]] = [[] for _ in range(n)]
        self.ids: list[list[int]] = [[] for _ in range(n)]
        self.logprobs: list[list[TokenLogprob]] = [[] for _ in range(n)]
        self.prompt_logprobs: list[TokenLogprob] = []
        self.ends: list[Chunk | None] = [None] * n
        self._left = n

    def add(self, chunk: Chunk) -> bool:
        """Takes a chunk in and returns whether it was the last of all outputs."""
        index = chunk.index
        if chunk.text:
            self.texts[index].append(chunk.text)
        self.ids[index].extend(chunk.token_ids)
        self.logprobs[index].extend(chunk.logprobs)
        self.prompt_logprobs.extend(chunk.prompt_logprobs)
        if chunk.last and self.ends[index] is None:
            self.ends[index] = chunk
            self._left -= 1
        return self._left == 0

    def text(self, index: int = 0) -> str:
        return "".join(self.texts[index])

    def finish(self, index: int = 0) -> FinishReason | None:
        end = self.ends[index]
        return end.finish if end is not None else None

    def meta(self, backend: Backend, index: int = 0, with_text: bool = False) -> dict[str, Any]:
        """Meta info under SGLang's names where it has them."""
        end = self.ends[index]
        assert end is not None
        meta = {"id": end.rid, **costs(end.usage or Usage(), end.timings or Timings()), "finish_reason": finish_dict(end.finish)}
        if self.logprobs[index]:
            meta.update(logprob_lists("output", self.logprobs[index], backend, with_text))
        if self.prompt_logprobs:
            meta.update(logprob_lists("input", self.prompt_logprobs, backend, with_text))
        return meta


def costs(usage: Usage, timings: Timings) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "forced_tokens": usage.forced_tokens,
        "num_retractions": usage.retractions,
        "queue_time": timings.queue,
        "ttft": timings.ttft,
        "tpot": timings.tpot,
        "e2e_latency": timings.e2e,
    }


def score_meta(scores: Scores) -> dict[str, Any]:
    return {"id": scores.rid, **costs(scores.usage, scores.timings), "finish_reason": {"type": "stop", "matched": None}}


def finish_dict(finish: FinishReason | None) -> dict[str, Any] | None:
    if finish is None:
        return None
    if finish.type == "abort":
        return {"type": "abort", "message": finish.message}
    return {"type": finish.type, "matched": finish.matched}


def logprob_lists(side: str, tokens: Sequence[TokenLogprob], backend: Backend, with_text: bool) -> dict[str, Any]:
    """`{side}_token_logprobs` as [logprob, id, text or None] a token, `{side}_top_logprobs` if alternatives were asked for."""

    def entry(token_id: int, logprob: float | None) -> list[Any]:
        return [logprob, token_id, backend.decode([token_id]) if with_text else None]

    lists: dict[str, Any] = {f"{side}_token_logprobs": [entry(t.token_id, t.logprob) for t in tokens]}
    if any(t.top for t in tokens):
        lists[f"{side}_top_logprobs"] = [[entry(i, logprob) for i, logprob in t.top] for t in tokens]
    return lists


def kept(backend: Backend, ids: Sequence[int], text: str, finish: FinishReason | None) -> tuple[tuple[int, ...], str]:
    """The ids of an output that stay in the state, and the rest of its text, which they do not cover.

    A token that ended the output is dropped. After a trimmed stop string, the longest run of ids whose text is a
    beginning of the kept text stays; the rest is tokenized anew, with what is appended next.
    """
    kept_ids = tuple(ids)
    if finish is None or finish.type != "stop" or finish.matched is None:
        return kept_ids, ""
    if isinstance(finish.matched, int):
        return (kept_ids[:-1] if kept_ids and kept_ids[-1] == finish.matched else kept_ids), ""
    count = len(kept_ids)
    while count:
        covered = backend.decode(kept_ids[:count])
        if text.startswith(covered):
            return kept_ids[:count], text[len(covered) :]
        count -= 1
    return (), text
