"""Sampling parameters by name: checked where the user wrote them, merged with a run's defaults, read from dicts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any

from ..runtime.errors import RequestError, UnsupportedError
from ..runtime.protocol import Constraint, SamplingParams

KNOWN = frozenset(f.name for f in fields(SamplingParams))
ALIASES = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "sampling_seed": "seed"}
CONSTRAINTS = ("json_schema", "regex", "choice", "json_object", "ebnf", "lark")
ABSENT = {
    "structural_tag": "use json_schema or lark",
    "beam_width": "use n, or fork and join(best)",
    "custom_params": "there are no custom logit processors; use logit_bias",
    "stream_interval": "every token is streamed as it comes",
    "watermark": "output is not watermarked",
    "lora_path": "adapters are not supported",
}
#                          least, most, what it must be
WHOLE = {"max_new_tokens": (0, None), "min_new_tokens": (0, None), "n": (1, 256)}
REAL = {
    "temperature": (0.0, None),
    "min_p": (0.0, 1.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "top_p": (0.0, 1.0),
    "repetition_penalty": (0.0, 2.0),
}
OPEN_BELOW = ("top_p", "repetition_penalty")  # zero itself is out of range
FLAGS = ("ignore_eos", "no_stop_trim", "skip_special_tokens", "jump_forward")


class Defaults(dict[str, Any]):
    """A run's parameters, and what a gen gets that has none of its own."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.params = SamplingParams(**values)


