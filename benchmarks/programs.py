"""What do the cache and the grammar save? Eight kinds of programs, with both on and with both off.

    python benchmarks/programs.py [--model smollm2-135m] [--scale 1.0] [--rounds 1] [--only select,json] [--json FILE]

For each: prompt tokens sent, found cached and computed, tokens forced by the grammar, forward passes, seconds; and how much more
was computed than with perfect sharing of prefixes (every distinct beginning of a prompt once, nothing that was generated before).
Texts are drawn from --seed, so no run finds those of another one. Rounds alternate; a time is the median of its rounds.
"""
from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import ramet
from ramet import gen, select
from ramet.frontend.program import Program

WORDS = (
    "river mill market bridge horse paper lamp garden winter summer teacher doctor baker sailor village harbour letter window stone "
    "apple bread silver copper evening morning music story island forest mountain engine wheel table chair kitchen library"
).split()
FREE = {"temperature": 0, "ignore_eos": True}
FIELDS = {
    "title": {"type": "string", "minLength": 1, "maxLength": 24},
    "kind": {"enum": ["repair", "sale", "loan"]},
    "urgency": {"type": "integer", "minimum": 1, "maximum": 5},
    "closed": {"type": "boolean"},
    "city": {"type": "string", "minLength": 1, "maxLength": 16},
}
RECORD = {"type": "object", "properties": FIELDS, "required": list(FIELDS), "additionalProperties": False}
VERDICT = {**RECORD, "properties": {"grade": {"enum": ["poor", "fair", "good"]}, "publish": {"type": "boolean"}}, "required": ["grade", "publish"]}

Workload = tuple[Program, list[tuple[Any, ...]]]


class Texts:
    """Seeded sentences."""

    def __init__(self, seed: str) -> None:
        self.draw = random.Random(seed)

    def __call__(self, words: int) -> str:
        out: list[str] = []
        while len(out) < words:
            sentence = self.draw.sample(WORDS, 9)
            out += [sentence[0].capitalize(), *sentence[1:8], sentence[8] + "."]
        return " ".join(out)


@ramet.function
def few_shot_select(s, shots, question):
    s += shots
    s += question + "\nAnswer:" + select("answer", [" A", " B", " C", " D"])


@ramet.function
def json_decode(s, rules, report):
    s += rules
    s += f"Report: {report}\nJSON: " + gen("record", max_tokens=120, json_schema=RECORD, temperature=0)


@ramet.function
def multi_turn(s, notes, questions):
    s += notes
    for i, question in enumerate(questions):
        s += f"\nUser: {question}\nAssistant:" + gen(f"turn{i}", max_tokens=16, **FREE)


@ramet.function
def tree_of_thought(s, puzzle):
    s += puzzle
    first = s.fork(3)
    first += lambda i: f"Thought {i}:" + gen("first", max_tokens=12, **FREE) + "\n"
    leaves = []
    for branch in first:
        second = branch.fork(2)
        second += lambda i: f"Then {i}:" + gen("second", max_tokens=12, **FREE)
        leaves += list(second)
    s += "Plans:\n" + "".join(f"{'ABCDEF'[i]}.{leaf['first']}{leaf['second']}\n" for i, leaf in enumerate(leaves))
    voters = s.fork(3)
    voters += lambda i: f"By {WORDS[i]} the best is plan" + select("vote", [f" {x}" for x in "ABCDEF"])
    voters.join()
    s += f"Plan{max(s['vote'], key=s['vote'].count)} because" + gen("why", max_tokens=12, **FREE)


@ramet.function
def rag(s, document, question):
    s += document
    s += f"Question: {question}\nAnswer:" + gen("answer", max_tokens=12, **FREE)


@ramet.function
def react(s, rules, task, seen):
    s += rules
    s += f"Task: {task}\n"
    for i, observation in enumerate(seen):
        s += "Thought:" + gen(f"thought{i}", max_tokens=12, stop="\n", temperature=0)
        s += "\nAction:" + gen(f"action{i}", max_tokens=24, regex=r" (Search|Finish)\[[a-z ]{1,16}\]", temperature=0)
        s += f"\nObservation: {observation}\n"


@ramet.function
def skeleton(s, intro, topic):
    s += intro + f"Topic: {topic}\nOutline:\n"
    for i in range(4):
        s += f"{i}." + gen(f"point{i}", max_tokens=8, **FREE) + "\n"
    forks = s.fork(4)
    forks += lambda i: f"Point {i}:" + gen("text", max_tokens=20, **FREE)
    forks.join()
    s += "All:" + "\n".join(s["text"]) + "\nSummary:" + gen("summary", max_tokens=16, **FREE)


@ramet.function
def judge(s, essay):
    s += essay
    forks = s.fork(4)
    forks += lambda i: f"Its {WORDS[i]} is" + select("grade", [" A", " B", " C", " D"]) + " because" + gen("note", max_tokens=12, **FREE)
    forks.join()
    s += "Notes:" + "\n".join(map("".join, zip(s["grade"], s["note"], strict=True)))
    s += "\nVerdict: " + gen("verdict", max_tokens=40, json_schema=VERDICT, temperature=0)


