"""The command line of `ramet serve`: one option a field of EngineConfig and ServerConfig, also from RAMET_* and a TOML file."""

from __future__ import annotations

import inspect
import sys
import tomllib
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_type_hints

import typer

from ..config import EngineConfig, ServerConfig
from ..errors import ConfigError

MODEL, CACHE, SCHEDULING = "The model", "Memory and cache", "Scheduling and decoding"
ADDRESS, LIMITS, LIFE, LOGS = "Address and access", "Limits of one request", "Streams, start and end", "Logs"

# field -> panel of the help, its text
HELP = {
    "model_path": (MODEL, "A known name, a folder, a .gguf file, or a hub id."),
    "tokenizer_path": (MODEL, "A folder or file with the tokenizer, when it is not beside the model."),
    "load_format": (MODEL, "auto, or dummy: random weights of the model's shape."),
    "dtype": (MODEL, "auto, float32, bfloat16 or float16."),
    "device": (MODEL, "auto, cpu or cuda."),
    "kernels": (MODEL, "auto, reference, cpu or triton."),
    "threads": (MODEL, "CPU threads of the engine; default: the cores it may use."),
    "tensor_parallel_size": (MODEL, "Processes that compute the model together: a GPU each, or on a CPU a part of the threads."),
    "chat_template": (MODEL, "Jinja text, or a file of it; default: the tokenizer's own."),
    "trust_remote_code": (MODEL, "Always refused: no code from a model's folder is run."),
    "served_model_name": (MODEL, "The name that clients use; default: the model's path."),
    "context_length": (CACHE, "Tokens of one prompt and its answer; default: the model's."),
    "max_total_tokens": (CACHE, "KV slots of the pool; default: from free memory."),
    "disable_radix_cache": (CACHE, "Compute every prompt anew."),
    "eviction_policy": (CACHE, "Which cached prefixes give way first: lru, lfu, slru or cost-aware."),
    "cache_dir": (CACHE, "A folder where KV is kept over restarts; what is evicted goes there too."),
    "cache_dir_bytes": (CACHE, "Bytes of it that one model may take."),
    "host_cache_bytes": (CACHE, "Bytes of host memory for evicted KV; 0: none."),
    "max_running_requests": (SCHEDULING, "Requests computed at a time."),
    "max_queued_requests": (SCHEDULING, "Requests that may wait; more get 503."),
    "chunked_prefill_size": (SCHEDULING, "Tokens of one step, decode rows included; default: 512, fewer beside streams."),
    "schedule_policy": (SCHEDULING, "Who is next: lpm, fcfs, dfs, priority or shortest; higher priorities first under each."),
    "schedule_conservativeness": (SCHEDULING, "More: fewer requests at a time, fewer that give way when answers are long."),
    "tpot_target": (SCHEDULING, "Milliseconds between the tokens of a stream, kept by smaller steps and fewer streams."),
    "jump_forward": (SCHEDULING, "Append text that a grammar forces without computing it token by token."),
    "random_seed": (SCHEDULING, "Makes runs with requests that bring no seed repeat."),
    "host": (ADDRESS, "Address to listen on."),
    "port": (ADDRESS, "Port to listen on; 0: a free one."),
    "api_key": (ADDRESS, "Asked for on every route but /health. Better given as RAMET_API_KEY: command lines can be seen."),
    "public_page": (ADDRESS, "Serve the page's own files without the key; its data still needs it."),
    "cors_origins": (ADDRESS, "An origin that browsers may call from; repeat for several."),
    "allow_request_templates": (ADDRESS, "Let requests bring chat templates."),
    "max_body_bytes": (LIMITS, "Bytes of a body; more get 413."),
    "max_prompts": (LIMITS, "Prompts in one body."),
    "max_n": (LIMITS, "Outputs a prompt."),
    "body_timeout": (LIMITS, "Seconds for a request to arrive."),
    "request_timeout": (LIMITS, "Deadline in seconds of requests that bring none."),
    "max_sessions": (LIMITS, "Sessions open at a time."),
    "session_ttl": (LIMITS, "Seconds until an idle session expires."),
    "stall_timeout": (LIFE, "Seconds for a reader to take the next piece of a stream."),
    "stream_interval": (LIFE, "Tokens an event of a stream carries at least."),
    "incremental_streaming_output": (LIFE, "/generate streams deltas instead of the text so far."),
    "drain_timeout": (LIFE, "Seconds that running requests have at SIGTERM."),
    "worker_restarts": (LIFE, "Times that an engine process that died is started again."),
    "watchdog_timeout": (LIFE, "Seconds without an answer from the step loop, after which the engine process gives up."),
    "log_level": (LOGS, "critical, error, warning, info or debug."),
    "log_format": (LOGS, "text, or json: one object a line."),
    "log_requests": (LOGS, "One line a request."),
}
ALIASES = {
    "model_path": ["--model"],
    "tensor_parallel_size": ["--tp", "--tp-size"],
    "context_length": ["--max-model-len"],
    "max_running_requests": ["--max-num-seqs"],
    "chunked_prefill_size": ["--max-num-batched-tokens"],
    "max_total_tokens": ["--max-total-num-tokens"],
}
INTERNAL = {"engine", "factory"}


