"""Bodies: from bytes to a checked model, or a RequestError that names the field."""

from __future__ import annotations

import asyncio
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
import pydantic
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from ..errors import RequestError, UnsupportedError

LARGE = 64 * 1024  # bytes; a larger body is parsed on a thread

_decode = msgspec.json.Decoder().decode
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Wire(BaseModel):
    """A body or a part of one. Unknown fields are refused; those in `absent` are known elsewhere and missing here.

    `absent` maps a field's name to the values at which it changes nothing and may be sent all the same."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    absent: ClassVar[dict[str, tuple[Any, ...]]] = {}


# lists whose first wrong item is enough: a long list of the wrong kind must not become as many errors
Ids = Annotated[list[int], Field(fail_fast=True)]
Strings = Annotated[list[str], Field(fail_fast=True)]
IdLists = Annotated[list[Ids], Field(fail_fast=True)]

M = TypeVar("M", bound=Wire)


async def read(request: Request, model: type[M]) -> M:
    """The request's body as `model`. Raises RequestError; malformed JSON names no field."""
    body = await request.body()
    if len(body) > LARGE:
        service = request.app.state.service
        return await asyncio.to_thread(_parse_large, body, model, service.config.max_prompts, service.context_length)
    return parse(body, model)


def _parse_large(body: bytes, model: type[M], prompts: int, context: int) -> M:
    """`parse` on a thread, but decoding holds the interpreter: what cannot be right is refused before it is taken apart.

    No field can need more items than all prompts may have ids, nor a chat more messages than the context has tokens."""
    try:
        fields = _decode_raw(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return parse(body, model)  # says what is wrong
    for name, value in fields.items():
        if name not in model.model_fields and name not in model.absent:
            raise _unknown(name, model)
        raw = bytes(value)
        if raw[:1] == b'"':
            continue
        if raw.count(b",") >= prompts * context:
            raise RequestError(f"{name}: more than {prompts * context} items, which no request here can have", field=name)
        if raw.count(b'"role"') > context:  # inside of a string it would be written \"role\"
            raise RequestError(f"{name}: more messages than the context has tokens ({context})", field=name)
    return parse(body, model)


def parse(body: bytes, model: type[M]) -> M:
    try:
        data = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error or 'nested too deeply'}") from None
    if not isinstance(data, dict):
        raise RequestError(f"the body must be a JSON object, not {type(data).__name__}")
    return check(data, model)


def check(data: dict[str, Any], model: type[M], where: str = "") -> M:
    """`data` as `model`. Raises RequestError or UnsupportedError with `where` + the path of the field."""
    data = dict(data)
    for name in [name for name in data if name in model.absent]:
        value = data.pop(name)
        if value is not None and value not in model.absent[name]:
            raise UnsupportedError(f"{where}{name} is not supported here", field=where + name)
    try:
        body = model.model_validate(data)
    except pydantic.ValidationError as error:
        raise _refusal(error, model, data, where) from None
    _refuse_wide(body, where)
    return body


def _refuse_wide(body: Wire, where: str) -> None:
    """Whole numbers of more than 64 bits mean nothing in any field, and no frame between the processes holds them."""
    for name in body.model_fields_set:
        value = getattr(body, name)
        if isinstance(value, Wire):
            _refuse_wide(value, f"{where}{name}.")
        elif _is_wide(value):
            raise RequestError(f"{where}{name}: a whole number of more than 64 bits", field=where + name)


def _is_wide(value: Any) -> bool:
    """Such a number, or a list that holds one."""
    if type(value) is list:
        return any(map(_is_wide, value))
    return type(value) is int and not -(1 << 63) <= value < 1 << 64


def _refusal(error: pydantic.ValidationError, model: type[Wire], data: dict[str, Any], where: str) -> RequestError:
    errors = error.errors(include_url=False, include_context=False)
    first = max(errors, key=lambda item: len(item["loc"]))  # in a union, the branch that got furthest
    path = _path(first["loc"], data, missing=first["type"] == "missing")
    message = first["msg"]
    if first["type"] == "extra_forbidden":
        if len(first["loc"]) == 1:
            return _unknown(path, model, where)
        message = f"unknown field {where}{path}"
    else:
        message = f"{where}{path}: {message[:1].lower()}{message[1:]}"
        if isinstance(first["input"], (str, int, float, bool, type(None))):
            message += f" (got {str(first['input'])[:80]!r})" if isinstance(first["input"], str) else f" (got {first['input']})"
    return RequestError(message, field=where + path)


def _unknown(name: str, model: type[Wire], where: str = "") -> RequestError:
    near = get_close_matches(name, model.model_fields, 1)
    return RequestError(f"unknown field {where}{name[:80]}" + (f"; did you mean {near[0]}?" if near else ""), field=where + name[:80])


def _path(parts: tuple[int | str, ...], data: Any, *, missing: bool) -> str:
    """`messages[0].content` from a location in `data`; the labels that pydantic adds for branches of a union are not keys of it."""
    path = ""
    for place, part in enumerate(parts):
        if isinstance(part, int):
            path += f"[{part}]"
            data = data[part] if isinstance(data, list) and part < len(data) else None
        elif isinstance(data, dict) and (part in data or (missing and place == len(parts) - 1)):
            path += f".{part}" if path else part
            data = data.get(part)
    return path


def schema(model: type[Wire]) -> dict[str, Any]:
    """`openapi_extra` for a route that reads its own body."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _inline(model.model_json_schema())}}}}


def _inline(document: dict[str, Any]) -> dict[str, Any]:
    """The schema with its local references written out: OpenAPI would look for them elsewhere."""
    definitions = document.pop("$defs", {})

    def expand(node: Any) -> Any:
        if isinstance(node, dict):
            if "$ref" in node:
                return expand(definitions[node["$ref"].rsplit("/", 1)[-1]])
            if "discriminator" in node:
                node = {key: value for key, value in node.items() if key != "discriminator"}
            return {key: expand(value) for key, value in node.items()}
        return [expand(item) for item in node] if isinstance(node, list) else node

    return expand(document)
