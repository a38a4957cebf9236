"""Rules that choose among scored texts. Each is given the log-probabilities of every option's tokens under the prompt.

A token's entry is `(logprob, token id, text)`. Options are scored from the first token at which any of them differs from
the prompt alone, so an option that merges with the prompt's last token is scored with that token, as are all the others.
An empty option has no tokens of its own and the mean 0.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TokenScores = Sequence[tuple[float, int, str | None]]


@dataclass(frozen=True, slots=True)
class ChoicesDecision:
    """What a rule chose, and what it adds to the meta info. `scores`: what it compared, for sampling and distribution."""

    decision: str
    meta_info: dict[str, Any] | None = None
    scores: tuple[float, ...] | None = None


class ChoicesSamplingMethod(ABC):
    """A rule. Subclass it and give an instance as `choices_method`."""

    @property
    def requires_unconditional_logprobs(self) -> bool:
        """Whether the options are to be scored without the prompt as well."""
        return False

    @abstractmethod
    def __call__(
        self,
        *,
        choices: Sequence[str],
        normalized_prompt_logprobs: Sequence[float],
        input_token_logprobs: Sequence[TokenScores],
        output_token_logprobs: Sequence[TokenScores],
        unconditional_token_logprobs: Sequence[TokenScores] | None = None,
    ) -> ChoicesDecision:
        """Chooses. `normalized_prompt_logprobs` are the means of `input_token_logprobs`, one list an option."""


class TokenLengthNormalized(ChoicesSamplingMethod):
    """The option whose tokens are on average the most probable."""

    def __call__(self, *, choices, normalized_prompt_logprobs, input_token_logprobs, output_token_logprobs,  # type: ignore[no-untyped-def]
                 unconditional_token_logprobs=None) -> ChoicesDecision:  # fmt: skip
        meta = {
            "normalized_prompt_logprobs": list(normalized_prompt_logprobs),
            "input_token_logprobs": input_token_logprobs,
            "output_token_logprobs": output_token_logprobs,
        }
        return ChoicesDecision(choices[argmax(normalized_prompt_logprobs)], meta, tuple(normalized_prompt_logprobs))


class GreedyTokenSelection(ChoicesSamplingMethod):
    """The option that greedy decoding among the options' tokens would end at: token by token, keep the most probable.

    An option that has ended goes on with its own mean, so that a short one can be compared with a longer one.
    """

    def __call__(self, *, choices, normalized_prompt_logprobs, input_token_logprobs, output_token_logprobs,  # type: ignore[no-untyped-def]
                 unconditional_token_logprobs=None) -> ChoicesDecision:  # fmt: skip
        width = max(map(len, input_token_logprobs), default=0)
        matrix = [[t[0] for t in tokens] + [mean_logprob(tokens)] * (width - len(tokens)) for tokens in input_token_logprobs]
        left = list(range(len(choices)))
        for column in range(width):
            best = max(matrix[i][column] for i in left)
            left = [i for i in left if matrix[i][column] == best]
        meta = {
            "normalized_prompt_logprobs": list(normalized_prompt_logprobs),
            "input_token_logprobs": input_token_logprobs,
            "output_token_logprobs": output_token_logprobs,
            "greedy_logprob_matrix": matrix,
        }
        return ChoicesDecision(choices[left[0]], meta, tuple(map(sum, matrix)))


class UnconditionalLikelihoodNormalized(ChoicesSamplingMethod):
    """The option that the prompt makes more probable than it is by itself, on average over its tokens."""

    @property
    def requires_unconditional_logprobs(self) -> bool:
        return True

    def __call__(self, *, choices, normalized_prompt_logprobs, input_token_logprobs, output_token_logprobs,  # type: ignore[no-untyped-def]
                 unconditional_token_logprobs=None) -> ChoicesDecision:  # fmt: skip
        if unconditional_token_logprobs is None:
            raise ValueError("unconditional log-probabilities are needed")
        means = [
            mean_logprob(tokens) - mean_logprob(alone)
            for tokens, alone in zip(input_token_logprobs, unconditional_token_logprobs, strict=True)
        ]
        meta = {
            "normalized_prompt_logprobs": list(normalized_prompt_logprobs),
            "input_token_logprobs": input_token_logprobs,
            "output_token_logprobs": output_token_logprobs,
            "unconditional_token_logprobs": unconditional_token_logprobs,
            "normalized_unconditional_prompt_logprobs": means,
        }
        return ChoicesDecision(choices[argmax(means)], meta, tuple(means))


token_length_normalized = TokenLengthNormalized()
greedy_token_selection = GreedyTokenSelection()
unconditional_likelihood_normalized = UnconditionalLikelihoodNormalized()


def choose(decision: ChoicesDecision, choices: Sequence[str], temperature: float, rng: random.Random) -> tuple[str, dict[str, Any]]:
    """The chosen text and the meta info. Above temperature 0 it is drawn from the softmax of the rule's scores."""
    meta = dict(decision.meta_info or {})
    scores = decision.scores if decision.scores is not None else meta.get("normalized_prompt_logprobs")
    if scores is None or len(scores) != len(choices):
        if temperature > 0:
            raise ValueError("the choices_method gives no scores to sample from; set temperature=0")
        return decision.decision, meta
    weights = softmax(scores, temperature or 1.0)
    order = sorted(scores, reverse=True)
    meta["choices"], meta["scores"], meta["distribution"] = list(choices), list(scores), weights
    meta["margin"] = order[0] - order[1] if len(order) > 1 else None
    chosen = rng.choices(list(choices), weights)[0] if temperature > 0 else decision.decision
    return chosen, meta


def mean_logprob(tokens: TokenScores) -> float:
    return sum(t[0] for t in tokens) / len(tokens) if tokens else 0.0


def argmax(numbers: Sequence[float]) -> int:
    """Index of the largest; of several, the first."""
    return max(range(len(numbers)), key=numbers.__getitem__)


def softmax(scores: Sequence[float], temperature: float) -> list[float]:
    top = max(scores)
    if top == -math.inf:
        return [1 / len(scores)] * len(scores)
    weights = [math.exp((score - top) / temperature) for score in scores]
    total = sum(weights)
    return [weight / total for weight in weights]
