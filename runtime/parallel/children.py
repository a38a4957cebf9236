"""The processes of ranks 1 and up, as rank 0 sees them: started, spoken to, watched, ended."""
from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import EngineConfig
from ..errors import EngineClosedError
from .group import TIMEOUT, Group, RankLost
from .wire import Channel

if TYPE_CHECKING:
    from ...kernels.interface import DecoderInput
    from ..hub import ModelFiles

GRACE = 5.0  # seconds for a rank to leave when it is told to, and for news of one that is lost to arrive
SOON = 1.0  # seconds from the news of a rank that lost another to those of the other


class Children:
    """All ranks but 0. After the first that ends unasked there is no engine any more; `check` and `give_up` say which it was, and how."""

    def __init__(self, files: ModelFiles, config: EngineConfig) -> None:
        """Starts them. They read the model while this returns."""
        self._folder = tempfile.TemporaryDirectory(prefix="ramet-ranks-")
        self.meeting = Path(self._folder.name) / "meeting"
        self._size = config.tensor_parallel_size
        self._ranks: dict[int, tuple[subprocess.Popen[bytes], Channel]] = {}
        self._failure: str | None = None
        self._failed = threading.Event()
        self._watcher: threading.Thread | None = None
        self._closing = False
        spec = {"name": files.name, "gguf": files.gguf and str(files.gguf), "folder": files.folder and str(files.folder)}
        try:
            for rank in range(1, self._size):
                self._ranks[rank] = _start(rank)
            self.say(**spec, config=asdict(config), meeting=str(self.meeting))
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """The processes, by rank."""
        return [process.pid for process, _ in self._ranks.values()]

    # ---- what is said

    def say(self, **values: Any) -> None:
        """The same to every rank, and to each which it is. Raises EngineClosedError."""
        for rank, (_, channel) in self._ranks.items():
            with self._blaming(rank):
                channel.say(**values, rank=rank)

    def send(self, batch: DecoderInput) -> None:
        """A pass to every rank. Raises EOFError where one is gone."""
        for _, channel in self._ranks.values():
            channel.send(batch)

    def expect(self, word: str) -> None:
        """Waits until every rank has said `word`. Raises EngineClosedError with what it said instead."""
        for rank, (_, channel) in self._ranks.items():
            with self._blaming(rank):
                message = channel.receive()
            if not isinstance(message, dict) or word not in message:
                raise EngineClosedError(f"rank {rank} of {self._size} did not start: {_words(message)}")

    # ---- how they end

    def watch(self, group: Group) -> None:
        """From now on they say nothing until they end: a thread of its own waits for that, and frees `group` from waiting for them."""
        self._watcher = threading.Thread(target=self._watch, args=(group,), name="ramet-ranks", daemon=True)
        self._watcher.start()

    def check(self) -> None:
        """Raises EngineClosedError if one has ended."""
        if self._failure is not None:
            raise EngineClosedError(self._failure)

    def give_up(self, error: BaseException) -> EngineClosedError:
        """For a pass that did not come to its end here: what it comes from, which `check` says from now on."""
        if isinstance(error, RankLost | EOFError):
            if self._watcher is not None:
                self._failed.wait(GRACE)
            else:  # it was still starting
                ended = [self._death(rank, process) for rank, (process, _) in self._ranks.items() if process.poll() is not None]
                self._failure = "; ".join(ended) or None
            others = " or ".join(map(str, self._ranks))
            reason = f"rank {others} of {self._size} did not answer within {TIMEOUT.total_seconds():g} s: {error}"
        else:
            reason = f"rank 0 of {self._size} left a pass: {str(error) or type(error).__name__}"
        self._failure = self._failure or reason
        return EngineClosedError(self._failure)

    def close(self) -> None:
        """Tells them to leave, and sees to it. Twice is once."""
        self._closing = True
        for _, channel in self._ranks.values():
            with suppress(EOFError, OSError):
                channel.say(stop=True)
                channel.socket.shutdown(socket.SHUT_WR)
        for process, _ in self._ranks.values():
            if self._failure is not None or self._watcher is None:
                process.kill()  # it may be waiting for the one that is lost, or reading a model
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._watcher is not None:
            self._watcher.join(GRACE)
        for process, channel in self._ranks.values():
            channel.close()
            if process.stdin is not None:
                process.stdin.close()
        self._ranks.clear()
        self._folder.cleanup()

    def _watch(self, group: Group) -> None:
        """Finds the rank that ended first of itself: one that only lost another ends, too, and says so."""
        lost: list[str] = []
        with selectors.DefaultSelector() as talking:
            for rank, (_, channel) in self._ranks.items():
                talking.register(channel.socket, selectors.EVENT_READ, rank)
            while talking.get_map() and self._failure is None:
                news = talking.select(SOON if lost else None)
                if self._closing:
                    return
                if not news:
                    break
                for key, _ in news:
                    talking.unregister(key.fileobj)
                    reason, innocent = self._end_of(key.data)
                    if innocent:
                        lost.append(reason)
                    else:
                        self._failure = reason
            silent = ", ".join(str(key.data) for key in talking.get_map().values())
        self._failure = self._failure or (f"rank {silent} of {self._size} did not answer" if silent else "; ".join(lost))
        self._failed.set()
        with suppress(Exception):
            group.abort()

    def _end_of(self, rank: int) -> tuple[str, bool]:
        """How a rank ended, and whether that was for the sake of another."""
        process, channel = self._ranks[rank]
        try:
            message = channel.receive()
            return f"rank {rank} of {self._size} failed: {_words(message)}", isinstance(message, dict) and "lost" in message
        except EOFError:
            return self._death(rank, process), False

    def _death(self, rank: int, process: subprocess.Popen[bytes]) -> str:
        try:
            status = process.wait(GRACE)
        except subprocess.TimeoutExpired:
            return f"rank {rank} of {self._size} is gone"
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return f"rank {rank} of {self._size} (process {process.pid}) {how}"

    @contextmanager
    def _blaming(self, rank: int) -> Iterator[None]:
        try:
            yield
        except EOFError:
            raise EngineClosedError(self._death(rank, self._ranks[rank][0])) from None


def _words(message: Any) -> str:
    return next((str(message[name]) for name in ("failed", "lost") if name in message), "") if isinstance(message, dict) else ""


def _start(rank: int) -> tuple[subprocess.Popen[bytes], Channel]:
    ours, theirs = socket.socketpair()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "ramet.runtime.parallel.rank", str(theirs.fileno())],
            stdin=subprocess.PIPE,  # ends when this process does
            stdout=2,
            pass_fds=[theirs.fileno()],
            env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, Channel(ours)
