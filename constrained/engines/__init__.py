"""Grammar engines behind the one Matcher: chosen by kind, or by name. Imported when used."""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import GrammarError

if TYPE_CHECKING:
    from ..compiler import Automaton, Limits
    from ..grammar import GrammarSource
    from ..vocabulary import Vocabulary

Build = Callable[["Vocabulary", str, str, "GrammarSource | None", "Limits"], "Automaton"]

_TERMS = ("json_schema", "json_object", "regex", "choice")
_ENGINES: dict[str, tuple[str, tuple[str, ...]]] = {  # name -> module, kinds; the first that has the kind is its default
    "ramet": ("ramet_native", _TERMS),
    "python": ("python", _TERMS),
    "llguidance": ("llguidance", ("lark", "ebnf", "json_schema", "regex")),
    "outlines-core": ("outlines_core", ("regex",)),
}


def get_engine(kind: str, name: str | None) -> tuple[str, Build]:
    """The engine's name and its `build`. Raises GrammarError with the choices for an unknown name or one without the kind."""
    able = [engine for engine, (_, kinds) in _ENGINES.items() if kind in kinds]
    if name is None:
        name = able[0]
    elif name not in able:
        raise GrammarError(f"no engine {name!r} for {kind}: choose from {', '.join(able)}")
    from importlib import import_module

    module: Any = import_module(f".{_ENGINES[name][0]}", __name__)
    return name, module.build
