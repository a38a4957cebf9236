"""The GPU kernels compile for a card that is not there, and spill no registers; the interpreter would not notice if they did not."""
from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def kernels_of_the_package() -> set[str]:
    """Functions under @triton.jit that are launched: those whose names do not begin with an underscore, and that return nothing."""
    found = set()
    for path in (ROOT / "kernels" / "triton").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and any(ast.unparse(each) == "triton.jit" for each in node.decorator_list):
                if not any(isinstance(each, ast.Return) and each.value is not None for each in ast.walk(node)):
                    found.add(node.name)
    return found


def test_every_kernel_compiles_without_spilling(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_resources.py"), "--json", str(tmp_path / "found.json")]
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_DEFAULT_FP_FUSION": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert {each["kernel"] for each in found} == kernels_of_the_package()
    assert all(each["spilled"] == 0 and each["registers"] > 0 for each in found)


def test_the_check_for_a_card_runs_without_one(tmp_path: Path) -> None:
    """Its parts up to the figures, small and interpreted: what it would say on a card is another matter."""
    pytest.importorskip("triton")
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_check.py"), "--dry", "--out", str(tmp_path), "--seconds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "gpu_check.json").read_text())
    assert told["wrong"] == "" and any("attention over a tree" in row["what"] for row in told["rows"]) and told["skipped"]
