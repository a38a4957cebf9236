"""How a server starts and ends, and what its clients see when the engine dies."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from serving import sockets_of, wait_for

LONG = "slow:0.1;say:" + "x" * 400


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def crowd(server, streams=4, plain=2):
    """Clients that are being answered; gives a list that each adds (status, last line or body, seconds) to when it is over."""
    over: list[tuple[int, str, float]] = []

    def one(stream: bool) -> None:
        body = {"text": LONG, "stream": stream, "sampling_params": {"max_new_tokens": 400}}
        last = ""
        with httpx.Client(base_url=server.url, timeout=60) as client, client.stream("POST", "/generate", json=body) as response:
            for line in response.iter_lines():
                last = line or last
        over.append((response.status_code, last, time.monotonic()))

    threads = [threading.Thread(target=one, args=(i < streams,)) for i in range(streams + plain)]
    for thread in threads:
        thread.start()
    with server.client() as client:
        wait_for(lambda: client.get("/loads").json()["open_requests"] == streams + plain)
    time.sleep(0.3)
    yield over
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_every_client_learns_of_the_engines_death(serve, number):
    server = serve("--model-path", "fake", "--worker-restarts", "1")
    worker = server.worker_pid() if server.url else 0
    with server.client() as client:
        with crowd(server) as over:
            began = time.monotonic()
            os.kill(worker, number)
            wait_for(lambda: client.get("/health").status_code == 503, 5)
            assert client.post("/generate", json={"text": "a"}).status_code == 503
            wait_for(lambda: len(over) == 6, 6)
        assert max(end for _, _, end in over) - began < 5.0
        for status, last, _ in over:
            assert status == 503 or (status == 200 and '"engine_unavailable"' in last)
        wait_for(lambda: client.get("/health").status_code == 200, 20, lambda: server.log)
        assert client.post("/generate", json={"text": "say:back"}).json()["text"] == "back"
        assert not alive(worker) and server.worker_pid() != worker
        os.kill(server.worker_pid(), signal.SIGKILL)  # a second death is the end
        assert server.process.wait(10) == 1


def test_an_engine_that_dies_inside_its_process(serve):
    server = serve("--model-path", "fake", "--worker-restarts", "0")
    with server.client() as client:
        assert client.post("/generate", json={"text": "engine dies!"}).status_code in (200, 503)
        assert server.process.wait(10) == 1 and "the engine died: on purpose" in server.log


def test_a_step_that_never_ends(serve):
    server = serve("--model-path", "fake", "--worker-restarts", "0", "--watchdog-timeout", "1.5")
    with server.client() as client:
        response = client.post("/generate", json={"text": "hang!;slow:0.5;say:" + "x" * 100})
        assert response.status_code == 503 and response.json()["error"]["code"] == "engine_unavailable"
        assert server.process.wait(10) == 1 and "step loop has not answered" in server.log


def test_sigterm_drains(serve):
    server = serve("--model-path", "fake")
    answers = []
    ask = threading.Thread(target=lambda: answers.append(httpx.post(server.url + "/generate", json={"text": "slow:0.1;say:" + "x" * 15}, timeout=30)))
    with server.client() as client:
        ask.start()
        wait_for(lambda: client.get("/loads").json()["open_requests"] == 1)
        worker = server.worker_pid()
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        with pytest.raises(httpx.HTTPError):
            httpx.post(server.url + "/generate", json={"text": "late"})
    ask.join()
    assert answers[0].json()["text"] == "x" * 15
    assert server.process.wait(10) == 0 and not alive(worker)


def test_draining_has_a_limit(serve):
    server = serve("--model-path", "fake", "--drain-timeout", "1")
    with crowd(server, streams=1, plain=1) as over:
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) == 0 and time.monotonic() - began < 8
    assert sorted(status for status, _, _ in over) == [200, 503] and all("shutting down" in last for _, last, _ in over)


@pytest.mark.parametrize("model, status", [("missing", 1), ("crash", 1)])
def test_what_cannot_start_says_so_in_one_line(serve, model, status):
    server = serve("--model-path", model)
    assert server.process.wait(30) == status
    server._reader.join(5)
    plain = [line for line in server.log.splitlines() if not line.startswith("{")]
    said = [line for line in plain if line.startswith("ramet serve: ")]
    assert len(said) == 1 and "Traceback" not in server.log, server.log
    assert model == "crash" or said == ["ramet serve: there is no model 'missing'"]


def test_a_port_in_use(serve):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = serve("--model-path", "fake", "--port", str(port))
        assert server.process.wait(30) == 1
        server._reader.join(5)
        assert server.log.splitlines() == [f"ramet serve: cannot listen on 127.0.0.1:{port}: Address already in use; choose another --port or --host"]


def test_wrong_options(serve):
    server = serve("--port", "99999")
    assert server.process.wait(30) == 2
    server._reader.join(5)
    assert server.log == "ramet serve: port=99999: a number from 0 to 65535 is needed\n"


def test_no_orphan_when_the_server_is_killed(serve):
    server = serve("--model-path", "fake")
    worker = server.worker_pid() if server.url else 0
    folder = sockets_of(worker)
    assert folder.exists()
    server.process.kill()
    wait_for(lambda: not alive(worker) and not folder.exists(), 5)


def test_a_full_queue(serve):
    server = serve("--model-path", "fake", "--max-running-requests", "1", "--max-queued-requests", "1")
    with server.client() as client, crowd(server, streams=2, plain=0):
        response = client.post("/generate", json={"text": "a"})
        assert response.status_code == 503 and int(response.headers["retry-after"]) >= 1 and response.json()["error"]["code"] == "queue_full"
        assert client.get("/health").status_code == 200
        client.post("/abort_request", json={"abort_all": True})


def test_a_slow_reader_is_dropped_and_its_request_aborted(serve):
    server = serve("--model-path", "fake", "--stall-timeout", "1", "--context-length", "100000", "--max-total-tokens", "100000")
    host, port = server.url.removeprefix("http://").split(":")
    with server.client() as client, socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((host, int(port)))
        body = b'{"text": "slow:0.0005;say:' + b"y" * 9000 + b'", "stream": true, "sampling_params": {"max_new_tokens": 9000}}'
        slow.sendall(b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: " + str(len(body)).encode() + b"\r\n\r\n" + body)
        wait_for(lambda: client.get("/loads").json()["open_requests"] == 1)
        assert client.post("/generate", json={"text": "say:quick"}).json()["text"] == "quick"
        wait_for(lambda: client.get("/loads").json()["open_requests"] == 0, 15)
        assert "did not read" in server.log or "broke off" in server.log
