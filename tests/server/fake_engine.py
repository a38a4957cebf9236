"""An engine without a model, behind the same interface: what it answers is written in the prompt.

The last `say:TEXT` (up to a `;` or the end of a line) is the answer, byte by byte; without one, letters drawn from
(seed, index, position). A constraint is answered by its simplest instance. `slow:SECONDS` waits between tokens.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from ramet.runtime.config import EngineConfig
from ramet.runtime.errors import (
    CancelledError,
    ConstraintError,
    DeadlineError,
    EngineClosedError,
    ModelNotFoundError,
    QueueFullError,
    RequestError,
)
from ramet.runtime.protocol import Chunk, Constraint, FinishReason, GenerateRequest, ScoreRequest, Scores, Timings, TokenLogprob, Usage
from ramet.runtime.validate import Limits, check_prompt, validate

BOS, EOS, VOCAB = 256, 257, 260


class ByteTokenizer:
    """A token a byte, and a few special ones."""

    vocab_size = VOCAB
    bos_id = BOS
    eos_ids = frozenset({EOS})
    chat_template = "{{ messages }}"
    special: ClassVar[dict[int, str]] = {BOS: "<s>", EOS: "</s>", 258: "<|im_start|>", 259: "<|im_end|>"}

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        ids = list(text.encode())
        return [BOS, *ids] if add_special else ids

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def token_text(self, token_id: int) -> str:
        return self.special.get(token_id) or self.token_bytes(token_id).decode("utf-8", "replace")

    def render_chat(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template: str | None = None,
        **variables: Any,
    ) -> str:
        if any(m["role"] == "system" for m in messages[1:]):
            raise RequestError("the chat template refuses these messages: system comes first", field="messages")
        text = "".join(f"[{m['role']}]{m['content']}\n" for m in messages)
        if continue_final_message:
            return text.removesuffix("\n")
        return (template or "") + text + ("[assistant]" if add_generation_prompt else "")

    def encode_chat(self, messages: Sequence[dict[str, Any]], **options: Any) -> list[int]:
        return self.encode(self.render_chat(messages, **options), add_special=True)


class FakeLoop:
    """Each request on a thread of its own."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.tokenizer = ByteTokenizer()
        self.limits = Limits(VOCAB, config.context_length or 2048, config.max_total_tokens or 4096)
        self.live: dict[str, threading.Event] = {}
        self.said: dict[str, tuple[int, int]] = {}  # of those that run: prompt and output tokens
        self.lock = threading.Lock()
        self.seen: set[tuple[str, tuple[int, ...]]] = set()
        self.pins: dict[tuple[int, ...], float] = {}
        self.dead: Exception | None = None
        self.hung = False

    def submit(self, request: GenerateRequest, sink: Callable[[Chunk], None]) -> None:
        if self.dead:
            raise self.dead
        validate(request, self.limits)
        ids = self.tokenizer.encode(request.prompt, add_special=True) if isinstance(request.prompt, str) else list(request.prompt)
        check_prompt(ids, self.limits, request.params.max_new_tokens)
        script = instance(request.params.constraint) if request.params.constraint else None
        text = self.tokenizer.decode(ids)
        if "die!" in text:
            os._exit(9)
        self.hung = self.hung or "hang!" in text
        if "engine dies!" in text:
            self.dead = EngineClosedError("the engine died: on purpose")
        with self.lock:
            if request.rid in self.live:
                raise RequestError("rid: twice", field="rid")
            if len(self.live) >= self.config.max_queued_requests + self.config.max_running_requests:
                raise QueueFullError("too many wait", retry_after=2.0)
            stop = self.live[request.rid] = threading.Event()
        threading.Thread(target=self._run, args=(request, ids, text, script, sink, stop), daemon=True).start()

    def _run(self, request: GenerateRequest, ids: list[int], text: str, script: str | None, sink: Any, stop: threading.Event) -> None:
        try:
            for index in range(request.params.n):
                _Output(self, request, ids, text, script, index).run(sink, stop)
        except Exception as error:
            sink(Chunk(request.rid, error=error))
        finally:
            with self.lock:
                self.live.pop(request.rid, None)
                self.said.pop(request.rid, None)

    def score(self, request: ScoreRequest, sink: Callable[[Scores], None]) -> None:
        check_prompt(request.prompt, self.limits, 0)
        rows = tuple(tuple(-0.01 * token for token in option) for option in request.options)
        sink(Scores(request.rid, rows, Usage(prompt_tokens=len(request.prompt))))

    def abort(self, rid: str) -> None:
        with self.lock:
            if rid in self.live:
                self.live[rid].set()

    def compile(self, kind: str, source: str, whitespace: str = "json") -> None:
        instance(Constraint(kind, source))  # type: ignore[arg-type]

    def flush_cache(self) -> bool:
        with self.lock:
            if not self.live:
                self.seen.clear()
            return not self.live

    def pin(self, ids: Sequence[int], ttl: float, cache_salt: str = "", tenant: str = "") -> int:
        self.pins[tuple(ids)] = ttl
        return len(ids)

    def unpin(self, ids: Sequence[int], cache_salt: str = "", tenant: str = "") -> bool:
        return self.pins.pop(tuple(ids), None) is not None

    def server_info(self) -> dict[str, Any]:
        return {"model_path": self.config.model_path, "context_length": self.limits.context_length, "vocab_size": VOCAB, "pid": os.getpid()}

    def tree(self, depth: int = 64, min_tokens: int = 1) -> dict[str, Any]:
        children = [
            {"tokens": len(ids), "text": self.tokenizer.decode(ids), "hits": 1, "refs": 0, "last_used": 0, "children": []} for _, ids in sorted(self.seen)
        ]
        root = {
            "salted": False,
            "tokens": 0,
            "text": "",
            "hits": 0,
            "refs": 0,
            "last_used": 0,
            "children": [c for c in children if c["tokens"] >= min_tokens] if depth else [],
        }
        return {"size": sum(c["tokens"] for c in children), "roots": [root]}

    def explain(self, ids: Sequence[int], cache_salt: str = "", tenant: str = "") -> dict[str, Any]:
        cached = len(ids) if (cache_salt, tuple(ids)) in self.seen else 0
        return {"tokens": len(ids), "cached": cached, "asked": ids[cached:][:8], "instead": [], "branches": 0, "evicted": [], "below": 0}

    def stats(self) -> dict[str, Any]:
        if self.dead:
            raise self.dead
        while self.hung:
            time.sleep(1)
        slots = self.limits.slots
        return {
            "running": len(self.live),
            "waiting": 0,
            "steps": 1,
            "computed_tokens": 1,
            "tree_nodes": len(self.seen),
            "evicted_tokens": 0,
            "retractions": 0,
            "pool": {"slots": slots, "free": slots, "cached": 0, "evictable": 0},
            "requests": [
                {"rid": rid, "index": 0, "prompt_tokens": n, "cached_tokens": 0, "computed": n, "todo": 1, "output_tokens": m, "forced_tokens": 0}
                for rid, (n, m) in list(self.said.items())
            ],
        }

    def close(self) -> None:
        for stop in list(self.live.values()):
            stop.set()


