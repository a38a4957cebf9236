"""Scores of several continuations of one prompt: plain requests that draw nothing, planned for one pass.

The options are paths of a tree below the prompt. What is needed are the logprobs of its edges, so each node that has children is
computed once: a request for each distinct path to the parent of an option's last token, which wants the logprobs of the last
tokens there, and on its way those of the edges that no request before it has.

    options  " A" " B" " big A"  ->  prompt: A, B, big    prompt + big: A
"""
from __future__ import annotations

from dataclasses import dataclass, field

from .errors import RequestError
from .protocol import Chunk, GenerateRequest, SamplingParams, ScoreRequest, Scores, Timings, Usage

_NOTHING = SamplingParams(max_new_tokens=0)
Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Ids below the prompt; how many of their logprobs others give; the ids whose logprobs after them are wanted."""

    path: Ids
    known: int
    then: Ids


def parts_of(request: ScoreRequest) -> list[Part]:
    """The root first, then paths in order, each after those that are a beginning of it."""
    last: dict[Ids, dict[int, None]] = {(): {}}
    for option in request.options:
        last[()][option[0]] = None
        last.setdefault(option[:-1], {})[option[-1]] = None
    parts: list[Part] = []
    before: Ids = ()
    for path in sorted(last):
        parts.append(Part(path, max(_shared(before, path), min(len(path), 1)), tuple(last[path])))
        before = path
    return parts


def score_requests(request: ScoreRequest) -> list[GenerateRequest]:
    """The requests whose chunks a `ScoreCollector` turns into Scores. Their rids begin with the request's own."""
    if not request.options or any(not option for option in request.options):
        raise RequestError("options: at least one, each of at least one token, is needed", field="options")
    common = {
        "params": _NOTHING, "cache_salt": request.cache_salt, "tenant": request.tenant, "priority": request.priority,
        "deadline": request.deadline, "joined": request.joined,
    }  # fmt: skip
    requests: list[GenerateRequest] = []
    for i, part in enumerate(parts_of(request)):
        wanted = part.known < len(part.path)
        start = len(request.prompt) + part.known if wanted else -1
        if request.prompt or part.path:
            requests.append(
                GenerateRequest(
                    f"{request.rid}/{i}", request.prompt + part.path, logprobs=wanted, logprob_start=start, token_ids_logprob=part.then,
                    **common,  # type: ignore[arg-type]
                )
            )  # fmt: skip
    return requests


@dataclass(slots=True)
class ScoreCollector:
    """Takes the chunks of one score's requests. `add` returns the Scores with the last of them, before that None.

    With an empty prompt nothing predicts an option's first token: its logprob counts as 0 for every option."""

    request: ScoreRequest
    waiting: int
    edges: dict[Ids, float] = field(default_factory=dict)  # by the ids from the prompt to the edge's end
    usages: list[Usage] = field(default_factory=list)
    timings: Timings = Timings()
    error: Exception | None = None
    parts: list[Part] = field(init=False)

    def __post_init__(self) -> None:
        self.parts = parts_of(self.request)

    def add(self, chunk: Chunk) -> Scores | None:
        if chunk.error is not None:
            self.error = self.error or chunk.error
        elif chunk.finish is not None:
            self._note(chunk)
        self.waiting -= chunk.last
        return self._scores() if self.waiting == 0 else None

    def _note(self, chunk: Chunk) -> None:
        part = self.parts[int(chunk.rid.rsplit("/", 1)[1])]
        for length, found in enumerate(chunk.prompt_logprobs, part.known + 1):
            self.edges[part.path[:length]] = found.logprob or 0.0
        for token_id, logprob in chunk.first_logprobs:
            self.edges[(*part.path, token_id)] = logprob
        if chunk.usage is not None:
            self.usages.append(chunk.usage)
        if chunk.timings is not None:
            self.timings = max(self.timings, chunk.timings, key=lambda t: t.e2e)

    def _scores(self) -> Scores:
        if self.error is not None:
            return Scores(self.request.rid, error=self.error)
        logprobs = tuple(tuple(self.edges.get(option[: k + 1], 0.0) for k in range(len(option))) for option in self.request.options)
        return Scores(self.request.rid, logprobs, self._usage(), self.timings)

    def _usage(self) -> Usage:
        """Of the tree of prompt and paths, each node counted once; cached is what no request of it had to compute."""
        nodes = {part.path[: k + 1] for part in self.parts for k in range(len(part.path))}
        total = len(self.request.prompt) + len(nodes)
        computed = sum(u.prompt_tokens - u.cached_tokens for u in self.usages)
        return Usage(prompt_tokens=total, cached_tokens=max(total - computed, 0))


def _shared(a: Ids, b: Ids) -> int:
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count
