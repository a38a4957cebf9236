"""Python types as JSON Schema: what `json_schema=` takes beside a dict and JSON text."""
from __future__ import annotations

import json
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

from .errors import GrammarError

_SCALARS: dict[object, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null", None: "null"}


def schema_of(source: Any) -> dict[str, Any] | bool:
    """The JSON Schema that `source` stands for: a schema (dict, bool, JSON text), or a Python type.

    Types: int, float, bool, str, None, list[...] and the like, Literal, Enum, dataclasses, TypedDict, pydantic models and TypeAdapters, and
    functions, whose arguments become an object. pydantic is imported for what is not among the first. Raises GrammarError."""
    if isinstance(source, dict | bool):
        return source
    if isinstance(source, str):
        return _parsed(source)
    try:
        if source in _SCALARS:
            return {"type": _SCALARS[source]}
    except TypeError:
        pass  # not hashable, so not a type of ours
    if hasattr(source, "model_json_schema"):  # a pydantic model
        return _asked(source, source.model_json_schema)
    if hasattr(source, "json_schema") and hasattr(source, "validate_json"):  # a TypeAdapter
        return _asked(source, source.json_schema)
    if not (isinstance(source, type) or callable(source) or hasattr(source, "__origin__") or hasattr(source, "__args__")):
        raise GrammarError(f"not a schema: a dict, JSON text or a Python type is due, not {source!r}")
    from pydantic import TypeAdapter

    return _asked(source, lambda: TypeAdapter(_modern(source)).json_schema())


def _modern(source: Any) -> Any:
    """`source` with each typing.TypedDict in it as one of typing_extensions, which is all that pydantic takes before Python 3.12."""
    if sys.version_info >= (3, 12):
        return source
    if typing.is_typeddict(source) and type(source).__module__ == "typing":
        import typing_extensions

        fields = {}
        for name, hint in typing.get_type_hints(source, include_extras=True).items():
            wrap = typing.get_origin(hint)
            if wrap in (typing.Required, typing.NotRequired):  # __required_keys__ misses these where annotations are text
                (hint,) = typing.get_args(hint)
            else:
                wrap = typing.Required if name in source.__required_keys__ else typing.NotRequired
            fields[name] = wrap[_modern(hint)]
        return typing_extensions.TypedDict(source.__name__, fields)  # type: ignore[operator]
    origin, args = typing.get_origin(source), typing.get_args(source)
    if not args or origin in (typing.Literal, typing.Annotated) or not any(isinstance(arg, type) or typing.get_args(arg) for arg in args):
        return source
    modern = tuple(_modern(arg) for arg in args)
    if origin in (typing.Union, types.UnionType):
        return typing.Union[modern]  # noqa: UP007 (the members are not known here)
    return origin[modern] if origin is not None else source


def _parsed(text: str) -> dict[str, Any] | bool:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the schema is not JSON: {error or 'nested too deep'}") from error
    if not isinstance(schema, dict | bool):
        raise GrammarError(f"not a schema: an object or a boolean is due, not {text[:60]}")
    return schema


def _asked(source: Any, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What pydantic answers; its refusals become ours."""
    from pydantic import PydanticUserError

    try:
        return ask()
    except (PydanticUserError, NameError, TypeError, RecursionError) as error:
        name = getattr(source, "__name__", source)
        raise GrammarError(f"{name!r} has no JSON Schema: {str(error).splitlines()[0]}") from error
