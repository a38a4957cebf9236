"""Bodies of the OpenAI family, and what they share: sampling fields, extensions, limits."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ..config import ServerConfig
from ..errors import RequestError, UnsupportedError
from ..protocol import Constraint, SamplingParams
from .sampling import OFF, Number, bias, checked_seed, constraint, strings
from .wire import IdLists, Ids, Strings, Wire

Unit = Annotated[float | int, Field(ge=0, le=1)]
Penalty = Annotated[float | int, Field(ge=-2, le=2)]
Seconds = Annotated[float | int, Field(gt=0)]
Milliseconds = Seconds
# known elsewhere and not to be had here; sent with these values they change nothing
_NEVER = [
    "structural_tag",
    "lora_path",
    "session_id",
    "session_params",
    "custom_logit_processor",
    "return_hidden_states",
    "return_token_ids",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "store",
    "background",
    "reasoning_effort",
    "prediction",
    "audio",
    "moderation",
    "web_search_options",
    "verbosity",
]
ABSENT: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(_NEVER, OFF),
    "service_tier": ("auto", "default"),
    "modalities": (["text"],),
}


class StreamOptions(Wire):
    absent: ClassVar[dict[str, tuple[Any, ...]]] = {"include_obfuscation": (False,)}
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: Literal[False] | None = None


class Shared(Wire):
    """Fields of completions and chat alike. `user`, `metadata`, `safety_identifier` and `prompt_cache_key` label the request in the log."""

    absent: ClassVar[dict[str, tuple[Any, ...]]] = ABSENT

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float | int, Field(ge=0, le=2)] | None = None
    top_p: Unit | None = None
    stop: str | Strings | None = None
    seed: int | None = None
    logit_bias: dict[str, Number] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    # extensions, through the client's extra_body
    json_schema: str | dict[str, Any] | bool | None = None
    regex: str | None = None
    choice: Strings | None = None
    lark: str | None = None
    ebnf: str | None = None
    whitespace: Literal["json", "compact", "pretty", "flexible"] = "json"
    top_k: int | None = None
    min_p: Unit | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    repetition_penalty: Annotated[float | int, Field(gt=0, le=2)] | None = None
    stop_token_ids: Ids | None = None
    stop_regex: str | Strings | None = None
    no_stop_trim: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    jump_forward: bool | None = None
    finish: Literal["required", "free"] | None = None
    priority: int | None = None
    cache_salt: str | None = None
    tenant: str | None = None
    deadline: Seconds | None = None
    ttft_target: Milliseconds | None = None
    tpot_target: Milliseconds | None = None
    rid: str | None = None


class CompletionBody(Shared):
    """The body of POST /v1/completions."""

    absent: ClassVar[dict[str, tuple[Any, ...]]] = ABSENT | {"suffix": ("",)}

    prompt: str | Strings | Ids | IdLists
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
    response_format: dict[str, Any] | None = None


class FunctionCall(Wire):
    name: str
    arguments: str


class ToolCall(Wire):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None


class Part(Wire):
    """A piece of a message's content. Only text is understood here."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: Any = None
    input_audio: Any = None
    file: Any = None
    video_url: Any = None
    audio_url: Any = None


Content = str | list[Part]


class SystemMessage(Wire):
    role: Literal["system", "developer"]
    content: Content
    name: str | None = None


class UserMessage(Wire):
    role: Literal["user"]
    content: Content
    name: str | None = None


class AssistantMessage(Wire):
    absent: ClassVar[dict[str, tuple[Any, ...]]] = {}
    role: Literal["assistant"]
    content: Content | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    audio: None = None
    function_call: None = None
    annotations: list[Any] | None = None
    reasoning_content: str | None = None


class ToolMessage(Wire):
    role: Literal["tool"]
    content: Content
    tool_call_id: str
    name: str | None = None


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class FunctionDefinition(Wire):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | bool | None = None
    strict: bool | None = None


class Tool(Wire):
    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Wire):
    name: str


class NamedTool(Wire):
    type: Literal["function"]
    function: NamedFunction


