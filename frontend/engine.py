"""`ramet.Engine`: prompts in, dicts out, on the engine in this process, as SGLang's offline engine has it."""

from __future__ import annotations

import asyncio
import itertools
import queue
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..runtime.errors import RequestError, UnsupportedError
from ..runtime.protocol import Chunk, GenerateRequest
from .answer import Answer
from .api import seconds
from .backends.base import Backend
from .sampling import from_dict

ABSENT = ("image_data", "audio_data", "video_data", "lora_path", "custom_logit_processor", "return_hidden_states", "session_params",
          "session_id", "bootstrap_host", "bootstrap_port", "bootstrap_room", "require_reasoning", "input_embeds")  # fmt: skip
KNOWN_OPTIONS = ("return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob", "return_text_in_logprobs", "rid",
                 "priority", "cache_salt", "timeout")  # fmt: skip
Result = dict[str, Any]


class Engine:
    """The engine without the language. Options are those of `Runtime`; ends with `shutdown()` or a `with` block."""

    def __init__(self, model_path: str = "smollm2-135m", **options: Any) -> None:
        from .backends.local import Runtime

        self.runtime = Runtime(model_path, **options)

    def generate(self, prompt: str | list[str] | None = None, sampling_params: Any = None, input_ids: Any = None, stream: bool = False, **options: Any) -> Any:
        """One result, or for a list of prompts (or of `input_ids`) a list in their order.

        A result is {"text", "output_ids", "meta_info"}; with n > 1, a list of n of them a prompt. `sampling_params` is a dict
        (for a list of prompts also a list of dicts). `stream=True` gives an iterator of results with the text so far;
        in those of a list, "index" tells which prompt. Further options: return_logprob, logprob_start_len,
        top_logprobs_num, token_ids_logprob, return_text_in_logprobs, rid, priority, cache_salt, timeout.
        Raises RequestError for a bad prompt or parameter, before anything is computed.
        """
        return generate(self.runtime, prompt, sampling_params, input_ids=input_ids, stream=stream, **options)

    async def async_generate(
        self, prompt: str | list[str] | None = None, sampling_params: Any = None, input_ids: Any = None, stream: bool = False, **options: Any
    ) -> Any:
        """As `generate`, for `await`; an async iterator with `stream=True`. In a list, an item that fails is its exception."""
        return await async_generate(self.runtime, prompt, sampling_params, input_ids=input_ids, stream=stream, **options)

    def score(self, query: str, items: Sequence[str], label_token_ids: Sequence[int] | None = None, apply_softmax: bool = False) -> list[list[float]]:
        """Per item, the probabilities of `label_token_ids` after query + item; as logits over them with `apply_softmax`."""
        return score(self.runtime, query, items, label_token_ids, apply_softmax)

    def flush_cache(self) -> bool:
        return self.runtime.flush_cache()

    def get_server_info(self) -> dict[str, Any]:
        return self.runtime.get_server_info()

    def abort(self, rid: str) -> None:
        self.runtime.abort(rid)

    def shutdown(self) -> None:
        self.runtime.shutdown()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def generate(backend: Backend, prompt: Any, sampling_params: Any = None, *, input_ids: Any = None, stream: bool = False, **options: Any) -> Any:
    """See `Engine.generate`."""
    requests, single = requests_of(prompt, sampling_params, input_ids, options)
    if stream:
        return _stream(backend, requests, single, options)
    arrived: queue.SimpleQueue[None] = queue.SimpleQueue()
    jobs = [_Job(backend, request, options, lambda index, over: arrived.put(None)) for request in requests]
    try:
        _submit_all(jobs)
        for _ in jobs:  # one put each, when it is over
            arrived.get()
    except BaseException:
        _abort_all(jobs)
        raise
    results = [job.result() for job in jobs]
    return results[0] if single else results


async def async_generate(backend: Backend, prompt: Any, sampling_params: Any = None, *, input_ids: Any = None, stream: bool = False, **options: Any) -> Any:
    """See `Engine.async_generate`."""
    requests, single = requests_of(prompt, sampling_params, input_ids, options)
    if stream:
        return _stream_async(backend, requests, single, options)
    jobs: list[_Job] = []
    try:
        results: list[Any] = []
        loop = asyncio.get_running_loop()
        for request in requests:
            ended = loop.create_future()
            job = _Job(backend, request, options, _setter(loop, ended))
            job.ended = ended
            jobs.append(job)
            try:
                job.submit()
            except Exception as exc:
                if single:
                    raise
                job.error = exc
                ended.set_result(None)
        for job in jobs:
            await job.ended
            try:
                results.append(job.result())
            except Exception as exc:
                if single:
                    raise
                results.append(exc)
    except BaseException:
        _abort_all(jobs)
        raise
    return results[0] if single else results


