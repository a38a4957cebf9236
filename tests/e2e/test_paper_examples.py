"""The examples of the workloads that SGLang's paper names: they run, and say how much the shared prefixes saved."""
from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import ramet

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SAYS = {
    "tool_agent": r"(add|multiply|answer) \{'[\s\S]*result: ",
    "tree_of_thought": r"votes: [A-F] [A-F] [A-F]\nplan:\n +[A-Z]\w*[\s\S]*because",
    "skeleton_of_thought": r"1\.[\s\S]*4\.[\s\S]*in short: ",
    "generative_agents": r"Ada:[\s\S]*moods: \{'Ada': '(glad|worried|bored)'",
    "multi_chain": r"chains: \[-?\d+, -?\d+, -?\d+, -?\d+\]\nanswer: -?\d+",
    "branch_solve_merge": r"clarity: [A-D] [\s\S]*verdict: \{'grade': '(poor|fair|good)', 'publish': (True|False)\}",
    "select_qa": r"([A-Z].*\? .*\(\d+%\)\n){4}",
}


@pytest.fixture(scope="module")
def runtime(embedded_model):
    with ramet.Runtime(str(embedded_model.path)) as runtime:
        ramet.set_default_backend(runtime)
        yield runtime
        ramet.set_default_backend(None)


@pytest.mark.parametrize("name", SAYS)
def test_example(name, runtime, capsys):
    runtime.flush_cache()
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert re.search(SAYS[name], out), out
    saved = re.search(r"cache hit rate (\d+)%, ([\d,]+) tokens saved", out)
    assert saved and int(saved[1]) > 40, out