class _Output:
    """One of the n outputs of a request."""

    def __init__(self, loop: FakeLoop, request: GenerateRequest, ids: list[int], text: str, script: str | None, index: int) -> None:
        self.loop, self.request, self.ids, self.index = loop, request, ids, index
        said = re.findall(r"say:([^;\n]*)", text)
        self.script = script if script is not None else said[-1].replace("\\n", "\n") if said else self._drawn()
        slow = re.findall(r"slow:([\d.]+)", text)
        self.gap = float(slow[-1]) if slow else 0.0
        self.complete = script is not None

    def _drawn(self) -> str:
        params = self.request.params
        seed = params.seed if params.seed is not None else random.getrandbits(32)
        draw = random.Random(seed * 1000 + self.index if params.temperature else hash(tuple(self.ids)))
        return "".join(draw.choice("abcdefgh ") for _ in range(200))

    def run(self, sink: Any, stop: threading.Event) -> None:
        request, started = self.request, time.monotonic()
        key = (request.cache_salt, tuple(self.ids))
        cached = len(self.ids) - 1 if key in self.loop.seen else 0
        self.loop.seen.add(key)
        script = [*self.script.encode(), EOS][: request.params.max_new_tokens]
        shown, held, first, finish = b"", b"", 0.0, None
        for place, token in enumerate(script):
            if self.gap:
                stop.wait(self.gap)
            if stop.is_set():
                raise CancelledError(f"request {request.rid} was aborted")
            if request.deadline is not None and time.monotonic() - started > request.deadline:
                raise DeadlineError(f"request {request.rid!r} ran past its deadline")
            first = first or time.monotonic()
            self.loop.said[request.rid] = len(self.ids), place + 1
            if token == EOS:
                finish = FinishReason("stop", None if self.complete else EOS)
            elif token in request.params.stop_token_ids:
                finish = FinishReason("stop", token)
            else:
                held += bytes([token])
                for word in request.params.stop:
                    if word.encode() in held:
                        held = held[: held.index(word.encode())]
                        finish = FinishReason("stop", word)
            if finish is None and place + 1 == request.params.max_new_tokens:
                finish = FinishReason("length")
            text, held = self._release(held, final=finish is not None)
            shown += text.encode()
            sink(self._chunk(place, token, text, finish, Usage(len(self.ids), cached, place + 1, 0), Timings(0.0, first - started, 0.0, 0.0)))
            if finish is not None:
                return
        if finish is None:
            usage = Usage(len(self.ids), cached, 0, 0)
            sink(self._chunk(0, None, "", FinishReason("length"), usage, Timings()))

    def _release(self, held: bytes, *, final: bool) -> tuple[str, bytes]:
        """The text that can be shown, and the bytes that may still become a stop string or a character."""
        if final:
            return held.decode("utf-8", "replace"), b""
        longest = max((n for word in self.request.params.stop for n in range(1, len(word.encode())) if held.endswith(word.encode()[:n])), default=0)
        ready, kept = (held[:-longest], held[-longest:]) if longest else (held, b"")
        text = ready.decode("utf-8", "ignore")
        return text, ready[len(text.encode()) :] + kept

    def _chunk(self, place: int, token: int | None, text: str, finish: Any, usage: Usage, timings: Timings) -> Chunk:
        request = self.request

        def logprob(token: int) -> TokenLogprob:
            top = tuple(((token + k) % VOCAB, -0.5 - k) for k in range(request.top_logprobs))
            return TokenLogprob(token, -0.5, top)

        chunk = Chunk(
            request.rid,
            self.index,
            text,
            () if token is None else (token,),
            finish=finish,
            usage=usage if finish or place == 0 else None,
            timings=timings if finish else None,
        )
        if request.logprobs and token is not None:
            chunk = replace(chunk, logprobs=(logprob(token),))
        if request.logprobs and request.logprob_start >= 0 and place == 0 and self.index == 0:
            first = (TokenLogprob(self.ids[0], None),) if request.logprob_start == 0 else ()
            rest = self.ids[max(1, request.logprob_start) :]
            chunk = replace(chunk, prompt_logprobs=first + tuple(logprob(t) for t in rest))
        return chunk


