"""Retrieval with chunks encoded in parallel: how good are the answers, and what do they cost, against one prompt after the other?

    python benchmarks/parallel.py [--model smollm2-135m] [--documents 24] [--per-question 4] [--questions 48] [--json FILE]

Each document states a few facts (who has which code) among other sentences. A question gets some documents in random order, the one with
the answer among them, and asks for one code; the answer is right if its digits are. Three ways, each on an empty cache, with the
same questions in the same order:

    parallel    branches, joined with "concate_and_append": a document is computed once, whatever it stands beside
    plain       the same text with "concatenate": a document is computed again wherever what stands before it differs
    nothing     the question alone

Shown are the share of right answers, also by the place of the right document, the prompt tokens computed, and the time to the first token.
"""
from __future__ import annotations

import argparse
import json
import random
import statistics
from dataclasses import dataclass

import ramet
from ramet import gen

NAMES = (
    "Anna Boris Clara David Elena Felix Greta Henry Irene Jonas Karla Louis Maria Nikolas Olga Peter Rosa Simon Tilda Ulrich Vera Walter "
    "Xenia Yannick Zoe Albert Bertha Conrad Dora Emil Frida Gustav Hanna Isaac Julia Kurt Lena Martin Nora Oscar Paula Quentin Ruth Stefan "
    "Theresa Urban Viola Wilhelm Agnes Bruno Cecilia Dennis Edith Frank Gloria Hugo Ida Jacob Klara Leon Mona Norbert Olivia Philip Renate "
    "Samuel Tanja Udo Valerie Werner Amelia Benno"
).split()
PLACES = ("the harbour", "the museum", "the library", "the mill", "the station", "the garden", "the theatre", "the market")
INTRO = "These are notes about people and the codes of their doors. Each person has one code.\n"
MODES = ("parallel", "plain", "nothing")


@dataclass(frozen=True)
class Question:
    documents: tuple[int, ...]  # in the order in which they are given
    right: int  # place of the one with the answer
    name: str
    code: str


def write(rng: random.Random, count: int) -> tuple[list[str], list[dict[str, str]]]:
    """Documents, and the codes that each states: three people a document, no name twice."""
    names = rng.sample(NAMES, 3 * count)
    texts, facts = [], []
    for number in range(count):
        known = {name: str(rng.randrange(100, 1000)) for name in names[3 * number : 3 * number + 3]}
        places = rng.sample(PLACES, 3)
        lines = [f"{name} works at {place}. The code of {name} is {code}." for (name, code), place in zip(known.items(), places, strict=True)]
        texts.append(f"Note {number + 1}. It was written on a day in spring. " + " ".join(lines) + "\n")
        facts.append(known)
    return texts, facts


def ask(rng: random.Random, facts: list[dict[str, str]], per_question: int) -> Question:
    documents = rng.sample(range(len(facts)), per_question)
    right = rng.randrange(per_question)
    name, code = rng.choice(sorted(facts[documents[right]].items()))
    return Question(tuple(documents), right, name, code)


@ramet.function
def answer(s, texts: list[str], name: str, mode: str):
    s += INTRO
    if mode != "nothing":
        forks = s.fork(len(texts))
        forks += texts
        forks.join("concate_and_append" if mode == "parallel" else "concatenate")
    s += f"Question: What is the code of {name}?\nAnswer: The code of {name} is " + gen("code", regex=r"\d{3}", max_tokens=6, temperature=0)


def run(runtime: ramet.Runtime, mode: str, texts: list[str], questions: list[Question]) -> dict[str, object]:
    if not runtime.flush_cache():
        raise SystemExit("the cache is in use")
    right: list[bool] = []
    times: list[float] = []
    computed = prompts = 0
    for question in questions:
        state = answer.run([texts[d] for d in question.documents], question.name, mode, backend=runtime)
        right.append(state["code"] == question.code)
        meta = state.get_meta_info("code")
        times.append(meta["ttft"])
        prompts += meta["prompt_tokens"]
        computed += meta["prompt_tokens"] - meta["cached_tokens"]
    places = {
        place: statistics.mean(ok for ok, q in zip(right, questions, strict=True) if q.right == place)
        for place in sorted({q.right for q in questions})
    }
    late = times[len(times) // 2 :]
    return {
        "accuracy": statistics.mean(right), "by_place": places, "prompt_tokens": prompts, "computed_tokens": computed,
        "ttft_ms": 1000 * statistics.median(times), "late_ttft_ms": 1000 * statistics.median(late),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--documents", type=int, default=24)
    parser.add_argument("--per-question", type=int, default=4)
    parser.add_argument("--questions", type=int, default=48)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    if not 2 <= options.per_question <= options.documents <= len(NAMES) // 3:
        raise SystemExit(f"2 <= per-question <= documents <= {len(NAMES) // 3} is needed")
    rng = random.Random(options.seed)
    texts, facts = write(rng, options.documents)
    questions = [ask(rng, facts, options.per_question) for _ in range(options.questions)]
    results = {}
    print(f"{'':10}{'right':>8}{'computed':>10}{'of':>8}{'TTFT ms':>10}{'2nd half':>10}   right by place of the document")
    with ramet.Runtime(options.model, max_total_tokens=32_768) as runtime:
        answer.run(texts[:2], "Anna", "plain", backend=runtime).sync()  # the first run compiles and warms
        for mode in MODES:
            results[mode] = r = run(runtime, mode, texts, questions)
            places = " ".join(f"{share:.0%}" for share in r["by_place"].values())  # type: ignore[attr-defined]
            print(f"{mode:10}{r['accuracy']:8.0%}{r['computed_tokens']:10}{r['prompt_tokens']:8}{r['ttft_ms']:10.1f}{r['late_ttft_ms']:10.1f}   "
                  f"{places}", flush=True)  # fmt: skip
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"options": vars(options), "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
