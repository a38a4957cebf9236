"""The verbs of the language. Each returns data (`ir`); bad arguments raise here, at the caller's line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, wraps
from numbers import Real
from typing import Any, TypeVar, cast

from ..runtime.errors import RequestError, UnsupportedError
from ..runtime.protocol import Constraint
from . import ir, values
from .choices import ChoicesSamplingMethod, token_length_normalized
from .sampling import checked, overrides

Stop = str | Sequence[str] | None
F = TypeVar("F", bound=Callable[..., Any])


PLAIN = frozenset((str, int, float, bool, type, type(None)))  # types of arguments that equal ones can stand in for


def _kept(verb: F) -> F:
    """Nodes never change, so a call with the same arguments may give the same one: a body in a batch says it again and again."""
    known = lru_cache(1024, typed=True)(verb)

    @wraps(verb)
    def call(*args: Any, **kwargs: Any) -> Any:
        plain = PLAIN.issuperset(map(type, args)) and PLAIN.issuperset(map(type, kwargs.values()))
        return known(*args, **kwargs) if plain else verb(*args, **kwargs)

    return cast(F, call)


@_kept
def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: Stop = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: Stop = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: Any = None,
    choices: Sequence[str] | None = None,
    choices_method: ChoicesSamplingMethod | None = None,
    regex: str | None = None,
    json_schema: Any = None,
    *,
    ebnf: str | None = None,
    lark: str | None = None,
    json_object: bool = False,
    whitespace: str | None = None,
    tools: Sequence[Callable[..., Any]] | None = None,
    seed: int | None = None,
    repetition_penalty: float | None = None,
    logit_bias: Mapping[int, float] | None = None,
    no_stop_trim: bool | None = None,
    skip_special_tokens: bool | None = None,
    jump_forward: bool | None = None,
    finish: str | None = None,
    priority: int = 0,
    cache_salt: str = "",
    timeout: float | None = None,
) -> ir.Gen | ir.Select:
    """Text from the model, under `s[name]` once it is there.

    What is None is taken from `run`. At most one of `dtype, choices, regex, json_schema, ebnf, lark, json_object, tools`
    says what the text must look like; with `dtype` and `tools`, `s[name]` is the value and `s.text(name)` its text.
    `json_schema` is a dict, JSON text, pydantic model, dataclass, TypedDict or other type. `finish="required"` makes the
    output complete within its `max_tokens` (so for JSON anyway). `timeout` is in seconds.
    Raises RequestError naming the parameter; ConstraintError where regex or schema is none.
    """
    _check_name(name)
    if choices is not None:
        _only(
            "choices", dtype=dtype, regex=regex, json_schema=json_schema, ebnf=ebnf, lark=lark, json_object=json_object or None, tools=tools
        )
        return select(name, choices, temperature or 0.0, choices_method, seed=seed)
    params = overrides({
        "max_tokens": max_tokens, "min_tokens": min_tokens, "n": n, "stop": stop, "stop_token_ids": stop_token_ids,
        "stop_regex": stop_regex,
        "temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p, "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty, "ignore_eos": ignore_eos, "seed": seed, "repetition_penalty": repetition_penalty,
        "logit_bias": logit_bias, "no_stop_trim": no_stop_trim, "skip_special_tokens": skip_special_tokens, "jump_forward": jump_forward,
        "finish": finish,
    })  # fmt: skip
    constraint, read, offered = _shape(
        dtype, tools, regex=regex, json_schema=json_schema, ebnf=ebnf, lark=lark, json_object=json_object or None
    )
    if whitespace is not None:
        constraint = _with_whitespace(constraint, whitespace)
    logprobs = ir.Logprobs(bool(return_logprob or top_logprobs_num), _whole("logprob_start_len", logprob_start_len, -1, -1),
                           _whole("top_logprobs_num", top_logprobs_num, 0, 0), bool(return_text_in_logprobs))  # fmt: skip
    if not isinstance(cache_salt, str):
        raise RequestError(f"cache_salt={cache_salt!r}: text is needed", field="cache_salt")
    return ir.Gen(
        name, params, constraint, read, logprobs, _whole("priority", priority, 0, None), cache_salt, seconds("timeout", timeout), offered
    )


def gen_as(name: str, dtype: Any, max_tokens: int | None = None, **options: Any) -> ir.Gen:
    """A typed value: int, float, bool, str, Literal, Enum, list[T], dataclass, TypedDict or pydantic model; options as in `gen`."""
    node = gen(name, max_tokens, dtype=dtype, **options)
    assert isinstance(node, ir.Gen)
    return node


def gen_int(
    name: str | None = None, max_tokens: int | None = None, n: int | None = None, stop: Stop = None, *args: Any, **options: Any
) -> ir.Gen:
    """A whole number; `s[name]` is an int."""
    return _typed_gen(int, name, max_tokens, n, stop, args, options)


def gen_string(
    name: str | None = None, max_tokens: int | None = None, n: int | None = None, stop: Stop = None, *args: Any, **options: Any
) -> ir.Gen:
    """A JSON string; `s[name]` is the text between the quotes, unescaped."""
    return _typed_gen(str, name, max_tokens, n, stop, args, options)


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesSamplingMethod | None = None,
    *,
    dtype: Any = None,
    seed: int | None = None,
) -> ir.Select:
    """One of `choices`, by the model's scores of all of them in one pass.

    At temperature 0 the best by `choices_method` (default `token_length_normalized`), above it drawn from the softmax of
    the scores. `get_meta_info(name)` has the whole distribution. `dtype`: a Literal or Enum instead of `choices`.
    Raises RequestError if there is nothing to choose from.
    """
    _check_name(name)
    read = None
    if dtype is not None:
        _only("dtype", choices=choices)
        options = values.options(dtype)
        choices, read = list(options), options.__getitem__
    if choices is None:
        raise RequestError("choices is missing: a list of texts is needed", field="choices")
    method = token_length_normalized if choices_method is None else choices_method
    if not callable(method):
        raise RequestError(f"choices_method={method!r}: a rule such as token_length_normalized is needed", field="choices_method")
    texts = tuple(values.choices_of("choices", choices))
    drawn = None if seed is None else checked("seed", seed)
    return ir.Select(name, texts, checked("temperature", temperature), method, drawn, read)


def system(expr: Any = None) -> ir.Expr:
    """A system message; without an expression only its beginning and end."""
    return message("system", expr)


def user(expr: Any = None) -> ir.Expr:
    """A user's message."""
    return message("user", expr)