def workloads(seed: str, scale: float) -> dict[str, Workload]:
    """Programs and the arguments of their runs; `scale` multiplies the lengths of what is shared."""
    t = Texts(seed)

    def long(words: int) -> str:
        return t(round(words * scale)) + "\n"

    shots, rules, notes, tools, intro = long(400), long(120), long(250), long(300), long(60)
    documents = [long(350) for _ in range(2)]
    asked = [(d, t(10)) for d in documents for _ in range(5)]
    t.draw.shuffle(asked)
    return {
        "select": (few_shot_select, [(shots, t(20)) for _ in range(12)]),
        "json": (json_decode, [(rules, t(40)) for _ in range(6)]),
        "chat": (multi_turn, [(notes, [t(8) for _ in range(4)]) for _ in range(4)]),
        "tree": (tree_of_thought, [(long(140),)]),
        "rag": (rag, asked),
        "agent": (react, [(tools, t(9), [t(18) for _ in range(3)]) for _ in range(4)]),
        "skeleton": (skeleton, [(intro, t(6)) for _ in range(2)]),
        "judge": (judge, [(long(160),) for _ in range(2)]),
    }


class Recorder:
    """A backend that notes the ids that go through it, to tell what perfect sharing would compute."""

    def __init__(self, backend: ramet.Runtime) -> None:
        self._backend = backend
        self._given: set[int] = set()  # beginnings of prompts, and of what was generated; each by a hash of its ids
        self._made: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def submit(self, request: Any, sink: Callable[[Any], None]) -> None:
        at = self._walk(request.prompt, self._given)

        def take(chunk: Any) -> None:
            nonlocal at
            at = self._walk(chunk.token_ids, self._made, at)
            sink(chunk)

        self._backend.submit(request, take)

    def score(self, request: Any, sink: Callable[[Any], None]) -> None:
        at = self._walk(request.prompt, self._given)
        for option in request.options:
            self._walk(option[:-1], self._given, at)
        self._backend.score(request, sink)

    @property
    def ideal(self) -> int:
        return len(self._given - self._made)

    @staticmethod
    def _walk(ids: Sequence[int], into: set[int], at: int = 0) -> int:
        for i in ids:
            at = hash((at, i))
            into.add(at)
        return at


def measure(runtime: ramet.Runtime, workload: Workload, concurrency: int) -> dict[str, Any]:
    program, items = workload
    backend = Recorder(runtime)
    runtime.flush_cache()
    steps = runtime.get_stats()["steps"]
    start = time.perf_counter()
    states = program.run_batch(items, backend=backend, num_threads=concurrency)
    seconds = time.perf_counter() - start
    totals = {key: sum(s.run.totals[key] for s in states) for key in states[0].run.totals}
    computed = totals["prompt_tokens"] - totals["cached_tokens"]
    passes = runtime.get_stats()["steps"] - steps
    return {**totals, "computed": computed, "ideal": backend.ideal, "passes": passes, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--only", help="comma list of workloads")
    parser.add_argument("--json", help="write every figure to this file")
    args = parser.parse_args()

    modes = {"on": {}, "off": {"disable_radix_cache": True, "jump_forward": False}}
    runtimes = {mode: ramet.Runtime(args.model, **options) for mode, options in modes.items()}
    results: dict[str, dict[str, list[dict[str, Any]]]] = {}
    try:
        for runtime in runtimes.values():  # what happens once a process - compiling grammars, first pages of memory - is not the question
            for workload in workloads("warm", 0.1).values():
                measure(runtime, workload, args.concurrency)
        for r in range(args.rounds):
            for mode in modes if r % 2 == 0 else reversed(modes):
                for name, workload in workloads(f"{args.seed}/{r}", args.scale).items():
                    if not args.only or name in args.only.split(","):
                        results.setdefault(name, {}).setdefault(mode, []).append(measure(runtimes[mode], workload, args.concurrency))
    finally:
        for runtime in runtimes.values():
            runtime.shutdown()

    show(results)
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"args": vars(args), "results": results}, file, indent=1)


def show(results: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    columns = ("requests", "prompt_tokens", "cached_tokens", "computed", "forced_tokens", "completion_tokens", "passes")
    print(f"{'':10}{'':5}" + "".join(f"{c.removesuffix('_tokens'):>11}" for c in columns) + f"{'of ideal':>10}{'seconds':>9}{'faster':>8}")
    ratios = []
    for name, by in results.items():
        middle = {mode: statistics.median(r["seconds"] for r in rounds) for mode, rounds in by.items()}
        ratios.append(middle["off"] / middle["on"])
        for mode, rounds in by.items():
            first = rounds[0]
            ideal = f"{first['computed'] / first['ideal']:.2f}x" if mode == "on" else ""
            faster = f"{ratios[-1]:.2f}x" if mode == "on" else ""
            print(f"{name:10}{mode:5}" + "".join(f"{first[c]:>11,}" for c in columns) + f"{ideal:>10}{middle[mode]:>9.2f}{faster:>8}")
    print(f"geometric mean: {statistics.geometric_mean(ratios):.2f}x faster with the cache and jump-forward than without")


if __name__ == "__main__":
    main()
