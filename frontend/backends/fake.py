"""A backend without a model, for tests of programs: what it answers is written down beforehand."""

from __future__ import annotations

import bisect
import heapq
import json
import math
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from ...runtime.errors import CancelledError, ConstraintError, EngineClosedError, PromptError, RequestError
from ...runtime.protocol import (
    Chunk,
    Constraint,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    ScoreRequest,
    Scores,
    Timings,
    TokenLogprob,
    Usage,
)
from ..ids import common_length
from .base import ChunkSink, Message, ScoreSink, Worker

BOS, EOS, VOCAB = 256, 257, 258
ENDED = FinishReason("stop", EOS)
Piece = tuple[str, tuple[int, ...], tuple[TokenLogprob, ...]]
WORDS = re.compile(r"\s*\S+|\s+")
Logits = Callable[[tuple[int, ...]], Mapping[int, float]]


class Fake:
    """Answers from a script. Its tokens are the bytes of UTF-8 text, then beginning (256) and end of text (257).

    script: what generations say -
        a list: the answers in the order in which they are asked for;
        a dict: the answer of the longest key that the prompt ends with;
        a function of (prompt text, GenerateRequest); or one text for all.
        An answer is a text, ids, or an exception, which the program then gets. It is given whole, whatever `max_tokens`;
        stop strings end it. One that breaks the request's choice, regex or JSON constraint is refused.
    scores: what `select` compares - a dict of option to log-probability, or a function of (prompt text, option text).
    logits: instead of both, a function of all ids so far that gives the logits of the next id (ids left out cannot come);
        all sampling parameters that need no grammar then work.
    latency: seconds a call takes; max_concurrency: how many calls are computed at once, the others wait.
    bos: whether texts begin with the beginning-of-text id, as with Llama's tokenizer.

    `calls` holds every request it got. Prompts and answers count as cached from then on, until `flush_cache`.
    """

    speculates = False
    joins = True  # what parts attend to makes no difference to a script

    def __init__(
        self,
        script: Any = None,
        *,
        scores: Any = None,
        logits: Logits | None = None,
        latency: float = 0.0,
        max_concurrency: int | None = None,
        bos: bool = False,
        chat: bool = True,
    ) -> None:
        self.calls: list[GenerateRequest | ScoreRequest] = []
        self.bos_id = BOS if bos else None
        self.eos_ids = (EOS,)
        self._script = list(script) if isinstance(script, (list, tuple)) else script
        self._scores, self._logits, self._latency, self._chat = scores, logits, latency, chat
        self._free_at = [0.0] * (max_concurrency or 0)  # a heap: when each of the places for a call is free again
        self._known: list[tuple[int, ...]] = []  # sorted, so that the longest shared beginning is with a neighbour
        self._places = threading.Lock()
        self._live: set[str] = set()
        self._closed = False
        self._worker = Worker("ramet-fake")

    # ---- tokens ----

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        head = [BOS] if add_special and self.bos_id is not None else []
        return head + list(text.encode("utf-8", "surrogatepass"))

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < 256).decode("utf-8", "replace")

    def render_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str | None:
        if not self._chat:
            return None
        text = "".join(f"<|{m['role']}|>\n{m['content']}<|end|>\n" for m in messages)
        return text + ("<|assistant|>\n" if add_generation_prompt else "")

    # ---- requests ----

    def submit(self, request: GenerateRequest, sink: ChunkSink) -> None:
        self._check(request)
        ids = tuple(self.encode(request.prompt, add_special=True)) if isinstance(request.prompt, str) else request.prompt
        if not ids:
            raise PromptError("the prompt is empty: there is nothing to go on from", field="prompt")
        answer = self._next_of_script(ids)
        self.calls.append(request)  # like the set, changed in one step of the interpreter: no lock, for which threads would queue
        self._live.add(request.rid)
        self._soon(partial(self._answer, request, ids, answer, sink, time.monotonic()))

    def score(self, request: ScoreRequest, sink: ScoreSink) -> None:
        self._check(request)
        if not request.prompt:
            raise PromptError("the prompt is empty: there is nothing to go on from", field="prompt")
        self.calls.append(request)
        self._soon(lambda: sink(self._scored(request)))

    def abort(self, rid: str) -> None:
        self._live.discard(rid)

    def defer(self, work: Callable[[], None], delay: float = 0.0) -> None:
        self._worker.post(work, delay)

    def flush_cache(self) -> bool:
        self._worker.post(self._known.clear)  # on the thread that uses it, before what is asked from now on
        return True

    def get_server_info(self) -> dict[str, Any]:
        return {"model_path": "fake", "calls": len(self.calls)}

    def shutdown(self) -> None:
        self._closed = True
        self._worker.close()

    def __enter__(self) -> Fake:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _next_of_script(self, ids: tuple[int, ...]) -> Any:
        """The answer that is due, where the script is a list; else None."""
        if not isinstance(self._script, list) or self._logits is not None:
            return None
        try:
            return self._script.pop(0)
        except IndexError:
            shown = self.decode(ids)[-60:]
            raise RequestError(f"the script has no answer left for the prompt that ends in {shown!r}", field="prompt") from None

    # ---- answering, on the worker ----

    def _check(self, request: GenerateRequest | ScoreRequest) -> None:
        if self._closed:
            raise EngineClosedError("the Fake backend was shut down")

    def _soon(self, work: Callable[[], None]) -> None:
        """Runs `work` when the call has been computed: it begins as soon as one of the places is free, whoever is late to take answers."""
        if not self._latency and not self._free_at:
            self._worker.post(work)
            return
        now = time.monotonic()
        with self._places:
            end = (max(now, self._free_at[0]) if self._free_at else now) + self._latency
            if self._free_at:
                heapq.heapreplace(self._free_at, end)
        self._worker.post_at(work, end)

    def _answer(self, request: GenerateRequest, ids: tuple[int, ...], scripted: Any, sink: ChunkSink, start: float) -> None:
        cached = self._cached(ids)
        chunks: list[Chunk] = []
        for index in range(request.params.n):
            try:
                pieces, finish = self._output(request, ids, scripted, index)
            except Exception as exc:
                self._remember(ids)
                chunks.append(Chunk(request.rid, index, error=exc))
                continue
            made = sum([own for _, own, _ in pieces], ())
            self._remember(ids + made[:-1])  # as with an engine, what came last was not computed on
            seconds = time.monotonic() - start
            *first, (text, own, logprobs) = pieces
            chunks += [Chunk(request.rid, index, text, own, logprobs=logprobs) for text, own, logprobs in first]
            usage, timings = Usage(len(ids), cached, len(made)), Timings(0.0, seconds, 0.0, seconds)
            chunks.append(Chunk(request.rid, index, text, own, logprobs=logprobs, finish=finish, usage=usage, timings=timings))
        self._send(request.rid, chunks, 0, sink)

    def _send(self, rid: str, chunks: list[Chunk], at: int, sink: ChunkSink) -> None:
        """One chunk, and the next as a job of its own, so that others and aborts come in between."""
        if rid not in self._live:
            sink(Chunk(rid, chunks[at].index, error=CancelledError("the request was aborted")))
            return
        sink(chunks[at])
        if at + 1 < len(chunks):
            self._worker.post(lambda: self._send(rid, chunks, at + 1, sink))
        else:
            self.abort(rid)

    def _output(self, request: GenerateRequest, ids: tuple[int, ...], scripted: Any, index: int) -> tuple[Sequence[Piece], FinishReason]:
        params = request.params
        if params.max_new_tokens == 0:
            return [("", (), ())], FinishReason("length")
        if self._logits is not None:
            made, logprobs = self._sampled(ids, params, index)
            return self._cut(made, params, logprobs if request.logprobs else ())
        answer = self._scripted(request, ids) if scripted is None else scripted
        if isinstance(answer, list) and answer and isinstance(answer[0], str):
            answer = answer[index % len(answer)]
        if isinstance(answer, BaseException):
            raise answer
        if not isinstance(answer, str):
            return self._cut(tuple(answer), params, ())
        _check_constraint(params.constraint, answer)
        return self._words(request, answer)

    def _scripted(self, request: GenerateRequest, ids: tuple[int, ...]) -> Any:
        if isinstance(self._script, str):
            return self._script
        prompt = self.decode(ids)
        if isinstance(self._script, Mapping):
            keys = [key for key in self._script if prompt.endswith(key)]
            if not keys:
                raise RequestError(f"the script has no answer for the prompt that ends in {prompt[-60:]!r}", field="prompt")
            return self._script[max(keys, key=len)]
        if callable(self._script):
            return self._script(prompt, request)
        if self._script is None:
            raise RequestError("this Fake has no script; give it one: Fake(['first answer', ...])", field="script")
        return self._script

    def _words(self, request: GenerateRequest, text: str) -> tuple[Sequence[Piece], FinishReason]:
        """The text word by word, up to its first stop; then the end-of-text token, or the stop that is trimmed."""
        matched, at = first_stop(text, request.params)
        whole = text if matched is None else text[: at + len(matched)]
        shown = whole if matched is None or request.params.no_stop_trim else text[:at]
        pieces = _pieces(shown, None if matched is None else whole[len(shown) :])
        if request.logprobs:
            pieces = tuple((word, own, tuple(TokenLogprob(i, 0.0) for i in own)) for word, own, _ in pieces)
        return pieces, ENDED if matched is None else FinishReason("stop", matched)

    def _cut(self, made: tuple[int, ...], params: SamplingParams, logprobs: Sequence[TokenLogprob]) -> tuple[list[Piece], FinishReason]:
        """An output of ids, ended by end-of-text, a stop or its length."""
        made = made[: params.max_new_tokens]
        text = self.decode(made)
        matched, at = first_stop(text, params)
        if matched is not None:
            return [(text if params.no_stop_trim else text[:at], made, tuple(logprobs))], FinishReason("stop", matched)
        ended = made and (made[-1] in params.stop_token_ids or (made[-1] == EOS and not params.ignore_eos))
        return [(text, made, tuple(logprobs))], FinishReason("stop", made[-1]) if ended else FinishReason("length")

    def _sampled(self, ids: tuple[int, ...], params: SamplingParams, index: int) -> tuple[tuple[int, ...], list[TokenLogprob]]:
        if params.constraint is not None and params.constraint.kind != "choice":
            raise ConstraintError(
                f"a Fake with logits has no grammars: {params.constraint.kind} is not supported; use a script", field="constraint"
            )
        made: tuple[int, ...] = ()
        logprobs = []
        for at in range(params.max_new_tokens):
            raw = _log_softmax(self._next(ids + made))
            token = _draw(_allowed(raw, made, params), params, at, index)
            made += (token,)
            logprobs.append(TokenLogprob(token, raw[token]))
            ended = (token == EOS and not params.ignore_eos) or token in params.stop_token_ids
            if ended or first_stop(self.decode(made), params)[0] is not None:
                break
        return made, logprobs

    def _next(self, ids: tuple[int, ...]) -> Mapping[int, float]:
        assert self._logits is not None
        logits = self._logits(ids)
        if not logits:
            raise RequestError(f"the logits function gave no logits after {self.decode(ids)[-60:]!r}", field="logits")
        return logits

    def _scored(self, request: ScoreRequest) -> Scores:
        usage = Usage(len(request.prompt), self._cached(request.prompt))
        self._remember(request.prompt)
        try:
            rows = tuple(self._row(request.prompt, option) for option in request.options)
        except Exception as exc:
            return Scores(request.rid, error=exc)
        return Scores(request.rid, rows, usage, Timings(0.0, self._latency, 0.0, self._latency))

    def _row(self, prompt: tuple[int, ...], option: tuple[int, ...]) -> tuple[float, ...]:
        if self._logits is not None:
            return tuple(_log_softmax(self._next(prompt + option[:i])).get(token, -math.inf) for i, token in enumerate(option))
        text = self.decode(option)
        if callable(self._scores):
            total = self._scores(self.decode(prompt), text)
        elif isinstance(self._scores, Mapping):
            key = next((k for k in (text, text.strip()) if k in self._scores), None) or next(
                (k for k in self._scores if k.endswith(text)), None
            )
            total = self._scores[key] if key is not None else -20.0 * len(option)
        else:
            total = -1.0 * len(option)
        return (total / len(option),) * len(option)

    def _cached(self, ids: tuple[int, ...]) -> int:
        """How many of `ids` are known as the beginning of something earlier; the last one is always computed."""
        at = bisect.bisect_left(self._known, ids)
        most = 0
        for known in self._known[max(0, at - 1) : at + 1]:
            if known[: most + 1] == ids[: most + 1]:
                most = common_length(known, ids)
        return min(most, len(ids) - 1)

    def _remember(self, ids: tuple[int, ...]) -> None:
        """From now on `ids` are known."""
        known = self._known
        at = bisect.bisect_left(known, ids)
        if at and known[at - 1] == ids[: len(known[at - 1])]:
            known[at - 1] = ids  # the beginning goes without saying
        elif at == len(known) or known[at][: len(ids)] != ids:
            known.insert(at, ids)


