"""The kernels' own test program under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer."""
from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ramet.kernels import KernelError
from ramet.kernels.cpu import library
from ramet.runtime import native

HERE = Path(__file__).parent


@pytest.mark.parametrize("kind", ["address,undefined", "thread"])
def test_clean(kind: str, tmp_path: Path) -> None:
    try:
        compiler = native.compiler()
        name = library.load()[1]
    except (KernelError, native.NativeUnavailable) as error:
        pytest.skip(f"no compiled kernels: {error}")
    flags = next(each.flags for sets in library.INSTRUCTION_SETS.values() for each in sets if each.name == name)
    sanitizer = [f"-fsanitize={kind}", "-fno-sanitize-recover=all"]
    trial = tmp_path / "trial.cpp"
    trial.write_text("int main() { return 0; }")
    if subprocess.run([*compiler, *sanitizer, str(trial), "-o", str(tmp_path / "trial")], capture_output=True, check=False).returncode:
        pytest.skip(f"{compiler[0]} has no {kind} sanitizer")
    sources = [path for path in sorted(library.HERE.glob("*.cpp")) if path.name != "api.cpp"]
    program = tmp_path / "sanitize"
    subprocess.run(
        [*compiler, "-std=c++17", "-O1", "-g", *sanitizer, *library.FLAGS, *flags, f"-I{library.HERE}", str(HERE / "sanitize.cpp"),
         *map(str, sources), "-o", str(program)],
        check=True,
    )  # fmt: skip
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
