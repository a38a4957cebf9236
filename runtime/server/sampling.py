"""`sampling_params` by SGLang's names, and the checks that both families of routes share."""

from __future__ import annotations

import json
from typing import Any, ClassVar, Literal

from pydantic import Field

from ..errors import RequestError
from ..protocol import Constraint, SamplingParams
from . import wire
from .wire import Ids, Strings, Wire

Number = float | int
OFF: tuple[Any, ...] = (False, "", [], {})


class Sampling(Wire):
    """`sampling_params`, by SGLang's names and defaults. One kind of constraint at most."""

    absent: ClassVar[dict[str, tuple[Any, ...]]] = {
        "structural_tag": OFF,
        "beam_width": (1,),
        "custom_params": OFF,
        "watermark": OFF,
        "stream_interval": (1,),
        "spaces_between_special_tokens": (True,),
    }

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: Number = 1.0
    top_p: Number = 1.0
    top_k: int = -1
    min_p: Number = 0.0
    frequency_penalty: Number = 0.0
    presence_penalty: Number = 0.0
    repetition_penalty: Number = 1.0
    logit_bias: dict[str, Number] | None = None
    seed: int | None = None
    sampling_seed: int | None = Field(None, description="SGLang's name of seed")
    n: int = 1
    stop: str | Strings | None = None
    stop_token_ids: Ids | None = None
    stop_regex: str | Strings | None = None
    ignore_eos: bool = False
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    json_schema: str | dict[str, Any] | bool | None = None
    regex: str | None = None
    choice: Strings | None = None
    ebnf: str | None = None
    lark: str | None = None
    json_object: bool = False
    whitespace: Literal["json", "compact", "pretty", "flexible"] = "json"
    lenient: bool = False
    finish: Literal["required", "free"] | None = None
    jump_forward: bool | None = None


_SCALARS = (
    "max_new_tokens",
    "min_new_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "n",
    "ignore_eos",
    "no_stop_trim",
    "skip_special_tokens",
    "finish",
    "jump_forward",
)


def sampling(data: dict[str, Any], where: str, max_n: int) -> SamplingParams:
    """SamplingParams from a dict of SGLang's names. Raises RequestError; ranges are checked by the engine too."""
    given = wire.check({key: value for key, value in data.items() if value is not None}, Sampling, where)
    if not 1 <= given.n <= max_n:
        raise RequestError(f"{where}n={given.n}: 1 to {max_n} outputs a prompt", field=where + "n")
    if given.seed is not None and given.sampling_seed is not None:
        raise RequestError("seed and sampling_seed are the same thing; give one", field=where + "sampling_seed")
    seed = given.seed if given.seed is not None else given.sampling_seed
    checked_seed(seed, where + "seed")
    return SamplingParams(
        **{name: getattr(given, name) for name in _SCALARS},
        seed=seed,
        logit_bias=bias(given.logit_bias, where + "logit_bias"),
        stop=strings(given.stop, where + "stop", 32),
        stop_regex=strings(given.stop_regex, where + "stop_regex", 32),
        stop_token_ids=tuple(given.stop_token_ids or ()),
        constraint=constraint(given, where),
    )


def checked_seed(seed: int | None, where: str) -> None:
    if seed is not None and not -(2**63) <= seed < 2**63:
        raise RequestError(f"{where}: a whole number of 64 bits is needed", field=where)


def bias(given: dict[str, Number] | None, where: str) -> dict[int, float]:
    """Ids as numbers, values in [-100, 100]. Whether the ids are in the vocabulary is for the engine to say."""
    result = {}
    for key, value in (given or {}).items():
        if not key.lstrip("-").isdecimal() or not key.isascii():
            raise RequestError(f"{where}: the key {key[:40]!r} is not a token id", field=where)
        if not -100 <= value <= 100 or int(key) < 0 or len(key) > 10:
            raise RequestError(f"{where}[{key[:40]}]={value}: a token id of the vocabulary and a value from -100 to 100 are needed", field=where)
        result[int(key)] = float(value)
    return result


def strings(given: str | list[str] | None, where: str, most: int) -> tuple[str, ...]:
    items = [given] if isinstance(given, str) else given or []
    if len(items) > most:
        raise RequestError(f"{where}: {len(items)} strings, at most {most}", field=where)
    if any(not item for item in items):
        raise RequestError(f"{where}: a string is empty", field=where)
    return tuple(items)


def constraint(given: Any, where: str = "") -> Constraint | None:
    """The one constraint among json_schema, regex, choice, ebnf, lark and json_object; None without any."""
    found: list[tuple[str, str]] = []
    if given.json_schema is not None and given.json_schema != "":
        schema = given.json_schema
        found.append(("json_schema", schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)))
    if given.choice is not None:
        found.append(("choice", json.dumps(given.choice, ensure_ascii=False)))
    found += [(kind, getattr(given, kind)) for kind in ("regex", "ebnf", "lark") if getattr(given, kind)]
    if getattr(given, "json_object", False):
        found.append(("json_object", ""))
    if len(found) > 1:
        names = " and ".join(kind for kind, _ in found)
        raise RequestError(f"{where}{names}: only one constraint can be given", field=where + found[1][0])
    if not found:
        return None
    kind, source = found[0]
    return Constraint(kind, source, getattr(given, "whitespace", "json"), getattr(given, "lenient", False))  # type: ignore[arg-type]
