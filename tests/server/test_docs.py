"""The snippets of docs/server.md run as they are written, against a server on another port."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from serving import Served

from ramet.runtime.server import options

TEXT = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
SNIPPETS = re.findall(r"```(\w+)\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture(scope="module")
def url():
    server = Served("--model-path", "smollm2-135m")
    assert server.url
    yield server.url
    server.end()


@pytest.mark.parametrize("code", [code for kind, code in SNIPPETS if kind == "python"])
def test_python(url, code):
    done = subprocess.run([sys.executable, "-c", code.replace("http://127.0.0.1:30000", url)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


@pytest.mark.parametrize("code", [code for kind, code in SNIPPETS if kind == "sh"])
def test_shell(url, code):
    done = subprocess.run(["bash", "-c", code.replace("http://127.0.0.1:30000", url)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "error" not in done.stdout and done.stdout.strip(), done.stdout + done.stderr


@pytest.mark.parametrize("code", [code for kind, code in SNIPPETS if kind == "toml"])
def test_toml(code):
    assert set(tomllib.loads(code)) <= set(options.option_fields())


def test_there_are_snippets():
    assert [kind for kind, _ in SNIPPETS].count("python") >= 3 and [kind for kind, _ in SNIPPETS].count("sh") >= 2


def test_every_route_is_in_the_table(url):
    import httpx

    paths = httpx.get(url + "/openapi.json").json()["paths"]
    table = TEXT[TEXT.index("## Routes") : TEXT.index("## Sessions")]
    for path in paths:
        word = re.sub(r"/\{.*", "", path).removeprefix("/v1")
        if word not in ("/get_model_info", "/get_server_info", "/encode", "/classify", "/embeddings", ""):  # other names; refused by name
            assert word.strip("/") in table, path
