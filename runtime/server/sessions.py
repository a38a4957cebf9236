"""Program sessions: a state that the server keeps as token ids, so that a client sends only what is new.

A session is a tuple of ids. Appending encodes new text alone; generating appends the ids that were generated; a fork shares
the tuple; rewinding cuts it. The KV behind the ids lives in the engine's tree as that of any prompt does.

One request can do what a step of a program needs: /session opens a state and generates under it, /session/{id}/generate goes
back, forks, appends and generates. A state that begins with an answer exists once the answer is whole, so that a client that
leaves before leaves nothing behind.
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
from .wire import Ids, Strings, Wire


@dataclass
class Session:
    """One state. `busy` while it generates: then it cannot change."""

    ids: tuple[int, ...]
    cache_salt: str
    ttl: float
    used: float
    busy: bool = False

    def upto(self, tokens: int | None) -> tuple[int, ...]:
        """Its first `tokens` ids; None: all. Raises RequestError when it has fewer."""
        if tokens is not None and tokens > len(self.ids):
            raise RequestError(f"tokens={tokens}: the session has {len(self.ids)}", field="tokens")
        return self.ids[:tokens]


class Sessions:
    """All sessions of a server, by id. Expired ones are dropped whenever one is opened or looked for."""

    def __init__(self, most: int, ttl: float) -> None:
        self.most = most
        self.ttl = ttl
        self._all: dict[str, Session] = {}

    def ttl_of(self, asked: float | None) -> float:
        """Seconds: what was asked for, within the server's limit."""
        return min(asked or self.ttl, self.ttl)

    def open(self, ids: tuple[int, ...], salt: str, ttl: float) -> str:
        """Its id. Raises HttpError 503 when there are too many."""
        self.require_room(1)
        name = new_id()
        self._all[name] = Session(ids, salt, ttl, time.monotonic())
        return name

    def require_room(self, n: int) -> None:
        """Raises HttpError 503 unless n more can be opened."""
        self._expire()
        if len(self._all) + n > self.most:
            raise HttpError(503, f"{self.most} sessions may be open; {len(self._all)} are: close some, or wait", code="too_many_sessions")

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

    def close(self, name: str) -> bool:
        """False when there was none."""
        return self._all.pop(name, None) is not None

    def __len__(self) -> int:
        return len(self._all)

    def _expire(self) -> None:
        now = time.monotonic()
        for name in [n for n, s in self._all.items() if not s.busy and now - s.used > s.ttl]:
            del self._all[name]


class TurnBody(Wire):
    """One generation under a state. The output becomes part of the state unless `keep` is false."""

    sampling_params: dict[str, Any] | None = None
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    token_ids_logprob: Ids | None = None
    return_text_in_logprobs: bool = False
    stream: bool = False
    incremental: bool | None = None
    keep: bool = True
    priority: int = 0
    deadline: Annotated[Number, Field(gt=0)] | None = None
    ttft_target: Annotated[Number, Field(gt=0)] | None = None
    tpot_target: Annotated[Number, Field(gt=0)] | None = None
    rid: str | None = None


class SessionGenerateBody(TurnBody):
    """The body of POST /session/{id}/generate. `tokens` is a length to go back to first, `append` or `append_ids` go in front of the answer.

    With `fork` the session stays as it is and free, and what comes of it is a new one, whose id the last event has; without `keep`, too,
    nothing comes of it."""

    tokens: Annotated[int, Field(ge=0)] | None = None
    append: str | None = None
    append_ids: Ids | None = None
    fork: bool = False


class OpenBody(Wire):
    """The body of POST /session: the state it begins with (text, ids or none), and how long it may idle.

    With `generate` it is answered by the answer, as a generation under the session would be; the last event has the session's id."""

    text: str | None = None
    input_ids: Ids | None = None
    cache_salt: str = ""
    ttl: Annotated[Number, Field(gt=0)] | None = None
    generate: TurnBody | None = None


class AppendBody(Wire):
    """The body of POST /session/{id}/append."""

    text: str | None = None
    input_ids: Ids | None = None


