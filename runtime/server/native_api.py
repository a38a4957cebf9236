"""The native family: /generate, /score, and the routes that look after the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from ..errors import RequestError, UnsupportedError
from ..protocol import GenerateRequest, SamplingParams, ScoreRequest
from . import wire
from .answers import EventStream, HttpError, Json, answer, event
from .generate import Batch, GenerateBody, run_batch, stream_batch
from .sampling import Number
from .service import Service, checked_rid, finite, new_id
from .wire import IdLists, Ids, Strings, Wire

BATCH = ("steps", "running", "waiting", "pool", "requests")  # what an event of /batch says
BATCH_TICK = 0.1  # seconds between two of them at least


class ScoreBody(Wire):
    """The body of POST /score: the logprobs of several continuations of one prefix, in one pass.

    With `session_id` the prefix is that session's state, up to `tokens` if given, and then `text` or `input_ids` if any."""

    text: str | None = None
    input_ids: Ids | None = None
    session_id: str | None = None
    tokens: int | None = Field(None, ge=0)
    options: Strings | IdLists
    rid: str | None = None
    cache_salt: str = ""
    priority: int = 0
    deadline: Number | None = Field(None, gt=0)
    joined: IdLists | None = Field(None, description="as in POST /generate")


class AbortBody(Wire):
    """The body of POST /abort_request. An id stops the requests whose id starts with it, as a batch's do."""

    rid: str | None = None
    abort_all: bool = False


class UnpinBody(Wire):
    """The body of POST /unpin: the prefix, as it was pinned."""

    text: str | None = None
    input_ids: Ids | None = None
    cache_salt: str = ""
    tenant: str = ""


class ExplainBody(UnpinBody):
    """The body of POST /tree/explain: a prompt, and whose."""


class PinBody(UnpinBody):
    """The body of POST /pin: a prefix, computed if need be, and for how many seconds it may not be evicted."""

    ttl: Number = Field(300.0, gt=0, le=7 * 86400)


async def prompt_ids(service: Service, body: Any, *, add_special: bool = True) -> tuple[int, ...]:
    """The ids of a body's `text` or `input_ids`. Raises RequestError unless it has exactly one of them."""
    if (body.text is None) == (body.input_ids is None):
        raise RequestError("give text or input_ids, one of the two", field="text")
    if body.input_ids is not None:
        service.check_length(body.input_ids, "input_ids")
        return tuple(body.input_ids)
    return await service.encode(body.text, add_special=add_special)


