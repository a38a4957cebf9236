"""The door: a request that passes can run. Every refusal names the field, what was wrong and what would do."""
from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from .errors import PromptError, RequestError
from .protocol import GenerateRequest, SamplingParams

MAX_STOPS = 32
MAX_STOP_REGEX = 256  # characters
MAX_N = 128
MAX_TOP_LOGPROBS = 1000


@dataclass(frozen=True, slots=True)
class Limits:
    """What this engine can hold. Vocabulary in ids, the others in tokens."""

    vocab_size: int
    context_length: int
    slots: int

    def max_output(self, prompt_len: int) -> int:
        """Most tokens that can follow a prompt: the last one needs no slot, since nothing reads its KV."""
        return min(self.context_length - prompt_len, self.slots - prompt_len + 1)


def validate(request: GenerateRequest, limits: Limits) -> None:
    """Checks all fields but the prompt's length. Raises RequestError with `field`."""
    check_params(request.params, limits)
    _whole("logprob_start_len", request.logprob_start, low=-1)
    _whole("top_logprobs_num", request.top_logprobs, low=0, high=MAX_TOP_LOGPROBS)
    if request.top_logprobs and not request.logprobs:
        raise RequestError("top_logprobs_num: needs return_logprob=True", field="top_logprobs_num")
    _ids("token_ids_logprob", request.token_ids_logprob, limits.vocab_size)
    _whole("priority", request.priority, low=-(2**31), high=2**31)
    for name in ("cache_salt", "tenant"):
        if not isinstance(value := getattr(request, name), str):
            raise RequestError(f"{name}={value!r}: text is needed", field=name)
    if request.deadline is not None:
        _number("deadline", request.deadline, low=0.0)
    _joined(request, limits)
    for name in ("ttft_target", "tpot_target"):
        if (target := getattr(request, name)) is not None:
            _number(name, target, low=0.0, open_low=True)


def _joined(request: GenerateRequest, limits: Limits) -> None:
    """The spans that are encoded apart: ascending, inside the prompt, and with room for the parts beside what is joined of them."""
    def refuse(why: str) -> RequestError:
        return RequestError(f"joined={request.joined!r}: {why}", field="joined")

    if not request.joined:
        return
    if not isinstance(request.prompt, tuple | list):
        raise refuse("the prompt must be token ids, since spans are counted in them")
    low = 0
    for group in request.joined:
        if len(group) < 2 or not all(isinstance(at, int) and not isinstance(at, bool) for at in group):
            raise refuse("each join is the end of the prefix and the end of each part, whole numbers")
        if group[0] < low or any(b <= a for a, b in pairwise(group)):
            raise refuse("positions must ascend, in a join and from one join to the next")
        low = group[-1]
    if low >= len(request.prompt):
        raise refuse(f"the prompt has {len(request.prompt)} ids; at least one must follow the last part, to be computed after the join")
    if 2 * low > limits.slots:
        raise refuse(f"parts and what is joined of them need {2 * low} slots; the KV pool has {limits.slots} (max_total_tokens)")
    if request.logprobs and 0 <= request.logprob_start <= low:
        raise refuse(f"logprobs of ids before position {low + 1} are not to be had (logprob_start_len): they are not computed where they stand")


def check_prompt(ids: Iterable[int], limits: Limits, max_new_tokens: int) -> None:
    """Raises PromptError unless the ids lie in the vocabulary and fit context and pool with at least one token after them."""
    ids = list(ids)
    if not ids:
        raise PromptError("prompt: empty; at least one token is needed", field="prompt")
    for i, token in enumerate(ids):
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < limits.vocab_size:
            raise PromptError(f"prompt: id {token!r} at position {i} is outside the vocabulary (0 to {limits.vocab_size - 1})", field="prompt")
    room = min(limits.context_length, limits.slots) - (1 if max_new_tokens else 0)
    if len(ids) > room:
        which = "context" if limits.context_length <= limits.slots else "KV pool"
        raise PromptError(
            f"prompt: {len(ids)} tokens, but the {which} holds {min(limits.context_length, limits.slots)} (answer included); shorten it"
            + ("" if which == "context" else " or open the engine with a larger max_total_tokens"),
            field="prompt",
        )


