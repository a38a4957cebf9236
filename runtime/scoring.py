"""Scores of several continuations of one prompt: plain requests that draw nothing, planned for one pass.

The prompt's last row gives the logprob of every option's first token; an option of more tokens is a request of its own
below the same prefix, which the tree computes once.
"""
from __future__ import annotations

from dataclasses import dataclass, field

from .errors import RequestError
from .protocol import Chunk, GenerateRequest, SamplingParams, ScoreRequest, Scores, Timings, Usage

_NOTHING = SamplingParams(max_new_tokens=0)


def score_requests(request: ScoreRequest) -> list[GenerateRequest]:
    """The requests whose chunks a `ScoreCollector` turns into Scores. Their rids begin with the request's own."""
    if not request.options or any(not option for option in request.options):
        raise RequestError("options: at least one, each of at least one token, is needed", field="options")
    common = {"params": _NOTHING, "cache_salt": request.cache_salt, "priority": request.priority, "deadline": request.deadline}
    requests: list[GenerateRequest] = []
    if request.prompt:
        first = tuple(dict.fromkeys(option[0] for option in request.options))
        requests.append(GenerateRequest(f"{request.rid}/prompt", request.prompt, token_ids_logprob=first, **common))  # type: ignore[arg-type]
    for i, option in enumerate(request.options):
        if len(option) > 1:
            start = len(request.prompt) + 1
            requests.append(
                GenerateRequest(f"{request.rid}/{i}", request.prompt + option, logprobs=True, logprob_start=start, **common)  # type: ignore[arg-type]
            )
    return requests


@dataclass(slots=True)
class ScoreCollector:
    """Takes the chunks of one score's requests. `add` returns the Scores with the last of them, before that None.

    With an empty prompt nothing predicts an option's first token: its logprob counts as 0 for every option."""

    request: ScoreRequest
    waiting: int
    first: dict[int, float] = field(default_factory=dict)
    rest: dict[int, tuple[float, ...]] = field(default_factory=dict)
    usages: list[Usage] = field(default_factory=list)
    timings: Timings = Timings()
    error: Exception | None = None

    def add(self, chunk: Chunk) -> Scores | None:
        if chunk.error is not None:
            self.error = self.error or chunk.error
        elif chunk.finish is not None:
            self._note(chunk)
        self.waiting -= chunk.last
        return self._scores() if self.waiting == 0 else None

    def _note(self, chunk: Chunk) -> None:
        part = chunk.rid.rsplit("/", 1)[1]
        if part == "prompt":
            self.first = dict(chunk.first_logprobs)
        else:
            self.rest[int(part)] = tuple(p.logprob or 0.0 for p in chunk.prompt_logprobs)
        if chunk.usage is not None:
            self.usages.append(chunk.usage)
        if chunk.timings is not None:
            self.timings = max(self.timings, chunk.timings, key=lambda t: t.e2e)

    def _scores(self) -> Scores:
        if self.error is not None:
            return Scores(self.request.rid, error=self.error)
        options = enumerate(self.request.options)
        logprobs = tuple((self.first.get(option[0], 0.0), *self.rest.get(i, ())) for i, option in options)
        return Scores(self.request.rid, logprobs, self._usage(), self.timings)

    def _usage(self) -> Usage:
        """Of the whole tree of prompt and options, each token counted once; cached is what no request of it had to compute."""
        total = len(self.request.prompt) + sum(map(len, self.request.options))
        computed = sum(u.prompt_tokens - u.cached_tokens for u in self.usages)
        return Usage(prompt_tokens=total, cached_tokens=max(total - computed, 0))