class CloseBody(Wire):
    """The body of POST /session/close: many at once; those that are not there are none to close."""

    session_ids: Strings


class ForkBody(Wire):
    n: Annotated[int, Field(ge=1)] = 1


class RewindBody(Wire):
    """The body of POST /session/{id}/rewind: the length in tokens to go back to."""

    tokens: Annotated[int, Field(ge=0)]


def source_of(body: OpenBody | AppendBody) -> str:
    """The field that holds the new part of a state."""
    return "input_ids" if body.input_ids is not None else "text"


def routes(service: Service) -> APIRouter:
    router = APIRouter()
    sessions = service.sessions = Sessions(service.config.max_sessions, service.config.session_ttl)

    def grown(base: tuple[int, ...], new: tuple[int, ...], field: str) -> tuple[int, ...]:
        ids = base + new
        if len(ids) > service.context_length:
            raise PromptError(f"the session would hold {len(ids)} tokens; the context holds {service.context_length}", field=field)
        if any(not 0 <= token < service.vocab_size for token in new):
            raise PromptError(f"{field}: an id is outside the vocabulary of {service.vocab_size}", field=field)
        return ids

    def state(name: str, session: Session) -> dict[str, Any]:
        return {"session_id": name, "tokens": len(session.ids), "ttl": session.ttl}

    @router.post("/session", openapi_extra=wire.schema(OpenBody))
    async def open_session(request: Request) -> Response:
        body = await wire.read(request, OpenBody)
        ids = () if body.text is None and body.input_ids is None else await prompt_ids(service, body)
        ids = grown((), ids, source_of(body))
        if body.generate is not None:
            if not body.generate.keep:
                raise RequestError("generate.keep=false: a new session begins with its first answer", field="generate.keep")
            sessions.require_room(1)
            place = Turn(sessions, Session(ids, body.cache_salt, sessions.ttl_of(body.ttl), 0.0), None)
            return await turn(request, place, ids, body.generate, "generate.")
        name = sessions.open(ids, body.cache_salt, sessions.ttl_of(body.ttl))
        return Json(state(name, sessions.get(name)))

    @router.post("/session/close", openapi_extra=wire.schema(CloseBody))
    async def close_many(request: Request) -> Response:
        body = await wire.read(request, CloseBody)
        return Json({"closed": sum(map(sessions.close, body.session_ids))})

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
        sessions.idle(name).ids = grown(session.ids, new, source_of(body))
        return Json(state(name, session))

    @router.post("/session/{name}/generate", openapi_extra=wire.schema(SessionGenerateBody))
    async def generate(name: str, request: Request) -> Response:
        body = await wire.read(request, SessionGenerateBody)
        session = sessions.get(name) if body.fork else sessions.idle(name)
        if body.fork and body.keep:
            sessions.require_room(1)
        if body.append is not None and body.append_ids is not None:
            raise RequestError("give append or append_ids, one of the two", field="append_ids")
        base, place = session.upto(body.tokens), Turn(sessions, session, None if body.fork else name)
        if body.append:
            new = await service.encode(body.append, add_special=not base, field="append")
        else:
            new = tuple(body.append_ids or ())
        request.scope["ramet.log"]["session"] = name
        return await turn(request, place, grown(base, new, "append" if body.append else "append_ids"), body)

    async def turn(request: Request, place: Turn, ids: tuple[int, ...], body: TurnBody, where: str = "") -> Response:
        parameters = sampling(body.sampling_params or {}, where + "sampling_params.", service.config.max_n)
        if body.keep and parameters.n > 1:
            raise RequestError("n>1: a session keeps one output; fork first, or set keep=false", field=where + "sampling_params.n")
        prompt = GenerateRequest(
            checked_rid(body.rid) if body.rid is not None else new_id(),
            ids,
            parameters,
            logprobs=body.return_logprob,
            logprob_start=body.logprob_start_len if body.return_logprob else -1,
            top_logprobs=body.top_logprobs_num if body.return_logprob else 0,
            token_ids_logprob=tuple(body.token_ids_logprob or ()),
            priority=body.priority,
            cache_salt=place.session.cache_salt,
            deadline=service.deadline(body.deadline),
            ttft_target=body.ttft_target,
            tpot_target=body.tpot_target,
        )
        request.scope["ramet.log"]["rid"] = prompt.rid
        if body.stream:
            return EventStream(_streamed(service, place, prompt, body), stall=service.config.stall_timeout)
        return await answer(request, _whole(service, place, prompt, body))

    @router.post("/session/{name}/fork", openapi_extra=wire.schema(ForkBody))
    async def fork(name: str, request: Request) -> Response:
        body = await wire.read(request, ForkBody)
        session = sessions.get(name)
        if body.n > sessions.most:
            raise RequestError(f"n={body.n}: at most {sessions.most} sessions may be open", field="n")
        sessions.require_room(body.n)
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
        session.ids = session.upto(body.tokens)
        return Json(state(name, session))

    @router.delete("/session/{name}")
    @router.post("/session/{name}/close")
    async def close(name: str) -> Response:
        sessions.get(name)
        sessions.close(name)
        return Json({"closed": True})

    return router