@lru_cache(1024)  # a script often says the same
def _pieces(text: str, rest: str | None) -> tuple[Piece, ...]:
    """The words of `text` and their ids; the last has those of what is trimmed after it, too, or of the end of text."""
    words = WORDS.findall(text) or [""]
    ids = [tuple(word.encode()) for word in words]
    ids[-1] += (EOS,) if rest is None else tuple(rest.encode())
    return tuple((word, own, ()) for word, own in zip(words, ids, strict=True))


def first_stop(text: str, params: SamplingParams) -> tuple[str | None, int]:
    """The stop that comes first in `text` and where it begins, or (None, -1)."""
    if not params.stop and not params.stop_regex:
        return None, -1
    found = [(at, stop) for stop in params.stop if (at := text.find(stop)) >= 0]
    found += [(m.start(), m[0]) for pattern in params.stop_regex if (m := re.search(pattern, text)) and m[0]]
    at, stop = min(found, key=lambda f: (f[0], -len(f[1])), default=(-1, None))
    return stop, at


def _check_constraint(constraint: Constraint | None, text: str) -> None:
    """Refuses a script's answer that the constraint would not let a model give."""
    if constraint is None:
        return
    fits = True
    if constraint.kind == "choice":
        fits = text in json.loads(constraint.source)
    elif constraint.kind == "regex":
        fits = re.fullmatch(constraint.source, text) is not None
    elif constraint.kind in ("json_schema", "json_object"):
        try:
            json.loads(text)
        except ValueError:
            fits = False
    if not fits:
        raise ConstraintError(
            f"the script's answer {text!r} breaks the {constraint.kind} constraint {constraint.source}", field=constraint.kind
        )


