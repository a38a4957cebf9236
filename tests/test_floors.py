"""Who may import whom. Floors are drawn in docs/architecture.md; this reads every import of the package with ast."""
from __future__ import annotations

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("frontend", "runtime", "radix_cache", "constrained", "kernels")
STDLIB_ONLY = ("runtime/protocol.py", "runtime/errors.py", "runtime/config.py", "runtime/native.py")
GROUND = {"runtime.protocol", "runtime.errors", "runtime.config", "runtime.native"}


@cache
def files(room: str) -> list[Path]:
    return [p for p in (ROOT / room).rglob("*.py") if "__pycache__" not in p.parts]


@cache
def imports(path: Path) -> list[tuple[str, bool, int]]:
    """(absolute module below ramet, or third party name; inside a function or TYPE_CHECKING; line)."""
    package = ["ramet", *path.relative_to(ROOT).parts[:-1]]
    if package[1:3] == ["frontend", "ramet"]:
        package = ["ramet"]
    tree = ast.parse(path.read_text())
    lazy: set[ast.AST] = set()
    for node in ast.walk(tree):
        typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or typing_only:
            lazy.update(ast.walk(node))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{stem}.{alias.name}" for alias in node.names] if stem.split(".")[0] == "ramet" else [stem]
        else:
            continue
        found += [(name.removeprefix("ramet."), node in lazy, node.lineno) for name in names]
    return found


def ours(name: str) -> str | None:
    room = name.split(".")[0]
    return room if room in ROOMS else None


def on_the_ground(name: str) -> bool:
    return any(name == g or name.startswith(g + ".") for g in GROUND)


def wrong(room: str, allowed) -> list[str]:
    bad = []
    for path in files(room):
        here = str(path.relative_to(ROOT))
        for name, lazy, line in imports(path):
            if not allowed(here, name, lazy):
                bad.append(f"{here}:{line} imports {name}")
    return bad


@pytest.mark.parametrize("path", STDLIB_ONLY)
def test_the_ground_is_standard_library_only(path):
    for name, _, line in imports(ROOT / path):
        assert on_the_ground(name) or name.split(".")[0] in sys.stdlib_module_names, f"{path}:{line} imports {name}"


@pytest.mark.parametrize("room", ["kernels", "radix_cache", "constrained"])
def test_leaves_import_nothing_of_ours(room):
    assert not wrong(room, lambda _, name, lazy: ours(name) in (None, room) or on_the_ground(name))


def test_scheduler_and_runner_are_strangers():
    integers = ("runtime/scheduler.py", "runtime/policy.py")
    tensors = ("runtime/batch.py", "runtime/model_runner.py", "runtime/sampler.py")
    for here, forbidden in [*((p, tensors) for p in integers), *((p, integers) for p in tensors)]:
        names = [name for name, _, _ in imports(ROOT / here)]
        for other in forbidden:
            assert not any(name.startswith(other.removesuffix(".py").replace("/", ".")) for name in names), f"{here} knows {other}"


def test_models_know_kernels_and_not_the_engine():
    allowed = ("kernels.interface", "runtime.models", "runtime.errors", "runtime.gguf_reader", "runtime.config")
    bad = []
    for path in files("runtime/models"):
        bad += [f"{path.name}:{line} imports {name}" for name, _, line in imports(path) if ours(name) and not name.startswith(allowed)]
    assert not bad


def test_the_frontend_reaches_the_runtime_through_its_protocol():
    def allowed(here: str, name: str, lazy: bool) -> bool:
        room = ours(name)
        if room in (None, "frontend") or on_the_ground(name):
            return True
        return lazy and (room == "constrained" or here.startswith("frontend/backends/") or here == "frontend/ramet/__init__.py")

    assert not wrong("frontend", allowed)


def test_only_the_server_and_the_command_line_know_the_server():
    allowed = ("runtime/server/", "runtime/cli.py")
    assert not wrong("runtime", lambda here, name, lazy: not name.startswith("runtime.server") or here.startswith(allowed))


THIRD_PARTY = {  # package -> where it may be imported; docs/dependencies.md says the same
    "torch": ("runtime/", "kernels/", "radix_cache/pool.py"),
    "triton": ("kernels/triton/",),
    "transformers": ("runtime/tokenizer_files.py",),
    "zmq": ("runtime/server/",),
    "msgspec": ("runtime/server/",),
    "fastapi": ("runtime/server/",),
    "starlette": ("runtime/server/",),
    "uvicorn": ("runtime/server/",),
    "prometheus_client": ("runtime/server/",),
    "openai": ("frontend/backends/openai.py",),
    "llguidance": ("constrained/engines/",),
    "outlines_core": ("constrained/engines/",),
    "greenlet": ("frontend/waiting.py",),
    "typer": ("runtime/cli.py", "runtime/server/options.py", "runtime/server/__main__.py"),
}


@pytest.mark.parametrize("package", THIRD_PARTY)
def test_dependencies_stay_where_they_belong(package):
    places = THIRD_PARTY[package]
    bad = []
    for room in ROOMS:
        bad += wrong(room, lambda here, name, lazy: name.split(".")[0] != package or here.startswith(places))
    assert not bad


@pytest.mark.parametrize("folder", [*ROOMS, "tests", "examples", "benchmarks"])
def test_rooms_are_never_imported_by_their_bare_names(folder):
    for path in files(folder):
        bare = [n.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import) for n in node.names]
        bare += [node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom) and not node.level and node.module]
        assert not {name.split(".")[0] for name in bare} & set(ROOMS), f"{path}: import ramet.<room> instead"


HEAVY = {"torch", "transformers", "numpy", "fastapi", "zmq", "pydantic"}


def test_importing_ramet_is_light():
    code = f"import sys, ramet, ramet.runtime.cli; heavy = {HEAVY} & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_opening_leaves_the_environment_of_the_users_programs_alone():
    code = (
        "import os, sys; from ramet.runtime.open import _import_torch; _import_torch(); "
        "print('torch' in sys.modules, os.environ.get('OMP_WAIT_POLICY'))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "None"]