def requests_of(prompt: Any, sampling_params: Any, input_ids: Any, options: Mapping[str, Any]) -> tuple[list[GenerateRequest], bool]:
    """The requests, and whether they came as one. Raises RequestError naming the field."""
    for name, value in options.items():
        if name in ABSENT and value not in (None, False):
            raise UnsupportedError(f"{name} is not supported here", field=name)
        if name not in ABSENT and name not in KNOWN_OPTIONS:
            raise RequestError(f"unknown option {name!r}; known: {', '.join(KNOWN_OPTIONS)}", field=name)
    if (prompt is None) == (input_ids is None):
        raise RequestError("one of prompt and input_ids is needed", field="prompt")
    for name, value in (("prompt", prompt), ("input_ids", input_ids)):
        if value is not None and not isinstance(value, (str, list, tuple)):
            raise RequestError(f"{name}={value!r}: {'text, or a list of texts' if name == 'prompt' else 'a list of token ids'} is needed", field=name)
    single = isinstance(prompt, str) or (prompt is None and (not input_ids or isinstance(input_ids[0], int)))
    given = [prompt if prompt is not None else input_ids] if single else list(prompt if prompt is not None else input_ids)
    kind, field = (str, "prompt") if prompt is not None else ((list, tuple), "input_ids")
    for item in given:
        if not isinstance(item, kind):
            raise RequestError(f"{field}: {'text' if kind is str else 'a list of token ids'} is needed, not {str(item)[:60]!r}", field=field)
    params = sampling_params if isinstance(sampling_params, (list, tuple)) else [sampling_params] * len(given)
    if len(params) != len(given):
        raise RequestError(f"{len(params)} sampling_params for {len(given)} prompts", field="sampling_params")
    rids = options.get("rid")
    listed = [rids] if isinstance(rids, str) else rids or ()
    if not isinstance(listed, (list, tuple)) or not all(isinstance(r, str) and r for r in listed):
        raise RequestError(f"rid={rids!r}: non-empty text, or a list of it, is needed", field="rid")
    rids = [rids] if isinstance(rids, str) else list(rids or [uuid.uuid4().hex for _ in given])
    if len(set(rids)) < len(given) or len(rids) != len(given):
        raise RequestError("rid: as many distinct ids as prompts are needed", field="rid")
    return [_request(p, q, r, options) for p, q, r in zip(given, params, rids, strict=True)], single


def _request(prompt: Any, params: Any, rid: str, options: Mapping[str, Any]) -> GenerateRequest:
    if params is not None and not isinstance(params, Mapping):
        raise RequestError(f"sampling_params={params!r}: a dict is needed", field="sampling_params")
    if not isinstance(prompt, str):
        if not isinstance(prompt, (list, tuple)) or not all(isinstance(i, int) and not isinstance(i, bool) for i in prompt):
            raise RequestError(f"input_ids: a list of token ids is needed, not {str(prompt)[:60]}", field="input_ids")
        prompt = tuple(prompt)
    start, top = options.get("logprob_start_len"), options.get("top_logprobs_num") or 0
    return GenerateRequest(
        rid,
        prompt,
        from_dict(params),
        bool(options.get("return_logprob") or top),
        -1 if start is None else start,
        top,
        tuple(options.get("token_ids_logprob") or ()),
        options.get("priority") or 0,
        options.get("cache_salt") or "",
        deadline=seconds("timeout", options.get("timeout")),
    )


class _Job:
    """One request under way. `told(index, over)` is called when the request is over, and before for each chunk if it streams."""

    def __init__(
        self, backend: Backend, request: GenerateRequest, options: Mapping[str, Any], told: Callable[[int, bool], None], streams: bool = False
    ) -> None:
        self.backend, self.request, self.told, self.streams = backend, request, told, streams
        self.with_text = bool(options.get("return_text_in_logprobs"))
        self.answer = Answer(request.params.n)
        self.error: BaseException | None = None
        self.over = False
        self.accepted = False  # by the backend: only then is its rid ours to abort
        self.first: tuple[tuple[int, float], ...] = ()
        self.ended: Any = None

    def submit(self) -> None:
        self.backend.submit(self.request, self._take)
        self.accepted = True

    def _take(self, chunk: Chunk) -> None:
        if self.over:
            return
        self.error = chunk.error
        self.first = chunk.first_logprobs or self.first
        self.over = self.answer.add(chunk) or chunk.error is not None
        if self.over or self.streams:
            self.told(chunk.index, self.over)

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        results = [self.output(i) for i in range(self.request.params.n)]
        return results[0] if len(results) == 1 else results

    def output(self, index: int) -> Result:
        """The output so far."""
        answer = self.answer
        end = answer.end(index)
        meta: dict[str, Any] = {"id": self.request.rid, "finish_reason": None} if end is None else answer.meta(self.backend, index, self.with_text)
        if self.first:
            meta["token_ids_logprob"] = [[logprob, i, None] for i, logprob in self.first]
        return {"text": answer.text(index), "output_ids": list(answer.ids(index)), "meta_info": meta}


