"""`@function`: a Python function over a state as a program that can be run, run in batches, bound, traced and compiled."""

from __future__ import annotations

import asyncio
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ..runtime.errors import CancelledError, RequestError
from . import ir, waiting
from .api import Stop, seconds
from .defaults import chat_format, resolve
from .run import Run
from .sampling import Defaults, overrides
from .state import ProgramState

RUN_ONLY = (
    "stream",
    "backend",
    "use_thread",
    "timeout",
    "chat_template",
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "return_text_in_logprobs",
)


def function(func: Callable[..., Any] | None = None, num_api_spec_tokens: int | None = None) -> Any:
    """Makes a program of a function whose first parameter is the state `s`; also as `@function(num_api_spec_tokens=N)`.

    `num_api_spec_tokens`: with a remote service, how many tokens to ask for ahead, so that later gens need no call.
    """
    if func is None:
        return lambda f: Program(f, num_api_spec_tokens=num_api_spec_tokens)
    return Program(func, num_api_spec_tokens=num_api_spec_tokens)


class Program:
    """A program. Calling it is running it."""

    def __init__(self, func: Callable[..., Any], bound: Mapping[str, Any] | None = None, num_api_spec_tokens: int | None = None) -> None:
        if not callable(func):
            raise TypeError(f"@function is for a Python function, not {func!r}")
        if inspect.iscoroutinefunction(func) or inspect.isgeneratorfunction(func):
            raise TypeError(f"{func.__qualname__}: a program is an ordinary function that returns; to await its run, use arun")
        self.func = func
        self.bound = dict(bound or {})
        self.num_api_spec_tokens = num_api_spec_tokens
        self.begin: Callable[[Any], Any] | None = None  # of a compiled program: stands in for its constant beginning
        self._signature = inspect.signature(func)
        parameters = list(self._signature.parameters)
        if not parameters or parameters[0] != "s":
            raise TypeError(f"the first parameter of {func.__qualname__} must be named s, the state")
        self.arg_names = parameters[1:]
        self.__name__, self.__doc__, self.__wrapped__ = func.__name__, func.__doc__, func

    def bind(self, **kwargs: Any) -> Program:
        """The same program with these arguments given."""
        return Program(self.func, {**self.bound, **kwargs}, self.num_api_spec_tokens)

    def __call__(self, *args: Any, **kwargs: Any) -> ProgramState:
        return self.run(*args, **kwargs)

    def run(
        self,
        *args: Any,
        max_new_tokens: int = 128,
        n: int = 1,
        stop: Stop = None,
        stop_token_ids: Sequence[int] | None = None,
        stop_regex: Stop = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = -1,
        min_p: float = 0.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        ignore_eos: bool = False,
        return_logprob: bool | None = None,
        logprob_start_len: int | None = None,
        top_logprobs_num: int | None = None,
        return_text_in_logprobs: bool | None = None,
        stream: bool = False,
        backend: Any = None,
        use_thread: bool = True,
        min_new_tokens: int = 0,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
        timeout: float | None = None,
        chat_template: str | None = None,
        **kwargs: Any,
    ) -> ProgramState:
        """Runs the body with `args` and `kwargs`; the sampling parameters hold for every gen that does not set its own.

        Returns the ended state, with what the body returned as `.ret_value`; with `stream`, at once, for
        `state.text_iter(...)`: who lets go of that state and its iterators cancels the run. `use_thread=False` waits after
        each append. `timeout` is in seconds. Raises whatever went wrong in the body or in any branch, the original error.
        """
        options = {name: value for name, value in locals().items() if name not in ("self", "args", "kwargs")}
        return self._start(options, args, kwargs)

    async def arun(self, *args: Any, **options: Any) -> ProgramState:
        """`run` for `await`: the event loop goes on while the program waits. Cancelling the coroutine cancels the run."""
        kwargs = {k: options.pop(k) for k in list(options) if k not in RUN_PARAMETERS}
        stream = options.pop("stream", False)
        defaults = {name: p.default for name, p in RUN_PARAMETERS.items()}
        state, body = self._prepare({**defaults, **options, "stream": stream}, args, kwargs)
        state.run.loop = asyncio.get_running_loop()
        work = asyncio.ensure_future(waiting.run_async(body))
        if stream:
            state.run.task = work  # the loop itself holds tasks only weakly
            work.add_done_callback(lambda t: t.cancelled() or t.exception())
            return held(state.run)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            state.run.stop(CancelledError("the coroutine that awaited the run was cancelled"))
            await asyncio.wait([work])
            work.exception()
            raise
        return state

    def run_batch(
        self,
        batch_kwargs: Sequence[Mapping[str, Any] | tuple[Any, ...]],
        *,
        num_threads: int | str = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        on_error: str = "raise",
        order: Sequence[int] | None = None,
        **options: Any,
    ) -> list[ProgramState] | Iterator[ProgramState]:
        """Runs the program once an item, a dict or tuple of arguments each; states in the order of the items.

        `num_threads`: how many programs are under way at once ("auto": as many as pays); they share a few threads.
        `on_error="raise"`: the first error ends the batch; "return": a failed state is returned in its place, and reading
        from it raises its error. `generator_style`: an iterator of states, each as soon as those before it are through.
        `order`: the indices of the items in the order in which they begin. Other options are those of `run`.
        """
        from .batch import run_batch

        return run_batch(self, batch_kwargs, options, num_threads, progress_bar, generator_style, on_error, order)

    def trace(self, *, backend: Any = None, **kwargs: Any) -> Any:
        """The program as a graph, from running the body once on symbols. See `graph.Graph`."""
        from .trace import trace

        return trace(self, kwargs)

    def compile(self, backend: Any = None, **kwargs: Any) -> Any:
        """The program prepared for `backend`: its constant prefix tokenized and cached, its batches ordered for reuse."""
        from .compile import compile_func

        return compile_func(self, backend, **kwargs)

    def cache(self, backend: Any = None) -> int:
        """Computes the program's constant prefix ahead, so that runs find it cached. Returns how many tokens it has."""
        return self.compile(backend).prefix_tokens

    def draw(self, **kwargs: Any) -> Any:
        """The program as a picture (SVG, shown by notebooks)."""
        from .draw import draw_graph

        return draw_graph(self.trace(**kwargs))

    def __repr__(self) -> str:
        return f"<ramet program {self.__name__}({', '.join(self.arg_names)})>"

    # ---- starting ----

    def _start(self, options: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> ProgramState:
        state, body = self._prepare(options, args, kwargs)
        if not options["stream"]:
            body()
            return state

        def quiet() -> None:
            with suppress(BaseException):  # kept in the state, for those who read from it
                body()

        threading.Thread(target=quiet, name=f"ramet-{self.__name__}", daemon=True).start()
        return held(state.run)

    def _prepare(self, options: dict[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[ProgramState, Callable[[], Any]]:
        """A state, and the function that runs the body on it to the end of all branches. TypeError where arguments do not fit."""
        self._signature.bind(None, *args, **{**self.bound, **kwargs})
        return self._make(self._settings(options), args, kwargs)

    def _settings(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """What a `Run` is made with. Raises RequestError for a bad option."""
        backend = resolve(options["backend"])
        sampling = {k: v for k, v in options.items() if k not in RUN_ONLY}
        return {
            "backend": backend,
            "chat": chat_format(backend, options["chat_template"]),
            "defaults": Defaults(overrides(sampling)),
            "logprobs": ir.Logprobs(
                bool(options["return_logprob"] or options["top_logprobs_num"]),
                _or(options["logprob_start_len"], -1),
                _or(options["top_logprobs_num"], 0),
                bool(options["return_text_in_logprobs"]),
            ),
            "timeout": seconds("timeout", options["timeout"]),
            "streams": bool(options["stream"]),
            "inline": not options["use_thread"],
            "spec_tokens": self.num_api_spec_tokens,
        }

    def _make(
        self, settings: Mapping[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[ProgramState, Callable[[], Any]]:
        run = Run(**settings)
        if self.begin is not None:
            run.root.preset = self.begin(run.root)
        state = ProgramState(run.root)
        named = {**self.bound, **kwargs}

        def body() -> Any:
            run.value = run.perform(lambda: self.func(state, *args, **named))
            return run.value

        return state, body


RUN_PARAMETERS = {
    name: p
    for name, p in inspect.signature(Program.run).parameters.items()
    if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD or p.kind is inspect.Parameter.KEYWORD_ONLY
}
RUN_PARAMETERS.pop("self")


def held(run: Run) -> ProgramState:
    """A state for the caller of a streaming run. Once nobody holds it, nobody can read what the run says, and it is cancelled."""
    state = ProgramState(run.root)
    cancel = partial(run.stop, CancelledError("the run was cancelled, as nobody held its state any more"))
    weakref.finalize(state, run.backend.defer, cancel).atexit = False  # not here and now: finalizers run in the middle of anything
    return state


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """`run`'s options complete with their defaults. Raises RequestError for one that it does not have."""
    for name in options:
        if name not in RUN_PARAMETERS:
            raise RequestError(f"unknown option {name!r}; known: {', '.join(RUN_PARAMETERS)}", field=name)
    return {**{name: p.default for name, p in RUN_PARAMETERS.items()}, **options}


def _or(value: Any, default: int) -> int:
    return default if value is None else value