def check_params(params: SamplingParams, limits: Limits) -> None:
    """Ranges of FEATURES-compatible sampling parameters; raises RequestError with `field`."""
    _whole("max_new_tokens", params.max_new_tokens, low=0)
    _whole("min_new_tokens", params.min_new_tokens, low=0)
    if params.min_new_tokens > params.max_new_tokens:
        raise RequestError(
            f"min_new_tokens={params.min_new_tokens}: more than max_new_tokens={params.max_new_tokens}", field="min_new_tokens"
        )
    _number("temperature", params.temperature, low=0.0)
    _number("top_p", params.top_p, low=0.0, high=1.0, open_low=True)
    _whole("top_k", params.top_k, low=-1)
    if params.top_k == 0:
        raise RequestError("top_k=0: at least 1 is needed, or -1 for all", field="top_k")
    _number("min_p", params.min_p, low=0.0, high=1.0)
    _number("frequency_penalty", params.frequency_penalty, low=-2.0, high=2.0)
    _number("presence_penalty", params.presence_penalty, low=-2.0, high=2.0)
    _number("repetition_penalty", params.repetition_penalty, low=0.0, high=2.0, open_low=True)
    _whole("n", params.n, low=1, high=MAX_N)
    if params.seed is not None:
        _whole("seed", params.seed, low=-(2**63), high=2**64 - 1)
    for token, bias in params.logit_bias.items():
        _ids("logit_bias", (token,), limits.vocab_size)
        _number("logit_bias", bias, low=-1e6, high=1e6)
    _ids("stop_token_ids", params.stop_token_ids, limits.vocab_size)
    _stops(params)
    if params.finish not in (None, "required", "free"):
        raise RequestError(f"finish={params.finish!r}: choose 'required' or 'free'", field="finish")


def _stops(params: SamplingParams) -> None:
    for name, stops in (("stop", params.stop), ("stop_regex", params.stop_regex)):
        if not isinstance(stops, tuple):
            raise RequestError(f"{name}: a tuple of strings is needed, not {type(stops).__name__}", field=name)
        if len(stops) > MAX_STOPS:
            raise RequestError(f"{name}: {len(stops)} given, at most {MAX_STOPS} are allowed", field=name)
        for stop in stops:
            if not isinstance(stop, str) or not stop:
                raise RequestError(f"{name}: {stop!r} is not a non-empty string", field=name)
    for pattern in params.stop_regex:
        if len(pattern) > MAX_STOP_REGEX:
            raise RequestError(f"stop_regex: {len(pattern)} characters, at most {MAX_STOP_REGEX} are allowed", field="stop_regex")
        try:
            re.compile(pattern)
        except re.error as error:
            raise RequestError(f"stop_regex: {pattern!r} does not parse: {error}", field="stop_regex") from error


def _whole(name: str, value: Any, *, low: int, high: int | None = None) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise RequestError(f"{name}={value!r}: a whole number is needed", field=name)
    if value < low or high is not None and value > high:
        raise RequestError(f"{name}={value}: must be {_range(low, high)}", field=name)


def _number(name: str, value: Any, *, low: float, high: float | None = None, open_low: bool = False) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise RequestError(f"{name}={value!r}: a finite number is needed", field=name)
    if value < low or open_low and value == low or high is not None and value > high:
        raise RequestError(f"{name}={value}: must be {'above ' if open_low else ''}{_range(low, high)}", field=name)


def _range(low: float, high: float | None) -> str:
    return f"{low} or more" if high is None else f"{low} to {high}"


def _ids(name: str, ids: Iterable[Any], vocab_size: int) -> None:
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab_size:
            raise RequestError(f"{name}: id {token!r} is outside the vocabulary (0 to {vocab_size - 1})", field=name)
