"""A rank other than 0: `python -m ramet.runtime.parallel.rank FD`, started by runner.py with its end of a socket.

It says what it loaded, learns how many slots the pool has, and computes its share of every pass until it is told to stop. When
the engine's process ends, however it does, stdin ends, and the rank leaves: none is ever orphaned.
"""
from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..batch import ForwardBatch
from ..config import EngineConfig
from ..hub import ModelFiles
from ..open import open_kernels, open_part
from .group import Group, RankLost
from .wire import Channel


def serve(channel: Channel) -> None:
    """One rank from start to end. Raises whatever ends it, and EOFError when rank 0 is gone."""
    spec = _said(channel)
    files = ModelFiles(spec["name"], *(path and Path(path) for path in (spec["gguf"], spec["folder"])))
    config, rank = EngineConfig(**spec["config"]), spec["rank"]
    part = open_part(files, config, open_kernels(config), rank)
    channel.device = part.device
    channel.say(loaded=rank)
    slots = _said(channel)["slots"]
    runner = part.runner(slots, Group(part.loaded.share, Path(spec["meeting"]), part.device))
    channel.say(ready=rank)
    while not isinstance(batch := channel.receive(), dict):
        runner.forward(ForwardBatch(batch, ()))


def _said(channel: Channel) -> dict[str, Any]:
    message = channel.receive()
    assert isinstance(message, dict)
    return message


def _leave_with_parent() -> None:
    sys.stdin.buffer.read()  # returns at end of file: the parent is gone
    os._exit(3)


def main() -> int:
    """The exit status: 0 when told to stop, 1 after an error, which rank 0 is told."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; rank 0 decides
    threading.Thread(target=_leave_with_parent, name="parent", daemon=True).start()
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    try:
        serve(channel)
        return 0
    except EOFError:
        return 3
    except Exception as error:
        with suppress(EOFError):
            channel.say(**{"lost" if isinstance(error, RankLost) else "failed": f"{type(error).__name__}: {error}"})
        return 1


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # threads of the group have nothing left to do
