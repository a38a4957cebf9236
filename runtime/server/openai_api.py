"""The OpenAI family: models, chat completions, tokenizing. Text completions and responses have files of their own."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from ..errors import RequestError, UnsupportedError
from ..protocol import FinishReason, GenerateRequest, Timings, TokenLogprob, Usage
from . import wire
from .answers import DONE, EventStream, Json, answer, event, merge
from .chat import Delta, chat_ids, chat_text, plain
from .completions import complete
from .openai_types import ChatBody, CompletionBody, Message, Tool, params, renamed, response_format
from .service import Service, checked_rid, new_id
from .shapes import chat_logprobs, check_model, ending, label, timing_body, total, usage_body
from .tools import plan, turns
from .wire import Ids, Wire

CREATED = int(time.time())  # of the model, in the list of models: when this process began


@dataclass
class Choice:
    """One finished choice of a chat."""

    text: str = ""
    logprobs: list[tuple[int, TokenLogprob]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    finish: FinishReason = field(default_factory=lambda: FinishReason("abort"))
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)

    def add(self, delta: Delta) -> None:
        self.text += delta.text
        self.logprobs += delta.logprobs
        if delta.call is not None:
            _, call_id, name = delta.call
            self.calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}})
        if delta.arguments is not None:
            self.calls[delta.arguments[0]]["function"]["arguments"] += delta.arguments[1]
        if delta.finish is not None:
            self.finish, self.usage, self.timings = delta.finish, delta.usage or Usage(), delta.timings or Timings()


class Chat:
    """One POST /v1/chat/completions, from the body to its answer."""

    def __init__(self, service: Service, body: ChatBody, rid: str) -> None:
        self.service = service
        self.body = body
        self.rid = rid
        self.created = int(time.time())
        self.n = body.n or 1
        check_model(body.model, service)
        if body.max_tokens is not None and body.max_completion_tokens is not None:
            raise RequestError("max_tokens and max_completion_tokens are the same thing; give one", field="max_tokens")
        if body.top_logprobs is not None and not body.logprobs:
            raise RequestError("top_logprobs needs logprobs=true", field="top_logprobs")
        if body.parallel_tool_calls is not None and not body.tools:
            raise RequestError("parallel_tool_calls is only allowed with tools", field="parallel_tool_calls")
        self.tools, self.plan = plan(body.tools, body.tool_choice, body.parallel_tool_calls)
        given = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        self.params = params(
            body,
            service.config,
            max_tokens=service.context_length if given is None else given,
            constrained=response_format(body.response_format),
        )
        if self.plan is not None and self.params.constraint is not None:
            raise RequestError(
                "a constraint beside tools needs tool_choice='none': calls are constrained by their own schemas",
                field="response_format" if body.response_format else self.params.constraint.kind,
            )

    async def deltas(self) -> AsyncGenerator[list[Delta], None]:
        """What the engine answers, choice by choice. Raises errors that name this body's fields."""
        try:
            ids = await self.service.in_thread(chat_ids, self.service, self.body, self.tools)
            request = GenerateRequest(
                self.rid,
                ids,
                self.params,
                logprobs=bool(self.body.logprobs),
                top_logprobs=self.body.top_logprobs or 0,
                priority=self.body.priority or 0,
                cache_salt=self.body.cache_salt or "",
                tenant=self.body.tenant or "",
                deadline=self.service.deadline(self.body.deadline),
                ttft_target=self.body.ttft_target,
                tpot_target=self.body.tpot_target,
            )
            if self.plan is None:
                source = plain(self.service, request)
            else:
                await self.plan.check(self.service)
                source = merge([turn.deltas() for turn in turns(self.service, request, self.plan)])
            async with aclosing(source) as deltas:
                async for group in deltas:
                    yield group
        except (RequestError, UnsupportedError) as error:
            raise renamed(error, self.body, "messages") from error

    async def whole(self) -> dict[str, Any]:
        choices = [Choice() for _ in range(self.n)]
        async with aclosing(self.deltas()) as deltas:
            async for group in deltas:
                for delta in group:
                    choices[delta.index].add(delta)
        return self._head("chat.completion") | {
            "choices": [self._choice(i, choice) for i, choice in enumerate(choices)],
            "usage": usage_body(total((choice.usage for choice in choices), self.n)),
            "timings": timing_body(choices[0].timings),
        }

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": choice.text if choice.text or not choice.calls else None,
            "refusal": None,
        }
        if choice.calls:
            message["tool_calls"] = choice.calls
        logprobs = chat_logprobs(self.service, choice.logprobs, self.body.top_logprobs or 0) if self.body.logprobs else None
        return {"index": index, "message": message, "logprobs": logprobs, **ending(choice.finish)}

    async def events(self) -> AsyncGenerator[bytes, None]:
        options = self.body.stream_options
        with_usage = options is not None and options.include_usage
        continuous = options is not None and options.continuous_usage_stats
        usages = [Usage() for _ in range(self.n)]
        begun: set[int] = set()
        pace = Pace(self.service.config.stream_interval, self.n)
        head = self._head("chat.completion.chunk")

        def chunk(choices: list[dict[str, Any]], usage: Usage | None = None) -> bytes:
            return event(head | {"choices": choices} | ({"usage": usage and usage_body(usage)} if with_usage or continuous else {}))

        async with aclosing(self.deltas()) as deltas:
            async for group in deltas:
                out = []
                for delta in pace.pass_on(group):
                    if delta.index not in begun:
                        begun.add(delta.index)
                        out.append(
                            chunk(
                                [
                                    {
                                        "index": delta.index,
                                        "delta": {"role": "assistant", "content": ""},
                                        "logprobs": None,
                                        "finish_reason": None,
                                    }
                                ]
                            )
                        )
                    if delta.usage is not None:
                        usages[delta.index] = delta.usage
                    out += [chunk([piece], total(usages, self.n) if continuous else None) for piece in self._pieces(delta)]
                if out:
                    yield b"".join(out)
        if with_usage:
            yield chunk([], total(usages, self.n))
        yield DONE

    def _pieces(self, delta: Delta) -> list[dict[str, Any]]:
        """The `choices` entries of a delta: its text, its call, its end."""
        changes: list[dict[str, Any]] = []
        logprobs = chat_logprobs(self.service, delta.logprobs, self.body.top_logprobs or 0) if delta.logprobs else None
        if delta.text or logprobs:
            changes.append({"content": delta.text})
        if delta.call is not None:
            number, call_id, name = delta.call
            changes.append({"tool_calls": [{"index": number, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}]})
        if delta.arguments is not None:
            changes.append({"tool_calls": [{"index": delta.arguments[0], "function": {"arguments": delta.arguments[1]}}]})
        pieces = [{"index": delta.index, "delta": change, "logprobs": logprobs if "content" in change else None, "finish_reason": None} for change in changes]
        if delta.finish is not None:
            last: dict[str, Any] = {"index": delta.index, "delta": {}, "logprobs": None, **ending(delta.finish)}
            if delta.timings is not None:
                last["timings"] = timing_body(delta.timings)
            pieces.append(last)
        return pieces

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": f"chatcmpl-{self.rid}", "object": kind, "created": self.created, "model": self.body.model or self.service.model_name}


