"""Ramet: a language for programs of many language-model calls, and the runtime that computes every shared prefix once.

    import ramet

    @ramet.function
    def answer(s, question):
        s += ramet.user(question) + ramet.assistant(ramet.gen("answer", max_tokens=64))

    print(answer.run(question="What is a ramet?")["answer"])

Names are loaded when they are first used, so that importing this costs next to nothing.
"""

# ruff: noqa: F401 (what stands under TYPE_CHECKING is for type checkers, and loaded by __getattr__)
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "frontend.api": (
        "assistant assistant_begin assistant_end gen gen_as gen_int gen_string image select separate_reasoning "
        "system system_begin system_end user user_begin user_end video"
    ),
    "frontend.program": "Program function",
    "frontend.state": "ProgramState",
    "frontend.fork": "Forks best",
    "frontend.values": "ToolCall",
    "frontend.tools": "describe",
    "frontend.compile": "compile_func",
    "frontend.choices": (
        "ChoicesDecision ChoicesSamplingMethod greedy_token_selection token_length_normalized unconditional_likelihood_normalized"
    ),
    "frontend.defaults": "flush_cache get_server_info set_default_backend",
    "frontend.engine": "Engine",
    "frontend.backends.local": "Runtime",
    "frontend.backends.http": "RuntimeEndpoint",
    "frontend.backends.openai": "OpenAI",
    "frontend.backends.fake": "Fake",
    "runtime.errors": (
        "BackendError CancelledError ConfigError ConstraintError CorruptModelError DeadlineError DownloadError EngineClosedError "
        "EngineError ModelError ModelNotFoundError PromptError QueueFullError RametError RequestError UnknownArchitectureError "
        "UnsupportedError"
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
_PROXY = "this service is reached through a proxy that speaks OpenAI's API: OpenAI(model, base_url=...)"
_ELSEWHERE = {  # names that programs bring from elsewhere
    "Anthropic": _PROXY,
    "VertexAI": _PROXY,
    "LiteLLM": _PROXY,
    "Crusoe": _PROXY,
    "global_config": "there is no global state; set_default_backend and the options of run say it all",
    "launch_server": "run `ramet serve`",
}
_SUBPACKAGES = ("frontend", "runtime", "constrained", "kernels", "radix_cache")
__all__ = sorted(_HOME_OF)

if TYPE_CHECKING:
    from .frontend.api import (
        assistant,
        assistant_begin,
        assistant_end,
        gen,
        gen_as,
        gen_int,
        gen_string,
        image,
        select,
        separate_reasoning,
        system,
        system_begin,
        system_end,
        user,
        user_begin,
        user_end,
        video,
    )
    from .frontend.backends.fake import Fake
    from .frontend.backends.http import RuntimeEndpoint
    from .frontend.backends.local import Runtime
    from .frontend.backends.openai import OpenAI
    from .frontend.choices import (
        ChoicesDecision,
        ChoicesSamplingMethod,
        greedy_token_selection,
        token_length_normalized,
        unconditional_likelihood_normalized,
    )
    from .frontend.compile import compile_func
    from .frontend.defaults import flush_cache, get_server_info, set_default_backend
    from .frontend.engine import Engine
    from .frontend.fork import Forks, best
    from .frontend.program import Program, function
    from .frontend.state import ProgramState
    from .frontend.tools import describe
    from .frontend.values import ToolCall
    from .runtime.errors import (
        BackendError,
        CancelledError,
        ConfigError,
        ConstraintError,
        CorruptModelError,
        DeadlineError,
        DownloadError,
        EngineClosedError,
        EngineError,
        ModelError,
        ModelNotFoundError,
        PromptError,
        QueueFullError,
        RametError,
        RequestError,
        UnknownArchitectureError,
        UnsupportedError,
    )


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return import_module(f".{name}", __name__)
    home = _HOME_OF.get(name)
    if home is None:
        hint = _ELSEWHERE.get(name)
        raise AttributeError(f"module 'ramet' has no attribute {name!r}" + (f": {hint}" if hint else ""))
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBPACKAGES})
