"""Fixtures that several folders share. Models are pulled once, by the same code that users run."""

import os
from pathlib import Path

# Before torch is imported: its threads sleep while they wait. Spinning, they slow a busy machine down five times and more.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Before anything imports triton, as transformers does: its kernels are interpreted here.
os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest

from ramet.runtime.hub import ModelFiles, resolve


@pytest.fixture(scope="session")
def embedded_model() -> ModelFiles:
    """The files of the default model."""
    return resolve("smollm2-135m", progress=False)


@pytest.fixture(scope="session")
def reference_model(embedded_model):
    """The default model in transformers, float32."""
    from oracle import llama_from_gguf

    return llama_from_gguf(embedded_model.gguf)


ALONE = (
    "server/", "e2e/", "runtime/test_parallel_engine.py", "constrained/test_limits.py", "frontend/test_batch.py", "frontend/test_errors.py",
    "frontend/test_remote_sessions.py",
    "test_docs.py", "test_floors.py", "test_public_names.py",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    """`make test` runs the others side by side, in processes that ignore Ctrl-C."""
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).as_posix().startswith(ALONE):
            item.add_marker(pytest.mark.alone)
