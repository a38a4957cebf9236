"""The backend that programs use when they name none."""

from __future__ import annotations

import sys
import threading
from typing import Any

from ..runtime.errors import RequestError
from .backends.base import Backend
from .chat_template import ChatFormat

_lock = threading.RLock()
_default: Backend | None = None
_backends: set[type] = set()  # classes that are known to be backends


def set_default_backend(backend: Any) -> None:
    """Programs run on `backend` from now on, unless `run` names another. None: back to the embedded model."""
    global _default
    with _lock:
        _default = None if backend is None else checked(backend)


def default_backend() -> Backend:
    """The default backend; the first call without one opens the embedded model and says so on stderr."""
    global _default
    with _lock:
        if _default is None:
            from .backends.local import Runtime

            print("ramet: no backend is set, so programs run on the embedded model smollm2-135m", file=sys.stderr)
            _default = Runtime()
        return _default


def flush_cache(backend: Any = None) -> bool:
    """Empties the backend's prefix cache. False if it is in use."""
    return resolve(backend).flush_cache()


def get_server_info(backend: Any = None) -> dict[str, Any]:
    """What the backend says about itself."""
    return resolve(backend).get_server_info()


def resolve(backend: Any) -> Backend:
    return default_backend() if backend is None else checked(backend)


def checked(backend: Any) -> Backend:
    if type(backend) not in _backends:
        if isinstance(backend, Backend) and not isinstance(backend, type):
            _backends.add(type(backend))  # looking at a protocol's methods takes longer than a whole run
            return backend
        raise RequestError(f"backend={backend!r}: a Runtime, RuntimeEndpoint, OpenAI or Fake is needed", field="backend")
    return backend


def chat_format(backend: Backend, name: str | None = None) -> ChatFormat:
    """How chat is written for a backend: by the template `name` if given, else its own. Kept with the backend."""
    name = name or getattr(backend, "chat_template_name", None)
    kept = backend.__dict__.setdefault("_chat_formats", {})
    if name not in kept:
        kept[name] = ChatFormat(backend, name)
    return kept[name]
