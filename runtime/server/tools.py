"""Function calls whose arguments always parse.

A turn with tools is a small program on the engine: free text until the model opens a call (or none of it, when a call is
required), a choice among the functions' names, JSON by the chosen function's own schema, then another call or the end.
Each step's prompt is the one before with its own output, so the tree holds all of it and nothing is computed twice.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from ..errors import RequestError
from ..protocol import Constraint, FinishReason, GenerateRequest, Timings, Usage
from .chat import CALL_CLOSE, CALL_OPEN, Delta
from .openai_types import NamedTool, Tool
from .service import Output, Service, Shown, new_id, state_ids

MAX_CALLS = 16  # in one turn
OPEN_TAG = CALL_OPEN.strip()


@dataclass(frozen=True)
class ToolPlan:
    """Which functions may be called, whether one must be, and whether several may."""

    schemas: dict[str, str]  # name -> JSON text of the schema of its arguments
    must: bool
    parallel: bool

    async def check(self, service: Service) -> None:
        """Compiles every schema now, so that a bad one is refused before anything is generated. Raises RequestError."""
        for i, schema in enumerate(self.schemas.values()):
            try:
                await service.check_constraint(Constraint("json_schema", schema))
            except RequestError as error:
                where = f"tools[{i}].function.parameters"
                raise RequestError(f"{where}: {error}", field=where) from error


def plan(tools: list[Tool] | None, choice: Any, parallel: bool | None) -> tuple[list[Tool], ToolPlan | None]:
    """The tools to describe in the prompt, and the plan; None when no call may be made. Raises RequestError."""
    named = choice.function.name if isinstance(choice, NamedTool) else None
    if not tools:
        if choice not in (None, "none", "auto"):
            raise RequestError("tool_choice asks for a call, but there are no tools", field="tool_choice")
        return [], None
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise RequestError("tools: two functions have the same name", field="tools")
    if named is not None and named not in names:
        raise RequestError(f"tool_choice: there is no function {named!r} among the tools", field="tool_choice")
    schemas = {tool.function.name: _schema(tool, i) for i, tool in enumerate(tools)}
    if choice == "none":
        return tools, None
    if named is not None:
        schemas = {named: schemas[named]}
    return tools, ToolPlan(schemas, must=choice == "required" or named is not None, parallel=parallel is not False and named is None)


def _schema(tool: Tool, place: int) -> str:
    """The arguments are an object, whatever the parameters leave open."""
    given = tool.function.parameters
    if given is None:
        given = {"type": "object", "properties": {}, "additionalProperties": False}
    elif given is True:
        given = {"type": "object"}
    if given is False or given.get("type", "object") != "object":
        where = f"tools[{place}].function.parameters"
        raise RequestError(f"{where}: arguments are an object; the schema must allow one", field=where)
    return json.dumps({"type": "object"} | given, ensure_ascii=False)


class Turn:
    """One choice of a chat with tools. `deltas` runs it."""

    def __init__(self, service: Service, request: GenerateRequest, tools: ToolPlan, index: int) -> None:
        self.service = service
        self.request = request
        self.tools = tools
        self.index = index
        self.ids: list[int] = [*request.prompt]  # type: ignore[list-item]  # chats come as ids
        self.left = request.params.max_new_tokens
        self.steps = 0
        self.usage: Usage | None = None
        self.timings = Timings()

    async def deltas(self) -> AsyncGenerator[list[Delta], None]:
        """Raises the request's error; one that only a later step meets, for want of tokens, is the end by "length"."""
        output = Output()
        if not self.tools.must:
            async with aclosing(self._free(output)) as free:
                async for delta in free:
                    yield [delta]
            if output.finish.matched != OPEN_TAG:
                yield [self._end(output.finish)]
                return
            self.ids += state_ids(self.service.tokenizer, output)
        elif self.left == 0:
            raise RequestError("max_tokens=0 leaves no room for the call that tool_choice asks for", field="max_new_tokens")
        self._literal(CALL_OPEN)
        try:
            for number in range(MAX_CALLS):
                async with aclosing(self._call(number)) as call:
                    async for delta in call:
                        yield [delta]
                if not await self._another(number):
                    break
        except RequestError:
            if self.usage is None:  # nothing has been shown yet: the request was wrong
                raise
            yield [self._end(FinishReason("length"))]
            return
        yield [self._end(FinishReason("stop", "tool_calls"))]

    async def _free(self, output: Output) -> AsyncGenerator[Delta, None]:
        """Text until the model opens a call, or ends; the text goes out as it comes."""
        params = self.request.params
        shown = Shown(self.service.tokenizer)
        request = replace(self.request, params=replace(params, n=1, stop=(*params.stop, OPEN_TAG), no_stop_trim=False))
        async with aclosing(self._stream(request, output)) as chunks:
            async for chunk in chunks:
                yield Delta(self.index, chunk.text, shown.push(chunk) if request.logprobs else [], tokens=len(chunk.token_ids))

    async def _call(self, number: int) -> AsyncGenerator[Delta, None]:
        heads = {json.dumps({"name": name})[:-1] + ', "arguments": ': name for name in self.tools.schemas}
        if len(heads) == 1:
            head = next(iter(heads))
            self._literal(head)
        else:
            head = (await self._step(Constraint("choice", json.dumps(list(heads))))).text
        yield Delta(self.index, call=(number, new_id("call_")[:29], heads[head]))
        output = Output()
        constraint = Constraint("json_schema", self.tools.schemas[heads[head]])
        async with aclosing(self._stream(self._next(constraint), output)) as chunks:
            async for chunk in chunks:
                if chunk.text:
                    yield Delta(self.index, arguments=(number, chunk.text), tokens=len(chunk.token_ids))
        self.ids += state_ids(self.service.tokenizer, output)
        self._literal("}" + CALL_CLOSE)

    async def _another(self, number: int) -> bool:
        """Whether the model opens one more call; the end of the turn is its other choice."""
        if not self.tools.parallel or number + 1 == MAX_CALLS or self.left <= 0:
            return False
        more = await self._step(Constraint("regex", "(\n" + CALL_OPEN + ")?"), finish="required")
        return bool(more.text)

    async def _step(self, constraint: Constraint, finish: Any = "required") -> Output:
        output = Output()
        async with aclosing(self._stream(self._next(constraint, finish), output)) as chunks:
            async for _ in chunks:
                pass
        self.ids += state_ids(self.service.tokenizer, output)
        return output

    async def _stream(self, request: GenerateRequest, output: Output) -> AsyncGenerator[Any, None]:
        """Runs one step of the program, counting what it used."""
        async with aclosing(self.service.client.stream(request)) as stream:
            async for chunks in stream:
                for chunk in chunks:
                    output.add(chunk)
                    yield chunk
        used = output.usage
        self.left -= used.completion_tokens
        if self.usage is None:
            self.usage, self.timings = used, output.timings
        else:
            before = self.usage
            self.usage = replace(
                before,
                completion_tokens=before.completion_tokens + used.completion_tokens,
                forced_tokens=before.forced_tokens + used.forced_tokens,
                retractions=before.retractions + used.retractions,
            )
            self.timings = replace(self.timings, e2e=self.timings.e2e + output.timings.e2e)

    def _next(self, constraint: Constraint, finish: Any = "required") -> GenerateRequest:
        """The next constrained step: the draw as the client asked for it, without stops and with what is left of its tokens."""
        self.steps += 1
        params = replace(
            self.request.params,
            n=1,
            max_new_tokens=max(self.left, 0),
            min_new_tokens=0,
            stop=(),
            stop_regex=(),
            stop_token_ids=(),
            ignore_eos=False,
            constraint=constraint,
            finish=finish,
        )
        return replace(self.request, rid=f"{self.request.rid}.{self.steps}", prompt=tuple(self.ids), params=params, logprobs=False, top_logprobs=0)

    def _literal(self, text: str) -> None:
        self.ids += self.service.tokenizer.encode(text, add_special=False)

    def _end(self, finish: FinishReason) -> Delta:
        return Delta(self.index, finish=finish, usage=self.usage, timings=self.timings)


def turns(service: Service, request: GenerateRequest, tools: ToolPlan) -> Sequence[Turn]:
    """One turn for each of the n choices, each with a seed of its own."""
    n, seed = request.params.n, request.params.seed
    return [
        Turn(
            service,
            replace(
                request,
                rid=request.rid if n == 1 else f"{request.rid}-{i}",
                params=replace(request.params, seed=None if seed is None else seed + i),
            ),
            tools,
            i,
        )
        for i in range(n)
    ]