def _submit_all(jobs: list[_Job]) -> None:
    """All or none: where one is refused, those before it are aborted."""
    try:
        for job in jobs:
            job.submit()
    except BaseException:
        _abort_all(jobs)
        raise


def _abort_all(jobs: list[_Job]) -> None:
    for job in jobs:
        if job.accepted and not job.over:
            job.backend.abort(job.request.rid)


def _setter(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> Callable[[int, bool], None]:
    def end() -> None:
        if not future.done():
            future.set_result(None)

    def told(index: int, over: bool) -> None:
        with suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(end)

    return told


def _shown(jobs: list[_Job], i: int, index: int, single: bool) -> Result:
    """An output of job `i` so far. Raises the job's error."""
    job = jobs[i]
    if job.error is not None:
        raise job.error
    extra = {"index": i} if not single else {"index": index} if len(job.answer) > 1 else {}
    return {**job.output(index), **extra}


class _Results:
    """An iterator that aborts its jobs when it is closed or dropped, also before its first result."""

    def __init__(self, results: Iterator[Result], jobs: list[_Job]) -> None:
        self._results, self._jobs = results, jobs

    def __iter__(self) -> _Results:
        return self

    def __next__(self) -> Result:
        return next(self._results)

    def close(self) -> None:
        _abort_all(self._jobs)

    __del__ = close


class _AsyncResults:
    """As `_Results`, for `async for`."""

    def __init__(self, results: AsyncIterator[Result], jobs: list[_Job]) -> None:
        self._results, self._jobs = results, jobs

    def __aiter__(self) -> _AsyncResults:
        return self

    async def __anext__(self) -> Result:
        return await anext(self._results)

    async def aclose(self) -> None:
        _abort_all(self._jobs)

    def __del__(self) -> None:
        _abort_all(self._jobs)


def _stream(backend: Backend, requests: list[GenerateRequest], single: bool, options: Mapping[str, Any]) -> Iterator[Result]:
    arrived: queue.SimpleQueue[tuple[int, int, bool]] = queue.SimpleQueue()

    def teller(i: int) -> Callable[[int, bool], None]:
        return lambda index, over: arrived.put((i, index, over))

    jobs = [_Job(backend, request, options, teller(i), streams=True) for i, request in enumerate(requests)]
    _submit_all(jobs)  # before the first result is asked for, so that a bad request raises at the call

    def results() -> Iterator[Result]:
        left = len(jobs)
        while left:
            i, index, over = arrived.get()
            left -= over
            yield _shown(jobs, i, index, single)

    return _Results(results(), jobs)


def _stream_async(backend: Backend, requests: list[GenerateRequest], single: bool, options: Mapping[str, Any]) -> AsyncIterator[Result]:
    loop, arrived = asyncio.get_running_loop(), asyncio.Queue[tuple[int, int, bool]]()

    def teller(i: int) -> Callable[[int, bool], None]:
        def told(index: int, over: bool) -> None:
            try:
                loop.call_soon_threadsafe(arrived.put_nowait, (i, index, over))
            except RuntimeError:  # the loop has ended: nobody takes the rest
                _abort_all(jobs)

        return told

    jobs = [_Job(backend, request, options, teller(i), streams=True) for i, request in enumerate(requests)]
    _submit_all(jobs)

    async def results() -> AsyncIterator[Result]:
        left = len(jobs)
        while left:
            i, index, over = await arrived.get()
            left -= over
            yield _shown(jobs, i, index, single)

    return _AsyncResults(results(), jobs)


def score(backend: Backend, query: str, items: Sequence[str], label_token_ids: Sequence[int] | None, apply_softmax: bool) -> list[list[float]]:
    """See `Engine.score`."""
    import math

    if not label_token_ids:
        raise RequestError("label_token_ids: the ids to compare are needed", field="label_token_ids")
    rids = (uuid.uuid4().hex for _ in itertools.count())
    requests = [replace(_request(query + item, {"max_new_tokens": 0}, next(rids), {}), token_ids_logprob=tuple(label_token_ids)) for item in items]
    done: queue.SimpleQueue[None] = queue.SimpleQueue()
    jobs = [_Job(backend, request, {}, lambda index, over: done.put(None)) for request in requests]
    _submit_all(jobs)
    for _ in jobs:
        done.get()
    rows = []
    for job in jobs:
        job.result()
        found = dict(job.first)
        values = [math.exp(found[i]) for i in label_token_ids]
        rows.append([v / sum(values) for v in values] if apply_softmax else values)
    return rows
