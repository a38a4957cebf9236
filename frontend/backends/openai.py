"""A service that speaks OpenAI's API, through the `openai` package.

The service takes text or messages, so a state's ids are those of `bytes`: one a byte, and marks around messages.
What the service cannot do is refused by name, never left out in silence.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ...runtime.errors import BackendError, DeadlineError, PromptError, RequestError, UnsupportedError
from ...runtime.protocol import Chunk, Constraint, FinishReason, GenerateRequest, SamplingParams, ScoreRequest, Scores, Timings, Usage
from . import asked_choice
from . import bytes as ids_of
from .base import ChunkSink, Message, ScoreSink
from .remote import Calls

COMPLETION_MODELS = ("gpt-3.5-turbo-instruct", "davinci", "babbage", "text-")
STANDARD = (
    "max_new_tokens",
    "temperature",
    "top_p",
    "n",
    "stop",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "constraint",
)
EXTENDED = {"min_new_tokens": "min_tokens"}  # names that differ in the extensions of Ramet, SGLang and vLLM
OURS = ("finish", "jump_forward", "skip_special_tokens")  # says how to get there, not what: without effect on another's service


@dataclass
class TokenUsage:
    """Tokens that the service has billed so far."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class OpenAI:
    """A chat or completion model of OpenAI or of a server with the same API.

    is_chat_model: by default told by the name. chat_template: how chat is written for a completion model (`TEMPLATES`).
    extensions: whether the server takes the parameters that Ramet, SGLang and vLLM add (top_k, min_p, regex, ...).
    prefill: whether it goes on with an assistant message that has begun (`continue_final_message`).
    Other options go to `openai.AsyncOpenAI`. Raises UnsupportedError for what the service cannot do.
    """

    speculates = True
    bos_id = None
    eos_ids = (ids_of.EOS,)

    def __init__(
        self,
        model_name: str,
        is_chat_model: bool | None = None,
        chat_template: str | None = None,
        is_azure: bool = False,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        extensions: bool = False,
        prefill: bool = False,
        max_retries: int = 3,
        timeout: float = 600.0,
        **client_options: Any,
    ) -> None:
        try:
            import openai
        except ImportError as exc:
            raise UnsupportedError("the OpenAI backend needs the openai package: pip install 'ramet[openai]'") from exc

        self._openai = openai
        self.model_name = model_name
        self.is_chat_model = not model_name.startswith(COMPLETION_MODELS) if is_chat_model is None else is_chat_model
        self.chat_template_name = None if self.is_chat_model else chat_template
        self.extensions, self.prefill = extensions, prefill
        self.token_usage = TokenUsage()
        kind: Any = openai.AsyncAzureOpenAI if is_azure else openai.AsyncOpenAI
        if base_url is not None:
            client_options["base_url"] = base_url
        try:
            self._client = kind(api_key=api_key, max_retries=max_retries, timeout=timeout, **client_options)
        except openai.OpenAIError as exc:
            raise BackendError(f"OpenAI({model_name!r}): {exc}") from exc
        self._calls = Calls("ramet-openai")

    # ---- tokens ----

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        return ids_of.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return ids_of.decode(ids)

    def render_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str | None:
        return ids_of.render_chat(messages, add_generation_prompt) if self.is_chat_model else None

    # ---- requests ----

    def submit(self, request: GenerateRequest, sink: ChunkSink) -> None:
        if request.logprobs or request.token_ids_logprob:
            raise UnsupportedError("return_logprob: the service's tokens have no ids here; use RuntimeEndpoint", field="return_logprob")
        for name in ("priority", "cache_salt"):
            if getattr(request, name):
                raise UnsupportedError(f"{name}: not in OpenAI's API", field=name)
        body = {**self._body(request.prompt, request.params), "stream": True, "stream_options": {"include_usage": True}}
        if request.deadline is not None:
            body["timeout"] = request.deadline
        self._calls.start(request.rid, lambda: self._generate(request, body, sink), lambda error: sink(Chunk(request.rid, error=error)))

    async def _generate(self, request: GenerateRequest, body: dict[str, Any], sink: ChunkSink) -> None:
        start = time.monotonic()
        first: float | None = None
        ends: dict[int, FinishReason] = {}
        usage = Usage()
        async with _Errors(self._openai), await self._create(body) as stream:
            async for event in stream:
                usage = _usage(event.usage) if event.usage is not None else usage
                for choice in event.choices:
                    text = (choice.delta.content if self.is_chat_model else choice.text) or ""
                    first = first or time.monotonic()
                    if text:
                        chunk = Chunk(request.rid, choice.index, text, tuple(ids_of.encode(text)))
                        self._calls.worker.post(lambda chunk=chunk: sink(chunk))  # type: ignore[misc]
                    if choice.finish_reason is not None:
                        ends[choice.index] = _finish(choice)
        now = time.monotonic()
        timings = Timings(0.0, (first or now) - start, (now - (first or now)) / max(1, usage.completion_tokens - 1), now - start)
        self.token_usage.prompt_tokens += usage.prompt_tokens
        self.token_usage.completion_tokens += usage.completion_tokens
        for index in range(request.params.n):
            end = ends.get(index)
            error = None if end is not None else BackendError("the service broke off its answer")
            last = Chunk(request.rid, index, finish=end, usage=usage, timings=timings, error=error)
            self._calls.worker.post(lambda last=last: sink(last))  # type: ignore[misc]

    def score(self, request: ScoreRequest, sink: ScoreSink) -> None:
        work = self._choose if self.is_chat_model else self._score
        self._calls.start(request.rid, lambda: work(request, sink), lambda error: sink(Scores(request.rid, error=error)))

    async def _choose(self, request: ScoreRequest, sink: ScoreSink) -> None:
        """Chat services score no given text: the model is made to choose, and tells how likely it was to choose otherwise."""
        if request.prompt == self.eos_ids:
            raise UnsupportedError("choices_method: a chat service cannot say how probable an option is by itself", field="choices_method")
        texts = [ids_of.decode(option) for option in request.options]
        begun, usage = time.monotonic(), Usage()

        async def ask(options: Sequence[str]) -> dict[str, float]:
            nonlocal usage
            if len(options) == 1:
                return {options[0]: 0.0}
            tokens, billed = await self._chosen(request, options)
            usage = Usage(usage.prompt_tokens + billed.prompt_tokens, usage.cached_tokens + billed.cached_tokens)
            found: dict[str, float] = {}
            for way in asked_choice.ways(tokens, options):
                found |= {option: way.logprob + logprob for option, logprob in (await ask(way.options)).items()}
            return found

        async with _Errors(self._openai):
            logprobs = await ask(texts)
        seconds = time.monotonic() - begun
        scores = Scores(request.rid, tuple((logprobs[text],) for text in texts), usage, Timings(0.0, seconds, 0.0, seconds))
        self._calls.worker.post(lambda: sink(scores))

    async def _chosen(self, request: ScoreRequest, options: Sequence[str]) -> tuple[list[asked_choice.Token], Usage]:
        """The tokens of an answer that is one of `options`, with their alternatives."""
        shape = Constraint("json_schema", json.dumps(asked_choice.schema(options)))
        params = SamplingParams(temperature=0.0, max_new_tokens=64 + max(map(len, options)), constraint=shape)
        body = {**self._body(request.prompt, params), "logprobs": True, "top_logprobs": asked_choice.TOP}
        if request.deadline is not None:
            body["timeout"] = request.deadline
        answer = await self._client.chat.completions.create(**body)
        given = answer.choices[0].logprobs
        if given is None or not given.content:
            raise UnsupportedError(
                "select: this service gives no log-probabilities, so the options cannot be compared; let it choose with "
                "gen(json_schema=...) of an object that has an enum",
                field="choices",
            )
        return asked_choice.tokens_of(given.content), self._billed(answer.usage)

    async def _score(self, request: ScoreRequest, sink: ScoreSink) -> None:
        """Completion services score texts by echoing them: one call for all options."""
        prompt = ids_of.decode(request.prompt)
        if not prompt:
            raise UnsupportedError("select: a completion service does not score the first token of a text, so text must come before", field="choices")
        begun = time.monotonic()
        body: dict[str, Any] = {
            "model": self.model_name,
            "prompt": [prompt + ids_of.decode(option) for option in request.options],
            "max_tokens": 0,
            "echo": True,
            "logprobs": 1,
            "temperature": 0,
        }
        if request.deadline is not None:
            body["timeout"] = request.deadline
        async with _Errors(self._openai):
            answer = await self._client.completions.create(**body)
        usage = self._billed(answer.usage)
        echoed = [choice.logprobs for choice in sorted(answer.choices, key=lambda choice: choice.index)]
        if len(echoed) != len(request.options) or any(e is None or not e.token_logprobs for e in echoed):
            raise UnsupportedError(
                "select: this service does not score given text (echo with logprobs); use a chat model or RuntimeEndpoint", field="choices"
            )
        rows = _rows_after(len(prompt), echoed)
        seconds = time.monotonic() - begun
        self._calls.worker.post(lambda: sink(Scores(request.rid, rows, usage, Timings(0.0, seconds, 0.0, seconds))))

    def abort(self, rid: str) -> None:
        self._calls.abort(rid)

    def defer(self, work: Callable[[], None], delay: float = 0.0) -> None:
        self._calls.worker.post(work, delay)

    def flush_cache(self) -> bool:
        raise UnsupportedError("flush_cache: not in OpenAI's API")

    def get_server_info(self) -> dict[str, Any]:
        return {"model_path": self.model_name, "base_url": str(self._client.base_url), "is_chat_model": self.is_chat_model}

    def shutdown(self) -> None:
        self._calls.close(self._client.close)

    def __enter__(self) -> OpenAI:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    # ---- the wire ----

    async def _create(self, body: dict[str, Any]) -> Any:
        endpoint = self._client.chat.completions if self.is_chat_model else self._client.completions
        return await endpoint.create(**body)

    def _body(self, prompt: str | tuple[int, ...], params: SamplingParams) -> dict[str, Any]:
        asked, shaped = self._prompt(prompt), self._parameters(params)
        extra = {**asked.pop("extra_body", {}), **shaped.pop("extra_body", {})}
        return {**asked, **shaped, **({"extra_body": extra} if extra else {})}

    def _prompt(self, prompt: str | tuple[int, ...]) -> dict[str, Any]:
        if not prompt:
            raise PromptError("the prompt is empty: there is nothing to go on from", field="prompt")
        if isinstance(prompt, str):
            return {
                "model": self.model_name,
                **({"messages": [{"role": "user", "content": prompt}]} if self.is_chat_model else {"prompt": prompt}),
            }
        if not self.is_chat_model:
            return {"model": self.model_name, "prompt": ids_of.decode(prompt)}
        found = ids_of.messages_of(prompt)
        if found is None:
            raise UnsupportedError(
                f"{self.model_name} is a chat model: put all text into system(...), user(...) and assistant(...)", field="prompt"
            )
        messages, opened = found
        if opened and messages[-1]["role"] == "assistant":
            if not messages[-1]["content"]:
                messages.pop()
            elif not self.prefill:
                raise UnsupportedError(
                    f"{self.model_name}: a gen must directly follow the beginning of the assistant's message, as the service cannot go on "
                    "with one that has begun; if it can, open it with prefill=True, or use num_api_spec_tokens",
                    field="prompt",
                )
            else:
                return {
                    "model": self.model_name,
                    "messages": messages,
                    "extra_body": {"continue_final_message": True, "add_generation_prompt": False},
                }
        elif opened:
            raise UnsupportedError(
                f"a gen inside a {messages[-1]['role']} message: a chat service writes the assistant's messages only", field="prompt"
            )
        return {"model": self.model_name, "messages": messages}

    def _parameters(self, params: SamplingParams) -> dict[str, Any]:
        """The parameters under the API's names. Raises UnsupportedError for one that it does not have."""
        limit = "max_completion_tokens" if self.is_chat_model and not self.extensions else "max_tokens"
        body: dict[str, Any] = {limit: params.max_new_tokens, "temperature": params.temperature, "top_p": params.top_p, "n": params.n}
        for name in ("frequency_penalty", "presence_penalty", "seed"):
            if getattr(params, name):
                body[name] = getattr(params, name)
        if params.stop:
            body["stop"] = list(params.stop)
        if params.logit_bias:
            body["logit_bias"] = {str(i): bias for i, bias in params.logit_bias.items()}
        extra = self._constraint(params.constraint, body)
        for field in fields(SamplingParams):
            value = getattr(params, field.name)
            default = field.default if field.name != "logit_bias" else value
            if field.name in STANDARD or field.name in OURS or value == default:
                continue
            if not self.extensions:
                raise UnsupportedError(
                    f"{field.name}: not in OpenAI's API; if the server takes it, open it with extensions=True", field=field.name
                )
            extra[EXTENDED.get(field.name, field.name)] = list(value) if isinstance(value, tuple) else value
        if extra:
            body["extra_body"] = extra
        return body

    def _constraint(self, constraint: Constraint | None, body: dict[str, Any]) -> dict[str, Any]:
        """Puts a constraint into the body, or returns it as an extension."""
        if constraint is None:
            return {}
        if constraint.kind == "json_object":
            body["response_format"] = {"type": "json_object"}
            return {}
        if constraint.kind == "json_schema":
            shape = {"name": "output", "schema": json.loads(constraint.source), "strict": True}
            if self.is_chat_model or self.extensions:
                target = body if self.is_chat_model else body.setdefault("extra_body", {})
                target["response_format"] = {"type": "json_schema", "json_schema": shape}
                return {} if self.is_chat_model else body.pop("extra_body")
        elif self.extensions:
            return {constraint.kind: json.loads(constraint.source) if constraint.kind == "choice" else constraint.source}
        raise UnsupportedError(
            f"{constraint.kind}: not in OpenAI's API; use json_schema, or extensions=True if the server takes it", field=constraint.kind
        )

    def _billed(self, usage: Any) -> Usage:
        counted = _usage(usage)
        self.token_usage.prompt_tokens += counted.prompt_tokens
        self.token_usage.completion_tokens += counted.completion_tokens
        return counted


