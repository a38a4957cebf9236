"""Every error that Ramet raises on purpose.

    RametError
    ├── RequestError            the request is wrong; `.field` names what (also a ValueError)
    │   ├── PromptError         the prompt: empty, too long, ids outside the vocabulary
    │   └── ConstraintError     a regex, schema or grammar that cannot be honoured exactly
    ├── UnsupportedError        asked for by name and not to be had here
    ├── ConfigError             an engine or server option is wrong (also a ValueError)
    ├── ModelError              weights, tokenizer or model files
    │   ├── ModelNotFoundError
    │   ├── UnknownArchitectureError
    │   ├── CorruptModelError   truncated, wrong hash, tensor missing or of another shape
    │   └── DownloadError
    ├── EngineError             the engine could not answer
    │   ├── QueueFullError      try again later
    │   └── EngineClosedError   shut down, or died
    ├── CancelledError          aborted by its owner
    ├── DeadlineError           the time it was given ran out (also a TimeoutError)
    └── BackendError            a remote service answered with an error; `.status`
"""
from __future__ import annotations


class RametError(Exception):
    """Base of all errors raised on purpose. The message says what was wrong, where, and what to do."""


class RequestError(RametError, ValueError):
    """A request that cannot run. `field` is the parameter at fault, by its public name."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class PromptError(RequestError):
    """The prompt is empty, longer than the context or the pool, or holds ids outside the vocabulary."""


class ConstraintError(RequestError):
    """A constraint that does not parse, is too large, or has a part that cannot be enforced exactly."""


class UnsupportedError(RametError):
    """A feature, field or value that is known by name and not available in this system or set-up."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ConfigError(RametError, ValueError):
    """An option of the engine or the server that is out of range or contradicts another."""


class ModelError(RametError):
    """Something is wrong with a model's files."""


class ModelNotFoundError(ModelError):
    """No such model, folder or file; the message lists what can be named."""


class UnknownArchitectureError(ModelError):
    """The model's architecture has no implementation; the message lists the known ones."""


class CorruptModelError(ModelError):
    """A model file is truncated, has the wrong hash, or lacks a tensor that its config asks for."""


class DownloadError(ModelError):
    """A model could not be fetched or written; nothing half-done is left behind."""


class EngineError(RametError):
    """The engine could not answer a request that was valid."""


class QueueFullError(EngineError):
    """Too many requests wait already; `retry_after` is in seconds."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineClosedError(EngineError):
    """The engine was shut down, or its step loop died; `__cause__` holds the original error."""


class CancelledError(RametError):
    """The request or program was aborted by its owner."""


class DeadlineError(RametError, TimeoutError):
    """The deadline or timeout of a request or program passed."""


class BackendError(RametError):
    """A remote service answered with an error. `status` is its HTTP status, if it had one."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
