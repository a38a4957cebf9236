"""A small OpenAI-compatible service: what it says is decided by a function of the prompt or messages."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Stub:
    """`say(prompt or messages, body)` gives the whole text that the model would write. Words are its tokens.

    `requests` holds all bodies; `per_piece` is how many tokens come in one event. `score` gives the log-probability of a token that
    is echoed, `write(text, body)` the next tokens that could follow the text of an answer, with theirs: the likeliest is written.
    """

    def __init__(
        self,
        say: Callable[[Any, dict[str, Any]], str],
        per_piece: int = 1,
        score: Callable[[str], float] | None = None,
        write: Callable[[str, dict[str, Any]], dict[str, float]] | None = None,
    ) -> None:
        self.say, self.per_piece, self.score, self.write = say, per_piece, score, write
        self.requests: list[dict[str, Any]] = []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                stub.requests.append(body)
                stub.answer(self, body)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def answer(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        chat = handler.path.endswith("/chat/completions")
        if body.get("echo"):
            self._send(handler, self._echo(body))
            return
        if self.write is not None and body.get("logprobs"):
            self._send(handler, self._written(body))
            return
        text = self.say(body["messages"] if chat else body["prompt"], body)
        if text.startswith("!"):
            self._send(handler, {"error": {"message": text[1:], "type": "invalid_request_error", "param": "model", "code": None}}, 400)
            return
        tokens = words(text)[: body.get("max_tokens", body.get("max_completion_tokens"))]
        finish = "length" if len(tokens) < len(words(text)) else "stop"
        stops = [body["stop"]] if isinstance(body.get("stop"), str) else body.get("stop") or []
        tokens, stopped = until(tokens, stops)
        finish = "stop" if stopped else finish
        prompt = json.dumps(body["messages"]) if chat else body["prompt"]
        usage = {"prompt_tokens": len(words(prompt)), "completion_tokens": len(tokens) + (finish == "stop"), "total_tokens": 0}
        if not body.get("stream"):
            choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": "".join(tokens)}}
            self._send(handler, {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage})
            return
        events = []
        for i in range(0, len(tokens), self.per_piece):
            events.append(self._event(chat, "".join(tokens[i : i + self.per_piece]), None))
        events.append(self._event(chat, "", finish))
        events.append({**self._event(chat, "", None), "choices": [], "usage": usage})
        data = "".join(f"data: {json.dumps(e)}\n\n" for e in events) + "data: [DONE]\n\n"
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("content-length", str(len(data.encode())))
        handler.end_headers()
        handler.wfile.write(data.encode())

    @staticmethod
    def _event(chat: bool, text: str, finish: str | None) -> dict[str, Any]:
        choice = {"index": 0, "finish_reason": finish, **({"delta": {"content": text}} if chat else {"text": text, "logprobs": None})}
        return {
            "id": "x",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": 0,
            "model": "m",
            "choices": [choice],
        }

    def _written(self, body: dict[str, Any]) -> dict[str, Any]:
        assert self.write is not None
        text, content = "", []
        while follow := self.write(text, body):
            best = max(follow, key=follow.__getitem__)
            listed = sorted(follow.items(), key=lambda f: -f[1])[: body["top_logprobs"]]
            top = [{"token": t, "bytes": list(t.encode()), "logprob": p} for t, p in listed]
            content.append({**top[0], "top_logprobs": top})
            text += best
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "finish_reason": "stop", "message": message, "logprobs": {"content": content}}
        usage = {"prompt_tokens": 5, "completion_tokens": len(content), "total_tokens": 0}
        return {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}

    def _echo(self, body: dict[str, Any]) -> dict[str, Any]:
        assert self.score is not None
        choices, count = [], 0
        for index, prompt in enumerate([body["prompt"]] if isinstance(body["prompt"], str) else body["prompt"]):
            tokens = words(prompt)
            logprobs = {
                "tokens": tokens,
                "token_logprobs": [None, *(self.score(t) for t in tokens[1:])],
                "text_offset": [sum(map(len, tokens[:i])) for i in range(len(tokens))],
                "top_logprobs": None,
            }
            choices.append({"index": index, "text": prompt, "finish_reason": "length", "logprobs": logprobs})
            count += len(tokens)
        usage = {"prompt_tokens": count, "completion_tokens": 0, "total_tokens": count}
        return {"id": "x", "object": "text_completion", "created": 0, "model": "m", "choices": choices, "usage": usage}

    @staticmethod
    def _send(handler: BaseHTTPRequestHandler, body: Any, status: int = 200) -> None:
        data = json.dumps(body).encode()
        handler.send_response(status)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)


def words(text: str) -> list[str]:
    return re.findall(r" ?[^\s]+|\s", text)


def until(tokens: list[str], stops: list[str]) -> tuple[list[str], bool]:
    """The tokens up to the first stop, and whether there was one."""
    text = "".join(tokens)
    ends = [at for stop in stops if (at := text.find(stop)) >= 0]
    if not ends:
        return tokens, False
    return words(text[: min(ends)]), True
