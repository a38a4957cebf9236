"""Python types at the border: schemas out of them, typed values back from text, functions as tools."""

from __future__ import annotations

import enum
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from ..runtime.errors import ConstraintError, RequestError
from ..runtime.protocol import Constraint
from .ir import Tool

INTEGER = r"[-+]?[0-9]{1,18}"
FLOAT = r"[-+]?[0-9]{1,18}(\.[0-9]{1,18})?"


def constraint_of(kind: str, value: Any) -> Constraint:
    """A constraint from what the user gave under the name `kind`. Raises ConstraintError where it is no such thing."""
    if kind == "json_schema":
        return Constraint("json_schema", schema_text(value))
    if kind == "json_object":
        return Constraint("json_object", "")
    if kind == "choice":
        return Constraint("choice", json.dumps(choices_of("choice", value), ensure_ascii=False))
    if not isinstance(value, str):
        raise ConstraintError(f"{kind}: text is needed, not {type(value).__name__}", field=kind)
    if kind == "regex":
        check_regex(value)
    return Constraint(kind, value)  # type: ignore[arg-type]


def check_regex(pattern: str) -> None:
    """Refuses at once what no reader of regexes takes; the engine checks the rest when it compiles the pattern."""
    try:
        re.compile(pattern)
    except re.error as exc:
        if r"\p" not in pattern and r"\P" not in pattern:  # classes that `re` lacks and the engine may know
            raise ConstraintError(f"regex {pattern!r} does not parse: {exc}", field="regex") from exc


def choices_of(name: str, choices: Any) -> list[str]:
    """A list of texts to choose from. Raises RequestError if it is empty or holds anything but text."""
    if isinstance(choices, str) or not isinstance(choices, Sequence):
        raise RequestError(f"{name}: a list of texts is needed, not {choices!r}", field=name)
    if not choices:
        raise RequestError(f"{name} is empty: there is nothing to choose from", field=name)
    for choice in choices:
        if not isinstance(choice, str):
            raise RequestError(f"{name}: every choice is text, not {choice!r}", field=name)
    return list(choices)


def schema_text(schema: Any) -> str:
    """The JSON text of a schema given as text, dict, pydantic model, dataclass, TypedDict or any other type."""
    if isinstance(schema, str):
        try:
            json.loads(schema)
        except ValueError as exc:
            raise ConstraintError(f"json_schema is no JSON text: {exc}", field="json_schema") from exc
        return schema
    if isinstance(schema, (Mapping, bool)):
        try:
            return json.dumps(schema, ensure_ascii=False)
        except (TypeError, ValueError) as exc:
            raise ConstraintError(f"json_schema holds what JSON cannot: {exc}", field="json_schema") from exc
    return json.dumps(schema_of(schema), ensure_ascii=False)


def schema_of(hint: Any) -> dict[str, Any]:
    """The JSON schema of a Python type. Objects take no properties but their own, as a typed value has no place for them."""
    from ..constrained.errors import GrammarError
    from ..constrained.python_types import schema_of as schema_of_type

    try:
        schema = schema_of_type(hint)
    except GrammarError as exc:
        raise ConstraintError(f"json_schema: {exc}", field="json_schema") from exc
    return _closed(schema)


def typed(hint: Any) -> tuple[Constraint, Callable[[str], Any]]:
    """How to ask for a value of type `hint`, and how to read it from the text that was generated."""
    if hint is bool:
        return Constraint("choice", '["True", "False"]'), lambda text: text == "True"
    if hint is int:
        return Constraint("regex", INTEGER), int
    if hint is float:
        return Constraint("regex", FLOAT), float
    if _enumerates(hint):
        named = options(hint)
        return Constraint("choice", json.dumps(list(named), ensure_ascii=False)), named.__getitem__
    return Constraint("json_schema", schema_text(hint)), _reader(hint)


def tool(function: Callable[..., Any] | Tool) -> Tool:
    """A plain function as a tool: name and docstring, and a schema of its annotated parameters."""
    if isinstance(function, Tool):
        return function
    if not callable(function):
        raise RequestError(f"tools: a function is needed, not {function!r}", field="tools")
    properties: dict[str, Any] = {}
    required, defs = [], {}
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise RequestError(f"tools: {function.__name__}(*{name}) cannot be described; name every parameter", field="tools")
        hint = str if parameter.annotation is parameter.empty else parameter.annotation
        schema = schema_of(hint)
        defs.update(schema.pop("$defs", {}))
        properties[name] = schema
        if parameter.default is parameter.empty:
            required.append(name)
    parameters: dict[str, Any] = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    if defs:
        parameters["$defs"] = defs
    return Tool(function.__name__, function, inspect.getdoc(function) or "", parameters)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What `gen(tools=...)` gives: the tool's name and the arguments for it."""

    name: str
    arguments: Mapping[str, Any]
    tool: Tool

    def __call__(self) -> Any:
        """Runs the tool."""
        return self.tool.function(**self.arguments)


def tools_constraint(tools: Sequence[Tool]) -> tuple[Constraint, Callable[[str], ToolCall]]:
    """One JSON object that calls one of `tools`: {"name": ..., "arguments": {...}}."""
    by_name = {t.name: t for t in tools}
    if len(by_name) < len(tools):
        raise RequestError("tools: two of them have the same name", field="tools")
    defs: dict[str, Any] = {}
    calls = []
    for t in tools:
        parameters = dict(t.parameters)
        defs.update(parameters.pop("$defs", {}))
        properties = {"name": {"const": t.name}, "arguments": parameters}
        calls.append({"type": "object", "properties": properties, "required": ["name", "arguments"], "additionalProperties": False})
    schema: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    if defs:
        schema = {**schema, "$defs": defs}

    def read(text: str) -> ToolCall:
        call = json.loads(text)
        chosen = by_name[call["name"]]
        return ToolCall(chosen.name, call["arguments"], chosen)

    return Constraint("json_schema", json.dumps(schema, ensure_ascii=False)), read


def options(hint: Any) -> dict[str, Any]:
    """The values of a Literal or an Enum by their text. Raises RequestError if `hint` is neither."""
    if not _enumerates(hint):
        raise RequestError(f"dtype={hint!r}: a Literal or an Enum is needed", field="dtype")
    members = list(get_args(hint)) if get_origin(hint) is Literal else list(hint)
    named = {str(member.value if isinstance(member, enum.Enum) else member): member for member in members}
    if len(named) < len(members):
        raise RequestError(f"dtype={hint!r}: two of its values have the same text", field="dtype")
    return named


def _enumerates(hint: Any) -> bool:
    return get_origin(hint) is Literal or (isinstance(hint, type) and issubclass(hint, enum.Enum))


def _reader(hint: Any) -> Callable[[str], Any]:
    """How text that obeys the schema of `hint` becomes a value of it."""
    if hasattr(hint, "model_validate_json"):
        return hint.model_validate_json
    from pydantic import PydanticUserError, TypeAdapter

    try:
        return TypeAdapter(hint).validate_json
    except PydanticUserError:  # a typing.TypedDict, which pydantic does not take before Python 3.12: its values are plain dicts
        return json.loads


def _closed(schema: Any) -> Any:
    """`schema` with additionalProperties false on every object that names its properties and does not say."""
    if isinstance(schema, dict):
        out = {key: _closed(value) for key, value in schema.items()}
        if "properties" in out and out.get("type") == "object":
            out.setdefault("additionalProperties", False)
        return out
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    return schema