class Turn:
    """One generation under a session, and where it goes: into the session itself, or, without a `name`, into a new one."""

    def __init__(self, sessions: Sessions, session: Session, name: str | None) -> None:
        self.sessions, self.session, self.name = sessions, session, name
        self._began_with = session.ids
        self._taken = False

    @contextmanager
    def taken(self) -> Iterator[None]:
        """The session is busy until the answer is whole. Raises HttpError 409 when it is already, or has changed since this turn began."""
        if self.name is not None:
            if self.session.busy or self.session.ids is not self._began_with:
                raise HttpError(409, "the session is generating, or has changed; fork first", code="session_busy")
            self.session.busy = self._taken = True
        try:
            yield
        finally:
            self._release()

    def end(self, service: Service, request: GenerateRequest, output: Output, keep: bool) -> dict[str, Any]:
        """Makes the output part of the state if it is to be kept; what the last event says of the session.

        "kept" is how many of the output's ids stand in the state as they are; "session_id" is null when there was no room for a new one."""
        self._release()  # who has read the last event may go on at once
        if not keep:
            return {"session_id": self.name, "tokens": len(self.session.ids), "kept": 0}
        grown = state_ids(service.tokenizer, output)
        kept = next((i for i, pair in enumerate(zip(grown, output.token_ids, strict=False)) if pair[0] != pair[1]), min(len(grown), len(output.token_ids)))
        ids: tuple[int, ...] = (*request.prompt, *grown)  # type: ignore[assignment]  # ids, not text
        if self.name is not None:
            self.session.ids = ids
        return {"session_id": self.name or self._opened(ids), "tokens": len(ids), "kept": kept}

    def _opened(self, ids: tuple[int, ...]) -> str | None:
        try:
            return self.sessions.open(ids, self.session.cache_salt, self.session.ttl)
        except HttpError:  # filled up meanwhile; the answer is worth giving all the same
            return None

    def _release(self) -> None:
        if self._taken:
            self.session.busy = self._taken = False
            self.session.used = time.monotonic()


async def _whole(service: Service, turn: Turn, request: GenerateRequest, body: TurnBody) -> Any:
    with turn.taken():
        outputs = await service.run(request)
        said = turn.end(service, request, outputs[0], body.keep)
        shaper = Shaper(service, body)
        results = [shaper.result(request, output, i) | said for i, output in enumerate(outputs)]
        return results if len(results) > 1 else results[0]


async def _streamed(service: Service, turn: Turn, request: GenerateRequest, body: TurnBody) -> AsyncGenerator[bytes, None]:
    def end(outputs: list[Output]) -> dict[str, Any]:
        return turn.end(service, request, outputs[0], body.keep)

    incremental = service.config.incremental_streaming_output if body.incremental is None else body.incremental
    with turn.taken():
        async with aclosing(stream_one(service, request, Shaper(service, body), None, incremental, end)) as events:
            async for data in events:
                yield data
        yield DONE
