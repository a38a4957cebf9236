"""Frames between the HTTP process and the engine process: msgpack with a schema, over ZMQ sockets in a private folder.

Each side binds the PULL socket that it reads from and connects a PUSH socket to the other's, so a stranger on a socket can at
most send a frame, and a frame that does not fit the schema is dropped and logged. Nothing is ever unpickled.

    HTTP process   --ToWorker-->   requests.sock   engine process
                   <--ToServer--   replies.sock
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import zmq

from .. import errors
from ..protocol import Chunk, GenerateRequest, ScoreRequest, Scores

MAX_FRAME = 64 * 1024 * 1024  # bytes; a larger frame is dropped and logged
_SOCKET_LIMIT = 4 * MAX_FRAME  # bytes; libzmq closes the connection of a peer that sends more

log = logging.getLogger("ramet.ipc")


# ---- what the HTTP process sends


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Run a request; its chunks come back in `Chunks`, a refusal as a chunk with an error."""

    request: GenerateRequest


class Score(msgspec.Struct, frozen=True, tag="score"):
    """Score the options of a request; answered by `Scored`."""

    request: ScoreRequest


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Drop a request; unknown ids are ignored."""

    rid: str


class Call(msgspec.Struct, frozen=True, tag="call"):
    """Call one of the worker's named methods; answered by `Answer` of the same number."""

    number: int
    name: str
    arguments: dict[str, Any]


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Close the engine and leave."""


# ---- what the engine process sends


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The engine is open. `info` is its `server_info()`."""

    pid: int
    info: dict[str, Any]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The engine could not be opened; the message is for the person who started it."""

    message: str


class Chunks(msgspec.Struct, frozen=True, tag="chunks"):
    """All chunks that were waiting when the frame was made: usually one step's. `sent`: when that was, by this machine's monotonic clock."""

    items: list[Chunk]
    sent: float = 0.0


class Scored(msgspec.Struct, frozen=True, tag="scored"):
    scores: Scores


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    number: int
    value: Any = None
    error: Exception | None = None


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """Sent twice a second whatever the engine does: the worker is alive, and this is its `stats()`."""

    stats: dict[str, Any]


ToWorker = Submit | Score | Abort | Call | Stop
ToServer = Ready | Failed | Chunks | Scored | Answer | Beat


# ---- errors as data

_EXTRA = ("field", "retry_after", "status")


def _error_to_data(error: Exception) -> dict[str, Any]:
    data: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
    data.update({name: getattr(error, name) for name in _EXTRA if getattr(error, name, None) is not None})
    return data


def _error_from_data(data: Any) -> Exception:
    """The same type if it is one of `runtime.errors`, else EngineError with the type's name in the message."""
    if not isinstance(data, dict) or not isinstance(data.get("message"), str) or not isinstance(data.get("type"), str):
        raise ValueError("an error needs a type and a message")
    kind = getattr(errors, data["type"], None)
    if not (isinstance(kind, type) and issubclass(kind, errors.RametError)):
        return errors.EngineError(f"{data['type']}: {data['message']}")
    extra = {name: data[name] for name in _EXTRA if name in data}
    return kind(data["message"], **extra)


def _to_wire(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Exception):
        return _error_to_data(value)
    if hasattr(value, "item"):  # a numpy number in stats
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} has no place in a frame")


def _from_wire(kind: type, value: Any) -> Any:
    if issubclass(kind, Exception):
        return _error_from_data(value)
    raise NotImplementedError(f"{kind.__name__} has no place in a frame")


_encoder = msgspec.msgpack.Encoder(enc_hook=_to_wire)


def encode(frame: ToWorker | ToServer) -> bytes:
    return _encoder.encode(frame)


class Reader:
    """Decodes the frames of one direction. `drop` counts what did not fit."""

    def __init__(self, frames: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(frames, dec_hook=_from_wire)
        self.dropped = 0

    def read(self, parts: list[bytes]) -> Any | None:
        """The frame, or None when it was dropped (and logged): not one part, too large, or not of the schema."""
        try:
            if len(parts) != 1:
                raise ValueError(f"{len(parts)} parts instead of one")
            if len(parts[0]) > MAX_FRAME:
                raise ValueError(f"{len(parts[0])} bytes are over the limit of {MAX_FRAME}")
            return self._decoder.decode(parts[0])
        except Exception as error:  # whatever a stranger sent, the reader lives on
            self.dropped += 1
            log.warning("dropped a frame that does not fit: %s", str(error)[:200] or type(error).__name__)
            return None


# ---- sockets


class Endpoints:
    """The two socket addresses of one worker, in a folder that only this user may enter. Use as a context manager."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ramet-"))  # 0700 by mkdtemp
        self.requests = f"ipc://{self.folder / 'requests.sock'}"
        self.replies = f"ipc://{self.folder / 'replies.sock'}"

    def remove(self) -> None:
        remove_folder(self.folder)

    def __enter__(self) -> Endpoints:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.remove()


def remove_folder(folder: Path) -> None:
    """Removes the sockets and their folder; twice is once."""
    for name in ("requests.sock", "replies.sock"):
        (folder / name).unlink(missing_ok=True)
    try:
        folder.rmdir()
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("could not remove %s: %s", folder, error)


def configure(socket: Any) -> Any:
    """No limit on queued frames (requests are limited before they get here), a limit on their size, no waiting at close."""
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, _SOCKET_LIMIT)
    return socket


def bind_private(socket: Any, address: str) -> None:
    """Binds an ipc address whose socket file only this user may open."""
    before = os.umask(0o177)
    try:
        socket.bind(address)
    finally:
        os.umask(before)
