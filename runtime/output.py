"""What a request's ids mean to the user: text with stops trimmed, finish reasons, chunks."""
from __future__ import annotations

import time
from dataclasses import replace

from .jump import Jump
from .protocol import Chunk, FinishReason
from .request import Request


def append_token(request: Request, token: int) -> str:
    """Appends a drawn id; the text to show for it. Sets `finish` if this id, a stop in the text or the limit ends the output."""
    request.ids.append(token)
    if token in request.eos_ids or token in request.params.stop_token_ids:
        request.finish = FinishReason("stop", token)
        shown = request.params.no_stop_trim and token not in request.eos_ids
        return (_scan(request, request.stream.push([token])) if shown else "") + close(request)
    text = _scan(request, request.stream.push([token]))
    return text + _limit(request)


def append_jump(request: Request, jump: Jump) -> str:
    """Replaces the last ids and appends the forced ones; the text to show for what is new. May set `finish`."""
    assert request.matcher is not None
    keep = len(request.ids) - jump.give_back
    request.ids.truncate(keep)
    if request.logprob_from is not None:
        del request.logprobs[max(0, keep - request.logprob_from) :]
    request.ids.extend(jump.ids)
    request.forced_at = {position for position in request.forced_at if position < keep}
    request.forced_at.update(range(keep + jump.give_back, len(request.ids)))
    request.matcher.advance_bytes(jump.new_bytes)
    text = _scan(request, request.stream.push_bytes(jump.new_bytes))
    if request.finish is None and request.matcher.finished:
        return text  # complete: that ends it, not the limit
    return text + _limit(request)


def close(request: Request) -> str:
    """What was held back: bytes of an unfinished character, and text that might have become a stop string."""
    return _scan(request, request.stream.flush()) + request.stops.flush()


def next_chunk(request: Request, text: str, *, held: int) -> Chunk | None:
    """The piece since the last one. The last `held` ids are kept back: they may still be replaced. The first one has the counts so far."""
    first = request.emitted == 0
    until = request.output_len - held
    if request.source.logprobs:  # forced ids go out when their logprobs are known
        until = min(until, request.next_logprob - request.prompt_len)
    until = max(until, request.emitted)
    chunk = _chunk(request, text, until)
    if not (chunk.text or chunk.token_ids or chunk.prompt_logprobs):
        return None
    return replace(chunk, usage=request.usage()) if first else chunk


def final_chunk(request: Request, text: str) -> Chunk:
    """The last piece, with the counts."""
    chunk = _chunk(request, text, request.output_len, last=True)
    return replace(
        chunk,
        first_logprobs=request.first_logprobs,
        finish=request.finish,
        usage=request.usage(),
        timings=request.timings(time.monotonic()),
    )


def _chunk(request: Request, text: str, until: int, *, last: bool = False) -> Chunk:
    """Ids and logprobs of the output from `emitted` up to `until`; the first of them brings the prompt's logprobs."""
    begin = request.prompt_len + request.emitted
    end = request.prompt_len + until
    first = request.emitted == 0 and (until > 0 or last)
    request.emitted = until
    text, request.unsent = request.unsent + text, ""
    origin = request.logprob_from
    known = request.logprobs
    return Chunk(
        rid=request.source.rid,
        index=request.index,
        text=text,
        token_ids=tuple(request.ids.view[begin:end].tolist()),
        forced=tuple(position in request.forced_at for position in range(begin, end)) if request.forced_at else (),
        logprobs=() if origin is None else tuple(known[begin - origin : end - origin]),
        prompt_logprobs=tuple(known[: request.prompt_len - origin]) if first and origin is not None else (),
    )


def _scan(request: Request, text: str) -> str:
    """Text through the stop scanner; sets `finish` where a stop was met."""
    if not text or request.finish is not None and isinstance(request.finish.matched, str):
        return ""  # a stop was met before: nothing after it is shown
    shown, matched = request.stops.push(text)
    if matched is not None and request.finish is None:
        request.finish = FinishReason("stop", matched)
        if request.params.no_stop_trim:
            shown += matched
    return shown


def _limit(request: Request) -> str:
    if request.finish is None and request.output_len >= request.max_new_tokens:
        text = close(request)
        request.finish = request.finish or FinishReason("length")
        return text
    return ""
