"""Traffic: calls with their ids, answers and times. Shapes follow the workloads of the SGLang paper (arXiv 2312.07104, section 6.1)."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
VOCABULARY = 49_152


@dataclass(eq=False, slots=True)
class Call:
    """One request. `at`: seconds since the start, or after the end of the call that it follows."""

    prompt: Ids
    answer: Ids  # what the model will say
    most: int  # max_new_tokens
    at: float = 0.0
    after: Call | None = None
    keeps_answer: bool = True  # its prompt continues with the answer of `after`
    priority: int = 0
    ttft_target: float | None = None  # milliseconds
    tpot_target: float | None = None


class Source:
    """Draws ids, lengths and times."""

    def __init__(self, seed: int) -> None:
        self.draw = np.random.default_rng(seed)

    def ids(self, low: int, high: int | None = None) -> Ids:
        n = low if high is None else int(self.draw.integers(low, high + 1))
        return self.draw.integers(0, VOCABULARY, n, dtype=np.int32)

    def call(self, *parts: Ids, answer: tuple[int, int], after: Call | None = None, delay: float = 0.0, keeps_answer: bool = True) -> Call:
        said = self.ids(*answer)
        return Call(np.concatenate(parts), said, max(2 * answer[1], 1), delay, after, keeps_answer)

    def pick(self, n: int, skew: float = 0.0) -> int:
        """One of n; skew: Zipf's exponent."""
        if skew == 0:
            return int(self.draw.integers(n))
        weights = 1.0 / np.arange(1, n + 1) ** skew
        return int(self.draw.choice(n, p=weights / weights.sum()))


def few_shot(s: Source, n: int) -> list[Call]:
    """Questions behind the examples of their subject (5-shot MMLU)."""
    subjects = [s.ids(400, 800) for _ in range(57)]
    return [s.call(subjects[s.pick(57)], s.ids(40, 120), answer=(1, 3)) for _ in range(n)]


def choices(s: Source, n: int) -> list[Call]:
    """Endings of one context behind shared examples (20-shot HellaSwag): four calls a question."""
    examples = s.ids(1500)
    calls: list[Call] = []
    while len(calls) < n:
        context = s.ids(40, 80)
        calls += [s.call(examples, context, s.ids(10, 30), answer=(0, 0)) for _ in range(4)]
    return calls[:n]


def agents(s: Source, n: int) -> list[Call]:
    """Loops of thought and tool result behind one set of instructions (ReAct)."""
    instructions = s.ids(900)
    return _sessions(s, n, 4, lambda: s.ids(30, 80), first=lambda: (instructions, s.ids(30, 60)), answer=(30, 80), delay=0.2)


def chat_short(s: Source, n: int) -> list[Call]:
    """Conversations of four turns, short answers, behind one of 8 system prompts."""
    systems = [s.ids(150, 400) for _ in range(8)]
    return _sessions(s, n, 4, lambda: s.ids(30, 150), first=lambda: (systems[s.pick(8)], s.ids(30, 150)), answer=(4, 16), delay=1.0)


def chat_long(s: Source, n: int) -> list[Call]:
    """The same with long answers."""
    systems = [s.ids(150, 400) for _ in range(8)]
    return _sessions(s, n, 4, lambda: s.ids(30, 100), first=lambda: (systems[s.pick(8)], s.ids(30, 100)), answer=(64, 160), delay=1.0)


def tree_of_thought(s: Source, n: int) -> list[Call]:
    """A question, three proposals, three continuations of each, and a vote on each."""
    examples = s.ids(600)
    calls: list[Call] = []
    while len(calls) < n:
        question = np.concatenate([examples, s.ids(50, 100)])
        for _ in range(3):
            proposal = s.call(question, s.ids(8), answer=(20, 40))
            calls.append(proposal)
            for _ in range(3):
                thought = s.call(proposal.prompt, proposal.answer, s.ids(8), answer=(20, 40), after=proposal)
                calls += [thought, s.call(thought.prompt, thought.answer, s.ids(10), answer=(1, 2), after=thought)]
    return calls[:n]


def judges(s: Source, n: int) -> list[Call]:
    """An essay, judged in four respects (branch, solve, merge)."""
    rules = s.ids(200)
    calls: list[Call] = []
    while len(calls) < n:
        essay = s.ids(300, 900)
        calls += [s.call(rules, essay, s.ids(20, 30), answer=(20, 60)) for _ in range(4)]
    return calls[:n]


def documents(s: Source, n: int) -> list[Call]:
    """Questions on documents, some far more popular than others (RAG)."""
    kept = [s.ids(600, 1500) for _ in range(200)]
    head = s.ids(60)
    return [s.call(head, kept[s.pick(200, 1.0)], s.ids(20, 60), answer=(10, 60)) for _ in range(n)]


def strangers(s: Source, n: int) -> list[Call]:
    """Nothing shared."""
    return [s.call(s.ids(50, 800), answer=(10, 120)) for _ in range(n)]


WORKLOADS: dict[str, Callable[[Source, int], list[Call]]] = {
    f.__name__: f for f in (few_shot, choices, agents, chat_short, chat_long, tree_of_thought, judges, documents)
}


def mixed(s: Source, n: int) -> list[Call]:
    """All workloads at once, an eighth of each."""
    return [call for make in WORKLOADS.values() for call in make(s, n // len(WORKLOADS))]


def arrive(calls: list[Call], s: Source, rate: float, *, bursts: bool = True) -> list[Call]:
    """Gives the calls that follow none their times: random arrivals, `rate` calls a second in all. Calls of one program come together.

    bursts: the rate goes up to twice that and down to nothing, in waves."""
    roots = [call for call in calls if call.after is None]
    groups: list[list[Call]] = []
    for call in roots:  # neighbours that agree on most of their prompt are branches of one program
        last = groups[-1][-1] if groups else None
        n = 0 if last is None else min(len(last.prompt), len(call.prompt)) * 4 // 5
        if last is not None and len(groups[-1]) < 4 and n and np.array_equal(last.prompt[:n], call.prompt[:n]):
            groups[-1].append(call)
        else:
            groups.append([call])
    s.draw.shuffle(groups)  # type: ignore[arg-type]
    at, each = 0.0, len(calls) / len(groups)
    for group in groups:
        wave = 1 + np.sin(at * rate / 150) if bursts else 1.0
        at += s.draw.exponential(each / (rate * max(wave, 0.05)))
        for call in group:
            call.at = at
    return calls


def _sessions(
    s: Source, n: int, turns: int, more: Callable[[], Ids], *, first: Callable[[], tuple[Ids, ...]], answer: tuple[int, int], delay: float
) -> list[Call]:
    calls: list[Call] = []
    while len(calls) < n:
        call = s.call(*first(), answer=answer)
        calls.append(call)
        for _ in range(turns - 1):
            call = s.call(call.prompt, call.answer, more(), answer=answer, after=call, delay=delay)
            calls.append(call)
    return calls[:n]
