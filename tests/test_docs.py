"""The Python snippets of README and guides run, top to bottom, as a reader would type them."""
from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# A line before a block may say `<!-- not run: why -->`.
BLOCK = re.compile(r"(<!-- not run: .+? -->\n)?```python\n(.*?)```", re.S)
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
# server.md needs a server: tests/server/test_docs.py runs it.
GUIDES = [p for p in PAGES if "```python" in p.read_text() and p.name != "server.md"]
LINK = re.compile(r"\]\(([^)#:]+)\)")
FILE = re.compile(r"`((?:docs|examples|tests|runtime|frontend|constrained|kernels|radix_cache)/[\w./-]+\.\w+)`")


@pytest.mark.parametrize("guide", GUIDES, ids=lambda p: p.name)
def test_snippets(guide, embedded_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("snippets")  # dataclasses look their module up
    monkeypatch.setitem(sys.modules, "snippets", module)
    for skip, code in BLOCK.findall(guide.read_text()):
        if not skip:
            exec(compile(code, str(guide), "exec", dont_inherit=True), module.__dict__)


def test_links_lead_somewhere():
    for page in PAGES:
        text = page.read_text()
        for target in (*LINK.findall(text), *FILE.findall(text)):
            assert (page.parent / target).exists() or (ROOT / target).exists(), f"{page.name}: {target} is not there"
