"""The native family: /generate as SGLang's clients send it, /score, and the routes that look after the server."""
from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, ClassVar, Literal

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from ..errors import RequestError, UnsupportedError
from ..protocol import Constraint, FinishReason, GenerateRequest, SamplingParams, ScoreRequest, TokenLogprob
from . import wire
from .answers import DONE, EventStream, HttpError, Json, answer, describe, event
from .service import Output, Service, checked_rid, finite, new_id, split_ids
from .wire import Wire

Number = float | int
OFF: tuple[Any, ...] = (False, "", [], {})


class Sampling(Wire):
    """`sampling_params`, by SGLang's names and defaults. One kind of constraint at most."""

    absent: ClassVar[dict[str, tuple[Any, ...]]] = {
        "structural_tag": OFF, "beam_width": (1,), "custom_params": OFF, "watermark": OFF, "stream_interval": (1,),
        "spaces_between_special_tokens": (True,)}

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: Number = 1.0
    top_p: Number = 1.0
    top_k: int = -1
    min_p: Number = 0.0
    frequency_penalty: Number = 0.0
    presence_penalty: Number = 0.0
    repetition_penalty: Number = 1.0
    logit_bias: dict[str, Number] | None = None
    seed: int | None = None
    sampling_seed: int | None = Field(None, description="SGLang's name of seed")
    n: int = 1
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stop_regex: str | list[str] | None = None
    ignore_eos: bool = False
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    json_schema: str | dict[str, Any] | bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    ebnf: str | None = None
    lark: str | None = None
    json_object: bool = False
    whitespace: Literal["json", "compact", "pretty", "flexible"] = "json"
    lenient: bool = False
    finish: Literal["required", "free"] | None = None
    jump_forward: bool | None = None


_SCALARS = ("max_new_tokens", "min_new_tokens", "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty",
            "repetition_penalty", "n", "ignore_eos", "no_stop_trim", "skip_special_tokens", "finish", "jump_forward")


class GenerateBody(Wire):
    """The body of POST /generate. `text` or `input_ids`, one prompt or a list; lists elsewhere match the prompts one by one."""

    absent: ClassVar[dict[str, tuple[Any, ...]]] = {name: OFF for name in (
        "input_embeds", "image_data", "video_data", "audio_data", "modalities", "return_hidden_states", "session_params", "session_id",
        "lora_path", "custom_logit_processor", "bootstrap_host", "bootstrap_port", "bootstrap_room", "routed_dp_rank", "require_reasoning",
        "max_thinking_tokens", "return_bytes", "return_entropy", "no_logs", "custom_labels", "routing_key", "conversation_id",
        "external_trace_header", "background")}

    text: str | list[str] | None = None
    input_ids: list[int] | list[list[int]] | None = None
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None
    rid: str | list[str] | None = None
    return_logprob: bool | list[bool] = False
    logprob_start_len: int | list[int] = -1
    top_logprobs_num: int | list[int] = 0
    token_ids_logprob: list[int] | None = None
    return_text_in_logprobs: bool = False
    return_prompt_token_ids: bool = False
    stream: bool = False
    incremental: bool | None = Field(None, description="stream deltas instead of the text so far; default: the server's setting")
    priority: int | list[int] = 0
    cache_salt: str | None = None
    extra_key: str | None = Field(None, description="SGLang's other name of cache_salt")
    deadline: Number | None = Field(None, gt=0, description="seconds")


class ScoreBody(Wire):
    """The body of POST /score: the logprobs of several continuations of one prefix, in one pass."""

    text: str | None = None
    input_ids: list[int] | None = None
    options: list[str] | list[list[int]]
    rid: str | None = None
    cache_salt: str = ""
    priority: int = 0
    deadline: Number | None = Field(None, gt=0)


class AbortBody(Wire):
    """The body of POST /abort_request. An id stops the requests whose id starts with it, as a batch's do."""

    rid: str | None = None
    abort_all: bool = False


class PinBody(Wire):
    """The body of POST /pin and /unpin: the prefix, and for how many seconds it may not be evicted."""

    text: str | None = None
    input_ids: list[int] | None = None
    ttl: Number = Field(300.0, gt=0, le=7 * 86400)
    cache_salt: str = ""


