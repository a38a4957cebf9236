"""A running Ramet server as a backend. What crosses is token ids, so a state's tokens stay exactly what they were.

The server keeps states as sessions (`sessions.py`), so a request of a program brings what is new: one request for each generation.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from ...runtime.errors import (
    BackendError,
    CancelledError,
    ConstraintError,
    DeadlineError,
    EngineClosedError,
    PromptError,
    QueueFullError,
    RequestError,
    UnsupportedError,
)
from ...runtime.protocol import Chunk, FinishReason, GenerateRequest, ScoreRequest, Scores, Timings, TokenLogprob, Usage
from ..sampling import CONSTRAINTS, to_dict
from .base import ChunkSink, Line, Message, ScoreSink
from .remote import Calls
from .sessions import SESSION_CODES, Sessions, State, common


class RuntimeEndpoint:
    """The server at `base_url`, for instance "http://127.0.0.1:30000".

    `verify`: False, or a file of certificates, for https. `chat_template_name`: one of `chat_template.TEMPLATES` instead of the
    model's own. Raises BackendError if no server answers there.
    """

    speculates = False
    joins = True

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: Any = None,
        chat_template_name: str | None = None,
        *,
        max_connections: int = 512,
    ) -> None:
        import httpx

        self.base_url = base_url.rstrip("/")
        self.chat_template_name = chat_template_name
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        options: dict[str, Any] = {"base_url": self.base_url, "headers": headers, "verify": True if verify is None else verify}
        limits = httpx.Limits(max_connections=max_connections, max_keepalive_connections=max_connections)
        self._httpx = httpx
        self._now = httpx.Client(**options, timeout=60.0)
        try:
            self._info = self.get_server_info()
        except BaseException:
            self._now.close()
            raise
        # waiting for a free connection is waiting in line; how long an answer may take is for deadlines to say
        self._later = httpx.AsyncClient(**options, limits=limits, timeout=httpx.Timeout(None, connect=10.0))
        self._calls = Calls("ramet-http")
        self._sessions = Sessions(self._post, self._info.get("max_sessions", 0) // 4)  # others want some, too
        self._ids_of = lru_cache(4096)(self._encode)
        self._text_of = lru_cache(65536)(self._decode)

    # ---- tokens ----

    @property
    def bos_id(self) -> int | None:
        return self._info.get("bos_id")

    @property
    def eos_ids(self) -> Sequence[int]:
        return tuple(self._info.get("eos_ids", ()))

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        """Token ids by the server's tokenizer."""
        return list(self._ids_of(text, add_special)) if text or add_special else []

    def _encode(self, text: str, add_special: bool) -> list[int]:
        return self._ask("POST", "/tokenize", {"prompt": text, "add_special_tokens": add_special})["tokens"]

    def decode(self, ids: Sequence[int]) -> str:
        return self._text_of(tuple(ids))

    def _decode(self, ids: tuple[int, ...]) -> str:
        return self._ask("POST", "/detokenize", {"tokens": list(ids)})["text"] if ids else ""

    def render_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str | None:
        try:
            return self._ask("POST", "/apply-template", {"messages": list(messages), "add_generation_prompt": add_generation_prompt})["prompt"]
        except UnsupportedError:
            return None  # the model has no template

    # ---- requests ----

    def line(self) -> Line:
        """A state that begins; the server keeps it from its first answer on."""
        return RemoteLine(self, State())

    def submit(self, request: GenerateRequest, sink: ChunkSink) -> None:
        self.submit_under(None, request, sink)

    def submit_under(self, state: State | None, request: GenerateRequest, sink: ChunkSink) -> None:
        """`submit`, for a state that the server may keep."""
        self._calls.start(request.rid, lambda: self._generate(state, request, sink), lambda error: sink(Chunk(request.rid, error=error)))

    async def _generate(self, state: State | None, request: GenerateRequest, sink: ChunkSink) -> None:
        """By the session that the server has of the state; in another way when the server has forgotten it, or has no room."""
        body, prompt = generate_body(request), request.prompt
        if state is None or isinstance(prompt, str) or request.joined:  # a session holds plain ids
            source = {"text": prompt} if isinstance(prompt, str) else {"input_ids": prompt}
            await self._stream("/generate", {**source, "cache_salt": request.cache_salt or None, **body}, request, sink)
            return
        plainly = False
        while True:
            turn = await self._sessions.turn(state, prompt, request.cache_salt, keep=request.params.n == 1, plainly=plainly)
            try:
                # settled before the program hears of the end: it may go on at once
                await self._stream(turn.path, turn.body(body), request, sink, partial(self._sessions.settle, turn))
                return
            except SessionError as error:
                plainly = self._sessions.refused(turn, error.code)
            finally:
                self._sessions.settle(turn)

    async def _stream(
        self, path: str, body: dict[str, Any], request: GenerateRequest, sink: ChunkSink, ended: Callable[[dict[str, Any], list[int]], None] | None = None
    ) -> None:
        """Hands the chunks of an answer to `sink`; before the last one, the last event and the ids of the first output to `ended`."""
        left = set(range(request.params.n))
        ids: list[int] = []
        async with self._guard(), self._later.stream("POST", path, json=body) as response:
            if response.status_code != 200:
                raise error_of(response.status_code, await response.aread(), by_session=path != "/generate")
            async for line in response.aiter_lines():
                if not line.startswith("data:") or line == "data: [DONE]":
                    continue
                data = json.loads(line[5:])
                if "error" in data:
                    raise error_of(None, data)
                chunk = chunk_of(request.rid, data)
                left -= {chunk.index} if chunk.last else set()
                ids += chunk.token_ids if chunk.index == 0 else ()
                if not left and ended is not None:
                    ended(data, ids)
                self._calls.worker.post(lambda chunk=chunk: sink(chunk))  # type: ignore[misc]
        if left:
            raise BackendError(f"the server at {self.base_url} broke off its answer")

    def score(self, request: ScoreRequest, sink: ScoreSink) -> None:
        self.score_under(None, request, sink)

    def score_under(self, state: State | None, request: ScoreRequest, sink: ScoreSink) -> None:
        """`score`, for a state that the server may keep."""
        self._calls.start(request.rid, lambda: self._score(state, request, sink), lambda error: sink(Scores(request.rid, error=error)))

    async def _score(self, state: State | None, request: ScoreRequest, sink: ScoreSink) -> None:
        body = {
            "options": [list(option) for option in request.options],
            "rid": request.rid,
            "priority": request.priority,
            "deadline": request.deadline,
            "joined": request.joined or None,
        }
        while True:
            near = None if state is None or request.joined else self._sessions.nearest(state, request.cache_salt)
            async with self._guard():
                response = await self._later.post("/score", json={**body, **prefix_of(near, request)})
            if response.status_code == 200:
                break
            error = error_of(response.status_code, response.content, by_session=near is not None)
            if near is None or not isinstance(error, SessionError):
                raise error
            self._sessions.lost(near)
        data = response.json()
        rows = tuple(tuple(float("-inf") if x is None else x for x in row) for row in data["logprobs"])
        scores = Scores(request.rid, rows, usage_of(data["meta_info"]), timings_of(data["meta_info"]))
        self._calls.worker.post(lambda: sink(scores))

    def end_state(self, state: State) -> None:
        """The state has ended. From any thread, also while garbage is collected."""
        self._calls.call(lambda: self._sessions.close(state))

    def abort(self, rid: str) -> None:
        self._calls.abort(rid)  # closing the connection aborts the request there

    def defer(self, work: Callable[[], None], delay: float = 0.0) -> None:
        self._calls.worker.post(work, delay)

    def pin(self, ids: Sequence[int], ttl: float, cache_salt: str = "") -> int:
        """See `base.Pinning`."""
        return self._ask("POST", "/pin", {"input_ids": list(ids), "ttl": ttl, "cache_salt": cache_salt})["pinned"]

    def unpin(self, ids: Sequence[int], cache_salt: str = "") -> bool:
        """See `base.Pinning`."""
        return self._ask("POST", "/unpin", {"input_ids": list(ids), "cache_salt": cache_salt})["unpinned"]

    def flush_cache(self) -> bool:
        """Empties the server's prefix cache; False while requests run there."""
        try:
            self._ask("POST", "/flush_cache", None)
        except BackendError as exc:
            if exc.status == 409:
                return False
            raise
        return True

    def get_server_info(self) -> dict[str, Any]:
        return self._ask("GET", "/server_info", None)

    def shutdown(self) -> None:
        """Closes the sessions and the connections; the server goes on."""
        self._calls.close(self._close)
        self._now.close()

    def __enter__(self) -> RuntimeEndpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(2.0):  # sessions that nobody uses expire, too
                await self._sessions.close_all()
        except TimeoutError:
            pass
        await self._later.aclose()

    # ---- the wire ----

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        async with self._guard():
            response = await self._later.post(path, json=body)
        if response.status_code != 200:
            raise error_of(response.status_code, response.content)
        return response.json()

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        try:
            response = self._now.request(method, path, json=body)
        except self._httpx.HTTPError as exc:
            raise self._unreachable(exc) from exc
        if response.status_code != 200:
            raise error_of(response.status_code, response.content)
        return response.json()

    def _guard(self) -> _Guard:
        return _Guard(self)

    def _unreachable(self, exc: Exception) -> BackendError:
        return BackendError(f"no answer from a server at {self.base_url}: {exc or type(exc).__name__}; is `ramet serve` running there?")


