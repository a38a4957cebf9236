"""Servers as processes, for tests: with an engine that needs no model, or with the real one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

HERE = Path(__file__).parent / "server"


class Served:
    """A server process. `log` is what it wrote so far; `url` where it listens."""

    def __init__(self, *options: str, factory: str = "fake_engine", environment: dict[str, str] | None = None) -> None:
        self.log = ""
        more = dict(environment or {})
        path = os.pathsep.join(filter(None, [str(HERE), more.pop("PYTHONPATH", None), os.environ.get("PYTHONPATH")]))
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("RAMET_") or k == "RAMET_HOME"}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "serve_fake.py"), factory, "--port", "0", "--log-format", "json", *options],
            stderr=subprocess.PIPE,
            text=True,
            env=inherited | {"PYTHONPATH": path} | more,
            cwd=tempfile.gettempdir(),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log += line

    @property
    def url(self) -> str:
        found = wait_for(lambda: re.search(r'"url": "([^"]+)"', self.log) or self.process.poll() is not None, 180, lambda: self.log)
        assert not isinstance(found, bool), f"the server ended: {self.log}"
        return found[1]

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, verify=False, **options)  # http: certificates take long to load

    def worker_pid(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def end(self, *, timeout: float = 20) -> int:
        """Asks it to end; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self._reader.join(5)


def wait_for(check: Callable[[], Any], seconds: float = 10, say: Callable[[], str] = lambda: "") -> Any:
    """The first true answer of `check`."""
    end = time.monotonic() + seconds
    while not (answer := check()):
        assert time.monotonic() < end, f"waited {seconds} s in vain {say()}"
        time.sleep(0.02)
    return answer


def events(response: httpx.Response) -> list[Any]:
    """The data of a stream's events, without the closing [DONE], which must be there."""
    data = [line[len("data: ") :] for line in response.text.splitlines() if line.startswith("data: ")]
    assert data and data[-1] == "[DONE]", response.text[-300:]
    return [json.loads(item) for item in data[:-1]]


def sockets_of(pid: int) -> Path:
    """The private folder, as the worker's open sockets name it."""
    for line in Path("/proc/net/unix").read_text().splitlines():
        if line.endswith("requests.sock"):
            folder = Path(line.split()[-1]).parent
            inode = line.split()[6]
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                if os.readlink(fd) == f"socket:[{inode}]":
                    return folder
    raise AssertionError("no socket of the worker was found")