def sampling(data: dict[str, Any], where: str, max_n: int) -> SamplingParams:
    """SamplingParams from a dict of SGLang's names. Raises RequestError; ranges are checked by the engine too."""
    given = wire.check({key: value for key, value in data.items() if value is not None}, Sampling, where)
    if not 1 <= given.n <= max_n:
        raise RequestError(f"{where}n={given.n}: 1 to {max_n} outputs a prompt", field=where + "n")
    if given.seed is not None and given.sampling_seed is not None:
        raise RequestError("seed and sampling_seed are the same thing; give one", field=where + "sampling_seed")
    seed = given.seed if given.seed is not None else given.sampling_seed
    checked_seed(seed, where + "seed")
    return SamplingParams(
        **{name: getattr(given, name) for name in _SCALARS},
        seed=seed,
        logit_bias=bias(given.logit_bias, where + "logit_bias"),
        stop=strings(given.stop, where + "stop", 32),
        stop_regex=strings(given.stop_regex, where + "stop_regex", 32),
        stop_token_ids=tuple(given.stop_token_ids or ()),
        constraint=constraint(given, where))


def checked_seed(seed: int | None, where: str) -> None:
    if seed is not None and not -(2**63) <= seed < 2**63:
        raise RequestError(f"{where}: a whole number of 64 bits is needed", field=where)


def bias(given: dict[str, Number] | None, where: str) -> dict[int, float]:
    """Ids as numbers, values in [-100, 100]. Whether the ids are in the vocabulary is for the engine to say."""
    result = {}
    for key, value in (given or {}).items():
        if not key.lstrip("-").isdecimal() or not key.isascii():
            raise RequestError(f"{where}: the key {key[:40]!r} is not a token id", field=where)
        if not -100 <= value <= 100 or int(key) < 0 or len(key) > 10:
            raise RequestError(f"{where}[{key[:40]}]={value}: a token id of the vocabulary and a value from -100 to 100 are needed", field=where)
        result[int(key)] = float(value)
    return result


def strings(given: str | list[str] | None, where: str, most: int) -> tuple[str, ...]:
    items = [given] if isinstance(given, str) else given or []
    if len(items) > most:
        raise RequestError(f"{where}: {len(items)} strings, at most {most}", field=where)
    if any(not item for item in items):
        raise RequestError(f"{where}: a string is empty", field=where)
    return tuple(items)


def constraint(given: Any, where: str = "") -> Constraint | None:
    """The one constraint among json_schema, regex, choice, ebnf, lark and json_object; None without any."""
    found: list[tuple[str, str]] = []
    if given.json_schema is not None and given.json_schema != "":
        schema = given.json_schema
        found.append(("json_schema", schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)))
    if given.choice is not None:
        found.append(("choice", json.dumps(given.choice, ensure_ascii=False)))
    found += [(kind, getattr(given, kind)) for kind in ("regex", "ebnf", "lark") if getattr(given, kind)]
    if getattr(given, "json_object", False):
        found.append(("json_object", ""))
    if len(found) > 1:
        names = " and ".join(kind for kind, _ in found)
        raise RequestError(f"{where}{names}: only one constraint can be given", field=where + found[1][0])
    if not found:
        return None
    kind, source = found[0]
    return Constraint(kind, source, getattr(given, "whitespace", "json"), getattr(given, "lenient", False))  # type: ignore[arg-type]


