"""What the routes share: the configuration, the engine's client, the tokenizer, and threads for work on text."""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from ..config import ServerConfig
from ..errors import PromptError, RequestError
from ..histogram import Histogram
from ..protocol import Chunk, Constraint, FinishReason, GenerateRequest, Timings, TokenLogprob, Usage
from .client import EngineClient
from .metrics import Metrics
from .parts import Text

T = TypeVar("T")
log = logging.getLogger("ramet.http")

LAG_TICK = 0.1  # seconds between two looks at the event loop's punctuality


@dataclass
class Output:
    """One finished output of a request, its chunks joined."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    forced: list[bool] = field(default_factory=list)  # one for each id
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    first_logprobs: list[tuple[int, float]] = field(default_factory=list)
    finish: FinishReason = field(default_factory=lambda: FinishReason("abort"))
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)

    def add(self, chunk: Chunk) -> None:
        self.text += chunk.text
        self.token_ids += chunk.token_ids
        self.forced += chunk.forced or (False,) * len(chunk.token_ids)
        self.logprobs += chunk.logprobs
        self.prompt_logprobs += chunk.prompt_logprobs
        self.first_logprobs += chunk.first_logprobs
        self.usage = chunk.usage or self.usage
        if chunk.finish is not None:
            self.finish = chunk.finish
            self.timings = chunk.timings or self.timings


class Service:
    """One server's parts. `draining` is set at SIGTERM: what runs may end, nothing new begins."""

    tokenizer: Text  # set when it is open, before the first request

    def __init__(self, config: ServerConfig) -> None:
        engine = config.engine
        self.config = config
        self.client = EngineClient(max_open=engine.max_running_requests + engine.max_queued_requests, check=self.check_length, observe=self._observe)
        self.lag = Histogram()  # seconds by which the event loop came too late
        self.metrics = Metrics(self.stats)
        self.draining = False
        self.sessions: Any = None  # set by the routes that serve them
        self._threads = ThreadPoolExecutor(2, "text")

    def stats(self) -> dict[str, Any]:
        """The engine's latest, and what this process knows itself."""
        own = {"event_loop_lag_seconds": self.lag.snapshot(), "delivery_seconds": self.client.delivery.snapshot()}
        return {**self.client.stats, **own}

    async def watch_lag(self) -> None:
        """Measures, for as long as it is not cancelled, whether the event loop keeps its appointments."""
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + LAG_TICK
            await asyncio.sleep(LAG_TICK)
            self.lag.observe(clock() - due)

    def _observe(self, request: GenerateRequest, chunk: Chunk) -> None:
        try:
            self.metrics.observe(request, chunk)
        except Exception:  # counting must never cost an answer
            log.exception("a chunk could not be counted")

    @property
    def model_name(self) -> str:
        return self.config.engine.served_model_name or self.config.engine.model_path

    @property
    def context_length(self) -> int:
        return int(self.client.info.get("context_length") or 2048)

    async def in_thread(self, work: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Encoding, decoding and templates: off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: work(*arguments, **named))

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    @property
    def chat_template(self) -> str:
        """The Jinja text of the model's own template; "" when it has none."""
        return self.tokenizer.chat_template or ""

    @cached_property
    def most_characters(self) -> int:
        """A longer text cannot fit the context, however it is encoded."""
        longest = max(len(self.tokenizer.token_bytes(token)) for token in range(self.vocab_size))
        return self.context_length * max(longest, 1)

    def check_length(self, prompt: str | Sequence[int], field: str = "prompt") -> None:
        """Raises PromptError for what is certainly too long, before anybody encodes or copies it."""
        if isinstance(prompt, str) and len(prompt) > self.most_characters:
            raise PromptError(f"{field}: {len(prompt)} characters cannot fit the context of {self.context_length} tokens", field=field)
        if not isinstance(prompt, str) and len(prompt) > self.context_length:
            raise PromptError(f"{field}: {len(prompt)} tokens, but the context holds {self.context_length} (answer included)", field=field)

    async def encode(self, text: str, *, add_special: bool, field: str = "text") -> tuple[int, ...]:
        """The ids of a text, made on a thread. Raises PromptError."""
        self.check_length(text, field)
        return tuple(await self.in_thread(self.tokenizer.encode, text, add_special=add_special))

    async def check_constraint(self, constraint: Constraint) -> None:
        """Compiles a constraint in the engine, which keeps it. Raises ConstraintError."""
        await self.client.call("compile", kind=constraint.kind, source=constraint.source, whitespace=constraint.whitespace, timeout=30.0)

    def deadline(self, asked: float | None) -> float | None:
        """Seconds a request may take: the smaller of its own and the server's."""
        return min((value for value in (asked, self.config.request_timeout) if value is not None), default=None)

    async def run(self, request: GenerateRequest) -> list[Output]:
        """The n outputs of a request. Raises its error."""
        outputs = [Output() for _ in range(request.params.n)]
        async with aclosing(self.client.stream(request)) as stream:
            async for chunks in stream:
                for chunk in chunks:
                    outputs[chunk.index].add(chunk)
        return outputs

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def new_id(prefix: str = "") -> str:
    return prefix + uuid.uuid4().hex


def checked_rid(rid: str, where: str = "rid") -> str:
    if not 0 < len(rid) <= 128 or not rid.isprintable():
        raise RequestError(f"{where}: 1 to 128 printable characters are needed", field=where)
    return rid


def finite(value: float | None) -> float | None:
    """JSON has no infinities: a logprob of -inf is shown as the lowest that a client can still add up."""
    return value if value is None or math.isfinite(value) else -9999.0


class Shown:
    """Which tokens are part of the text that is shown: those that start before its end.

    The tokens of a trimmed stop string and the end-of-text token are generated but not shown, and text that might become a
    stop string is held back; `push` gives the logprobs of exactly the tokens whose text has come out."""

    def __init__(self, tokenizer: Text) -> None:
        self.tokenizer = tokenizer
        self.shown = 0  # bytes of text so far
        self.start = 0  # bytes before the first token that waits
        self.waiting: list[TokenLogprob] = []

    def push(self, chunk: Chunk) -> list[tuple[int, TokenLogprob]]:
        """(byte offset in the text, logprob) of each token that became visible with this chunk."""
        self.shown += len(chunk.text.encode())
        self.waiting += chunk.logprobs
        ready = []
        while self.waiting and self.start < self.shown:
            item = self.waiting.pop(0)
            ready.append((self.start, item))
            self.start += len(self.tokenizer.token_bytes(item.token_id))
        return ready


def state_ids(tokenizer: Text, output: Output) -> list[int]:
    """The ids that continue a program's state: those generated, without the tokens of a trimmed stop or end of text.

    A token that straddles the cut is replaced by the encoding of the part of it that is shown."""
    text = output.text.encode()
    kept, place = 0, 0  # ids, and the bytes they stand for
    for count, token in enumerate(output.token_ids, 1):
        piece = tokenizer.token_bytes(token)
        if text[place : place + len(piece)] != piece:
            break
        if piece:
            kept, place = count, place + len(piece)
    rest = text[place:].decode("utf-8", "ignore")
    ids = output.token_ids[:kept]
    if rest and not rest.strip("\ufffd"):  # the output ends inside a character: no text can give its ids back
        return ids + [token for token in output.token_ids[kept:] if token not in tokenizer.eos_ids]
    return ids + (list(tokenizer.encode(rest, add_special=False)) if rest else [])


def split_ids(sequence: Sequence[Any]) -> bool:
    """Whether a list holds token ids rather than prompts."""
    return all(isinstance(item, int) and not isinstance(item, bool) for item in sequence)