class ChatBody(Shared):
    """The body of POST /v1/chat/completions."""

    absent: ClassVar[dict[str, tuple[Any, ...]]] = ABSENT | {
        "functions": OFF,
        "function_call": OFF,
        "input_ids": OFF,
        "separate_reasoning": (True, False),
        "stream_reasoning": (True, False),
    }

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: dict[str, Any] | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class JsonSchemaFormat(Wire):
    """`response_format.json_schema`. `schema` may also be `true`, any JSON."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    schema_: Any = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


def response_format(given: dict[str, Any] | None, where: str = "response_format") -> Constraint | None:
    """The constraint that a response_format asks for. Raises RequestError."""
    import json

    from . import wire

    if given is None:
        return None
    kind = given.get("type")
    if kind in ("text", "json_object"):
        if extra := sorted(given.keys() - {"type"}):
            raise RequestError(f"{where}.{extra[0]}: unknown field for type {kind!r}", field=f"{where}.{extra[0]}")
        return Constraint("json_object", "") if kind == "json_object" else None
    if kind != "json_schema":
        raise RequestError(f"{where}.type: choose text, json_object or json_schema", field=f"{where}.type")
    if extra := sorted(given.keys() - {"type", "json_schema"}):
        raise RequestError(f"{where}.{extra[0]}: unknown field", field=f"{where}.{extra[0]}")
    inner = given.get("json_schema")
    if not isinstance(inner, dict):
        raise RequestError(f"{where}.json_schema: an object with name and schema is needed", field=f"{where}.json_schema")
    schema = wire.check(inner, JsonSchemaFormat, f"{where}.json_schema.").schema_
    if not isinstance(schema, (dict, bool)):
        raise RequestError(f"{where}.json_schema.schema: a JSON Schema is an object or a boolean", field=f"{where}.json_schema.schema")
    return Constraint("json_schema", json.dumps(schema, ensure_ascii=False))


def limits(body: Shared, config: ServerConfig) -> int:
    """Checks what the models cannot say; how many outputs a prompt has."""
    n = body.n or 1
    if n > config.max_n:
        raise RequestError(f"n={n}: at most {config.max_n} outputs a prompt", field="n")
    if body.top_k is not None and body.top_k != -1 and body.top_k < 1:
        raise RequestError(f"top_k={body.top_k}: at least 1 is needed, or -1 for all", field="top_k")
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options is only allowed with stream=true", field="stream_options")
    checked_seed(body.seed, "seed")
    return n


def params(body: Shared, config: ServerConfig, *, max_tokens: int, constrained: Constraint | None) -> SamplingParams:
    """SamplingParams of a body. `constrained` is what its response_format asks for; an extension may ask instead."""
    n = limits(body, config)
    extension = constraint(body)
    if constrained is not None and extension is not None:
        raise RequestError(f"response_format and {extension.kind}: only one constraint can be given", field=extension.kind)
    chosen = constrained or extension
    if chosen is not None and body.whitespace != "json":
        chosen = Constraint(chosen.kind, chosen.source, body.whitespace)

    def some(value: Any, default: Any) -> Any:
        return default if value is None else value

    return SamplingParams(
        max_new_tokens=max_tokens,
        min_new_tokens=some(body.min_tokens, 0),
        temperature=some(body.temperature, 1.0),
        top_p=max(some(body.top_p, 1.0), 1e-9),  # 0 is OpenAI's word for: only the likeliest
        top_k=some(body.top_k, -1),
        min_p=some(body.min_p, 0.0),
        frequency_penalty=some(body.frequency_penalty, 0.0),
        presence_penalty=some(body.presence_penalty, 0.0),
        repetition_penalty=some(body.repetition_penalty, 1.0),
        logit_bias=bias(body.logit_bias, "logit_bias"),
        seed=body.seed,
        n=n,
        stop=strings(body.stop, "stop", 4),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        stop_regex=strings(body.stop_regex, "stop_regex", 4),
        ignore_eos=bool(body.ignore_eos),
        no_stop_trim=bool(body.no_stop_trim),
        skip_special_tokens=some(body.skip_special_tokens, True),
        constraint=chosen,
        finish=body.finish,
        jump_forward=body.jump_forward,
    )


# names of the engine's fields -> names of these bodies
FIELD_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "top_logprobs_num": "top_logprobs"}
FORMAT_KINDS = {"json_schema", "json_object"}


def renamed(error: Exception, body: Any, prompt_field: str) -> Exception:
    """The same error with the field as this family calls it."""
    if not isinstance(error, (RequestError, UnsupportedError)) or error.field is None:
        return error
    field = error.field
    if field == "prompt":
        field = prompt_field
    elif field == "max_new_tokens" and getattr(body, "max_completion_tokens", None) is not None:
        field = "max_completion_tokens"
    elif field in FORMAT_KINDS and getattr(body, "response_format", None) is not None:
        field = "response_format"
    elif field == "top_logprobs_num" and isinstance(body, CompletionBody):
        field = "logprobs"
    error.field = FIELD_NAMES.get(field, field)
    return error
