"""Text completions: several prompts, n choices each, echo, and OpenAI's older form of logprobs."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..errors import RequestError, UnsupportedError
from ..protocol import Chunk, GenerateRequest, TokenLogprob, Usage
from .answers import DONE, EventStream, answer, event, merge
from .openai_types import CompletionBody, params, renamed, response_format
from .service import Service, Shown, finite, split_ids, total


async def complete(request: Request, service: Service, body: CompletionBody, rid: str) -> Response:
    """The answer to POST /v1/completions."""
    work = Completion(service, body, rid)
    if body.stream:
        return EventStream(work.events(), stall=service.config.stall_timeout)
    return await answer(request, work.whole())


class Piece:
    """What one choice has shown: turns its chunks into text and logprobs. `prompt` is the echoed text."""

    def __init__(self, service: Service, wanted: int | None) -> None:
        self.tokenizer = service.tokenizer
        self.wanted = wanted
        self.shown = Shown(service.tokenizer)
        self.text = ""  # of the completion, without the echo
        self.echoed = 0  # characters of the echo

    def push(self, chunk: Chunk, echo: str | None) -> tuple[str, dict[str, Any] | None]:
        """The new text, echo first, and the logprobs of the tokens that became visible."""
        self.text += chunk.text
        logprobs: dict[str, Any] | None = None
        if self.wanted is not None:
            logprobs = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
            if echo is not None:
                place, seen = 0, echo.encode()
                for item in chunk.prompt_logprobs:
                    self._add(logprobs, item, len(seen[:place].decode("utf-8", "ignore")))
                    place += len(self.tokenizer.token_bytes(item.token_id))
            before = self.echoed + (len(echo) if echo is not None else 0)
            raw = self.text.encode()
            for start, item in self.shown.push(chunk):
                self._add(logprobs, item, before + len(raw[:start].decode("utf-8", "ignore")))
        if echo is not None:
            self.echoed = len(echo)
        return (echo or "") + chunk.text, logprobs

    def _add(self, logprobs: dict[str, Any], item: TokenLogprob, offset: int) -> None:
        logprobs["tokens"].append(self.tokenizer.token_text(item.token_id))
        logprobs["token_logprobs"].append(finite(item.logprob))
        logprobs["text_offset"].append(offset)
        logprobs["top_logprobs"].append(self._top(item) if item.logprob is not None else None)

    def _top(self, item: TokenLogprob) -> dict[str, float | None]:
        """Keyed by text as OpenAI has it; tokens that read alike get a key of their own, so that none is lost."""
        result: dict[str, float | None] = {}
        for token, value in item.top[: self.wanted]:
            raw = self.tokenizer.token_bytes(token)
            key = self.tokenizer.token_text(token)
            if "\ufffd" in key:
                key = "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
            result[f"token_id:{token}" if key in result else key] = finite(value)
        return result


class Completion:
    """One POST /v1/completions, from the body to its answer."""

    def __init__(self, service: Service, body: CompletionBody, rid: str) -> None:
        self.service = service
        self.body = body
        self.rid = rid
        self.created = int(time.time())
        self.n = body.n or 1
        if body.best_of is not None and body.best_of != self.n:
            raise UnsupportedError("best_of other than n is not supported", field="best_of")
        prompts = self._prompts()
        parameters = params(
            body,
            service.config,
            max_tokens=16 if body.max_tokens is None else body.max_tokens,
            constrained=response_format(body.response_format),
        )
        self.requests = [
            GenerateRequest(
                rid if len(prompts) == 1 else f"{rid}-{i}",
                prompt,
                parameters,
                logprobs=body.logprobs is not None,
                logprob_start=0 if body.echo and body.logprobs is not None else -1,
                top_logprobs=body.logprobs or 0,
                priority=body.priority or 0,
                cache_salt=body.cache_salt or "",
                deadline=service.deadline(body.deadline),
            )
            for i, prompt in enumerate(prompts)
        ]

    def _prompts(self) -> list[str | tuple[int, ...]]:
        given = self.body.prompt
        if isinstance(given, str):
            return [given]
        if given and split_ids(given):
            return [tuple(given)]  # type: ignore[arg-type]
        if not 0 < len(given) <= self.service.config.max_prompts:
            raise RequestError(f"prompt: 1 to {self.service.config.max_prompts} prompts are needed, not {len(given)}", field="prompt")
        return [item if isinstance(item, str) else tuple(item) for item in given]  # type: ignore[arg-type]

    async def _echo(self, request: GenerateRequest) -> str | None:
        if not self.body.echo:
            return None
        if isinstance(request.prompt, str):
            return request.prompt
        if any(not 0 <= token < self.service.vocab_size for token in request.prompt):
            raise RequestError(f"prompt: an id is outside the vocabulary of {self.service.vocab_size}", field="prompt")
        return await self.service.in_thread(self.service.tokenizer.decode, request.prompt)

    async def _one(self, place: int) -> AsyncGenerator[list[tuple[int, Chunk, str | None]], None]:
        """(choice, chunk, echo of its first chunk) of one prompt."""
        request = self.requests[place]
        echo = await self._echo(request)
        begun: set[int] = set()
        async with aclosing(self.service.client.stream(request)) as stream:
            async for chunks in stream:
                group = []
                for chunk in chunks:
                    group.append((place * self.n + chunk.index, chunk, None if chunk.index in begun else echo))
                    begun.add(chunk.index)
                yield group

    async def _all(self) -> AsyncGenerator[list[tuple[int, Chunk, str | None]], None]:
        try:
            async with aclosing(merge([self._one(place) for place in range(len(self.requests))])) as groups:
                async for group in groups:
                    yield group
        except (RequestError, UnsupportedError) as error:
            raise renamed(error, self.body, "prompt") from error

    def _pieces(self) -> list[Piece]:
        return [Piece(self.service, self.body.logprobs) for _ in range(self.n * len(self.requests))]

    async def whole(self) -> dict[str, Any]:
        from .openai_api import ending, timing_body, usage_body

        pieces = self._pieces()
        choices: list[dict[str, Any]] = [{"index": i, "text": "", "logprobs": None} for i in range(len(pieces))]
        usages = [Usage()] * len(pieces)
        timings = None
        prompt_logprobs: dict[int, tuple[TokenLogprob, ...]] = {}
        async with aclosing(self._all()) as groups:
            async for group in groups:
                for index, chunk, echo in group:
                    first = prompt_logprobs.setdefault(index // self.n, chunk.prompt_logprobs)
                    if echo is not None and not chunk.prompt_logprobs:
                        chunk = replace(chunk, prompt_logprobs=first)
                    text, logprobs = pieces[index].push(chunk, echo)
                    choice = choices[index]
                    choice["text"] += text
                    if logprobs is not None:
                        before = choice["logprobs"]
                        choice["logprobs"] = {key: before[key] + logprobs[key] for key in logprobs} if before else logprobs
                    if chunk.finish is not None:
                        choice |= ending(chunk.finish)
                        usages[index] = chunk.usage or Usage()
                        timings = timings or chunk.timings
        used = [total(usages[i : i + self.n]) for i in range(0, len(usages), self.n)]
        return self._head() | {"choices": choices, "usage": usage_body(_sum(used))} | ({"timings": timing_body(timings)} if timings else {})

    async def events(self) -> AsyncGenerator[bytes, None]:
        from .openai_api import ending, usage_body

        options = self.body.stream_options
        with_usage = options is not None and options.include_usage
        continuous = options is not None and options.continuous_usage_stats
        pieces = self._pieces()
        usages = [Usage()] * len(pieces)
        head = self._head()
        interval = self.service.config.stream_interval
        held: dict[int, dict[str, Any]] = {}
        counts = [0] * len(pieces)
        prompt_logprobs: dict[int, tuple[TokenLogprob, ...]] = {}

        def so_far() -> Usage:
            return _sum([total(usages[i : i + self.n]) for i in range(0, len(usages), self.n)])

        async with aclosing(self._all()) as groups:
            async for group in groups:
                out = []
                for index, chunk, echo in group:
                    first = prompt_logprobs.setdefault(index // self.n, chunk.prompt_logprobs)
                    if echo is not None and not chunk.prompt_logprobs:
                        chunk = replace(chunk, prompt_logprobs=first)
                    text, logprobs = pieces[index].push(chunk, echo)
                    counts[index] += len(chunk.token_ids)
                    choice = held.pop(index, None) or {"index": index, "text": "", "logprobs": None, "finish_reason": None}
                    choice["text"] += text
                    if logprobs is not None and logprobs["tokens"]:
                        before = choice["logprobs"]
                        choice["logprobs"] = {key: before[key] + logprobs[key] for key in logprobs} if before else logprobs
                    if chunk.finish is not None:
                        choice |= ending(chunk.finish)
                        usages[index] = chunk.usage or Usage()
                    elif counts[index] < interval or not (choice["text"] or choice["logprobs"]):
                        held[index] = choice
                        continue
                    counts[index] = 0
                    usage: dict[str, Any] = {"usage": usage_body(so_far()) if continuous else None} if with_usage or continuous else {}
                    out.append(event(head | {"choices": [choice]} | usage))
                if out:
                    yield b"".join(out)
        if with_usage:
            yield event(head | {"choices": [], "usage": usage_body(so_far())})
        yield DONE

    def _head(self) -> dict[str, Any]:
        return {
            "id": f"cmpl-{self.rid}",
            "object": "text_completion",
            "created": self.created,
            "model": self.body.model or self.service.model_name,
        }


def _sum(usages: list[Usage]) -> Usage:
    """Of several prompts."""
    return Usage(
        sum(u.prompt_tokens for u in usages),
        sum(u.cached_tokens for u in usages),
        sum(u.completion_tokens for u in usages),
        sum(u.forced_tokens for u in usages),
        sum(u.retractions for u in usages),
    )
