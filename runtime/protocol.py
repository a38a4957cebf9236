"""What crosses the border between a program and an engine: plain frozen data, standard library only.

A `GenerateRequest` goes in; `Chunk`s come out, the last one of each index with a `finish`. The same types serve the
in-process engine, the frames between server processes and the HTTP backends.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

ConstraintKind = Literal["json_schema", "regex", "choice", "json_object", "ebnf", "lark"]
Finish = Literal["required", "free"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the output must look like.

    `source` is always text, so that it can be hashed, sent and kept as a cache key: the regex, the JSON text of the
    schema, a JSON list of strings for "choice", "" for "json_object", the grammar's text for "ebnf" and "lark".
    `whitespace` is the style of JSON: "json" (as json.dumps writes: `", "` and `": "`), "compact", "pretty" or "flexible".
    """

    kind: ConstraintKind
    source: str
    whitespace: str = "json"
    lenient: bool = False


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one output is drawn. Validated by `runtime.request.validate`, not here: raw input may pass through."""

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1  # -1: all
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    seed: int | None = None  # None: drawn by the engine at submit
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()
    ignore_eos: bool = False
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    constraint: Constraint | None = None
    finish: Finish | None = None  # None: "required" for JSON kinds, else "free"
    jump_forward: bool | None = None  # None: the engine's setting


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One prompt. `prompt` is text (encoded at submit, special tokens as the tokenizer adds them) or token ids (as they are)."""

    rid: str
    prompt: str | tuple[int, ...]
    params: SamplingParams = SamplingParams()
    logprobs: bool = False  # of output tokens, and of prompt tokens from `logprob_start` on
    logprob_start: int = -1  # first prompt position whose logprob is wanted; -1: outputs only
    top_logprobs: int = 0  # alternatives a position
    token_ids_logprob: tuple[int, ...] = ()  # ids whose logprob at the first output position is wanted (max_new_tokens 0 too)
    priority: int = 0  # higher goes first
    cache_salt: str = ""  # requests of different salts never share KV
    deadline: float | None = None  # seconds from submit, after which it is ended with an error
    ttft_target: float | None = None  # milliseconds from submit to the first token; wished for, see docs/scheduler.md
    tpot_target: float | None = None  # milliseconds between later tokens
    tenant: str = ""  # requests of different tenants share no KV either, whatever their salts
    joined: tuple[tuple[int, ...], ...] = ()  # parts that are encoded apart: (prefix's end, end of each part) per join, see docs/cache.md


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one token under the raw distribution: before bias, penalties, temperature and mask."""

    token_id: int
    logprob: float | None  # None: the first prompt token, which nothing predicts
    top: tuple[tuple[int, float], ...] = ()  # (id, logprob), best first


@dataclass(frozen=True, slots=True)
class FinishReason:
    """Why an output ended. `matched` is the stop string, stop regex match or token id that ended it."""

    type: Literal["stop", "length", "abort"]
    matched: str | int | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one output. prompt = cached + computed; completion = sampled + forced."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    forced_tokens: int = 0
    retractions: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds. `ttft` from submit to the first token, `tpot` the mean gap between later ones, `queue` until first planned."""

    queue: float = 0.0
    ttft: float = 0.0
    tpot: float = 0.0
    e2e: float = 0.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of one output. Deltas, never cumulative; the piece with `finish` or `error` is the last of its index.

    `text` of all chunks joined is the answer with the stop string trimmed; `token_ids` are all ids appended, sampled
    or forced, including those of a trimmed stop or end-of-text. `error` carries a typed error instead of an answer.
    """

    rid: str
    index: int = 0  # which of the n outputs
    text: str = ""
    token_ids: tuple[int, ...] = ()
    forced: tuple[bool, ...] = ()  # which of them the grammar appended without a draw; empty: none
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()  # positions logprob_start.., in the first chunk of index 0
    first_logprobs: tuple[tuple[int, float], ...] = ()  # for token_ids_logprob
    finish: FinishReason | None = None
    usage: Usage | None = None  # with finish
    timings: Timings | None = None  # with finish
    error: Exception | None = None

    @property
    def last(self) -> bool:
        return self.finish is not None or self.error is not None


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Log-probabilities of several continuations of one prompt, in one pass. Options are the ids after `prompt`."""

    rid: str
    prompt: tuple[int, ...]
    options: tuple[tuple[int, ...], ...]
    cache_salt: str = ""
    priority: int = 0
    deadline: float | None = None
    tenant: str = ""
    joined: tuple[tuple[int, ...], ...] = ()  # of `prompt`


@dataclass(frozen=True, slots=True)
class Scores:
    """Answer to a `ScoreRequest`: per option, the logprob of each of its tokens given all before it."""

    rid: str
    logprobs: tuple[tuple[float, ...], ...] = ()
    usage: Usage = Usage()
    timings: Timings = Timings()
    error: Exception | None = None