class Pace:
    """Joins small deltas of text until they hold `interval` tokens; everything else goes out at once, behind what waits."""

    def __init__(self, interval: int, n: int) -> None:
        self.interval = interval
        self.waiting: list[Delta | None] = [None] * n

    def pass_on(self, group: list[Delta]) -> list[Delta]:
        if self.interval == 1:
            return group
        out = []
        for delta in group:
            joined = self.waiting[delta.index]
            if joined is not None:
                delta.text, delta.logprobs = joined.text + delta.text, joined.logprobs + delta.logprobs
                delta.tokens += joined.tokens
            plain_text = delta.call is None and delta.arguments is None and delta.finish is None
            self.waiting[delta.index] = delta if plain_text and delta.tokens < self.interval else None
            if self.waiting[delta.index] is None:
                out.append(delta)
        return out


class TokenizeBody(Wire):
    """The body of POST /tokenize and /v1/apply-template: `prompt`, or `messages` through the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    tools: list[Tool] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool = False
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(Wire):
    """The body of POST /detokenize."""

    model: str | None = None
    tokens: Ids


def routes(service: Service) -> APIRouter:
    router = APIRouter()
    add: Callable[..., Any] = router.post

    def model_card() -> dict[str, Any]:
        return {
            "id": service.model_name,
            "object": "model",
            "created": CREATED,
            "owned_by": "ramet",
            "root": service.config.engine.model_path,
            "max_model_len": service.context_length,
        }

    @router.get("/v1/models")
    async def models() -> Response:
        return Json({"object": "list", "data": [model_card()]})

    @router.get("/v1/models/{model:path}")
    async def model(model: str) -> Response:
        check_model(model, service)
        return Json(model_card())

    @add("/v1/completions", openapi_extra=wire.schema(CompletionBody))
    async def completions(request: Request) -> Response:
        body = await wire.read(request, CompletionBody)
        check_model(body.model, service)
        rid = checked_rid(body.rid) if body.rid is not None else new_id()
        label(request, body, rid)
        return await complete(request, service, body, rid)

    @add("/v1/chat/completions", openapi_extra=wire.schema(ChatBody))
    async def chat(request: Request) -> Response:
        body = await wire.read(request, ChatBody)
        rid = checked_rid(body.rid) if body.rid is not None else new_id()
        label(request, body, rid)
        work = Chat(service, body, rid)
        if body.stream:
            return EventStream(work.events(), stall=service.config.stall_timeout)
        return await answer(request, work.whole())

    @add("/v1/embeddings")
    async def embeddings() -> Response:
        raise UnsupportedError("embeddings are not supported: this runtime serves generation models")

    @add("/tokenize", openapi_extra=wire.schema(TokenizeBody))
    @add("/v1/tokenize", openapi_extra=wire.schema(TokenizeBody))
    async def tokenize(request: Request) -> Response:
        body = await wire.read(request, TokenizeBody)
        check_model(body.model, service)
        if (body.prompt is None) == (body.messages is None):
            raise RequestError("give prompt or messages, one of the two", field="prompt")
        if body.prompt is not None:
            ids = await service.in_thread(service.tokenizer.encode, body.prompt, add_special=body.add_special_tokens)
        else:
            ids = await service.in_thread(chat_ids, service, body, body.tools or [])
        result = {"tokens": list(ids), "count": len(ids), "max_model_len": service.context_length}
        if body.return_token_strs:
            result["token_strs"] = [service.tokenizer.token_text(token) for token in ids]
        return Json(result)

    @add("/detokenize", openapi_extra=wire.schema(DetokenizeBody))
    @add("/v1/detokenize", openapi_extra=wire.schema(DetokenizeBody))
    async def detokenize(request: Request) -> Response:
        body = await wire.read(request, DetokenizeBody)
        check_model(body.model, service)
        size = service.vocab_size
        if any(not 0 <= token < size for token in body.tokens):
            raise RequestError(f"tokens: an id is outside the vocabulary of {size}", field="tokens")
        text = await service.in_thread(service.tokenizer.decode, body.tokens)
        return Json({"prompt": text, "text": text})

    @add("/apply-template", openapi_extra=wire.schema(TokenizeBody))
    @add("/v1/apply-template", openapi_extra=wire.schema(TokenizeBody))
    async def apply_template(request: Request) -> Response:
        body = await wire.read(request, TokenizeBody)
        check_model(body.model, service)
        if body.messages is None:
            raise RequestError("messages: missing", field="messages")
        return Json({"prompt": await service.in_thread(chat_text, service, body, body.tools or [])})

    return router