class Batch:
    """The requests of one /generate body. Raises RequestError when the body as a whole is wrong."""

    def __init__(self, body: GenerateBody, service: Service) -> None:
        self.body = body
        prompts, self.many = self._prompts(body)
        if len(prompts) > service.config.max_prompts:
            raise RequestError(f"{len(prompts)} prompts in one body; at most {service.config.max_prompts}", field="text")
        self.base = checked_rid(body.rid) if isinstance(body.rid, str) else new_id()
        rids = self._each(body.rid, "rid", len(prompts)) if isinstance(body.rid, list) else [
            f"{self.base}-{i}" if self.many else self.base for i in range(len(prompts))]
        if len(set(rids)) < len(rids):
            raise RequestError("rid: two requests have the same id", field="rid")
        if body.cache_salt is not None and body.extra_key is not None:
            raise RequestError("cache_salt and extra_key are the same thing; give one", field="extra_key")
        columns = {name: self._each(getattr(body, name), name, len(prompts))
                   for name in ("sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num", "priority")}
        self.requests = [
            GenerateRequest(
                rid=checked_rid(rid),
                prompt=prompt if isinstance(prompt, str) else tuple(prompt),
                params=sampling(columns["sampling_params"][i] or {}, "sampling_params.", service.config.max_n),
                logprobs=columns["return_logprob"][i],
                logprob_start=columns["logprob_start_len"][i] if columns["return_logprob"][i] else -1,
                top_logprobs=columns["top_logprobs_num"][i] if columns["return_logprob"][i] else 0,
                token_ids_logprob=tuple(body.token_ids_logprob or ()),
                priority=columns["priority"][i],
                cache_salt=body.cache_salt or body.extra_key or "",
                deadline=service.deadline(body.deadline))
            for i, (prompt, rid) in enumerate(zip(prompts, rids, strict=True))]

    @staticmethod
    def _prompts(body: GenerateBody) -> tuple[list[Any], bool]:
        if (body.text is None) == (body.input_ids is None):
            raise RequestError("give text or input_ids, one of the two", field="text")
        if body.text is not None:
            return ([body.text], False) if isinstance(body.text, str) else (list(body.text), True)
        assert body.input_ids is not None
        return ([body.input_ids], False) if split_ids(body.input_ids) else (list(body.input_ids), True)

    @staticmethod
    def _each(value: Any, name: str, count: int) -> list[Any]:
        if not isinstance(value, list):
            return [value] * count
        if len(value) != count:
            raise RequestError(f"{name}: {len(value)} items for {count} prompts", field=name)
        return value


class Shaper:
    """Outputs as SGLang's clients read them."""

    def __init__(self, service: Service, body: Any) -> None:
        self.tokenizer = service.tokenizer
        self.with_text = body.return_text_in_logprobs

    def result(self, request: GenerateRequest, output: Output, index: int) -> dict[str, Any]:
        """{"text", "output_ids", "meta_info"} of one output."""
        rid = request.rid if request.params.n == 1 else f"{request.rid}-{index}"
        usage, timings = output.usage, output.timings
        meta: dict[str, Any] = {
            "id": rid, "finish_reason": finish_reason(output.finish),
            "prompt_tokens": usage.prompt_tokens, "cached_tokens": usage.cached_tokens, "completion_tokens": usage.completion_tokens,
            "forced_tokens": usage.forced_tokens, "num_retractions": usage.retractions,
            "queue_time": timings.queue, "ttft": timings.ttft, "tpot": timings.tpot, "e2e_latency": timings.e2e}
        if request.logprobs:
            meta |= self._logprobs(output)
        if request.token_ids_logprob:
            meta["output_token_ids_logprobs"] = [[self._item(value, token) for token, value in output.first_logprobs]]
        forced = {"forced": output.forced} if any(output.forced) else {}
        return {"text": output.text, "output_ids": output.token_ids, **forced, "meta_info": meta, "index": index}

    def _logprobs(self, output: Output) -> dict[str, Any]:
        return {
            "input_token_logprobs": [self._item(x.logprob, x.token_id) for x in output.prompt_logprobs],
            "output_token_logprobs": [self._item(x.logprob, x.token_id) for x in output.logprobs],
            "output_token_logprobs_length": len(output.logprobs),
            "input_top_logprobs": [self._top(x) for x in output.prompt_logprobs],
            "output_top_logprobs": [self._top(x) for x in output.logprobs]}

    def _top(self, item: TokenLogprob) -> list[Any] | None:
        return [self._item(value, token) for token, value in item.top] or None

    def _item(self, logprob: float | None, token: int) -> list[Any]:
        return [finite(logprob), token, self.tokenizer.token_text(token) if self.with_text else None]


def finish_reason(finish: FinishReason) -> dict[str, Any]:
    reason: dict[str, Any] = {"type": finish.type}
    if finish.matched is not None:
        reason["matched"] = finish.matched
    if finish.message is not None:
        reason["message"] = finish.message
    return reason