class _Errors:
    """Turns the openai package's errors into ours."""

    def __init__(self, openai: Any) -> None:
        self._openai = openai

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, kind: Any, exc: Any, traceback: Any) -> None:
        if isinstance(exc, self._openai.APITimeoutError):
            raise DeadlineError(f"the service did not answer in time: {exc}") from exc
        if isinstance(exc, self._openai.BadRequestError):
            raise RequestError(f"the service refused the request: {exc.message}", field=exc.param) from exc
        if isinstance(exc, self._openai.APIStatusError):
            raise BackendError(f"the service answered {exc.status_code}: {exc.message}", status=exc.status_code) from exc
        if isinstance(exc, self._openai.OpenAIError):
            raise BackendError(f"the service could not be asked: {exc}") from exc


def _rows_after(length: int, echoed: Sequence[Any]) -> tuple[tuple[float, ...], ...]:
    """The log-probabilities of texts from where the first of them leaves the prompt of `length` characters, in the midst of a token or not."""

    def ends(e: Any) -> list[int]:
        return [at + len(token) for at, token in zip(e.text_offset, e.tokens, strict=True)]

    start = min(next((at for at, end in zip(e.text_offset, ends(e), strict=True) if end > length), length) for e in echoed)
    return tuple(tuple(p or 0.0 for p, at in zip(e.token_logprobs, e.text_offset, strict=True) if at >= start) for e in echoed)


def _usage(usage: Any) -> Usage:
    if usage is None:
        return Usage()
    details = getattr(usage, "prompt_tokens_details", None)
    return Usage(usage.prompt_tokens, getattr(details, "cached_tokens", None) or 0, usage.completion_tokens or 0)


def _finish(choice: Any) -> FinishReason:
    """Its stop string is trimmed by the service already; only some say which it was."""
    if choice.finish_reason == "length":
        return FinishReason("length")
    if choice.finish_reason == "content_filter":
        return FinishReason("abort", message="the service's content filter ended the answer")
    return FinishReason("stop", getattr(choice, "matched_stop", None))
