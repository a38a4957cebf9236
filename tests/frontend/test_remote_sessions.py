"""States that a server keeps: a request brings what is new, whatever becomes of the session meanwhile."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from fakes import fake_engine
from serving import Served, wait_for

import ramet
from ramet import gen, select
from ramet.runtime.loop import EngineLoop

TESTS = Path(__file__).parents[1]
STORY = "Once there was a gardener who counted the stones of the wall. " * 20


class Proxy:
    """Passes connections on to a server, and keeps what clients sent. Paths that begin with `hidden` are not there."""

    def __init__(self, url: str, hidden: bytes | None = None) -> None:
        self.target = (urlsplit(url).hostname, urlsplit(url).port)
        self.hidden = hidden
        self.sent: list[bytearray] = []  # request by request, in the order in which they begin
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def requests(self) -> list[bytes]:
        """What was sent to the routes that compute or keep, request by request: path and body."""
        return [bytes(sent) for sent in self.sent if sent.startswith((b"POST /generate", b"POST /session", b"POST /score"))]

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(self.target)
            for source, target, keep in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._pass, args=(source, target, keep), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, keep: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if keep:
                    if data.startswith((b"POST /", b"GET /")):  # a client says one thing after the other on a connection
                        self.sent.append(request := bytearray())
                    request += data
                    if self.hidden:
                        data = data.replace(self.hidden, b"POST /none")
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self) -> None:
        self.listener.close()


@contextmanager
def started(*options: str) -> Iterator[str]:
    path = os.pathsep.join(map(str, (TESTS, TESTS / "server")))
    served = Served("--model-path", "fake", *options, factory="loop_factory", environment={"PYTHONPATH": path})
    try:
        yield served.url
    finally:
        served.end()


@pytest.fixture(scope="module")
def url():
    with started() as url:
        yield url


@pytest.fixture
def proxy(url):
    proxy = Proxy(url)
    yield proxy
    proxy.close()


def run(body, backend, **options):
    return ramet.function(body).run(backend=backend, temperature=0, max_new_tokens=8, **options)


def alone(body):
    """The same program in this process."""
    with ramet.Runtime.on(EngineLoop(fake_engine(4096, 2048))) as local:
        return run(body, local)


def open_sessions(url):
    return httpx.get(url + "/loads").json()["open_sessions"]


def three_turns(s):
    s += STORY + gen("a", ignore_eos=True)
    s += "and" + gen("b", ignore_eos=True, stop="never said")
    s += select("c", ["yes", "no"]) + gen("d", ignore_eos=True)


def test_a_request_brings_what_is_new(proxy):
    with ramet.RuntimeEndpoint(proxy.url) as backend:
        state = run(three_turns, backend)
        first, *later = proxy.requests()
        assert first.startswith(b"POST /session ") and len(first) > len(STORY)
        assert len(later) == 3 and all(len(request) < 900 for request in later)  # head and parameters; the story has 1240 ids
        wait_for(lambda: open_sessions(proxy.url) == 0)
    there, here = state, alone(three_turns)
    assert there.token_ids() == here.token_ids() and there.text() == here.text()


def test_forks_send_what_they_share_once(proxy):
    def body(s):
        s += STORY
        forks = s.fork(4)
        forks += lambda i: f"{i}:" + gen("v", ignore_eos=True)
        forks += "more" + gen("w", ignore_eos=True)
        forks.join()
        return s["v"], s["w"], [f.token_ids() for f in forks]

    with ramet.RuntimeEndpoint(proxy.url) as backend:
        values = run(body, backend).ret_value
        requests = proxy.requests()
        assert sum(len(request) > len(STORY) for request in requests) == 1
        assert sum(b'"fork":true' in request for request in requests) == 4 and len(requests) in (9, 10)  # the tenth closes
        wait_for(lambda: open_sessions(proxy.url) == 0)
    assert values == alone(body).ret_value


def test_a_fork_after_an_answer_forks_its_session(proxy):
    def body(s):
        s += STORY + gen("a", ignore_eos=True)
        forks = s.fork(2)
        forks += lambda i: f"{i}:" + gen("v", ignore_eos=True)
        forks.join("best", key=lambda f: f["v"])
        s += "so" + gen("b", ignore_eos=True)
        return s.token_ids()

    with ramet.RuntimeEndpoint(proxy.url) as backend:
        ids = run(body, backend).ret_value
        assert sum(len(request) > len(STORY) for request in proxy.requests()) == 1
    assert ids == alone(body).ret_value


def test_several_outputs_and_stops_inside_tokens(proxy):
    def body(s):
        s += "several" + gen("a", ignore_eos=True)
        s += gen("n", n=3, ignore_eos=True) + "x" + gen("b", stop=[s["a"][2:4]], ignore_eos=True, max_tokens=20)
        s += gen("c", ignore_eos=True)
        return s.token_ids()

    with ramet.RuntimeEndpoint(proxy.url) as backend:
        assert run(body, backend).ret_value == alone(body).ret_value


def test_sessions_that_expire_are_opened_again():
    def body(s):
        s += STORY + gen("a", ignore_eos=True)
        time.sleep(0.4)
        s += "and" + gen("b", ignore_eos=True)
        time.sleep(0.4)
        s += select("c", ["yes", "no"])
        return s.token_ids()

    with started("--session-ttl", "0.2") as url:
        proxy = Proxy(url)
        with ramet.RuntimeEndpoint(proxy.url) as backend:
            ids = run(body, backend).ret_value
        paths = [request.split()[1].split(b"/")[1:] for request in proxy.requests()]
        assert [p[0] for p in paths][:3] == [b"session"] * 3 and len(paths[1]) == 3 and len(paths[2]) == 1  # opened, not found, opened
        proxy.close()
    assert ids == alone(body).ret_value


def test_more_programs_than_sessions():
    @ramet.function
    def program(s, i):
        s += f"{STORY[:200]}{i}" + gen("a", ignore_eos=True)
        s += "and" + gen("b", ignore_eos=True)

    with started("--max-sessions", "8") as url:
        proxy = Proxy(url)
        with ramet.RuntimeEndpoint(proxy.url) as backend:
            states = program.run_batch([{"i": i} for i in range(120)], backend=backend, temperature=0, max_new_tokens=4)
            assert any(request.startswith(b"POST /session") for request in proxy.requests())
            wait_for(lambda: open_sessions(url) == 0)
        proxy.close()
    with ramet.Runtime.on(EngineLoop(fake_engine(16384, 2048))) as local:
        again = program.run_batch([{"i": i} for i in range(120)], backend=local, temperature=0, max_new_tokens=4)
    assert [s.token_ids() for s in states] == [s.token_ids() for s in again]


def test_a_server_that_is_full_of_others_sessions():
    with started("--max-sessions", "4") as url:
        for _ in range(4):
            httpx.post(url + "/session", json={"text": "mine"}).raise_for_status()
        with ramet.RuntimeEndpoint(url) as backend:
            state = run(three_turns, backend)
        assert open_sessions(url) == 4 and state.token_ids() == alone(three_turns).token_ids()


def test_a_server_without_sessions(url):
    proxy = Proxy(url, hidden=b"POST /session")
    with ramet.RuntimeEndpoint(proxy.url) as backend:
        state = run(three_turns, backend)
        paths = [request.split()[1] for request in proxy.requests()]
        assert paths == [b"/session", b"/generate", b"/generate", b"/score", b"/generate"]
    proxy.close()
    assert state.token_ids() == alone(three_turns).token_ids()


def test_whatever_ends_a_state_closes_its_session(url):
    with ramet.RuntimeEndpoint(url) as backend:

        def failing(s):
            s += "a" + gen("a", ignore_eos=True)
            s.sync()
            raise ValueError("on purpose")

        with pytest.raises(ValueError, match="on purpose"):
            run(failing, backend)
        wait_for(lambda: open_sessions(url) == 0)
        streamed = run(three_turns, backend, stream=True)
        assert "".join(streamed.text_iter()) == streamed.text()
        wait_for(lambda: open_sessions(url) == 0)
    backend = ramet.RuntimeEndpoint(url)
    held = backend.line()
    done = threading.Event()
    from ramet.runtime.protocol import GenerateRequest, SamplingParams

    held.submit(GenerateRequest("lines-1", (65, 66), SamplingParams(max_new_tokens=2)), lambda chunk: done.set() if chunk.last else None)
    assert done.wait(10) and open_sessions(url) == 1
    backend.shutdown()
    assert open_sessions(url) == 0