class _Guard:
    """Turns the HTTP client's errors into BackendError."""

    def __init__(self, backend: RuntimeEndpoint) -> None:
        self._backend = backend

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, kind: Any, exc: Any, traceback: Any) -> None:
        if isinstance(exc, self._backend._httpx.HTTPError) and not isinstance(exc, asyncio.CancelledError):
            raise self._backend._unreachable(exc) from exc


class SessionError(BackendError):
    """The server has no such session, no room for another, or no sessions at all: a request can be said in another way."""

    def __init__(self, message: str, *, status: int | None, code: str | None) -> None:
        super().__init__(message, status=status)
        self.code = code


class RemoteLine:
    """A state that the server keeps; see `base.Line`. One that is forgotten ends, too."""

    def __init__(self, endpoint: RuntimeEndpoint, state: State) -> None:
        self._endpoint, self._state = endpoint, state

    def submit(self, request: GenerateRequest, sink: ChunkSink) -> None:
        self._endpoint.submit_under(self._state, request, sink)

    def score(self, request: ScoreRequest, sink: ScoreSink) -> None:
        self._endpoint.score_under(self._state, request, sink)

    def fork(self, ids: Sequence[int]) -> Line:
        return RemoteLine(self._endpoint, self._state.fork(tuple(ids)))

    def close(self) -> None:
        self._endpoint.end_state(self._state)

    def __del__(self) -> None:
        self.close()


