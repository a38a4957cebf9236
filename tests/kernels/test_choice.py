"""get_kernels says what it chose and why, and never falls back in silence."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ramet.kernels import KernelError, get_kernels
from ramet.kernels.cpu import library
from ramet.runtime import native

from .conftest import cpu_kernels


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMET_CXX", "none")
    native.compiler.cache_clear()
    library.load.cache_clear()
    yield
    native.compiler.cache_clear()
    library.load.cache_clear()


def test_an_unknown_name_lists_the_choices() -> None:
    with pytest.raises(KernelError, match="'fast'.*auto, cpu, triton, reference"):
        get_kernels(choice="fast")


@pytest.mark.parametrize("option", [{"device": "tpu"}, {"dtype": "int3"}, {"threads": 0}, {"device": "cuda:0", "choice": "cpu"}])
def test_what_cannot_be_is_refused(option: dict) -> None:
    with pytest.raises(KernelError):
        get_kernels(**option)


def test_auto_is_the_compiled_peer_and_says_so() -> None:
    cpu_kernels()
    peer = get_kernels("cpu")
    assert peer.name == "cpu" and "compiled" in peer.why and "\n" not in peer.why


def test_auto_without_a_compiler_is_the_reference_and_says_what_it_costs(no_compiler: None) -> None:
    peer = get_kernels("cpu")
    assert peer.name == "reference"
    assert "slower" in peer.why and "no C++ compiler" in peer.why


def test_cpu_by_name_without_a_compiler_is_an_error(no_compiler: None) -> None:
    with pytest.raises(KernelError, match="no C\\+\\+ compiler"):
        get_kernels("cpu", "cpu")


def test_an_instruction_set_that_does_not_exist_is_refused() -> None:
    with pytest.raises(KernelError, match="choose one of"):
        library.load("sse9")


@pytest.mark.parametrize("ending", ["os.kill(os.getpid(), 4)", "os._exit(1)"])
def test_a_set_that_does_not_run_is_passed_over(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best set's probe dies of an illegal instruction, or computes wrongly: the next one is taken, and `why` tells."""
    name = cpu_kernels().instruction_set
    if name == "baseline":
        pytest.skip("there is no set below the baseline")
    real = subprocess.run

    def run(command: list[str], **options: object) -> object:
        if f"cpu-{name}" in command[-1]:
            command = [sys.executable, "-c", f"import os; {ending}"]
        return real(command, **options)

    for path in (native.cache_dir() / "native").glob("cpu-*"):
        (tmp_path / "native").mkdir(exist_ok=True)
        if path.suffix == ".so":
            (tmp_path / "native" / path.name).symlink_to(path)
    monkeypatch.setenv("RAMET_HOME", str(tmp_path))
    monkeypatch.setattr(library.subprocess, "run", run)
    library.load.cache_clear()
    try:
        peer = cpu_kernels(threads=1)
        assert peer.instruction_set != name and f"{name} does not run here" in peer.why
    finally:
        library.load.cache_clear()


def test_dtypes_reach_the_peer() -> None:
    assert get_kernels("cpu", "reference", "bfloat16").activation_dtype == torch.bfloat16
    assert cpu_kernels(dtype="float32").kv_dtype == torch.float32
    assert cpu_kernels(dtype="bfloat16").kv_dtype == torch.bfloat16


def test_deterministic_peers() -> None:
    """The cpu peer is in any case; the triton peer says so; the reference cannot be, so nothing falls back to it."""
    assert get_kernels("cpu", "cpu", deterministic=True).name == cpu_kernels().name
    with pytest.raises(KernelError, match="cannot be deterministic"):
        get_kernels("cpu", "reference", deterministic=True)
    pytest.importorskip("triton")
    assert "deterministic" in get_kernels("cpu", "triton", deterministic=True).why


def test_nothing_deterministic_is_an_error(no_compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    import ramet.kernels

    monkeypatch.setitem(ramet.kernels.RUNS_ON, "cpu", ("cpu", "reference"))
    with pytest.raises(KernelError, match="no C\\+\\+ compiler.*cannot be deterministic"):
        get_kernels("cpu", deterministic=True)