def failed(rid: str, error: Exception) -> dict[str, Any]:
    """The place of a request of a batch that failed: the others keep theirs."""
    status, body, _ = describe(error)
    reason = {"type": "abort", "message": body["error"]["message"], "status_code": status, "err_type": type(error).__name__,
              "param": body["error"]["param"]}
    return {"text": "", "output_ids": [], "meta_info": {"id": rid, "finish_reason": reason, "prompt_tokens": 0, "cached_tokens": 0,
                                                       "completion_tokens": 0, "forced_tokens": 0}, "index": 0}


async def run_batch(service: Service, batch: Batch) -> Any:
    """The answer of a body without `stream`."""
    shaper = Shaper(service, batch.body)

    async def one(request: GenerateRequest) -> list[dict[str, Any]]:
        outputs = await service.run(request)
        return [shaper.result(request, output, i) for i, output in enumerate(outputs)]

    if not batch.many:
        results = await one(batch.requests[0])
        if batch.body.return_prompt_token_ids:
            await _add_prompt_ids(service, batch.requests[0], results)
        return results if batch.requests[0].params.n > 1 else results[0]
    answers = await asyncio.gather(*map(one, batch.requests), return_exceptions=True)
    flat: list[dict[str, Any]] = []
    for request, got in zip(batch.requests, answers, strict=True):
        if isinstance(got, Exception):
            got = [failed(request.rid, got)]
        elif isinstance(got, BaseException):
            raise got
        elif batch.body.return_prompt_token_ids:
            await _add_prompt_ids(service, request, got)
        flat += got
    return flat


async def _add_prompt_ids(service: Service, request: GenerateRequest, results: list[dict[str, Any]]) -> None:
    ids = await service.in_thread(service.tokenizer.encode, request.prompt, add_special=True) if isinstance(request.prompt, str) else request.prompt
    for result in results:
        result["prompt_token_ids"] = list(ids)


async def stream_one(service: Service, request: GenerateRequest, shaper: Shaper, place: int | None, incremental: bool,
                     done: Any = None) -> AsyncIterator[bytes]:
    """Events of one request. `place` is its number in a batch; `done(outputs)` is called at the end."""
    so_far = [Output() for _ in range(request.params.n)]
    delta = [Output() for _ in range(request.params.n)]
    interval = service.config.stream_interval
    async with aclosing(service.client.stream(request)) as stream:
        async for chunks in stream:
            for chunk in chunks:
                for output in (so_far[chunk.index], delta[chunk.index]):
                    output.add(chunk)
            for index in {chunk.index for chunk in chunks}:
                piece = delta[index]
                last = any(chunk.index == index and chunk.last for chunk in chunks)
                if not last and (len(piece.token_ids) < interval or not (piece.text or piece.logprobs or piece.prompt_logprobs)):
                    continue
                shown = piece if incremental else so_far[index]
                data = shaper.result(request, shown, index)
                if not last:
                    data["meta_info"]["finish_reason"] = None
                    data["meta_info"]["completion_tokens"] = len(so_far[index].token_ids)
                if place is not None:
                    data["index"] = place
                delta[index] = Output()
                yield event(data)
    if done is not None:
        await done(so_far)


