"""Keys, sizes, times and paths: what a stranger can and cannot do."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import openai
import pytest
from serving import wait_for

KEY = "k-5f3a9-the-key"


@pytest.fixture(scope="module")
def locked():
    from serving import Served

    server = Served(
        "--model-path",
        "fake",
        "--max-body-bytes",
        "100000",
        "--body-timeout",
        "1",
        "--cors-origins",
        "https://page.example",
        environment={"RAMET_API_KEY": KEY},
    )
    assert server.url
    yield server
    server.end()


def raw(server, data: bytes, *, wait: float = 8) -> bytes:
    """What comes back for bytes written to the port as they are."""
    parts = urlsplit(server.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=wait) as connection:
        connection.sendall(data)
        answer = b""
        try:
            while piece := connection.recv(65536):
                answer += piece
        except TimeoutError:
            pass
        return answer


def paths(server):
    document = httpx.get(server.url + "/openapi.json", headers={"authorization": f"Bearer {KEY}"}).json()
    return [(path.replace("{name}", "x").replace("{model}", "x"), method) for path, item in document["paths"].items() for method in item]


WRONG = [
    {},
    {"authorization": "Bearer wrong"},
    {"authorization": f"Basic {KEY}"},
    {"authorization": "Bearer"},
    {"authorization": f"Bearer  {KEY}"},
    {"authorization": f"Bearer {KEY}x"},
    {"authorization": KEY},
    {"x-api-key": KEY},
]


def test_every_route_needs_the_key(locked):
    asked = [
        *paths(locked),
        ("/", "get"),
        ("/page.js", "get"),
        ("/openapi.json", "get"),
        ("//v1/models", "get"),
        ("/v1/models/", "get"),
        ("/v1/../v1/models", "get"),
        ("/V1/models", "get"),
        ("/health/", "get"),
        ("//health", "get"),
        ("/nowhere", "get"),
        ("/v1/models", "options"),
        ("/health", "post"),
        ("/health", "options"),
    ]
    assert len(asked) > 40
    with locked.client() as client:
        for path, method in asked:
            if (path, method) == ("/health", "get"):
                continue
            for headers in WRONG if path in ("/generate", "/v1/models") else WRONG[:2]:
                response = client.request(method, locked.url + path, headers=headers)
                assert response.status_code == 401, (path, method, headers)
                assert response.json()["error"]["code"] == "invalid_api_key"
        assert client.get("/v1/models", headers={"authorization": f"bearer {KEY}"}).status_code == 200  # schemes have no case
        assert client.get("/health").status_code == 200 and client.head("/health").status_code in (200, 405)


def test_two_keys_and_an_upgrade_are_refused(locked):
    head = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n"
    good = b"authorization: Bearer " + KEY.encode() + b"\r\n"
    assert b" 401 " in raw(locked, head + good + b"authorization: Bearer x\r\nconnection: close\r\n\r\n")
    assert b" 200 " in raw(locked, head + good + b"connection: close\r\n\r\n")
    upgrade = b"upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-key: eA==\r\nsec-websocket-version: 13\r\n\r\n"
    assert b" 401 " in raw(locked, head + upgrade, wait=1)


def test_the_key_opens_and_is_never_shown(locked):
    with openai.OpenAI(base_url=locked.url + "/v1", api_key=KEY, max_retries=0) as client:
        assert client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "say:in"}]).choices[0].message.content == "in"
    with openai.OpenAI(base_url=locked.url + "/v1", api_key="other", max_retries=0) as client, pytest.raises(openai.AuthenticationError):
        client.models.list()
    with locked.client(headers={"authorization": f"Bearer {KEY}"}) as client:
        for path, method in paths(locked):
            with client.stream(method, path) as response:  # one of them never ends
                assert KEY not in next(response.iter_text(), ""), path
        client.get(f"/v1/models/{KEY[:3]}")
    assert KEY not in locked.log


def test_the_page_without_the_key_only_if_asked(serve):
    server = serve("--model-path", "fake", "--public-page", environment={"RAMET_API_KEY": KEY})
    with server.client() as client:
        assert client.get("/").status_code == 200 and client.get("/page.js").status_code == 200
        assert client.get("/tree").status_code == 401 and client.post("/").status_code == 401


def test_cors(locked, served):
    ask = {"origin": "https://page.example", "access-control-request-method": "POST"}
    assert httpx.options(locked.url + "/generate", headers=ask).headers["access-control-allow-origin"] == "https://page.example"
    other = httpx.options(locked.url + "/generate", headers=ask | {"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers
    assert "access-control-allow-origin" not in httpx.get(served.url + "/health", headers=ask).headers


AUTH = b"authorization: Bearer " + KEY.encode() + b"\r\n"


def test_bodies_that_are_too_large(locked):
    with locked.client(headers={"authorization": f"Bearer {KEY}"}) as client:
        response = client.post("/generate", content=b"x" * 200_000)
        assert response.status_code == 413 and response.json()["error"]["code"] == "body_too_large"
        chunked = client.post("/generate", content=iter([b"x" * 60_000] * 3))
        assert chunked.status_code == 413
    announced = raw(locked, b"POST /generate HTTP/1.1\r\nhost: x\r\n" + AUTH + b"content-length: 50000000\r\n\r\n")
    assert b" 413 " in announced.splitlines()[0]


def test_a_body_that_never_ends(locked):
    started = time.monotonic()
    answer = raw(locked, b"POST /generate HTTP/1.1\r\nhost: x\r\n" + AUTH + b'content-length: 100\r\n\r\n{"text": "a')
    assert b" 408 " in answer.splitlines()[0] and 0.8 < time.monotonic() - started < 4


def test_a_head_that_never_ends(locked):
    started = time.monotonic()
    assert raw(locked, b"POST /generate HTTP/1.1\r\nhost: x\r\n") == b"" and 0.8 < time.monotonic() - started < 4
    again = raw(locked, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\nGET /health HTTP/1.1\r\nhost")
    assert again.count(b" 200 ") == 1  # and the rest of the second head is not waited for


def test_a_head_that_is_too_large(locked):
    answer = raw(locked, b"GET /health HTTP/1.1\r\nhost: x\r\nx-a: " + b"a" * 100_000 + b"\r\n\r\n")
    assert b" 400 " in answer.splitlines()[0] or b" 431 " in answer.splitlines()[0]


@pytest.mark.parametrize("junk", [b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET / HTTP/9.9\r\n\r\n"])
def test_what_is_not_http(locked, junk):
    raw(locked, junk, wait=2)
    assert httpx.get(locked.url + "/health").status_code == 200


def test_only_loopback_listens(locked):
    listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if line.split()[3] == "0A"]
    port = f"{urlsplit(locked.url).port:04X}"
    assert [address.split(":")[0] for address in listening if address.endswith(":" + port)] == ["0100007F"]


def test_request_templates_by_flag(serve):
    server = serve("--model-path", "fake", "--allow-request-templates")
    with server.client() as client:
        got = client.post("/v1/apply-template", json={"messages": [{"role": "user", "content": "x"}], "chat_template": "T!"})
        assert got.json()["prompt"].startswith("T!")


def test_a_line_of_the_log_is_one_line(serve):
    server = serve("--model-path", "fake", "--log-format", "text")
    wait_for(lambda: "serving" in server.log, 60)
    url = re.search(r'url="([^"]+)"', server.log)[1]
    httpx.post(url + "/nowhere%0aERROR%20forged?x=1", timeout=10)
    httpx.post(url + "/v1/completions", json={"prompt": "say:x", "user": "me\nERROR forged"}, timeout=10)
    wait_for(lambda: server.log.count("INFO [http] request") == 2)
    assert not any(line.startswith("ERROR") for line in server.log.splitlines())


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/completions", {"prompt": "a", "max_tokens": 10**20}, "max_tokens"),
        ("/v1/completions", {"prompt": "a", "stop_token_ids": [10**20]}, "stop_token_ids"),
        ("/v1/completions", {"prompt": [[1, -(10**20)]]}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 10**20}, "max_completion_tokens"),
        ("/v1/responses", {"input": "a", "max_output_tokens": 10**20}, "max_output_tokens"),
        ("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 10**20}}, "max_new_tokens"),
        ("/generate", {"input_ids": [10**20]}, "input_ids"),
        ("/generate", {"text": "a", "priority": -(10**20)}, "priority"),
        ("/score", {"input_ids": [10**20], "options": ["a"]}, "input_ids"),
    ],
)
def test_whole_numbers_of_more_than_64_bits(http, path, body, field):
    answer = http.post(path, json={"model": "fake", **body} if path.startswith("/v1") else body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].endswith(field)
