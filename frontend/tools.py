"""Calling the functions that a model chose, and telling it what they returned."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..runtime.errors import RequestError
from . import ir
from .values import ToolCall, tool

if TYPE_CHECKING:
    from .state import ProgramState


def describe(tools: Sequence[Callable[..., Any]]) -> str:
    """A text that tells a model which tools there are and how to call them, for a system message."""
    lines = ['Call a tool by answering with one JSON object: {"name": <tool>, "arguments": {...}}. The tools are:']
    for t in map(tool, tools):
        lines.append(json.dumps({"name": t.name, "description": t.description, "parameters": t.parameters}, ensure_ascii=False))
    return "\n".join(lines)


def run_call(state: ProgramState, name: str) -> Any:
    """See `ProgramState.call`."""
    call = state[name]
    if not isinstance(call, ToolCall):
        raise RequestError(f"{name!r} holds {call!r}, which is no tool call; generate it with gen({name!r}, tools=[...])", field="name")
    result = call()
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
    state.sync()
    branch = state._branch
    if branch.role is None and branch.messages:
        state += ir.Role(_tool_role(state), ir.Text(text))
    else:
        state += f"\nObservation: {text}\n"
    return result


def _tool_role(state: ProgramState) -> str:
    """The role that results have in the model's template: "tool" where it knows it, else "user"."""
    branch = state._branch
    try:
        branch.run.chat.around(tuple(m["role"] for m in branch.messages), "tool", False)
    except RequestError:
        return "user"
    return "tool"