def routes(service: Service) -> APIRouter:
    router = APIRouter()
    client = service.client

    @router.api_route("/generate", methods=["POST", "PUT"], openapi_extra=wire.schema(GenerateBody))
    async def generate(request: Request) -> Response:
        batch = Batch(await wire.read(request, GenerateBody), service)
        request.scope["ramet.log"]["rid"] = batch.base
        if batch.body.stream:
            return EventStream(stream_batch(service, batch), stall=service.config.stall_timeout)
        return await answer(request, run_batch(service, batch))

    async def scored_prefix(body: ScoreBody) -> tuple[tuple[int, ...], str]:
        """Ids and salt."""
        if body.session_id is None:
            if body.tokens is not None:
                raise RequestError("tokens: a length of a session; give session_id too", field="tokens")
            return await prompt_ids(service, body), body.cache_salt
        session = service.sessions.get(body.session_id)
        if body.cache_salt not in ("", session.cache_salt):
            raise RequestError("cache_salt: the session has its own", field="cache_salt")
        base = session.upto(body.tokens)
        if body.text is None and body.input_ids is None:
            return base, session.cache_salt
        return base + await prompt_ids(service, body, add_special=not base), session.cache_salt

    @router.post("/score", openapi_extra=wire.schema(ScoreBody))
    async def score(request: Request) -> Response:
        body = await wire.read(request, ScoreBody)
        if not 0 < len(body.options) <= service.config.max_prompts:
            raise RequestError(f"options: 1 to {service.config.max_prompts} are needed", field="options")

        async def run() -> Any:
            prefix, salt = await scored_prefix(body)
            options = tuple([await service.encode(item, add_special=False, field="options") if isinstance(item, str) else tuple(item) for item in body.options])
            rid = checked_rid(body.rid) if body.rid is not None else new_id()
            joined = tuple(map(tuple, body.joined or ()))
            scores = await client.score(
                ScoreRequest(rid, prefix, options, salt, body.priority, service.deadline(body.deadline), joined=joined)
            )
            return {
                "logprobs": [[finite(x) for x in row] for row in scores.logprobs],
                "scores": [finite(sum(row)) for row in scores.logprobs],
                "option_ids": options,
                "meta_info": {
                    "id": rid,
                    "prompt_tokens": scores.usage.prompt_tokens,
                    "cached_tokens": scores.usage.cached_tokens,
                    "ttft": scores.timings.ttft,
                    "e2e_latency": scores.timings.e2e,
                },
            }

        return await answer(request, run())

    @router.post("/abort_request", openapi_extra=wire.schema(AbortBody))
    async def abort_request(request: Request) -> Response:
        body = await wire.read(request, AbortBody)
        if body.abort_all == bool(body.rid):
            raise RequestError("give rid, or abort_all=true", field="rid")
        return Json({"aborted": client.abort_prefix("" if body.abort_all else body.rid or "")})

    @router.api_route("/flush_cache", methods=["GET", "POST"])
    async def flush_cache(timeout: float = Query(0.0, ge=0, le=300)) -> Response:
        end = asyncio.get_running_loop().time() + timeout
        while not await client.call("flush_cache"):
            if asyncio.get_running_loop().time() >= end:
                raise HttpError(409, "requests are running; the cache was not flushed", code="busy")
            await asyncio.sleep(0.05)
        return Json({"flushed": True})

    @router.post("/pin", openapi_extra=wire.schema(PinBody))
    async def pin(request: Request) -> Response:
        body = await wire.read(request, PinBody)

        async def run() -> Any:
            ids = await prompt_ids(service, body)
            prefill = SamplingParams(max_new_tokens=0)  # computes what is not in the tree yet
            salt, tenant = body.cache_salt, body.tenant
            await service.run(GenerateRequest(new_id("pin-"), ids, prefill, cache_salt=salt, tenant=tenant, deadline=service.deadline(None)))
            pinned = await client.call("pin", ids=ids, ttl=float(body.ttl), cache_salt=salt, tenant=tenant)
            return {"tokens": len(ids), "pinned": pinned, "ttl": body.ttl}

        return await answer(request, run())

    @router.post("/unpin", openapi_extra=wire.schema(UnpinBody))
    async def unpin(request: Request) -> Response:
        body = await wire.read(request, UnpinBody)
        ids = await prompt_ids(service, body)
        return Json({"unpinned": await client.call("unpin", ids=ids, cache_salt=body.cache_salt, tenant=body.tenant)})

    @router.get("/health")
    async def health() -> Response:
        if service.draining or not client.ready:
            return Json({"status": "draining" if service.draining else "engine not running"}, 503)
        return Json({"status": "ok"})

    @router.get("/health_generate")
    async def health_generate(request: Request) -> Response:
        async def run() -> Any:
            ids = await service.in_thread(service.tokenizer.encode, "a", add_special=True)
            probe = GenerateRequest(new_id("health-"), tuple(ids), SamplingParams(max_new_tokens=1, temperature=0.0), deadline=20.0)
            await service.run(probe)
            return {"status": "ok"}

        return await answer(request, run())

    async def model_info() -> Response:
        info = client.info
        return Json(
            {
                "model_path": service.config.engine.model_path,
                "served_model_name": service.model_name,
                "tokenizer_path": service.config.engine.tokenizer_path or service.config.engine.model_path,
                "is_generation": True,
                **{name: info[name] for name in ("context_length", "vocab_size", "architecture", "parameters") if name in info},
            }
        )

    async def server_info() -> Response:
        ids = {"bos_id": service.tokenizer.bos_id, "eos_ids": sorted(service.tokenizer.eos_ids)}
        return Json(
            {
                **await client.call("server_info"),
                **ids,
                "served_model_name": service.model_name,
                "load": client.stats,
                "max_sessions": service.config.max_sessions,
                "draining": service.draining,
            }
        )

    async def loads() -> Response:
        metrics = service.metrics
        return Json(
            {
                "open_requests": client.open_requests,
                "open_sessions": len(service.sessions),
                "cache_hit_rate": metrics.recent_hit_rate(),
                "latencies": list(metrics.latencies),
                **service.stats(),
            }
        )

    for path, handler in {
        "/model_info": model_info,
        "/get_model_info": model_info,
        "/server_info": server_info,
        "/get_server_info": server_info,
        "/loads": loads,
        "/v1/loads": loads,
    }.items():
        router.add_api_route(path, handler, methods=["GET"])

    @router.get("/batch")
    async def batch() -> Response:
        async def steps() -> AsyncGenerator[bytes, None]:
            said = None
            while not service.draining:
                stats = await client.call("stats")  # answered between two steps
                if (now := {name: stats.get(name) for name in BATCH}) != said:
                    yield event(now)
                    said = now
                await asyncio.sleep(BATCH_TICK)

        return EventStream(steps(), stall=service.config.stall_timeout)

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @router.get("/tree")
    async def tree(depth: int = Query(6, ge=1, le=64), min_tokens: int = Query(1, ge=1, le=1_000_000)) -> Response:
        return Json(await client.call("tree", depth=depth, min_tokens=min_tokens))

    @router.post("/tree/explain", openapi_extra=wire.schema(ExplainBody))
    async def explain(request: Request) -> Response:
        body = await wire.read(request, ExplainBody)
        ids = await prompt_ids(service, body)
        return Json(await client.call("explain", ids=ids, cache_salt=body.cache_salt, tenant=body.tenant))

    @router.post("/encode")
    @router.post("/classify")
    async def embedding() -> Response:
        raise UnsupportedError("embeddings and classification are not supported by this runtime")

    return router
