"""POST /v1/responses: the same chat in the shape of OpenAI's newer interface; nothing is stored."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from ..errors import RequestError, UnsupportedError
from ..protocol import FinishReason, Usage
from . import wire
from .answers import EventStream, answer, describe
from .chat import Delta
from .openai_api import Chat, Choice
from .openai_types import OFF, ChatBody, Milliseconds, Number, Seconds, Unit
from .service import Service, new_id
from .shapes import chat_logprobs, label
from .wire import Wire


class TextOptions(Wire):
    absent: ClassVar[dict[str, tuple[Any, ...]]] = {"verbosity": ("medium",)}
    format: dict[str, Any] | None = None


class FunctionTool(Wire):
    type: Literal["function"]
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | bool | None = None
    strict: bool | None = None


class NamedChoice(Wire):
    type: Literal["function"]
    name: str


class ResponseBody(Wire):
    """The body of POST /v1/responses."""

    absent: ClassVar[dict[str, tuple[Any, ...]]] = {
        "background": OFF,
        "conversation": OFF,
        "max_tool_calls": (),
        "previous_response_id": OFF,
        "prompt": OFF,
        "reasoning": (*OFF, {"effort": None}),
        "service_tier": ("auto", "default"),
        "store": (False,),
        "stream_options": OFF,
        "truncation": ("disabled",),
    }

    model: str | None = None
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Unit | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: list[Literal["message.output_text.logprobs"]] | None = None
    stream: bool | None = None
    text: TextOptions | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    priority: int | None = None
    cache_salt: str | None = None
    tenant: str | None = None
    deadline: Seconds | None = None
    ttft_target: Milliseconds | None = None
    tpot_target: Milliseconds | None = None
    seed: int | None = Field(None, description="an extension, as in chat completions")


_SAME = (
    "model",
    "temperature",
    "top_p",
    "parallel_tool_calls",
    "metadata",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "priority",
    "cache_salt",
    "tenant",
    "deadline",
    "ttft_target",
    "tpot_target",
    "seed",
    "top_logprobs",
)


def as_chat(body: ResponseBody) -> ChatBody:
    """The chat that a response is. Raises RequestError with the field as this body names it."""
    data: dict[str, Any] = {name: value for name in _SAME if (value := getattr(body, name)) is not None}
    data["messages"] = _messages(body)
    if body.top_logprobs is not None and not body.include:
        raise RequestError("top_logprobs needs include=['message.output_text.logprobs']", field="top_logprobs")
    data["logprobs"] = bool(body.include)
    if body.max_output_tokens is not None:
        data["max_completion_tokens"] = body.max_output_tokens
    if body.text is not None and body.text.format is not None:
        form = dict(body.text.format)
        kind = form.pop("type", None)
        data["response_format"] = {"type": kind, "json_schema": form} if kind == "json_schema" else {"type": kind, **form}
    if body.tools:
        data["tools"] = [{"type": "function", "function": tool.model_dump(exclude={"type"}, exclude_none=True)} for tool in body.tools]
    if isinstance(body.tool_choice, NamedChoice):
        data["tool_choice"] = {"type": "function", "function": {"name": body.tool_choice.name}}
    elif body.tool_choice is not None:
        data["tool_choice"] = body.tool_choice
    if not body.tools:
        data.pop("parallel_tool_calls", None)
    return wire.check(data, ChatBody)


def _messages(body: ResponseBody) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": body.instructions}] if body.instructions else []
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    for i, item in enumerate(items):
        kind = item.get("type", "message")
        if kind == "message":
            messages.append(_message(item, f"input[{i}]"))
        elif kind == "function_call":
            call = {
                "id": item.get("call_id", f"call_{i}"),
                "type": "function",
                "function": {"name": item.get("name"), "arguments": item.get("arguments")},
            }
            if messages and messages[-1]["role"] == "assistant" and "tool_calls" in messages[-1]:
                messages[-1]["tool_calls"].append(call)
            else:
                messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        elif kind == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
        else:
            raise UnsupportedError(f"input[{i}].type={str(kind)[:60]!r} is not supported", field=f"input[{i}].type")
    if not items:
        raise RequestError("input: empty", field="input")
    return messages


def _message(item: dict[str, Any], where: str) -> dict[str, Any]:
    known = {"type", "role", "content", "id", "status"}
    if extra := sorted(item.keys() - known):
        raise RequestError(f"{where}.{extra[0]}: unknown field", field=f"{where}.{extra[0]}")
    content = item.get("content")
    if isinstance(content, list):
        content = [_part(part, f"{where}.content[{k}]") for k, part in enumerate(content)]
    return {"role": item.get("role"), "content": content}


def _part(part: Any, where: str) -> dict[str, Any]:
    if not isinstance(part, dict) or part.get("type") not in ("input_text", "output_text", "text"):
        raise UnsupportedError(f"{where}: this model reads text only", field=where)
    return {"type": "text", "text": part.get("text")}


class Responding:
    """One POST /v1/responses, from the body to its answer."""

    def __init__(self, service: Service, body: ResponseBody, rid: str) -> None:
        self.service = service
        self.body = body
        self.id = f"resp_{rid}"
        try:
            self.chat = Chat(service, as_chat(body), rid)
        except (RequestError, UnsupportedError) as error:
            raise self._renamed(error) from error

    def _renamed(self, error: Any) -> Any:
        field = error.field or ""
        shift = 1 if self.body.instructions else 0
        if field.startswith("messages["):
            number, rest = field[len("messages[") :].split("]", 1)
            field = f"input[{max(0, int(number) - shift)}]{rest}"
        for ours, theirs in (
            ("messages", "input"),
            ("response_format", "text.format"),
            ("max_completion_tokens", "max_output_tokens"),
            ("max_tokens", "max_output_tokens"),
        ):
            if field == ours or field.startswith(ours + "."):
                field = theirs + field[len(ours) :]
        error.field = field or None
        return error

    async def _deltas(self) -> AsyncGenerator[Delta, None]:
        try:
            async with aclosing(self.chat.deltas()) as deltas:
                async for group in deltas:
                    for delta in group:
                        yield delta
        except (RequestError, UnsupportedError) as error:
            raise self._renamed(error) from error

    async def whole(self) -> dict[str, Any]:
        choice = Choice()
        async with aclosing(self._deltas()) as deltas:
            async for delta in deltas:
                choice.add(delta)
        output = [self._message_item(choice, new_id("msg_"))] if choice.text or not choice.calls else []
        output += [self._call_item(call, new_id("fc_")) for call in choice.calls]
        return self._response(output, choice.finish, choice.usage)

    def _message_item(self, choice: Choice, item_id: str) -> dict[str, Any]:
        return {
            "type": "message",
            "id": item_id,
            "status": _status(choice.finish),
            "role": "assistant",
            "content": [self._text_part(choice)],
        }

    def _text_part(self, choice: Choice) -> dict[str, Any]:
        logprobs = chat_logprobs(self.service, choice.logprobs, self.body.top_logprobs or 0)["content"]
        return {"type": "output_text", "text": choice.text, "annotations": [], "logprobs": logprobs}

    @staticmethod
    def _call_item(call: dict[str, Any], item_id: str, status: str = "completed") -> dict[str, Any]:
        return {
            "type": "function_call",
            "id": item_id,
            "call_id": call["id"],
            "name": call["function"]["name"],
            "arguments": call["function"]["arguments"],
            "status": status,
        }

    def _response(self, output: list[dict[str, Any]], finish: FinishReason | None, usage: Usage) -> dict[str, Any]:
        body = self.body
        dumped = body.model_dump(exclude_none=True)
        status = "in_progress" if finish is None else _status(finish)
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.chat.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": body.model or self.service.model_name,
            "output": output,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": dumped.get("text") or {"format": {"type": "text"}},
            "tool_choice": dumped.get("tool_choice", "auto"),
            "tools": dumped.get("tools", []),
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "usage": None
            if finish is None
            else {
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {"cached_tokens": usage.cached_tokens},
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            },
            "user": body.user,
            "metadata": body.metadata or {},
        }

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The events in OpenAI's order; an error after the first is an event `error`."""
        stream = _Events(self)
        async with aclosing(self._deltas()) as deltas:
            try:
                async for delta in deltas:
                    yield b"".join(stream.take(delta))
            except Exception as error:
                if not stream.begun:
                    raise
                inner = describe(error)[1]["error"]
                yield stream.make("error", {key: inner[key] for key in ("code", "message", "param")})