async def stream_batch(service: Service, batch: Batch) -> AsyncIterator[bytes]:
    """Events of all requests as they come, each with its number; an error is an event of its request alone."""
    shaper = Shaper(service, batch.body)
    wanted = batch.body.incremental
    incremental = service.config.incremental_streaming_output if wanted is None else wanted
    if not batch.many:
        async with aclosing(stream_one(service, batch.requests[0], shaper, None, incremental)) as events:
            async for data in events:
                yield data
        yield DONE
        return
    queue: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def feed(place: int, request: GenerateRequest) -> None:
        try:
            async with aclosing(stream_one(service, request, shaper, place, incremental)) as events:
                async for data in events:
                    queue.put_nowait(data)
        except Exception as error:
            queue.put_nowait(event(failed(request.rid, error) | {"index": place}))
        finally:
            queue.put_nowait(None)

    tasks = [asyncio.create_task(feed(i, request)) for i, request in enumerate(batch.requests)]
    try:
        left = len(tasks)
        while left:
            item = await queue.get()
            if item is None:
                left -= 1
            else:
                yield item
        yield DONE
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def prompt_ids(service: Service, body: Any, *, add_special: bool = True) -> tuple[int, ...]:
    """The ids of a body's `text` or `input_ids`. Raises RequestError unless it has exactly one of them."""
    if (body.text is None) == (body.input_ids is None):
        raise RequestError("give text or input_ids, one of the two", field="text")
    if body.input_ids is not None:
        return tuple(body.input_ids)
    return tuple(await service.in_thread(service.tokenizer.encode, body.text, add_special=add_special))


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

    @router.post("/score", openapi_extra=wire.schema(ScoreBody))
    async def score(request: Request) -> Response:
        body = await wire.read(request, ScoreBody)
        if not 0 < len(body.options) <= service.config.max_prompts:
            raise RequestError(f"options: 1 to {service.config.max_prompts} are needed", field="options")

        async def run() -> Any:
            prefix = await prompt_ids(service, body)
            options = tuple([tuple(await service.in_thread(service.tokenizer.encode, item, add_special=False)) if isinstance(item, str)
                             else tuple(item) for item in body.options])
            rid = checked_rid(body.rid) if body.rid is not None else new_id()
            scores = await client.score(ScoreRequest(rid, prefix, options, body.cache_salt, body.priority, service.deadline(body.deadline)))
            return {"logprobs": [[finite(x) for x in row] for row in scores.logprobs],
                    "scores": [finite(sum(row)) for row in scores.logprobs], "option_ids": options,
                    "meta_info": {"id": rid, "prompt_tokens": scores.usage.prompt_tokens, "cached_tokens": scores.usage.cached_tokens,
                                  "ttft": scores.timings.ttft, "e2e_latency": scores.timings.e2e}}

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

    async def pin(request: Request, name: str) -> Response:
        body = await wire.read(request, PinBody)
        ids = await prompt_ids(service, body)
        arguments = {"ids": ids, "cache_salt": body.cache_salt} | ({"ttl": float(body.ttl)} if name == "pin" else {})
        return Json({"tokens": len(ids), "pinned": await client.call(name, **arguments)})

    @router.post("/pin", openapi_extra=wire.schema(PinBody))
    async def pin_prefix(request: Request) -> Response:
        return await pin(request, "pin")

    @router.post("/unpin", openapi_extra=wire.schema(PinBody))
    async def unpin_prefix(request: Request) -> Response:
        return await pin(request, "unpin")

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
        return Json({"model_path": service.config.engine.model_path, "served_model_name": service.model_name,
                     "tokenizer_path": service.config.engine.tokenizer_path or service.config.engine.model_path, "is_generation": True,
                     **{name: info[name] for name in ("context_length", "vocab_size", "architecture", "parameters") if name in info}})

    async def server_info() -> Response:
        ids = {"bos_id": service.tokenizer.bos_id, "eos_ids": sorted(service.tokenizer.eos_ids)}
        return Json({**await client.call("server_info"), **ids, "served_model_name": service.model_name, "load": client.stats, "sessions": True, "draining": service.draining})

    async def loads() -> Response:
        metrics = service.metrics
        return Json({"open_requests": client.open_requests, "cache_hit_rate": metrics.recent_hit_rate(), "latencies": list(metrics.latencies),
                     **client.stats})

    for path, handler in {"/model_info": model_info, "/get_model_info": model_info, "/server_info": server_info,
                          "/get_server_info": server_info, "/loads": loads, "/v1/loads": loads}.items():
        router.add_api_route(path, handler, methods=["GET"])

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @router.get("/tree")
    async def tree(depth: int = Query(6, ge=1, le=64), min_tokens: int = Query(1, ge=1, le=1_000_000)) -> Response:
        return Json(await client.call("tree", depth=depth, min_tokens=min_tokens))

    @router.post("/encode")
    @router.post("/classify")
    async def embedding() -> Response:
        raise UnsupportedError("embeddings and classification are not supported by this runtime")

    return router
