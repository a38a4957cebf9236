"""The `ramet` command. Everything heavy is imported by the command that needs it, so that `ramet --help` is instant."""
from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from .config import DEFAULT_MODEL, EngineConfig
from .errors import ConfigError, RametError, RequestError
from .server.options import serve

app = typer.Typer(help="Programs of many language-model calls, on a runtime that computes every shared prefix once.", no_args_is_help=True,
                  add_completion=False, pretty_exceptions_enable=False)  # fmt: skip
model_app = typer.Typer(help="Fetch and find models.", no_args_is_help=True)
app.add_typer(model_app, name="model")
app.command()(serve)

Model = Annotated[str, typer.Option("--model", "-m", help="A known name, a folder, a .gguf file or a hub id.")]
Options = Annotated[list[str], typer.Option("--set", help="An engine option as name=value; repeat for several.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", help="Longest answer, in tokens.")]
Temperature = Annotated[float, typer.Option("--temperature", "-t", help="0 takes the most likely token.")]


@app.command()
def run(
    program: Annotated[str, typer.Argument(help="FILE.py, or FILE.py:function if it defines several programs.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="Its arguments as name=value; values are JSON where they parse (5 is a number, '\"5\"' text), @file reads a file."),
    ] = None,
    model: Model = DEFAULT_MODEL,
    set_: Options = [],  # noqa: B006 - typer's way to say "none"
    max_tokens: MaxTokens = 128,
    temperature: Temperature = 1.0,
    draw: Annotated[Path | None, typer.Option(help="Write the finished run as a picture (SVG) to this file.")] = None,
) -> None:
    """Run a program of a Python file, stream its text, and show its result and what it cost."""
    from ..frontend.report import print_costs

    chosen = _load_program(program)
    values = _arguments(arguments or [])
    with _engine(model, set_) as runtime:
        start = time.perf_counter()
        bound = _bind(chosen, values)
        state = bound.run(backend=runtime, stream=True, max_new_tokens=max_tokens, temperature=temperature)
        for piece in state.text_iter():
            print(piece, end="", flush=True)
        state.sync()
        print()
        if state.ret_value is not None:
            print(f"\nresult: {state.ret_value!r}")
        print_costs([(chosen.__name__, state.run.totals, time.perf_counter() - start)])
        if draw is not None:
            draw.write_text(str(state.draw()), encoding="utf-8")


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.")],
    model: Model = DEFAULT_MODEL,
    set_: Options = [],  # noqa: B006
    max_tokens: MaxTokens = 128,
    temperature: Temperature = 0.0,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeat.")] = None,
    stop: Annotated[list[str], typer.Option(help="End the answer before this text; repeat for several.")] = [],  # noqa: B006
    regex: Annotated[str | None, typer.Option(help="The answer must match this regex.")] = None,
    json_schema: Annotated[str | None, typer.Option(help="The answer must be JSON of this schema; @file reads it from a file.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the prompt as it is, without the model's chat template.")] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Show counts and times on standard error.")] = False,
) -> None:
    """Answer one prompt, streamed to standard output."""
    from .engine import Engine
    from .protocol import GenerateRequest, SamplingParams

    text = sys.stdin.read() if prompt == "-" else prompt
    constraint = _constraint(regex, json_schema)
    params = SamplingParams(max_new_tokens=max_tokens, temperature=temperature, seed=seed, stop=tuple(stop), constraint=constraint)
    engine = Engine.open(_config(model, set_))
    chat = not raw and engine.tokenizer.chat_template is not None
    ids = engine.tokenizer.encode_chat([{"role": "user", "content": text}]) if chat else engine.tokenizer.encode(text, add_special=True)
    for chunk in engine.generate(GenerateRequest("cli", tuple(ids), params)):
        if chunk.error is not None:
            raise chunk.error
        print(chunk.text, end="", flush=True)
        if chunk.last:
            print()
            if stats:
                print(f"{chunk.finish}\n{chunk.usage}\n{chunk.timings}", file=sys.stderr)
    engine.close()


@app.command()
def chat(
    model: Model = DEFAULT_MODEL,
    set_: Options = [],  # noqa: B006
    max_tokens: MaxTokens = 512,
    temperature: Temperature = 0.7,
    system: Annotated[str | None, typer.Option(help="A system message to begin with.")] = None,
) -> None:
    """Chat with a model. /reset forgets the conversation, /exit ends it; Ctrl-C stops an answer."""
    from .chat import converse
    from .loop import EngineLoop

    loop = EngineLoop.open(_config(model, set_))
    try:
        converse(loop, system=system, max_tokens=max_tokens, temperature=temperature)
    finally:
        loop.close()


@app.command()
def check(
    source: Annotated[str, typer.Argument(help="A JSON schema (text, or @file) or, with --regex, a regex.")],
    regex: Annotated[bool, typer.Option("--regex", help="SOURCE is a regex.")] = False,
    text: Annotated[str | None, typer.Option(help="Say whether this text is accepted and, if not, at which byte.")] = None,
    model: Model = DEFAULT_MODEL,
) -> None:
    """Compile a constraint: what is enforced or refused, what is forced, the shortest document."""
    from ..constrained.check import report
    from .hub import resolve
    from .tokenizer_files import load_tokenizer

    tokenizer = load_tokenizer(resolve(model), EngineConfig(model_path=model))
    accepted = report("regex" if regex else "json_schema", _read(source), tokenizer, text=text)
    raise typer.Exit(0 if accepted else 1)


