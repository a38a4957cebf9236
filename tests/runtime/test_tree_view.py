"""`ramet tree URL`: what is drawn is what the server says, and errors are for people."""
from __future__ import annotations

import io
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from fakes import fake_engine
from rich.console import Console
from typer.testing import CliRunner

from ramet.runtime import tree_view
from ramet.runtime.cli import app
from ramet.runtime.errors import BackendError
from ramet.runtime.loop import EngineLoop
from ramet.runtime.protocol import GenerateRequest, SamplingParams


def run(loop: EngineLoop, rid: str, text: str, tokens: int = 1, **fields) -> None:
    done = threading.Event()
    params = SamplingParams(max_new_tokens=tokens, temperature=0, ignore_eos=True)
    loop.submit(GenerateRequest(rid, tuple(text.encode()), params, **fields), lambda chunk: done.set() if chunk.last else None)
    assert done.wait(20)


@pytest.fixture
def loop():
    made = EngineLoop(fake_engine(slots=200))
    yield made
    made.check()
    made.close()


@pytest.fixture
def url(loop):
    """A server with the two routes, and nothing else."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            depth = int(self.path.partition("depth=")[2].partition("&")[0] or 6)
            self.reply(200, loop.tree(depth)) if self.path.startswith("/tree?") else self.reply(404, {"error": {"message": "no such route"}})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.reply(200, loop.explain(list(body["text"].encode())))

        def reply(self, status, data):
            raw = json.dumps(data).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def shown(renderable) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(renderable)
    return console.file.getvalue()


def test_a_tree_with_branches_hits_and_namespaces(loop, url, tmp_path):
    for i in range(3):
        run(loop, f"a{i}", f"You are a judge. Essay {i}")
    run(loop, "b", "You are a judge. Essay 0", tenant="acme", cache_salt="s")
    text = shown(tree_view.draw(loop.tree()))
    assert "You are a judge. Essay " in text and "2 hits, 46 tokens saved" in text
    assert "tenant acme and a salt" in text and "shared" in text
    assert f"{loop.stats()['pool']['cached']} tokens cached, 46 saved" in text
    ran = CliRunner().invoke(app, ["tree", url])
    assert ran.exit_code == 0 and "2 hits" in ran.stdout
    CliRunner().invoke(app, ["tree", url, "--draw", str(tmp_path / "tree.svg")])
    assert (tmp_path / "tree.svg").read_text().startswith("<svg") and "judge" in (tmp_path / "tree.svg").read_text()
    shallow = CliRunner().invoke(app, ["tree", url, "--depth", "1"]).stdout
    assert "You are a judge" in shallow and len(shallow.splitlines()) < len(ran.stdout.splitlines())


def test_a_prompt_explained(loop, url):
    run(loop, "a", "You are a judge. Essay one.")
    ran = CliRunner().invoke(app, ["tree", url, "--explain", "You are a judge. Essay two."])
    assert ran.exit_code == 0
    assert "23 of 27 tokens are cached" in ran.stdout and "'two.'" in ran.stdout and "'one." in ran.stdout
    assert "cached" in CliRunner().invoke(app, ["tree", url, "--explain", "You are"]).stdout


def test_what_was_evicted_is_told(loop):
    run(loop, "first", "x" * 90)
    run(loop, "greedy", "y" * 150)
    found = loop.explain(list(b"x" * 90))
    assert found["cached"] < 90 and found["evicted"][0]["owner"] == "greedy"
    assert "were evicted" in shown(tree_view.explain(found)) and "greedy" in shown(tree_view.explain(found))


def test_errors_say_what_the_server_said(url):
    with pytest.raises(BackendError, match="no such route") as caught:
        tree_view.fetch(url, "/nothing")
    assert caught.value.status == 404
    with pytest.raises(BackendError, match="127.0.0.1:1/tree"):
        tree_view.fetch("127.0.0.1:1", "/tree")
