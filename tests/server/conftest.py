"""Each test file that only asks questions shares one server; those that break theirs start their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from serving import Served


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Starts servers that end with the test."""
    started: list[Served] = []

    def start(*options: str, **more: Any) -> Served:
        started.append(Served(*options, **more))
        return started[-1]

    yield start
    for served in started:
        if served.process.poll() is None:
            served.process.kill()
            served.process.wait()


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """One server for all tests that leave it as it was."""
    server = Served("--model-path", "fake", "--context-length", "2048", "--max-sessions", "50")
    try:
        assert server.url
        yield server
    finally:
        server.end()


@pytest.fixture(scope="session")
def http(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client
