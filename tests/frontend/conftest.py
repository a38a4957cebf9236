from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

import ramet


@pytest.fixture
def fake() -> Iterator[Callable[..., ramet.Fake]]:
    """Opens Fake backends, closes them, and checks that no program left a thread behind."""
    before = threading.active_count()
    opened: list[ramet.Fake] = []

    def open_fake(*args: object, **options: object) -> ramet.Fake:
        opened.append(ramet.Fake(*args, **options))
        return opened[-1]

    yield open_fake
    for backend in opened:
        backend.shutdown()
    for thread in threading.enumerate():
        if thread.name.startswith("ramet-"):
            thread.join(timeout=2.0)
    assert threading.active_count() <= before