@app.command()
def tree(
    url: Annotated[str, typer.Argument(help="A running server, as http://127.0.0.1:30000.")],
    depth: Annotated[int, typer.Option(help="Levels shown.", min=1, max=64)] = 12,
    min_tokens: Annotated[int, typer.Option(help="Leave out branches that begin with fewer tokens.", min=1)] = 1,
    explain: Annotated[str | None, typer.Option(help="A prompt (or @file): say how much of it is cached and why not more.")] = None,
    api_key: Annotated[str | None, typer.Option(help="The server's key; default: RAMET_API_KEY.")] = None,
    draw: Annotated[Path | None, typer.Option(help="Write the picture (SVG) to this file too.")] = None,
) -> None:
    """Draw what a server has cached: its prefix tree, with hits and tokens saved."""
    from rich.console import Console

    from . import tree_view

    if explain is not None:
        picture = tree_view.explain(tree_view.fetch(url, "/tree/explain", api_key=api_key, body={"text": _read(explain)}))
    else:
        picture = tree_view.draw(tree_view.fetch(url, "/tree", api_key=api_key, depth=depth, min_tokens=min_tokens))
    Console().print(picture)
    if draw is not None:
        draw.write_text(tree_view.svg(picture, f"ramet tree {url}"), encoding="utf-8")


@model_app.command("pull")
def model_pull(name: Annotated[str, typer.Argument(help="A known name or a hub id.")] = DEFAULT_MODEL) -> None:
    """Fetch a model with a progress bar, check it, and keep it in the cache folder."""
    from . import hub

    print(hub.pull(name))


@model_app.command("list")
def model_list() -> None:
    """Models that can be named, and where they are."""
    from rich.console import Console
    from rich.table import Table

    from . import hub

    table = Table()
    for column in ("name", "about", "size", "path"):
        table.add_column(column)
    for entry in hub.list_models():
        table.add_row(entry.name, entry.about, f"{entry.nbytes / 1e6:,.0f} MB", str(entry.path or "not pulled"))
    Console().print(table)


@model_app.command("path")
def model_path(name: Annotated[str, typer.Argument(help="A known name or a hub id.")] = DEFAULT_MODEL) -> None:
    """Print where a model's files are."""
    from . import hub

    print(hub.path(name))


# ---- arguments ----------------------------------------------------------------------------------------------------------


def _load_program(spec: str) -> Any:
    """The program that FILE[:function] names. Raises RequestError saying what there is."""
    from ..frontend.program import Program

    file, _, name = spec.partition(":")
    path = Path(file)
    if not path.is_file():
        raise RequestError(f"{file}: no such file", field="program")
    module_spec = importlib.util.spec_from_file_location(path.stem, path)
    if module_spec is None or module_spec.loader is None:
        raise RequestError(f"{file}: not a Python file (.py)", field="program")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[path.stem] = module  # dataclasses and pickles look their module up
    sys.path.insert(0, str(path.parent.resolve()))
    module_spec.loader.exec_module(module)
    programs = {key: value for key, value in vars(module).items() if isinstance(value, Program)}
    if name and name in programs:
        return programs[name]
    if not name and len(programs) == 1:
        return next(iter(programs.values()))
    known = ", ".join(programs) or "none"
    raise RequestError(f"{file}: {f'no program {name!r}' if name else 'name one as FILE:function'}; it defines: {known}", field="program")


def _bind(program: Any, values: dict[str, Any]) -> Any:
    """The program with its arguments. Raises RequestError naming one that is missing or unknown."""
    import inspect

    parameters = {n: p for n, p in inspect.signature(program.func).parameters.items() if n in program.arg_names}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = [name for name in values if name not in parameters and not takes_any]
    required = [n for n, p in parameters.items() if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    missing = [name for name in required if name not in values]
    for names, what in ((unknown, "has no argument"), (missing, "needs the argument")):
        if names:
            takes = ", ".join(program.arg_names) or "none"
            raise RequestError(f"{program.__name__} {what} {', '.join(names)}; it takes: {takes} (given as name=value)", field="arguments")
    return program.bind(**values)


def _arguments(pairs: list[str]) -> dict[str, Any]:
    values = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise RequestError(f"{pair!r}: arguments are given as name=value", field="arguments")
        values[name] = _value(value)
    return values


def _value(text: str) -> Any:
    """JSON where it parses, else the text; @file reads a file as text."""
    if text.startswith("@"):
        return _read(text)
    try:
        return json.loads(text)
    except ValueError:
        return text


def _read(text: str) -> str:
    """The text, or with a leading @ what the file of that name holds."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{text[1:]}: cannot be read: {error}", field="arguments") from error


def _constraint(regex: str | None, json_schema: str | None) -> Any:
    from .protocol import Constraint

    if regex is not None and json_schema is not None:
        raise RequestError("--regex and --json-schema: an answer has one form; give one of them", field="regex")
    if regex is not None:
        return Constraint("regex", regex)
    return None if json_schema is None else Constraint("json_schema", _read(json_schema))


def _config(model: str, pairs: list[str]) -> EngineConfig:
    return EngineConfig.of(model_path=model, **_arguments(pairs))


@contextmanager
def _engine(model: str, pairs: list[str]) -> Iterator[Any]:
    from ..frontend.backends.local import Runtime

    with Runtime(model, **_arguments(pairs)) as runtime:
        yield runtime


def main() -> None:
    """Entry point: a RametError becomes one line on standard error and exit status 1."""
    try:
        app()
    except RametError as error:
        kind = "" if isinstance(error, RequestError | ConfigError) else f"{type(error).__name__}: "
        print(f"ramet: {kind}{' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(1) from error
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
