"""Finds the package where nothing was installed: the folders of the checkout have other names than its packages."""
from __future__ import annotations

import atexit
import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def find_package() -> None:
    """Makes `import ramet` work from this checkout, by a folder of links for as long as the process lives. Does nothing where it is installed."""
    if importlib.util.find_spec("ramet") is not None:
        return
    links = Path(tempfile.mkdtemp(prefix="ramet-"))
    atexit.register(shutil.rmtree, links, ignore_errors=True)  # removes the links, not what they lead to
    package = links / "ramet"
    package.mkdir()
    for file in (ROOT / "frontend" / "ramet").iterdir():
        if file.is_file():
            (package / file.name).symlink_to(file)
    for name in ("frontend", "runtime", "radix_cache", "constrained", "kernels"):
        (package / name).symlink_to(ROOT / name)
    sys.path.insert(0, str(links))
