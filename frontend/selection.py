"""A `select` in flight: all options scored in one request, and the chosen one said."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from ..runtime.protocol import ScoreRequest, Scores
from . import ir
from .answer import score_meta
from .choices import choose, mean_logprob
from .ids import common_length, distinct
from .steps import Step, read_value, tokens

if TYPE_CHECKING:
    from .branch import Branch, Variable

Ids = tuple[int, ...]
Row = list[tuple[float, int, str | None]]
Rows = list[Row]


class Selection(Step):
    """The text before the options that has no ids yet is tokenized with each option, as the tokenizer would see them together;
    all are scored from the first token at which one of them leaves the prompt.
    """

    __slots__ = ("node", "tails", "variable", "wholes")

    def __init__(self, branch: Branch, node: ir.Select, variable: Variable) -> None:
        super().__init__(branch)
        self.node, self.variable = node, variable
        self.wholes: dict[str, Ids] = {}  # by option: its ids with the pending text before it
        self.tails: dict[str, Ids] = {}  # what of them is scored

    def submit(self) -> Selection:
        """Asks for the scores of all options; the answer ends the node."""
        branch = self.branch
        before = "".join(branch.pending)
        prompt = tuple(tokens(branch, before))
        self.wholes = {choice: tuple(tokens(branch, before + choice)) for choice in self.node.choices}
        start = min(common_length(prompt, whole) for whole in self.wholes.values())
        self.tails = {choice: whole[start:] for choice, whole in self.wholes.items()}
        self._score((branch.ids + prompt[:start]) or (self._start_id(),), self.tails.values(), self._scored, branch.joined)
        return self

    def _score(self, prompt: Ids, options: Iterable[Ids], then: Callable[[Scores], None], joined: tuple[Ids, ...] = ()) -> None:
        """Scores `options`; `then` gets the scores on the backend's thread, and its errors end the branch."""
        branch, run = self.branch, self.branch.run
        request = ScoreRequest(run.next_rid(), prompt, tuple(distinct(options)), deadline=run.remaining(None), joined=joined)

        def take(scores: Scores) -> None:
            if branch.rid != request.rid:
                return
            try:
                if scores.error is not None:
                    raise scores.error
                then(scores)
            except Exception as exc:
                branch.fail(exc)

        branch.rid = request.rid
        if request.options:
            branch.asks.score(request, take)
        else:  # only empty options: nothing to compute
            take(Scores(request.rid))

    def _start_id(self) -> int:
        """What a text begins after when nothing is before it: the beginning of text, or the end of the one before."""
        backend = self.branch.run.backend
        return backend.bos_id if backend.bos_id is not None else backend.eos_ids[0]

    def _scored(self, scores: Scores) -> None:
        if not getattr(self.node.method, "requires_unconditional_logprobs", False):
            self._choose(scores, None)
            return
        own = {choice: tuple(self.branch.run.backend.encode(choice)) for choice in self.node.choices}
        self._score((self._start_id(),), own.values(), lambda alone: self._choose(scores, self._rows(own, alone)))

    def _rows(self, ids_of: dict[str, Ids], scores: Scores) -> Rows:
        """By option, (log-probability, id, text) of each of its tokens; of a service whose tokens have no ids here, -1 and None."""
        known: dict[Ids, Sequence[float]] = dict(zip(distinct(ids_of.values()), scores.logprobs, strict=True))
        return [self._row(ids_of[choice], known.get(ids_of[choice], ())) for choice in self.node.choices]

    def _row(self, ids: Ids, logprobs: Sequence[float]) -> Row:
        if len(ids) != len(logprobs):
            return [(logprob, -1, None) for logprob in logprobs]
        decode = self.branch.run.backend.decode
        return [(logprob, i, decode([i])) for i, logprob in zip(ids, logprobs, strict=True)]

    def _choose(self, scores: Scores, alone: Rows | None) -> None:
        branch, node, variable, rows = self.branch, self.node, self.variable, self._rows(self.tails, scores)
        decision = node.method(
            choices=list(node.choices),
            normalized_prompt_logprobs=[mean_logprob(row) for row in rows],
            input_token_logprobs=rows,
            output_token_logprobs=[row[-1:] for row in rows],
            **({} if alone is None else {"unconditional_token_logprobs": alone}),
        )
        seed = node.seed if node.seed is not None else branch.run.defaults.get("seed")
        text, meta = choose(decision, node.choices, node.temperature, random.Random(seed))
        if text not in self.wholes:
            raise ValueError(f"choices_method chose {text!r}, which is none of the choices")
        branch.ids += self.wholes[text]
        branch.pending, branch.began, branch.ahead = [], branch.began or "text", None
        branch.show(text)
        variable.pieces.append(text)
        variable.value = text if node.read is None else read_value(node.name, node.read, text)
        variable.meta = {**score_meta(scores), "completion_tokens": len(self.tails[text]), **meta}
        branch.run.note("select", branch, node.name, self.begun, variable.meta)
        self.end(variable)