def assistant(expr: Any = None) -> ir.Expr:
    """A message of the model, most often with a `gen` inside."""
    return message("assistant", expr)


def system_begin() -> ir.Expr:
    return ir.RoleBegin("system")


def system_end() -> ir.Expr:
    return ir.RoleEnd("system")


def user_begin() -> ir.Expr:
    return ir.RoleBegin("user")


def user_end() -> ir.Expr:
    return ir.RoleEnd("user")


def assistant_begin() -> ir.Expr:
    return ir.RoleBegin("assistant")


def assistant_end() -> ir.Expr:
    return ir.RoleEnd("assistant")


THINKING = {"deepseek-r1": ("<think>", "</think>"), "qwen3": ("<think>", "</think>"), "kimi": ("◁think▷", "◁/think▷")}


def separate_reasoning(expr: Any = None, model_type: str | None = None) -> ir.Expr:
    """`expr` with what each gen writes between the model's thinking marks put into `s[name + "_reasoning_content"]`."""
    marks = THINKING.get((model_type or "deepseek-r1").lower())
    if marks is None:
        raise RequestError(f"model_type={model_type!r}: known are {', '.join(THINKING)}", field="model_type")
    return ir.Seq(tuple(replace(leaf, thinking=marks) if isinstance(leaf, ir.Gen) else leaf for leaf in ir.leaves(expr)))


def image(expr: Any = None) -> ir.Expr:
    """Refused: models here read text."""
    raise UnsupportedError("image: the models that run here read text only", field="image")


def video(path: Any = None, num_frames: Any = None) -> ir.Expr:
    """Refused: models here read text."""
    raise UnsupportedError("video: the models that run here read text only", field="video")


def seconds(name: str, value: float | None) -> float | None:
    """`value` as a positive number of seconds. Raises RequestError."""
    if value is None:
        return None
    if not isinstance(value, Real) or isinstance(value, bool) or not value > 0:
        raise RequestError(f"{name}={value!r}: a positive number of seconds is needed", field=name)
    return float(value)


def message(role: str, expr: Any) -> ir.Expr:
    """A message of `role`. Raises RequestError if there is another one inside."""
    body = ir.Text("") if expr is None else ir.expr(expr)
    for leaf in ir.leaves(body):
        if isinstance(leaf, (ir.RoleBegin, ir.RoleEnd)):
            raise RequestError(f"a {leaf.role} message inside a {role} message: roles do not nest", field="role")
    return ir.Role(role, body)


def _shape(dtype: Any, tools: Any, **kinds: Any) -> tuple[Constraint | None, Callable[[str], Any] | None, tuple[ir.Tool, ...]]:
    """The one constraint that was asked for, the reader of its text, and the tools behind it."""
    _only(None, dtype=dtype, tools=tools, **kinds)
    if dtype is not None:
        return (*values.typed(dtype), ())
    if tools is not None:
        offered = tuple(values.tool(function) for function in tools)
        if not offered:
            raise RequestError("tools is empty: there is nothing to call", field="tools")
        return (*values.tools_constraint(offered), offered)
    for kind, source in kinds.items():
        if source is not None:
            return values.constraint_of(kind, source), None, ()
    return None, None, ()


def _only(first: str | None, **given: Any) -> None:
    names = [name for name, value in given.items() if value is not None]
    names = [first, *names] if first else names
    if len(names) > 1:
        raise RequestError(f"{' and '.join(names)} are given at once; an output has one form", field=names[1])


def _with_whitespace(constraint: Constraint | None, style: str) -> Constraint:
    if constraint is None or not constraint.kind.startswith("json"):
        raise RequestError("whitespace: only JSON output has a whitespace style", field="whitespace")
    if style not in ("json", "compact", "pretty", "flexible"):
        raise RequestError(f'whitespace={style!r}: "json", "compact", "pretty" or "flexible"', field="whitespace")
    return replace(constraint, whitespace=style)


def _check_name(name: Any) -> None:
    if name is not None and not (isinstance(name, str) and name):
        raise RequestError(f"name={name!r}: a variable's name is non-empty text", field="name")


def _whole(name: str, value: Any, default: int, least: int | None) -> int:
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
        raise RequestError(f"{name}={value!r}: a whole number{f' of at least {least}' if least is not None else ''} is needed", field=name)
    return value


ORDER = ("stop_token_ids", "stop_regex", "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "ignore_eos",
         "return_logprob", "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs")  # fmt: skip


def _typed_gen(dtype: Any, name: Any, max_tokens: Any, n: Any, stop: Any, args: tuple[Any, ...], options: dict[str, Any]) -> ir.Gen:
    if len(args) > len(ORDER):
        raise TypeError(f"too many positional arguments: after stop come {', '.join(ORDER)}")
    for key, value in zip(ORDER, args, strict=False):
        if key in options:
            raise TypeError(f"{key} is given twice")
        options[key] = value
    node = gen(name, max_tokens, n=n, stop=stop, dtype=dtype, **options)
    assert isinstance(node, ir.Gen)
    return node
