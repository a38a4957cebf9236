"""Text completions: several prompts, n choices each, echo, and OpenAI's older form of logprobs."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..errors import RequestError, UnsupportedError
from ..protocol import Chunk, GenerateRequest, Timings, TokenLogprob, Usage
from .answers import DONE, EventStream, answer, event, merge
from .openai_types import CompletionBody, StreamOptions, params, renamed, response_format
from .service import Service, Shown, finite, split_ids
from .shapes import ending, timing_body, total, usage_body


async def complete(request: Request, service: Service, body: CompletionBody, rid: str) -> Response:
    """The answer to POST /v1/completions."""
    work = Completion(service, body, rid)
    if body.stream:
        return EventStream(work.events(), stall=service.config.stall_timeout)
    return await answer(request, work.whole())


class Part:
    """One choice: what it has shown, and what waits to be. `end` and `usage` are set with its last chunk."""

    def __init__(self, service: Service, index: int, wanted: int | None) -> None:
        self.tokenizer = service.tokenizer
        self.index = index
        self.wanted = wanted  # alternatives a token; None: no logprobs
        self.shown = Shown(service.tokenizer)
        self.text = ""  # of the completion so far, without the echo
        self.echo = ""
        self.end: dict[str, Any] = {"finish_reason": None}
        self.usage = Usage()
        self.timings = Timings()
        self._begin()

    def _begin(self) -> None:
        self.tokens = 0  # that wait
        self.waiting = ""
        self.logprobs: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}

    @property
    def something(self) -> bool:
        """Whether there is anything to show."""
        return bool(self.waiting or self.logprobs["tokens"])

    def push(self, chunk: Chunk, echo: str | None) -> None:
        """Takes in a chunk. `echo` comes with the first one, if the prompt is to be shown."""
        if echo is not None:
            self.echo = echo
            self.waiting += echo
        self.text += chunk.text
        self.waiting += chunk.text
        self.tokens += len(chunk.token_ids)
        if self.wanted is not None:
            if echo is not None:
                self._note_prompt(chunk.prompt_logprobs)
            raw = self.text.encode()
            for start, item in self.shown.push(chunk):
                self._note(item, len(self.echo) + _characters(raw[:start]))
        if chunk.finish is not None:
            self.end, self.usage, self.timings = ending(chunk.finish), chunk.usage or self.usage, chunk.timings or self.timings

    def take(self) -> dict[str, Any]:
        """What waits, as a choice."""
        logprobs = self.logprobs if self.logprobs["tokens"] else None
        choice = {"index": self.index, "text": self.waiting, "logprobs": logprobs} | self.end
        self._begin()
        return choice

    def _note_prompt(self, items: Sequence[TokenLogprob]) -> None:
        raw, place = self.echo.encode(), 0
        for item in items:
            self._note(item, _characters(raw[:place]))
            place += len(self.tokenizer.token_bytes(item.token_id))

    def _note(self, item: TokenLogprob, offset: int) -> None:
        self.logprobs["tokens"].append(self.tokenizer.token_text(item.token_id))
        self.logprobs["token_logprobs"].append(finite(item.logprob))
        self.logprobs["text_offset"].append(offset)
        self.logprobs["top_logprobs"].append(self._top(item) if item.logprob is not None else None)

    def _top(self, item: TokenLogprob) -> dict[str, float | None]:
        """Keyed by text as OpenAI has it; tokens that read alike get a key of their own, so that none is lost."""
        result: dict[str, float | None] = {}
        for token, value in item.top[: self.wanted]:
            key = self.tokenizer.token_text(token)
            if "\ufffd" in key:
                key = "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.tokenizer.token_bytes(token))
            result[f"token_id:{token}" if key in result else key] = finite(value)
        return result


def _characters(raw: bytes) -> int:
    """How many whole characters the bytes hold."""
    return len(raw.decode("utf-8", "ignore"))


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
                tenant=body.tenant or "",
                deadline=service.deadline(body.deadline),
                ttft_target=body.ttft_target,
                tpot_target=body.tpot_target,
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
        """(choice, chunk, echo with its first chunk) of one prompt."""
        request = self.requests[place]
        echo = await self._echo(request)
        begun: set[int] = set()
        prompt_logprobs: tuple[TokenLogprob, ...] = ()
        async with aclosing(self.service.client.stream(request)) as stream:
            async for chunks in stream:
                group = []
                for chunk in chunks:
                    prompt_logprobs = prompt_logprobs or chunk.prompt_logprobs
                    if chunk.index not in begun:
                        chunk = replace(chunk, prompt_logprobs=prompt_logprobs)  # all n outputs have the prompt in common
                    group.append((place * self.n + chunk.index, chunk, None if chunk.index in begun else echo))
                    begun.add(chunk.index)
                yield group

    async def _advance(self, parts: Sequence[Part]) -> AsyncGenerator[list[Part], None]:
        """Takes in what the engine sends; the parts that changed."""
        try:
            async with aclosing(merge([self._one(place) for place in range(len(self.requests))])) as groups:
                async for group in groups:
                    for index, chunk, echo in group:
                        parts[index].push(chunk, echo)
                    yield [parts[index] for index in dict.fromkeys(index for index, _, _ in group)]
        except (RequestError, UnsupportedError) as error:
            raise renamed(error, self.body, "prompt") from error

    def _parts(self) -> list[Part]:
        return [Part(self.service, index, self.body.logprobs) for index in range(self.n * len(self.requests))]

    def _usage(self, parts: Sequence[Part]) -> dict[str, Any]:
        return usage_body(total((part.usage for part in parts), self.n))

    async def whole(self) -> dict[str, Any]:
        parts = self._parts()
        async with aclosing(self._advance(parts)) as changes:
            async for _ in changes:
                pass
        return self._head() | {"choices": [part.take() for part in parts], "usage": self._usage(parts), "timings": timing_body(parts[0].timings)}

    async def events(self) -> AsyncGenerator[bytes, None]:
        options = self.body.stream_options or StreamOptions()
        interval = self.service.config.stream_interval
        parts, head = self._parts(), self._head()

        def chunk(choices: list[dict[str, Any]], *, with_usage: bool) -> bytes:
            wanted = options.include_usage or options.continuous_usage_stats
            return event(head | {"choices": choices} | ({"usage": self._usage(parts) if with_usage else None} if wanted else {}))

        async with aclosing(self._advance(parts)) as changes:
            async for changed in changes:
                ready = [p for p in changed if p.end["finish_reason"] is not None or p.something and p.tokens >= interval]
                if ready:
                    yield b"".join([chunk([part.take()], with_usage=options.continuous_usage_stats) for part in ready])
        if options.include_usage:
            yield chunk([], with_usage=True)
        yield DONE

    def _head(self) -> dict[str, Any]:
        return {
            "id": f"cmpl-{self.rid}",
            "object": "text_completion",
            "created": self.created,
            "model": self.body.model or self.service.model_name,
        }
