"""What comes back for one request: chunks gathered into texts, ids and meta info, and the ids worth keeping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..runtime.protocol import Chunk, FinishReason, Scores, Timings, TokenLogprob, Usage
from .backends.base import Backend


class _Output:
    __slots__ = ("end", "ids", "logprobs", "texts")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.end: Chunk | None = None


class Answer:
    """The `n` outputs of one request while their chunks arrive. Fed by the backend's thread, read when all are there."""

    __slots__ = ("_left", "_outputs", "prompt_logprobs")

    def __init__(self, n: int) -> None:
        self._outputs = [_Output() for _ in range(n)]
        self._left = n
        self.prompt_logprobs: tuple[TokenLogprob, ...] = ()

    def add(self, chunk: Chunk) -> bool:
        """Takes a chunk in and returns whether it was the last of all outputs."""
        output = self._outputs[chunk.index]
        if chunk.text:
            output.texts.append(chunk.text)
        output.ids += chunk.token_ids
        if chunk.logprobs:
            output.logprobs += chunk.logprobs
        self.prompt_logprobs = chunk.prompt_logprobs or self.prompt_logprobs
        if chunk.last and output.end is None:
            output.end = chunk
            self._left -= 1
        return self._left == 0

    def __len__(self) -> int:
        return len(self._outputs)

    def text(self, index: int = 0) -> str:
        return "".join(self._outputs[index].texts)

    def ids(self, index: int = 0) -> Sequence[int]:
        return self._outputs[index].ids

    def end(self, index: int = 0) -> Chunk | None:
        """The last chunk of an output, if it is there."""
        return self._outputs[index].end

    def meta(self, backend: Backend, index: int = 0, with_text: bool = False) -> dict[str, Any]:
        """Meta info under SGLang's names where it has them."""
        output = self._outputs[index]
        end = output.end
        assert end is not None
        meta = costs(end.rid, end.usage or Usage(), end.timings or Timings(), finish_dict(end.finish))
        if output.logprobs:
            meta.update(logprob_lists("output", output.logprobs, backend, with_text))
        if self.prompt_logprobs:
            meta.update(logprob_lists("input", self.prompt_logprobs, backend, with_text))
        return meta


def costs(rid: str, usage: Usage, timings: Timings, finish_reason: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "id": rid,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "forced_tokens": usage.forced_tokens,
        "num_retractions": usage.retractions,
        "queue_time": timings.queue,
        "ttft": timings.ttft,
        "tpot": timings.tpot,
        "e2e_latency": timings.e2e,
        "finish_reason": finish_reason,
    }


def score_meta(scores: Scores) -> dict[str, Any]:
    return costs(scores.rid, scores.usage, scores.timings, {"type": "stop", "matched": None})


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
