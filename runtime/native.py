"""Compiles the project's C++ sources on first use and loads them with ctypes. Standard library only.

The library is kept in the cache folder under a hash of sources, flags, compiler and CPU, so that a second start costs one
`dlopen`. A compiler is the system's (c++, g++, clang++), or the one that the PyPI package `ziglang` carries.
"""
from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path


class NativeUnavailable(Exception):
    """No compiler was found, or it failed; the message says which and what to do."""


def cache_dir() -> Path:
    """RAMET_HOME, or ~/.cache/ramet. Not created here."""
    return Path(os.environ.get("RAMET_HOME") or Path.home() / ".cache" / "ramet")


@cache
def compiler() -> tuple[str, ...]:
    """The command that compiles C++. RAMET_CXX overrides the search; RAMET_CXX=none finds none.

    Raises NativeUnavailable."""
    chosen = os.environ.get("RAMET_CXX")
    if chosen and chosen != "none":
        return tuple(chosen.split())
    if not chosen:
        for name in ("c++", "g++", "clang++"):
            if path := shutil.which(name):
                return (path,)
        if importlib.util.find_spec("ziglang"):
            return (sys.executable, "-m", "ziglang", "c++")
    raise NativeUnavailable("no C++ compiler: install g++ or clang++, or `pip install ziglang`")


@cache
def cpu_identity() -> str:
    """What -march=native depends on: the machine and its CPU's model and flags."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = [platform.processor()]
    wanted = ("model name", "flags", "Features", "CPU part")
    return platform.machine() + "".join(sorted({line for line in lines if line.startswith(wanted)}))


def build(name: str, sources: Sequence[Path], flags: Sequence[str] = (), headers: Sequence[Path] = ()) -> Path:
    """Path of the shared library made of `sources`, compiled now if it is not in the cache.

    Two processes may build at once: each writes its own file and renames it. Raises NativeUnavailable."""
    command = compiler()
    arguments = ["-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", *flags]
    digest = hashlib.sha256("\0".join([*command, *arguments, cpu_identity()]).encode())
    for path in (*sources, *headers):
        digest.update(path.read_bytes())
    folder = cache_dir() / "native"
    target = folder / f"{name}-{digest.hexdigest()[:20]}.so"
    if target.exists():
        return target
    print(f"ramet: compiling {name} for this CPU, once", file=sys.stderr)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / target.name
            done = subprocess.run([*command, *arguments, *map(str, sources), "-o", str(made)], capture_output=True, text=True, timeout=600)
            if done.returncode:
                raise NativeUnavailable(f"{command[0]} could not compile {name}: {done.stderr.strip()[-2000:]}")
            os.replace(made, target)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailable(f"could not compile {name} into {folder}: {error}") from error
    return target


def load(name: str, sources: Sequence[Path], flags: Sequence[str] = (), headers: Sequence[Path] = ()) -> ctypes.CDLL:
    """Builds if needed, and loads. ctypes calls release the GIL. Raises NativeUnavailable."""
    try:
        return ctypes.CDLL(str(build(name, sources, flags, headers)))
    except OSError as error:
        raise NativeUnavailable(f"could not load {name}: {error}") from error
