"""From a `GenerateRequest` to `Request`s that can run: validation, encoding, grammar, seed. Off the step loop, from any thread."""
from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING, Any

from ..radix_cache import IntBuffer
from .config import EngineConfig
from .errors import ConstraintError, PromptError, RequestError, UnsupportedError
from .histogram import Histogram
from .model_runner import Copying
from .philox import fold
from .protocol import Constraint, GenerateRequest
from .request import Request
from .stop import StopScanner
from .validate import Limits, check_prompt, validate

if TYPE_CHECKING:
    from ..constrained import Grammar, GrammarCompiler
    from .model_runner import Runner
    from .tokenizer import Tokenizer

JSON_KINDS = ("json_schema", "json_object")  # complete by default: `finish="required"`


class Door:
    """Prepares requests for one engine. Thread-safe; the grammar compiler is made when first needed."""

    def __init__(self, runner: Runner, tokenizer: Tokenizer, config: EngineConfig) -> None:
        self.tokenizer = tokenizer
        self.limits = Limits(runner.vocab_size, runner.context_length, runner.slots)
        self.mask_words = (min(tokenizer.vocab_size, runner.vocab_size) + 31) // 32
        self._joins = isinstance(runner, Copying) and not config.disable_radix_cache
        self._seed = config.random_seed
        self._seeded = 0
        self._compiler: GrammarCompiler | None = None
        self.compile_time = Histogram()  # seconds, of grammars
        self._lock = threading.Lock()

    def prepare(self, request: GenerateRequest) -> list[Request]:
        """One Request for each of the n outputs. Raises RequestError."""
        validate(request, self.limits)
        if request.joined and not self._joins:
            raise UnsupportedError("joined: parallel encoding needs the radix cache and a model on one rank", field="joined")
        params = request.params
        ids = self._encode(request)
        check_prompt(ids, self.limits, params.max_new_tokens)
        if request.logprobs and request.logprob_start > len(ids):
            raise RequestError(
                f"logprob_start_len={request.logprob_start}: the prompt has {len(ids)} tokens", field="logprob_start_len"
            )
        max_new = min(params.max_new_tokens, self.limits.max_output(len(ids)))
        grammar = None if params.constraint is None or max_new == 0 else self.grammar(params.constraint)
        must_finish = self._must_finish(request, grammar, max_new)
        seed = self._new_seed() if params.seed is None else params.seed % 2**64
        eos = self.tokenizer.eos_ids if grammar is not None or not params.ignore_eos else frozenset[int]()
        return [
            Request(
                source=request,
                index=index,
                ids=IntBuffer(ids),
                prompt_len=len(ids),
                max_new_tokens=max_new,
                seed=fold(seed, index),
                eos_ids=eos,
                matcher=None if grammar is None else grammar.matcher(),
                must_finish=must_finish,
                stream=self.tokenizer.text_stream(ids, skip_special=params.skip_special_tokens),
                stops=StopScanner(params.stop, params.stop_regex),
            )
            for index in range(params.n)
        ]

    def grammar_counts(self) -> dict[str, Any]:
        """How many grammars were compiled and found compiled, the seconds that took, the bytes that are held."""
        made, times = self._compiler, {"compile_seconds": self.compile_time.snapshot()}
        if made is None:
            return {"compiled": 0, "hits": 0, "seconds": 0.0, "bytes": 0, **times}
        return {"compiled": made.compiled, "hits": made.hits, "seconds": made.seconds, "bytes": made.held_bytes, **times}

    def grammar(self, constraint: Constraint) -> Grammar:
        """Compiles, or finds in the compiler's cache. Raises ConstraintError naming the kind."""
        from ..constrained import GrammarCompiler, GrammarError, Vocabulary

        with self._lock:
            if self._compiler is None:
                self._compiler = GrammarCompiler(Vocabulary(self.tokenizer.all_token_bytes(), self.tokenizer.eos_ids))
                self._compiler.timed = self.compile_time.observe
        try:
            return self._compiler.compile(
                constraint.kind, constraint.source, whitespace=constraint.whitespace, lenient=constraint.lenient
            )
        except GrammarError as error:
            raise ConstraintError(f"{constraint.kind}: {error}", field=constraint.kind) from error

    def _encode(self, request: GenerateRequest) -> list[int]:
        prompt = request.prompt
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, add_special=True)
        if not isinstance(prompt, tuple | list):
            raise PromptError(f"prompt: text or token ids are needed, not {type(prompt).__name__}", field="prompt")
        return list(prompt)

    def _must_finish(self, request: GenerateRequest, grammar: Grammar | None, max_new: int) -> bool:
        params = request.params
        if grammar is None or params.constraint is None:
            return False
        must = params.finish == "required" or params.finish is None and params.constraint.kind in JSON_KINDS
        if must and grammar.min_tokens > max_new:
            raise RequestError(
                f"max_new_tokens={max_new}: the shortest text that the {params.constraint.kind} allows takes {grammar.min_tokens} tokens; "
                "give at least that many, or finish='free' to allow an unfinished answer",
                field="max_new_tokens",
            )
        return must

    def _new_seed(self) -> int:
        """Without random_seed: the system's randomness. With it: a different seed for each request, the same in each run."""
        if self._seed is None:
            return secrets.randbits(64)
        with self._lock:
            self._seeded += 1
            return fold(self._seed % 2**64, self._seeded)
