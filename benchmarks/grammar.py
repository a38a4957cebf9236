"""Which grammar engine covers most schemas, never answers wrongly, and costs least? Ramet, llguidance and (if installed) xgrammar.

    python benchmarks/grammar.py CASES [--engines ramet,llguidance,xgrammar] [--n 300] [--seed 7] [--clock wall|cpu] [--json FILE]

CASES is a .jsonl or .jsonl.gz file, a case a line: {"id", "schema", "tests": [{"valid": bool, "data": any}]}, as MaskBench has them.
Each engine runs alone, in a process of its own, on one thread, over the default model's vocabulary. An engine passes a case if it
compiles the schema, takes every valid instance as json.dumps writes it to an end where it may stop, and no invalid one. "compile" is
the time to compile a schema; "mask" the time to fill one mask and take one token.
"""
from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import random
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Case = dict[str, Any]


class Engine(Protocol):
    def compile(self, schema: Any) -> None: ...
    def begin(self) -> None: ...
    def step(self, token: int) -> bool:
        """Fills the mask and takes the token, if it is allowed."""
        ...

    def may_stop(self) -> bool: ...


@dataclass
class Result:
    id: str
    compile_us: float | None = None  # None: refused
    error: str = ""
    mask_us: list[float] = field(default_factory=list)
    rejects_valid: int = 0
    accepts_invalid: int = 0
    timeout: bool = False

    @property
    def passed(self) -> bool:
        return self.compile_us is not None and not (self.rejects_valid or self.accepts_invalid or self.timeout)