class _Events:
    """Turns deltas into numbered events: at most one output item is open at a time."""

    def __init__(self, work: Responding) -> None:
        self.work = work
        self.begun = False
        self.number = 0
        self.done: list[dict[str, Any]] = []
        self.choice = Choice()
        self.open: tuple[str, str] | None = None  # kind and id of the item that is open

    def make(self, kind: str, data: dict[str, Any]) -> bytes:
        from msgspec.json import encode

        self.number += 1
        return b"event: " + kind.encode() + b"\ndata: " + encode({"type": kind, "sequence_number": self.number - 1} | data) + b"\n\n"

    def take(self, delta: Delta) -> list[bytes]:
        out = []
        if not self.begun:
            self.begun = True
            response = self.work._response([], None, Usage())
            out += [self.make(f"response.{name}", {"response": response}) for name in ("created", "in_progress")]
        self.choice.add(delta)
        if delta.text or delta.logprobs:
            out += self._open_text()
            logprobs = chat_logprobs(self.work.service, delta.logprobs, self.work.body.top_logprobs or 0)["content"]
            out.append(self._place("response.output_text.delta", {"content_index": 0, "delta": delta.text, "logprobs": logprobs}))
        if delta.call is not None:
            out += self._close()
            self.open = ("call", new_id("fc_"))
            item = self.work._call_item(self.choice.calls[-1], self.open[1], "in_progress")
            out.append(self.make("response.output_item.added", {"output_index": len(self.done), "item": item}))
        if delta.arguments is not None:
            out.append(self._place("response.function_call_arguments.delta", {"delta": delta.arguments[1]}))
        if delta.finish is not None:
            if not self.done and self.open is None:
                out += self._open_text()
            out += self._close()
            response = self.work._response(self.done, self.choice.finish, self.choice.usage)
            out.append(self.make(f"response.{response['status']}", {"response": response}))
        return out

    def _place(self, kind: str, data: dict[str, Any]) -> bytes:
        assert self.open is not None
        return self.make(kind, {"item_id": self.open[1], "output_index": len(self.done)} | data)

    def _open_text(self) -> list[bytes]:
        if self.open is not None:
            return []
        self.open = ("text", new_id("msg_"))
        item = {"type": "message", "id": self.open[1], "status": "in_progress", "role": "assistant", "content": []}
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return [
            self.make("response.output_item.added", {"output_index": len(self.done), "item": item}),
            self._place("response.content_part.added", {"content_index": 0, "part": part}),
        ]

    def _close(self) -> list[bytes]:
        if self.open is None:
            return []
        kind, item_id = self.open
        if kind == "text":
            part = self.work._text_part(self.choice)
            item = self.work._message_item(self.choice, item_id)
            out = [
                self._place("response.output_text.done", {"content_index": 0, "text": part["text"], "logprobs": part["logprobs"]}),
                self._place("response.content_part.done", {"content_index": 0, "part": part}),
            ]
        else:
            item = self.work._call_item(self.choice.calls[-1], item_id)
            out = [self._place("response.function_call_arguments.done", {"name": item["name"], "arguments": item["arguments"]})]
        out.append(self.make("response.output_item.done", {"output_index": len(self.done), "item": item}))
        self.done.append(item)
        self.open = None
        return out


def _status(finish: FinishReason) -> str:
    return "incomplete" if finish.type == "length" else "completed"


def routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/responses", openapi_extra=wire.schema(ResponseBody))
    async def responses(request: Request) -> Response:
        body = await wire.read(request, ResponseBody)
        rid = new_id()
        label(request, body, rid)
        work = Responding(service, body, rid)
        if body.stream:
            return EventStream(work.events(), stall=service.config.stall_timeout)
        return await answer(request, work.whole())

    return router
