"""A running Ramet server as a backend. What crosses is token ids, so a state's tokens stay exactly what they were."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
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
from .base import ChunkSink, Message, ScoreSink
from .remote import Calls


class RuntimeEndpoint:
    """The server at `base_url`, for instance "http://127.0.0.1:30000".

    `verify`: False, or a file of certificates, for https. `chat_template_name`: one of `chat_template.TEMPLATES` instead of the
    model's own. Raises BackendError if no server answers there.
    """

    speculates = False

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
            return self._ask("POST", "/apply-template", {"messages": list(messages), "add_generation_prompt": add_generation_prompt})[
                "prompt"
            ]
        except UnsupportedError:
            return None  # the model has no template

    # ---- requests ----

    def submit(self, request: GenerateRequest, sink: ChunkSink) -> None:
        body = {
            **({"text": request.prompt} if isinstance(request.prompt, str) else {"input_ids": list(request.prompt)}),
            "sampling_params": to_dict(request.params),
            "rid": request.rid,
            "stream": True,
            "incremental": True,
            "priority": request.priority,
            "cache_salt": request.cache_salt or None,
            "deadline": request.deadline,
        }
        if request.logprobs:
            body |= {"return_logprob": True, "logprob_start_len": request.logprob_start, "top_logprobs_num": request.top_logprobs}
        if request.token_ids_logprob:
            body["token_ids_logprob"] = list(request.token_ids_logprob)
        self._calls.start(request.rid, lambda: self._generate(body, sink), lambda error: sink(Chunk(request.rid, error=error)))

    async def _generate(self, body: dict[str, Any], sink: ChunkSink) -> None:
        left = set(range(body["sampling_params"].get("n", 1)))
        async with self._guard(), self._later.stream("POST", "/generate", json=body) as response:
            if response.status_code != 200:
                raise error_of(response.status_code, await response.aread())
            async for line in response.aiter_lines():
                if not line.startswith("data:") or line == "data: [DONE]":
                    continue
                data = json.loads(line[5:])
                if "error" in data:
                    raise error_of(None, data)
                chunk = chunk_of(body["rid"], data)
                left -= {chunk.index} if chunk.last else set()
                self._calls.worker.post(lambda chunk=chunk: sink(chunk))  # type: ignore[misc]
        if left:
            raise BackendError(f"the server at {self.base_url} broke off its answer")

    def score(self, request: ScoreRequest, sink: ScoreSink) -> None:
        body = {
            "input_ids": list(request.prompt),
            "options": [list(option) for option in request.options],
            "rid": request.rid,
            "cache_salt": request.cache_salt,
            "priority": request.priority,
            "deadline": request.deadline,
        }
        self._calls.start(request.rid, lambda: self._score(request, body, sink), lambda error: sink(Scores(request.rid, error=error)))

    async def _score(self, request: ScoreRequest, body: dict[str, Any], sink: ScoreSink) -> None:
        async with self._guard():
            response = await self._later.post("/score", json=body)
        if response.status_code != 200:
            raise error_of(response.status_code, response.content)
        data = response.json()
        rows = tuple(tuple(float("-inf") if x is None else x for x in row) for row in data["logprobs"])
        scores = Scores(request.rid, rows, usage_of(data["meta_info"]), timings_of(data["meta_info"]))
        self._calls.worker.post(lambda: sink(scores))

    def abort(self, rid: str) -> None:
        self._calls.abort(rid)  # closing the connection aborts the request there

    def defer(self, work: Callable[[], None], delay: float = 0.0) -> None:
        self._calls.worker.post(work, delay)

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
        """Closes the connections; the server goes on."""
        self._calls.close(self._later.aclose)
        self._now.close()

    def __enter__(self) -> RuntimeEndpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    # ---- the wire ----

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
    return tuple(
        TokenLogprob(i, logprob, tuple((j, other) for other, j, _ in top or ())) for (logprob, i, _), top in zip(tokens, tops, strict=True)
    )


def usage_of(meta: Mapping[str, Any]) -> Usage:
    names = ("prompt_tokens", "cached_tokens", "completion_tokens", "forced_tokens", "num_retractions")
    return Usage(*(meta.get(name) or 0 for name in names))


def timings_of(meta: Mapping[str, Any]) -> Timings:
    return Timings(*(meta.get(name) or 0.0 for name in ("queue_time", "ttft", "tpot", "e2e_latency")))


def error_of(status: int | None, body: bytes | Mapping[str, Any]) -> Exception:
    """The typed error behind an error answer."""
    try:
        data = json.loads(body) if isinstance(body, bytes) else body
        error = data["error"]
        message, param, code = error["message"], error.get("param"), error.get("code")
    except (ValueError, KeyError, TypeError):
        text = body.decode("utf-8", "replace")[:300] if isinstance(body, bytes) else str(body)[:300]
        return BackendError(f"the server answered {status}: {text}", status=status)
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