class Ramet:
    def __init__(self, vocabulary: Any, tokenizer: Any) -> None:
        from ramet.constrained import GrammarCompiler

        self.compiler = GrammarCompiler(vocabulary)
        self.row = np.zeros(vocabulary.words, dtype=np.int32)

    def compile(self, schema: Any) -> None:
        self.grammar = self.compiler.compile("json_schema", json.dumps(schema))

    def begin(self) -> None:
        self.matcher = self.grammar.matcher()

    def step(self, token: int) -> bool:
        self.matcher.fill(self.row)
        allowed = bool(self.row[token // 32] >> token % 32 & 1)
        assert self.matcher.advance(token) == allowed
        return allowed

    def may_stop(self) -> bool:
        return self.matcher.accepting


class Llguidance:
    def __init__(self, vocabulary: Any, tokenizer: Any) -> None:
        import llguidance
        from llguidance.numpy import fill_next_token_bitmask

        self.make, self.fill = llguidance.LLMatcher, fill_next_token_bitmask
        self.tokenizer = llguidance.LLTokenizer(tokenizer.backend.to_str(), n_vocab=len(vocabulary), eos_token=min(vocabulary.eos_ids))
        self.row = np.zeros((1, vocabulary.words), dtype=np.int32)

    def compile(self, schema: Any) -> None:
        self.start = self.make(self.tokenizer, json.dumps({"grammars": [{"json_schema": schema}]}), log_level=0)
        if self.start.is_error():
            raise ValueError(self.start.get_error())

    def begin(self) -> None:
        self.matcher = self.start.deep_copy()

    def step(self, token: int) -> bool:
        self.fill(self.matcher, self.row, 0)
        return bool(self.row[0, token // 32] >> token % 32 & 1) and self.matcher.consume_token(token)

    def may_stop(self) -> bool:
        return bool(self.matcher.is_accepting())


class Xgrammar:
    def __init__(self, vocabulary: Any, tokenizer: Any) -> None:
        import xgrammar

        self.library, self.eos = xgrammar, min(vocabulary.eos_ids)
        texts = [token if token is not None else b"<special %d>" % i for i, token in enumerate(vocabulary.token_bytes)]
        special = [i for i, token in enumerate(vocabulary.token_bytes) if token is None]
        info = xgrammar.TokenizerInfo(texts, vocab_size=len(texts), stop_token_ids=sorted({*vocabulary.eos_ids, *special}))
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.row = xgrammar.allocate_token_bitmask(1, len(texts))

    def compile(self, schema: Any) -> None:
        self.grammar = self.compiler.compile_json_schema(json.dumps(schema), any_whitespace=True, strict_mode=False)

    def begin(self) -> None:
        self.matcher = self.library.GrammarMatcher(self.grammar)

    def step(self, token: int) -> bool:
        self.matcher.fill_next_token_bitmask(self.row)
        return bool(self.matcher.accept_token(token))

    def may_stop(self) -> bool:
        return bool(self.matcher.accept_token(self.eos))


ENGINES: dict[str, Callable[[Any, Any], Engine]] = {"ramet": Ramet, "llguidance": Llguidance, "xgrammar": Xgrammar}
CLOCKS = {"wall": time.perf_counter, "cpu": time.thread_time}


class TooLong(Exception):
    pass


def _too_long(*_: object) -> None:
    raise TooLong


def measure(engine: Engine, case: Case, encode: Callable[[str], list[int]], clock: Callable[[], float], limit: int) -> Result:
    result = Result(case["id"])
    signal.alarm(limit)
    try:
        began = clock()
        engine.compile(case["schema"])
        result.compile_us = 1e6 * (clock() - began)
        for test in case["tests"]:
            ids = encode(json.dumps(test["data"], ensure_ascii=False))
            engine.begin()
            accepted = True
            for token in ids:
                began = clock()
                accepted = engine.step(token)
                result.mask_us.append(1e6 * (clock() - began))
                if not accepted:
                    break
            accepted = accepted and engine.may_stop()
            result.rejects_valid += test["valid"] and not accepted
            result.accepts_invalid += accepted and not test["valid"]
    except TooLong:
        result.timeout = True
    except Exception as error:  # any engine's own refusal
        result.error = repr(error)[:200]
        result.compile_us = None
    finally:
        signal.alarm(0)
    return result


def run(name: str, cases: list[Case], model: str, clock: str, limit: int, out: Connection) -> None:
    """In a process of its own: one engine over all cases."""
    from ramet.constrained import Vocabulary
    from ramet.runtime.config import EngineConfig
    from ramet.runtime.hub import resolve
    from ramet.runtime.tokenizer_files import load_tokenizer

    tokenizer = load_tokenizer(resolve(model), EngineConfig(model))
    signal.signal(signal.SIGALRM, _too_long)
    engine = ENGINES[name](Vocabulary(tokenizer.all_token_bytes(), tokenizer.eos_ids), tokenizer)
    for case in cases:
        out.send(measure(engine, case, tokenizer.encode, CLOCKS[clock], limit))
    out.send(None)


def results_of(name: str, cases: list[Case], args: argparse.Namespace) -> list[Result]:
    """A process that dies takes its case with it and is begun anew behind it."""
    context = multiprocessing.get_context("spawn")
    found: list[Result] = []
    while len(found) < len(cases):
        receiver, sender = context.Pipe(duplex=False)
        worker = context.Process(target=run, args=(name, cases[len(found) :], args.model, args.clock, args.limit, sender))
        worker.start()
        sender.close()
        begun = len(found)
        try:
            while receiver.poll(6 * args.limit + 60) and (result := receiver.recv()) is not None:
                found.append(result)
        except EOFError:
            pass
        worker.kill()
        worker.join()
        if len(found) < len(cases):
            if begun == 0 == len(found) and worker.exitcode == 1:
                raise SystemExit(f"{name} could not start")
            found.append(Result(cases[len(found)]["id"], error="crashed or hung", timeout=True))
    return found


def percentile(values: Iterable[float], p: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(p / 100 * len(ordered)))] if ordered else float("nan")


def summary(results: list[Result]) -> dict[str, float]:
    compiled = [r.compile_us for r in results if r.compile_us is not None]
    masks = [us for r in results for us in r.mask_us]
    return {
        "cases": len(results), "pass %": 100 * sum(r.passed for r in results) / len(results),
        "refused": sum(r.compile_us is None and not r.timeout for r in results),
        "rejects valid": sum(r.rejects_valid > 0 for r in results), "accepts invalid": sum(r.accepts_invalid > 0 for r in results),
        "timeouts": sum(r.timeout for r in results), "masks": len(masks),
        **{f"compile p{p} us": percentile(compiled, p) for p in (50, 90, 99)}, "mask average us": sum(masks) / max(len(masks), 1),
        **{f"mask p{p} us": percentile(masks, p) for p in (50, 90, 99)}, "mask worst us": max(masks, default=float("nan")),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path)
    parser.add_argument("--engines", default="", help=f"of {', '.join(ENGINES)}; by default those that are installed")
    parser.add_argument("--n", type=int, default=300, help="cases, drawn at random")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--model", default="smollm2-135m", help="whose vocabulary")
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall", help="cpu: of the thread, for a busy machine")
    parser.add_argument("--limit", type=int, default=15, help="seconds a case")
    parser.add_argument("--json", type=Path, help="write every figure here")
    args = parser.parse_args()
    from importlib.util import find_spec

    names = args.engines.split(",") if args.engines else [name for name in ENGINES if name == "ramet" or find_spec(name)]
    if unknown := set(names) - set(ENGINES):
        parser.error(f"unknown engine {min(unknown)}: choose from {', '.join(ENGINES)}")
    with (gzip.open if args.cases.suffix == ".gz" else open)(args.cases, "rt") as lines:
        cases = [json.loads(line) for line in lines]
    random.Random(args.seed).shuffle(cases)
    results = {name: results_of(name, cases[: args.n], args) for name in names}
    columns = {name: summary(found) for name, found in results.items()}
    print(f"{'':18}" + "".join(f"{name:>14}" for name in columns))
    for row in next(iter(columns.values())):
        print(f"{row:18}" + "".join(f"{column[row]:14.1f}" for column in columns.values()))
    if args.json:
        args.json.write_text(json.dumps({"summary": columns, "results": {name: [asdict(r) for r in found] for name, found in results.items()}}))


if __name__ == "__main__":
    main()
