"""What the answers of OpenAI's routes have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.requests import Request

from ..errors import RequestError
from ..protocol import FinishReason, Timings, TokenLogprob, Usage
from .answers import HttpError
from .service import Service, finite


def check_model(name: str | None, service: Service) -> None:
    """Raises HttpError 404 unless the model is the one that is served."""
    if name is not None and name not in (service.model_name, service.config.engine.model_path, "default"):
        if not name:
            raise RequestError("model: empty", field="model")
        raise HttpError(404, f"there is no model {name[:200]!r} here; it serves {service.model_name!r}", code="model_not_found", param="model")


def label(request: Request, body: Any, rid: str) -> None:
    """What the log line of the request says besides its path."""
    names = ("user", "safety_identifier", "prompt_cache_key", "metadata")
    request.scope["ramet.log"] |= {"rid": rid} | {n: v for n in names if (v := getattr(body, n, None)) is not None}


def usage_body(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"forced_tokens": usage.forced_tokens, "reasoning_tokens": 0},
    }


def timing_body(timings: Timings) -> dict[str, float]:
    return {"queue_time": timings.queue, "ttft": timings.ttft, "tpot": timings.tpot, "e2e_latency": timings.e2e}


def ending(finish: FinishReason) -> dict[str, Any]:
    """finish_reason and matched_stop of a choice."""
    if finish.matched == "tool_calls":
        return {"finish_reason": "tool_calls", "matched_stop": None}
    return {"finish_reason": finish.type, "matched_stop": finish.matched}


def chat_logprobs(service: Service, items: list[tuple[int, TokenLogprob]], top: int) -> dict[str, Any]:
    """`logprobs.content`: one entry a token of the text, its bytes those of the token itself."""

    def entry(token: int, logprob: float | None) -> dict[str, Any]:
        return {
            "token": service.tokenizer.token_text(token),
            "logprob": finite(logprob),
            "bytes": list(service.tokenizer.token_bytes(token)),
        }

    return {
        "content": [entry(item.token_id, item.logprob) | {"top_logprobs": [entry(token, value) for token, value in item.top[:top]]} for _, item in items],
        "refusal": None,
    }


def total(usages: Iterable[Usage], n: int) -> Usage:
    """Of outputs in order, n to a prompt: each prompt counts once, what was generated is summed."""
    outputs = list(usages)
    prompts = outputs[::n]
    return Usage(
        sum(u.prompt_tokens for u in prompts),
        sum(u.cached_tokens for u in prompts),
        sum(u.completion_tokens for u in outputs),
        sum(u.forced_tokens for u in outputs),
        sum(u.retractions for u in outputs),
    )
