"""Program sessions: a state that the server keeps as token ids, so that a client sends only what is new.

A session is a tuple of ids. Appending encodes new text alone; generating appends the ids that were generated; a fork shares
the tuple; rewinding cuts it. The KV behind the ids lives in the engine's tree as that of any prompt does.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from ..errors import PromptError, RequestError
from ..protocol import GenerateRequest
from . import wire
from .answers import DONE, EventStream, HttpError, Json, answer
from .generate import Shaper, stream_one
from .native_api import prompt_ids
from .sampling import Number, sampling
from .service import Output, Service, checked_rid, new_id, state_ids
from .wire import Ids, Wire


@dataclass
class Session:
    """One state. `busy` while it generates: then it cannot change."""

    ids: tuple[int, ...]
    cache_salt: str
    ttl: float
    used: float
    busy: bool = False


class Sessions:
    """All sessions of a server, by id. Expired ones are dropped whenever one is opened or looked for."""

    def __init__(self, most: int, ttl: float) -> None:
        self.most = most
        self.ttl = ttl
        self._all: dict[str, Session] = {}

    def open(self, ids: tuple[int, ...], salt: str, ttl: float | None) -> str:
        self._expire()
        if len(self._all) >= self.most:
            raise HttpError(503, f"{self.most} sessions are open already; close one or wait", code="too_many_sessions")
        name = new_id()
        self._all[name] = Session(ids, salt, min(ttl or self.ttl, self.ttl), time.monotonic())
        return name

    def get(self, name: str) -> Session:
        """Raises HttpError 404 when there is none, or it expired."""
        self._expire()
        if (session := self._all.get(name)) is None:
            raise HttpError(404, f"there is no session {name[:64]!r}; it may have expired", code="session_not_found")
        session.used = time.monotonic()
        return session

    def idle(self, name: str) -> Session:
        """Raises HttpError 409 while it generates."""
        session = self.get(name)
        if session.busy:
            raise HttpError(409, "the session is generating; wait for it, or fork first", code="session_busy")
        return session

    def close(self, name: str) -> None:
        self.get(name)
        del self._all[name]

    def __len__(self) -> int:
        return len(self._all)

    def _expire(self) -> None:
        now = time.monotonic()
        for name in [n for n, s in self._all.items() if not s.busy and now - s.used > s.ttl]:
            del self._all[name]


class OpenBody(Wire):
    """The body of POST /session: the state it begins with (text, ids or none), and how long it may idle."""

    text: str | None = None
    input_ids: Ids | None = None
    cache_salt: str = ""
    ttl: Annotated[Number, Field(gt=0)] | None = None


class AppendBody(Wire):
    """The body of POST /session/{id}/append."""

    text: str | None = None
    input_ids: Ids | None = None


class SessionGenerateBody(Wire):
    """The body of POST /session/{id}/generate; `append` goes in front. The output becomes part of the state unless `keep` is false."""

    append: str | None = None
    sampling_params: dict[str, Any] | None = None
    return_logprob: bool = False
    top_logprobs_num: int = 0
    return_text_in_logprobs: bool = False
    stream: bool = False
    incremental: bool | None = None
    keep: bool = True
    priority: int = 0
    deadline: Annotated[Number, Field(gt=0)] | None = None
    rid: str | None = None


class ForkBody(Wire):
    n: Annotated[int, Field(ge=1)] = 1


class RewindBody(Wire):
    """The body of POST /session/{id}/rewind: the length in tokens to go back to."""

    tokens: Annotated[int, Field(ge=0)]


def routes(service: Service) -> APIRouter:
    router = APIRouter()
    sessions = service.sessions = Sessions(service.config.max_sessions, service.config.session_ttl)

    def grown(session: Session, new: tuple[int, ...]) -> tuple[int, ...]:
        ids = session.ids + new
        if len(ids) > service.context_length:
            raise PromptError(f"the session would hold {len(ids)} tokens; the context holds {service.context_length}", field="text")
        if any(not 0 <= token < service.vocab_size for token in new):
            raise PromptError(f"input_ids: an id is outside the vocabulary of {service.vocab_size}", field="input_ids")
        return ids

    def state(name: str, session: Session) -> dict[str, Any]:
        return {"session_id": name, "tokens": len(session.ids), "ttl": session.ttl}

    @router.post("/session", openapi_extra=wire.schema(OpenBody))
    async def open_session(request: Request) -> Response:
        body = await wire.read(request, OpenBody)
        ids = () if body.text is None and body.input_ids is None else await prompt_ids(service, body)
        ids = grown(Session((), "", 0, 0), ids)
        name = sessions.open(ids, body.cache_salt, body.ttl)
        return Json(state(name, sessions.get(name)))

    @router.get("/session/{name}")
    async def read_session(name: str) -> Response:
        session = sessions.get(name)
        text = await service.in_thread(service.tokenizer.decode, session.ids)
        return Json(state(name, session) | {"input_ids": session.ids, "text": text})

    @router.post("/session/{name}/append", openapi_extra=wire.schema(AppendBody))
    async def append(name: str, request: Request) -> Response:
        body = await wire.read(request, AppendBody)
        session = sessions.idle(name)
        new = await prompt_ids(service, body, add_special=not session.ids)
        sessions.idle(name).ids = grown(session, new)
        return Json(state(name, session))

    @router.post("/session/{name}/generate", openapi_extra=wire.schema(SessionGenerateBody))
    async def generate(name: str, request: Request) -> Response:
        body = await wire.read(request, SessionGenerateBody)
        session = sessions.idle(name)
        parameters = sampling(body.sampling_params or {}, "sampling_params.", service.config.max_n)
        if body.keep and parameters.n > 1:
            raise RequestError("n>1: a session keeps one output; fork first, or set keep=false", field="sampling_params.n")
        new = await service.encode(body.append, add_special=not session.ids, field="append") if body.append else ()
        session = sessions.idle(name)
        prompt = GenerateRequest(
            checked_rid(body.rid) if body.rid is not None else new_id(),
            grown(session, tuple(new)),
            parameters,
            logprobs=body.return_logprob,
            top_logprobs=body.top_logprobs_num,
            priority=body.priority,
            cache_salt=session.cache_salt,
            deadline=service.deadline(body.deadline),
        )
        request.scope["ramet.log"] |= {"rid": prompt.rid, "session": name}
        if body.stream:
            return EventStream(_streamed(service, session, prompt, body), stall=service.config.stall_timeout)
        return await answer(request, _whole(service, session, prompt, body))

    @router.post("/session/{name}/fork", openapi_extra=wire.schema(ForkBody))
    async def fork(name: str, request: Request) -> Response:
        body = await wire.read(request, ForkBody)
        session = sessions.get(name)
        if len(sessions) + body.n > sessions.most:
            raise HttpError(503, f"{sessions.most} sessions may be open; {len(sessions)} are", code="too_many_sessions")
        return Json(
            {
                "session_ids": [sessions.open(session.ids, session.cache_salt, session.ttl) for _ in range(body.n)],
                "tokens": len(session.ids),
            }
        )

    @router.post("/session/{name}/rewind", openapi_extra=wire.schema(RewindBody))
    async def rewind(name: str, request: Request) -> Response:
        body = await wire.read(request, RewindBody)
        session = sessions.idle(name)
        if body.tokens > len(session.ids):
            raise RequestError(f"tokens={body.tokens}: the session has {len(session.ids)}", field="tokens")
        session.ids = session.ids[: body.tokens]
        return Json(state(name, session))

    @router.delete("/session/{name}")
    @router.post("/session/{name}/close")
    async def close(name: str) -> Response:
        sessions.close(name)
        return Json({"closed": True})

    return router


@contextmanager
def _taken(session: Session, request: GenerateRequest) -> Iterator[None]:
    """The session is busy within. Raises HttpError 409 when it is, or when it has changed since the request was made."""
    if session.busy or session.ids != request.prompt[: len(session.ids)]:
        raise HttpError(409, "the session is generating, or has changed; fork first", code="session_busy")
    session.busy = True
    try:
        yield
    finally:
        session.busy, session.used = False, time.monotonic()


async def _whole(service: Service, session: Session, request: GenerateRequest, body: SessionGenerateBody) -> Any:
    with _taken(session, request):
        outputs = await service.run(request)
        if body.keep:
            _keep(service, session, request, outputs[0])
        shaper = Shaper(service, body)
        results = [shaper.result(request, output, i) | {"tokens": len(session.ids)} for i, output in enumerate(outputs)]
        return results if len(results) > 1 else results[0]


async def _streamed(service: Service, session: Session, request: GenerateRequest, body: SessionGenerateBody) -> AsyncGenerator[bytes, None]:
    def done(outputs: list[Output]) -> None:
        if body.keep:
            _keep(service, session, request, outputs[0])

    incremental = service.config.incremental_streaming_output if body.incremental is None else body.incremental
    with _taken(session, request):
        async with aclosing(stream_one(service, request, Shaper(service, body), None, incremental, done)) as events:
            async for data in events:
                yield data
        yield DONE


def _keep(service: Service, session: Session, request: GenerateRequest, output: Output) -> None:
    session.ids = (*request.prompt, *state_ids(service.tokenizer, output))  # type: ignore[assignment]  # ids, not text