def generate_body(request: GenerateRequest) -> dict[str, Any]:
    """All of a request but its prompt and salt, as the routes that generate read it."""
    body = {
        "sampling_params": to_dict(request.params),
        "rid": request.rid,
        "stream": True,
        "incremental": True,
        "priority": request.priority,
        "deadline": request.deadline,
    }
    if request.logprobs:
        body |= {"return_logprob": True, "logprob_start_len": request.logprob_start, "top_logprobs_num": request.top_logprobs}
    if request.joined:
        body["joined"] = request.joined
    if request.token_ids_logprob:
        body["token_ids_logprob"] = list(request.token_ids_logprob)
    return body


def prefix_of(near: State | None, request: ScoreRequest) -> dict[str, Any]:
    """How a request to score says what the options follow: by a session, as far as it has the ids."""
    if near is None or near.held is None:
        return {"input_ids": request.prompt, "cache_salt": request.cache_salt}
    at = common(near.held.ids, request.prompt)
    return {"session_id": near.held.name, "tokens": at, "input_ids": request.prompt[at:]}


def chunk_of(rid: str, data: Mapping[str, Any]) -> Chunk:
    """One event of a `/generate` stream."""
    meta = data["meta_info"]
    reason = meta.get("finish_reason")
    if reason is not None and reason["type"] == "abort":
        return Chunk(rid, data.get("index", 0), error=CancelledError(reason.get("message") or "the server aborted the request"))
    finish = None if reason is None else FinishReason(reason["type"], reason.get("matched"), reason.get("message"))
    return Chunk(
        rid,
        data.get("index", 0),
        data["text"],
        tuple(data["output_ids"]),
        logprobs=logprobs_of(meta, "output"),
        prompt_logprobs=logprobs_of(meta, "input"),
        first_logprobs=tuple((i, logprob) for row in meta.get("output_token_ids_logprobs", ()) for logprob, i, _ in row),
        finish=finish,
        usage=usage_of(meta) if finish else None,
        timings=timings_of(meta) if finish else None,
    )


def logprobs_of(meta: Mapping[str, Any], side: str) -> tuple[TokenLogprob, ...]:
    tokens = meta.get(f"{side}_token_logprobs") or []
    tops = meta.get(f"{side}_top_logprobs") or [None] * len(tokens)
    return tuple(TokenLogprob(i, logprob, tuple((j, other) for other, j, _ in top or ())) for (logprob, i, _), top in zip(tokens, tops, strict=True))


def usage_of(meta: Mapping[str, Any]) -> Usage:
    names = ("prompt_tokens", "cached_tokens", "completion_tokens", "forced_tokens", "num_retractions")
    return Usage(*(meta.get(name) or 0 for name in names))


def timings_of(meta: Mapping[str, Any]) -> Timings:
    return Timings(*(meta.get(name) or 0.0 for name in ("queue_time", "ttft", "tpot", "e2e_latency")))


def error_of(status: int | None, body: bytes | Mapping[str, Any], *, by_session: bool = False) -> Exception:
    """The typed error behind an error answer. `by_session`: to a request that may be said without one."""
    try:
        data = json.loads(body) if isinstance(body, bytes) else body
        error = data["error"]
        message, param, code = error["message"], error.get("param"), error.get("code")
    except (ValueError, KeyError, TypeError):
        text = body.decode("utf-8", "replace")[:300] if isinstance(body, bytes) else str(body)[:300]
        if by_session and status in (404, 405):
            return SessionError(f"the server answered {status}: {text}", status=status, code=None)
        return BackendError(f"the server answered {status}: {text}", status=status)
    if by_session and (code in SESSION_CODES or status in (404, 405)):
        return SessionError(message, status=status, code=code)
    if code == "unsupported":
        return UnsupportedError(message, field=param)
    if code == "queue_full":
        return QueueFullError(message)
    if code == "engine_unavailable":
        return EngineClosedError(message)
    if code in ("deadline_exceeded", "timeout"):
        return DeadlineError(message)
    if code == "aborted":
        return CancelledError(message)
    if status in (400, 422) or (status is None and error.get("type") == "invalid_request_error"):
        leaf = (param or "").rpartition(".")[2]
        kind = ConstraintError if leaf in CONSTRAINTS else PromptError if leaf in ("prompt", "text", "input_ids") else RequestError
        return kind(message, field=param)
    return BackendError(message, status=status)