def instance(constraint: Constraint) -> str:
    """The simplest text that a constraint allows. Raises ConstraintError."""
    try:
        if constraint.kind == "choice":
            return json.loads(constraint.source)[0]
        if constraint.kind == "json_object":
            return "{}"
        if constraint.kind == "regex":
            re.compile(constraint.source)
            return "" if constraint.source.endswith(")?") else re.sub(r"\\(.)", r"\1", constraint.source)
        if constraint.kind == "json_schema":
            return json.dumps(_value(json.loads(constraint.source)))
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, re.error) as error:
        raise ConstraintError(f"{constraint.kind}: {error}", field=constraint.kind) from error
    raise ConstraintError(f"{constraint.kind} is not known to the fake engine", field=constraint.kind)


def _value(schema: Any) -> Any:
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise ValueError(f"{schema!r} allows nothing")
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    if "$ref" in schema or ("pattern" in schema and re.compile(schema["pattern"]) is None):
        raise ValueError("$ref is not known to the fake engine")
    kinds: dict[Any, Any] = {"string": "x", "integer": 1, "number": 1.5, "boolean": True, "null": None, "array": []}
    kind = schema.get("type", "object")
    if kind in ("object",):
        if not isinstance(schema.get("required", []), list):
            raise ValueError("required must be a list")
        return {name: _value(inner) for name, inner in schema.get("properties", {}).items()}
    return kinds[kind]


def open_loop(config: EngineConfig) -> FakeLoop:
    if config.model_path == "missing":
        raise ModelNotFoundError("there is no model 'missing'")
    if config.model_path == "crash":
        sys.exit("crashed while loading")
    return FakeLoop(config)


def open_tokenizer(config: EngineConfig) -> ByteTokenizer:
    return ByteTokenizer()
