"""Renders a chat with a model's own Jinja template, in a sandbox: templates come with model files and are not trusted.

The environment is the one that templates on the Hugging Face hub are written for: trimmed blocks, loop controls, the
`generation` tag, `tojson` without HTML escapes, `raise_exception` and `strftime_now`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .errors import ConfigError, RequestError

if TYPE_CHECKING:
    from jinja2 import Template

Message = Mapping[str, Any]
MARK = "\u2062ramet:end of the final message\u2062"  # never in a template; shows where the final message stops


def render(
    template: str,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **variables: Any,
) -> str:
    """The prompt text of `messages`. With `continue_final_message` it ends inside the last message, which is to be continued.

    Raises RequestError (field "messages") where the template refuses the messages, ConfigError where it does not parse."""
    from jinja2 import TemplateError

    if continue_final_message and add_generation_prompt:
        raise RequestError("continue_final_message and add_generation_prompt exclude each other", field="continue_final_message")
    chat = [_checked(message) for message in messages]
    if continue_final_message:
        chat = _mark_end(chat)
    compiled = _compile(template)
    try:
        text = compiled.render(
            messages=chat,
            tools=_plain(list(tools)) if tools else None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **{name: _plain(value) for name, value in variables.items()},
        )
    except (TemplateError, TypeError, ValueError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
        raise RequestError(f"the chat template refuses these messages: {error}", field="messages") from error
    return _cut(text, messages[-1]) if continue_final_message else text


def _checked(message: Message) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestError(f"each message needs a role and a content, not {message!r:.100}", field="messages")
    chat: dict[str, Any] = _plain({key: value for key, value in message.items() if value is not None})
    return chat


def _plain(value: Any) -> Any:
    """A copy out of JSON's types alone, so that a template meets no object with methods of its own."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if callable(getattr(value, "model_dump", None)):  # a pydantic model
        return _plain(value.model_dump())
    raise RequestError(f"messages may hold JSON values only, not {type(value).__name__}", field="messages")


def _mark_end(chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    content = chat[-1].get("content") if chat else None
    if isinstance(content, str):
        return [*chat[:-1], {**chat[-1], "content": content + MARK}]
    for i in reversed(range(len(content or ()))):  # a list of parts: the last text is the one continued
        if isinstance(content, list) and isinstance(content[i], dict) and isinstance(content[i].get("text"), str):
            parts = [*content[:i], {**content[i], "text": content[i]["text"] + MARK}, *content[i + 1 :]]
            return [*chat[:-1], {**chat[-1], "content": parts}]
    raise RequestError("continue_final_message needs a last message with text", field="messages")


def _cut(text: str, final: Message) -> str:
    at = text.rfind(MARK)
    if at < 0:
        raise RequestError("the chat template drops the end of the final message, so it cannot be continued", field="messages")
    return text[:at]


@lru_cache(maxsize=32)
def _compile(template: str) -> Template:
    from jinja2 import TemplateError

    try:
        return _environment().from_string(template)
    except TemplateError as error:
        raise ConfigError(f"the chat template does not parse: {error}") from error


def _environment() -> Any:
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} ... {% endgeneration %} marks the assistant's own text for training; here it only prints it."""

        tags = {"generation"}

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals.update(raise_exception=raise_exception, strftime_now=lambda form: datetime.now().strftime(form))
    return environment
