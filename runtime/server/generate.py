"""POST /generate: one prompt or many, whole or streamed, in the shape that SGLang's clients read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, ClassVar

from pydantic import Field

from ..errors import RequestError
from ..protocol import FinishReason, GenerateRequest, TokenLogprob
from .answers import DONE, describe, event, merge
from .sampling import OFF, Number, sampling
from .service import Output, Service, checked_rid, finite, new_id, split_ids
from .wire import IdLists, Ids, Strings, Wire


class GenerateBody(Wire):
    """The body of POST /generate. `text` or `input_ids`, one prompt or a list; lists elsewhere match the prompts one by one."""

    absent: ClassVar[dict[str, tuple[Any, ...]]] = dict.fromkeys(
        (
            "input_embeds",
            "image_data",
            "video_data",
            "audio_data",
            "modalities",
            "return_hidden_states",
            "session_params",
            "session_id",
            "lora_path",
            "custom_logit_processor",
            "bootstrap_host",
            "bootstrap_port",
            "bootstrap_room",
            "routed_dp_rank",
            "require_reasoning",
            "max_thinking_tokens",
            "return_bytes",
            "return_entropy",
            "no_logs",
            "custom_labels",
            "routing_key",
            "conversation_id",
            "external_trace_header",
            "background",
        ),
        OFF,
    )

    text: str | Strings | None = None
    input_ids: Ids | IdLists | None = None
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None
    rid: str | Strings | None = None
    return_logprob: bool | list[bool] = False
    logprob_start_len: int | Ids = -1
    top_logprobs_num: int | Ids = 0
    token_ids_logprob: Ids | None = None
    return_text_in_logprobs: bool = False
    return_prompt_token_ids: bool = False
    stream: bool = False
    incremental: bool | None = Field(None, description="stream deltas instead of the text so far; default: the server's setting")
    priority: int | Ids = 0
    cache_salt: str | None = None
    extra_key: str | None = Field(None, description="SGLang's other name of cache_salt")
    tenant: str = Field("", description="Requests of different tenants share no KV, whatever their salts")
    deadline: Number | None = Field(None, gt=0, description="seconds")
    ttft_target: Number | None = Field(None, gt=0, description="milliseconds to the first token; wished for")
    tpot_target: Number | None = Field(None, gt=0, description="milliseconds between later tokens; wished for")
    joined: IdLists | None = Field(None, description="of one prompt in ids: for each join, where its prefix and each of its parts end")


class Batch:
    """The requests of one /generate body. Raises RequestError when the body as a whole is wrong."""

    def __init__(self, body: GenerateBody, service: Service) -> None:
        self.body = body
        prompts, self.many = self._prompts(body)
        if len(prompts) > service.config.max_prompts:
            raise RequestError(f"{len(prompts)} prompts in one body; at most {service.config.max_prompts}", field="text")
        if not self.many:  # one of many fails by itself
            service.check_length(prompts[0], "text" if body.text is not None else "input_ids")
        self.base = checked_rid(body.rid) if isinstance(body.rid, str) else new_id()
        rids = (
            self._each(body.rid, "rid", len(prompts))
            if isinstance(body.rid, list)
            else [f"{self.base}-{i}" if self.many else self.base for i in range(len(prompts))]
        )
        if len(set(rids)) < len(rids):
            raise RequestError("rid: two requests have the same id", field="rid")
        if body.cache_salt is not None and body.extra_key is not None:
            raise RequestError("cache_salt and extra_key are the same thing; give one", field="extra_key")
        if body.joined and self.many:
            raise RequestError("joined: spans of one prompt; send a request for each", field="joined")
        columns = {
            name: self._each(getattr(body, name), name, len(prompts))
            for name in ("sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num", "priority")
        }
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
                tenant=body.tenant,
                deadline=service.deadline(body.deadline),
                ttft_target=body.ttft_target,
                tpot_target=body.tpot_target,
                joined=tuple(map(tuple, body.joined or ())),
            )
            for i, (prompt, rid) in enumerate(zip(prompts, rids, strict=True))
        ]

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
            "id": rid,
            "finish_reason": finish_reason(output.finish),
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
            "forced_tokens": usage.forced_tokens,
            "num_retractions": usage.retractions,
            "queue_time": timings.queue,
            "ttft": timings.ttft,
            "tpot": timings.tpot,
            "e2e_latency": timings.e2e,
        }
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
            "output_top_logprobs": [self._top(x) for x in output.logprobs],
        }

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
    reason = {
        "type": "abort",
        "message": body["error"]["message"],
        "status_code": status,
        "err_type": type(error).__name__,
        "param": body["error"]["param"],
    }
    return {
        "text": "",
        "output_ids": [],
        "meta_info": {
            "id": rid,
            "finish_reason": reason,
            "prompt_tokens": 0,
            "cached_tokens": 0,
            "completion_tokens": 0,
            "forced_tokens": 0,
        },
        "index": 0,
    }


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


async def stream_one(
    service: Service,
    request: GenerateRequest,
    shaper: Shaper,
    place: int | None,
    incremental: bool,
    end: Callable[[list[Output]], dict[str, Any]] | None = None,
) -> AsyncGenerator[bytes, None]:
    """Events of one request. `place` is its number in a batch; what `end(outputs)` says is part of the last event."""
    so_far = [Output() for _ in range(request.params.n)]
    delta = [Output() for _ in range(request.params.n)]
    interval, left = service.config.stream_interval, request.params.n
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
                left -= last
                if end is not None and not left:
                    data |= end(so_far)
                if not last:
                    usage = so_far[index].usage  # of the first chunk: what the prompt was is known from then on
                    data["meta_info"] |= {
                        "finish_reason": None,
                        "prompt_tokens": usage.prompt_tokens,
                        "cached_tokens": usage.cached_tokens,
                        "completion_tokens": len(so_far[index].token_ids),
                        "forced_tokens": sum(so_far[index].forced),
                    }
                if place is not None:
                    data["index"] = place
                delta[index] = Output()
                yield event(data)


async def stream_batch(service: Service, batch: Batch) -> AsyncGenerator[bytes, None]:
    """Events of all requests as they come, each with its number; an error is an event of its request alone."""
    shaper = Shaper(service, batch.body)
    wanted = batch.body.incremental
    incremental = service.config.incremental_streaming_output if wanted is None else wanted

    async def guarded(place: int, request: GenerateRequest) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(stream_one(service, request, shaper, place, incremental)) as events:
                async for data in events:
                    yield data
        except Exception as error:
            yield event(failed(request.rid, error) | {"index": place})

    if batch.many:
        source = merge([guarded(place, request) for place, request in enumerate(batch.requests)])
    else:
        source = stream_one(service, batch.requests[0], shaper, None, incremental)
    async with aclosing(source) as events:
        async for data in events:
            yield data
    yield DONE
