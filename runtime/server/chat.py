"""From chat messages to token ids, and from chunks to the deltas that the chat routes show."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from ..errors import RequestError, UnsupportedError
from ..protocol import FinishReason, GenerateRequest, Timings, TokenLogprob, Usage
from .openai_types import AssistantMessage, Content, Part, Tool, ToolMessage
from .service import Service, Shown

CALL_OPEN, CALL_CLOSE = "<tool_call>\n", "\n</tool_call>"

RESERVED = {"messages", "add_generation_prompt", "continue_final_message", "tools", "template", "documents"}

TOOL_PROMPT = """You may call functions to help with the user's request. The functions, one JSON object a line:
<tools>
{tools}
</tools>
To call a function, answer with its name and arguments as JSON between tags:
<tool_call>
{{"name": "function's name", "arguments": {{...}}}}
</tool_call>"""


@dataclass(slots=True)
class Delta:
    """A piece of one choice. `call` begins a tool call (its number, id and name), `arguments` continues it."""

    index: int
    text: str = ""
    logprobs: list[tuple[int, TokenLogprob]] = field(default_factory=list)
    call: tuple[int, str, str] | None = None
    arguments: tuple[int, str] | None = None
    tokens: int = 0
    finish: FinishReason | None = None
    usage: Usage | None = None
    timings: Timings | None = None


async def plain(service: Service, request: GenerateRequest) -> AsyncGenerator[list[Delta], None]:
    """The deltas of a request without tools."""
    shown = [Shown(service.tokenizer) for _ in range(request.params.n)]
    async with aclosing(service.client.stream(request)) as stream:
        async for chunks in stream:
            yield [
                Delta(
                    chunk.index,
                    chunk.text,
                    shown[chunk.index].push(chunk) if request.logprobs else [],
                    tokens=len(chunk.token_ids),
                    finish=chunk.finish,
                    usage=chunk.usage,
                    timings=chunk.timings,
                )
                for chunk in chunks
            ]


def as_text(content: Content | None, where: str) -> str:
    """The text of a message's content; parts are joined by a newline. Raises RequestError, UnsupportedError."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))


def _part(part: Part, where: str) -> str:
    if part.type == "text" and part.text is not None:
        return part.text
    if part.type == "refusal" and part.refusal is not None:
        return part.refusal
    if part.type in ("text", "refusal"):
        raise RequestError(f"{where}.{part.type}: a string is needed", field=f"{where}.{part.type}")
    raise UnsupportedError(f"{where}: this model reads text only, not {part.type[:40]!r}", field=where)


def template_messages(messages: list[Any], *, native_tools: bool) -> list[dict[str, Any]]:
    """Messages as a chat template takes them. A template that knows no tools sees calls and results as text."""
    result = []
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        role = "system" if message.role == "developer" else message.role
        entry: dict[str, Any] = {"role": role, "content": as_text(message.content, where)}
        if isinstance(message, AssistantMessage) and message.tool_calls:
            calls = [
                {"name": c.function.name, "arguments": _arguments(c.function.arguments, f"{where}.tool_calls[{k}]")} for k, c in enumerate(message.tool_calls)
            ]
            if native_tools:
                entry["tool_calls"] = [{"type": "function", "id": c.id, "function": call} for c, call in zip(message.tool_calls, calls, strict=True)]
            else:
                written = "\n".join(CALL_OPEN + json.dumps(call, ensure_ascii=False) + CALL_CLOSE for call in calls)
                entry["content"] = (entry["content"] + "\n" + written).lstrip("\n")
        elif isinstance(message, ToolMessage):
            if native_tools:
                entry["tool_call_id"] = message.tool_call_id
            else:
                entry = {"role": "user", "content": f"<tool_response>\n{entry['content']}\n</tool_response>"}
        elif isinstance(message, AssistantMessage) and message.content is None and not message.refusal:
            raise RequestError(f"{where}: an assistant message needs content or tool_calls", field=f"{where}.content")
        result.append(entry)
    return result


def _arguments(text: str, where: str) -> Any:
    try:
        return json.loads(text or "{}")
    except ValueError:
        raise RequestError(f"{where}.function.arguments is not JSON", field=f"{where}.function.arguments") from None


def with_tool_prompt(messages: list[dict[str, Any]], tools: list[Tool]) -> list[dict[str, Any]]:
    """The messages with the tools described in the system message, for templates that have no place for tools."""
    lines = "\n".join(json.dumps(tool.model_dump(exclude_none=True), ensure_ascii=False) for tool in tools)
    words = TOOL_PROMPT.format(tools=lines)
    if messages and messages[0]["role"] == "system":
        return [{**messages[0], "content": messages[0]["content"] + "\n\n" + words}, *messages[1:]]
    return [{"role": "system", "content": words}, *messages]


def chat_ids(service: Service, body: Any, tools: list[Tool]) -> tuple[int, ...]:
    """The prompt of a chat body, ready for the assistant's words. Runs on a thread. Raises RequestError."""
    messages, options = _rendering(service, body, tools)
    return tuple(service.tokenizer.encode_chat(messages, **options))


def chat_text(service: Service, body: Any, tools: list[Tool]) -> str:
    """The same as text."""
    messages, options = _rendering(service, body, tools)
    return service.tokenizer.render_chat(messages, **options)


def _rendering(service: Service, body: Any, tools: list[Tool]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Messages and options for the tokenizer's chat methods."""
    if body.chat_template is not None and not service.config.allow_request_templates:
        raise RequestError("chat_template: this server does not take templates from requests (--allow-request-templates)", field="chat_template")
    native = CALL_OPEN.strip() in (body.chat_template or service.chat_template)
    messages = template_messages(body.messages, native_tools=native)
    service.check_length("".join(message["content"] for message in messages), "messages")
    options: dict[str, Any] = dict(body.chat_template_kwargs or {})
    if reserved := options.keys() & RESERVED:
        raise RequestError(f"chat_template_kwargs.{min(reserved)} is set by the server", field="chat_template_kwargs")
    if body.chat_template is not None:
        options["template"] = body.chat_template
    if tools and native:
        options["tools"] = [tool.model_dump(exclude_none=True) for tool in tools]
    elif tools:
        messages = with_tool_prompt(messages, tools)
    options["add_generation_prompt"] = getattr(body, "add_generation_prompt", True) and not body.continue_final_message
    if body.continue_final_message:
        if messages[-1]["role"] != "assistant":
            raise RequestError("continue_final_message: the last message is not the assistant's", field="continue_final_message")
        options["continue_final_message"] = True
    return messages, options