def option_fields() -> dict[str, Field[Any]]:
    """Every field that is an option, by name."""
    return {f.name: f for kind in (EngineConfig, ServerConfig) for f in fields(kind) if f.name not in INTERNAL}


def _parameter(item: Field[Any], hint: Any) -> inspect.Parameter:
    panel, text = HELP.get(item.name, ("Others", ""))
    if hint == tuple[str, ...]:
        hint = list[str]
    default = list(item.default) if isinstance(item.default, tuple) else item.default
    assert default is not MISSING
    flag = "--" + item.name.replace("_", "-")
    names = [flag, *ALIASES.get(item.name, [])]
    if hint is bool and default is True:
        names[0] += f"/--no-{flag[2:]}"
    option = typer.Option(default, *names, help=text, rich_help_panel=panel, envvar="RAMET_" + item.name.upper(), show_default=default not in (None, []))
    return inspect.Parameter(item.name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=hint)


def read_toml(context: typer.Context, path: Path | None) -> Path | None:
    """Puts a file's values where the command looks after the command line and the environment."""
    if path is None:
        return None
    try:
        values = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise typer.BadParameter(f"{path}: {error}") from error
    known = option_fields()
    found = {}
    for name, value in values.items():
        name = name.replace("-", "_")
        if name not in known:
            near = get_close_matches(name, known, 1)
            raise typer.BadParameter(f"{path}: unknown option {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        found[name] = value
    context.default_map = {**(context.default_map or {}), **found}
    return path


def config_of(options: dict[str, Any]) -> ServerConfig:
    """A ServerConfig from options by name. Raises ConfigError."""
    engine = {f.name: options.pop(f.name) for f in fields(EngineConfig) if f.name in options}
    if "cors_origins" in options:
        options["cors_origins"] = tuple(options["cors_origins"])
    return ServerConfig(engine=EngineConfig.of(**engine), **options)


def serve(**options: Any) -> None:
    """Serve a model over HTTP: OpenAI's routes, SGLang's /generate, program sessions, metrics, and a page at /.

    Every option is also a variable RAMET_<NAME> and a key of the TOML file that --config names; the command line wins over
    the variable, the variable over the file."""
    options.pop("config")
    try:
        config = config_of(options)
    except ConfigError as error:
        print(f"ramet serve: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    from .launch import serve as run

    raise typer.Exit(run(config))


def _signature() -> inspect.Signature:
    hints = {**get_type_hints(EngineConfig), **get_type_hints(ServerConfig)}
    config = inspect.Parameter(
        "config",
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Path | None,
        default=typer.Option(None, "--config", help="A TOML file of these options.", is_eager=True, callback=read_toml, envvar="RAMET_CONFIG"),
    )
    return inspect.Signature([config, *(_parameter(item, hints[name]) for name, item in option_fields().items())])


serve.__signature__ = _signature()  # type: ignore[attr-defined]
serve.__annotations__ = {p.name: p.annotation for p in serve.__signature__.parameters.values()}  # type: ignore[attr-defined]