def _allowed(raw: dict[int, float], made: tuple[int, ...], params: SamplingParams) -> dict[int, float]:
    scores = {i: v + params.logit_bias.get(i, 0.0) for i, v in raw.items()}
    if params.constraint is not None:
        options = [tuple(text.encode()) for text in json.loads(params.constraint.source)]
        live = [o for o in options if o[: len(made)] == made]
        follow = {o[len(made)] if len(o) > len(made) else EOS for o in live}
        return {i: scores.get(i, -1e9) for i in follow}
    if len(made) < params.min_new_tokens and len(scores) > 1:
        scores.pop(EOS, None)
    return scores


def _draw(scores: dict[int, float], params: SamplingParams, position: int, index: int) -> int:
    if params.temperature < 1e-6 or params.top_k == 1:
        return max(scores, key=lambda i: (scores[i], -i))
    order: Iterator[int] = iter(sorted(scores, key=lambda i: -scores[i])[: params.top_k if params.top_k > 0 else None])
    ids = list(order)
    weights = [math.exp((scores[i] - scores[ids[0]]) / params.temperature) for i in ids]
    seed = random.random() if params.seed is None else f"{params.seed}/{index}/{position}"
    return random.Random(seed).choices(ids, weights)[0]


def _log_softmax(logits: Mapping[int, float]) -> dict[int, float]:
    top = max(logits.values())
    norm = top + math.log(sum(math.exp(v - top) for v in logits.values()))
    return {i: v - norm for i, v in logits.items()}
