"""Every example runs, prints what it promises, and fits on a screen."""
from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SAYS = {  # what an example's output must show
    "hello": r"\w+",
    "review": r"verdict: \{.*\}[\s\S]*Verdict\(grade=[\s\S]*found in the cache[\s\S]*[1-9]\d* \(\d+%\)",
    "few_shot_select": r"(positive|negative)\s+The film[\s\S]*found in the cache\s*│\s*[1-9]",
    "agent": r"Action: (add|multiply|finish)\[[\s\S]*result: ",
    "rag": r"from .*\.md; \d+ of \d+ prompt tokens were cached[\s\S]*[1-9]\d* of \d+",
    "json_extract": r"title='[\s\S]*forced by the grammar\s*│\s*[1-9]",
    "chat_memory": r"\(0 of \d+[\s\S]*\([1-9]\d* of \d+ prompt tokens were cached\)",
}


def run(name: str) -> str:
    done = subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", SAYS)
def test_example(name, embedded_model):
    out = run(name)
    assert re.search(SAYS[name], out), f"the output does not show what it should: {out}"
    assert re.search(r"cache hit rate \d+%, [\d,]+ tokens saved", out), f"the output does not say what was saved: {out}"


def test_every_example_has_a_test_and_is_short():
    found = {path.stem: path for path in EXAMPLES.glob("*.py")}
    tested = Path(__file__).parent.rglob("test_*.py")
    text = "".join(path.read_text() for path in tested)
    for stem, path in found.items():
        assert f'"{stem}"' in text, f"examples/{path.name} is run by no test"
        assert len(path.read_text().splitlines()) <= 60, f"examples/{path.name} is longer than 60 lines"