def overrides(named: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters among `named` that are set (not None), under their `SamplingParams` names and checked.

    Raises RequestError naming the parameter as the user spelled it.
    """
    out = {ALIASES.get(name, name): checked(name, value) for name, value in named.items() if value is not None}
    if out.get("min_new_tokens", 0) > out.get("max_new_tokens", math.inf):
        raise RequestError(f"min_tokens={out['min_new_tokens']} is more than max_tokens={out['max_new_tokens']}", field="min_tokens")
    return out


def merged(defaults: Mapping[str, Any], own: Mapping[str, Any], constraint: Constraint | None = None) -> SamplingParams:
    """A gen's parameters: its own, else the run's, else those of `SamplingParams`."""
    if constraint is None and not own and isinstance(defaults, Defaults):
        return defaults.params
    return SamplingParams(**{**defaults, **own}, constraint=constraint)


def checked(name: str, value: Any) -> Any:
    """`value` in the form `SamplingParams` keeps. Raises RequestError if it is of the wrong kind or out of range."""
    field = ALIASES.get(name, name)
    if field in WHOLE:
        return _number(name, value, *WHOLE[field], Integral)
    if field in REAL:
        number = _number(name, value, *REAL[field], Real)
        if field in OPEN_BELOW and number == 0:
            raise RequestError(f"{name}=0 is out of range: more than 0 is needed", field=name)
        return float(number)
    if field == "top_k":
        if isinstance(value, Integral) and not isinstance(value, bool) and (int(value) == -1 or int(value) >= 1):
            return int(value)
        raise RequestError(f"top_k={value!r}: at least 1, or -1 for all tokens", field=name)
    if field == "seed":
        return int(_number(name, value, -(2**63), 2**64 - 1, Integral))
    if field in ("stop", "stop_regex"):
        return _texts(name, value)
    if field == "stop_token_ids":
        return tuple(int(_number(name, i, 0, None, Integral)) for i in _items(name, value))
    if field in FLAGS:
        if not isinstance(value, bool):
            raise RequestError(f"{name}={value!r}: True or False is needed", field=name)
        return value
    if field == "finish":
        if value not in ("required", "free"):
            raise RequestError(f'finish={value!r}: "required" (complete within its tokens) or "free"', field=name)
        return value
    if field == "logit_bias":
        return _bias(name, value)
    raise RequestError(_unknown(name), field=name)


def from_dict(given: Mapping[str, Any] | None) -> SamplingParams:
    """A `sampling_params` dict, as SGLang's `/generate` and `Engine.generate` take it.

    Raises RequestError for an unknown key, a bad value or two constraints at once, UnsupportedError for a key that is
    known elsewhere and not to be had here.
    """
    named: dict[str, Any] = {}
    constraints: list[Constraint] = []
    style: dict[str, Any] = {}
    for key, value in (given or {}).items():
        if value is None or (key in CONSTRAINTS and (value == "" or value is False)):
            continue
        if key in CONSTRAINTS:
            from .values import constraint_of

            constraints.append(constraint_of(key, value))
        elif key in ("whitespace", "lenient"):
            style[key] = value
        elif key == "spaces_between_special_tokens":
            if value is not True:
                raise UnsupportedError("spaces_between_special_tokens=False: text is what the bytes of the tokens say", field=key)
        elif key in ABSENT:
            raise UnsupportedError(f"{key} is not supported: {ABSENT[key]}", field=key)
        else:
            named[key] = value
    if len(constraints) > 1:
        kinds = " and ".join(c.kind for c in constraints)
        raise RequestError(f"{kinds} are given at once; an output has one constraint", field=constraints[1].kind)
    constraint = replace(constraints[0], **style) if constraints else None
    return merged({}, overrides(named), constraint)


def to_dict(params: SamplingParams) -> dict[str, Any]:
    """The `sampling_params` dict that `from_dict` reads back: what differs from the defaults, as JSON can hold it."""
    out: dict[str, Any] = {}
    for field in fields(SamplingParams):
        value = getattr(params, field.name)
        if field.name in ("constraint", "logit_bias") or value is None or value == field.default:
            continue
        out[field.name] = list(value) if isinstance(value, tuple) else value
    if params.logit_bias:
        out["logit_bias"] = {str(i): bias for i, bias in params.logit_bias.items()}
    constraint = params.constraint
    if constraint is not None:
        source: Any = constraint.source
        if constraint.kind == "json_object":
            source = True
        elif constraint.kind == "choice":
            source = json.loads(source)
        out[constraint.kind] = source
        if constraint.kind.startswith("json"):
            out["whitespace"], out["lenient"] = constraint.whitespace, constraint.lenient
    return out


def _number(name: str, value: Any, low: float | None, high: float | None, kind: type) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool) or not math.isfinite(value):  # type: ignore[arg-type]
        what = "a whole number" if kind is Integral else "a finite number"
        raise RequestError(f"{name}={value!r}: {what} is needed", field=name)
    if (low is not None and value < low) or (high is not None and value > high):  # type: ignore[operator]
        bounds = f"at least {low}" if high is None else f"from {low} to {high}"
        raise RequestError(f"{name}={value!r} is out of range: {bounds}", field=name)
    return value


def _items(name: str, value: Any) -> Iterable[Any]:
    if isinstance(value, (list, tuple, set, frozenset)):
        return value
    return (value,)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    texts = tuple(_items(name, value))
    for text in texts:
        if not isinstance(text, str):
            raise RequestError(f"{name}: text is needed, not {text!r}", field=name)
    if len(texts) > 32:
        raise RequestError(f"{name}: {len(texts)} are too many, at most 32", field=name)
    return tuple(text for text in texts if text)  # an empty stop is no stop


def _bias(name: str, value: Any) -> Mapping[int, float]:
    if not isinstance(value, Mapping):
        raise RequestError(f"{name}: a dict of token id to number is needed, not {type(value).__name__}", field=name)
    out = {}
    for key, bias in value.items():
        try:
            token = int(key)
        except (TypeError, ValueError):
            raise RequestError(f"{name}: {key!r} is no token id", field=name) from None
        out[token] = float(_number(name, bias, None, None, Real))
    return MappingProxyType(out)


def _unknown(name: str) -> str:
    names = sorted(KNOWN - {"constraint"} | set(ALIASES) | set(CONSTRAINTS))
    near = get_close_matches(name, names, 1)
    return f"unknown sampling parameter {name!r}" + (f": did you mean {near[0]!r}?" if near else f"; known: {', '.join(names)}")
