"""What is in the folders is in the wheel: a missing subpackage works in editable mode and fails only for users."""
from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ROOMS = ("frontend", "runtime", "radix_cache", "constrained", "kernels")


def packages_on_disk() -> dict[str, str]:
    """import name -> folder."""
    found = {"ramet": "frontend/ramet"}
    for room in ROOMS:
        for init in (ROOT / room).rglob("__init__.py"):
            folder = init.parent.relative_to(ROOT).as_posix()
            if folder != "frontend/ramet" and "__pycache__" not in folder:
                found["ramet." + folder.replace("/", ".")] = folder
    return found


def test_every_package_is_listed_with_its_folder():
    settings = PROJECT["tool"]["setuptools"]
    assert dict(zip(settings["packages"], settings["packages"], strict=True)).keys() == packages_on_disk().keys()
    assert settings["package-dir"] == packages_on_disk()


def test_every_file_that_is_not_python_is_package_data():
    data = PROJECT["tool"]["setuptools"]["package-data"]
    for name, folder in packages_on_disk().items():
        nested = [ROOT / other for other in packages_on_disk().values() if other.startswith(folder + "/")]
        for path in (ROOT / folder).rglob("*"):
            mine = path.is_file() and path.suffix not in (".py", ".pyc") and not any(n in path.parents for n in nested)
            if mine:
                patterns = data.get(name, [])
                assert any(path.match(pattern) for pattern in patterns), f"{path.relative_to(ROOT)} is not in the wheel"


def test_the_version_is_said_once():
    import ramet

    assert ramet.__version__ == PROJECT["project"]["version"]
