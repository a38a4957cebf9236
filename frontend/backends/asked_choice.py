"""How probable each of some texts is to a chat service, which scores no text that it is given.

The service is made to answer with one of them, as `{"choice": "..."}`, and to tell the probabilities of the tokens that it could have
written instead. Wherever the options part, that says how likely each way was; ways that allow no option do not count:

    "y" 0.6   "n" 0.3   "m" 0.1     options yes, no     ->    yes 0.67, no 0.33

So the numbers are those of drawing token by token among what the options allow. Options that part only after the answer has gone
another way are asked for again, among themselves.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...runtime.errors import BackendError

TOP = 20  # alternatives a token that the API gives at most
_LEAD = re.compile(rb'\s*\{\s*"choice"\s*:\s*"')


@dataclass(frozen=True, slots=True)
class Token:
    """A token of the answer: its bytes and log-probability, and those of the likeliest alternatives."""

    piece: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...]


@dataclass(frozen=True, slots=True)
class Way:
    """Options that the answer cannot tell apart, with the log-probability of one of them coming."""

    options: tuple[str, ...]
    logprob: float


def schema(options: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"choice": {"type": "string", "enum": list(options)}},
        "required": ["choice"],
        "additionalProperties": False,
    }


def tokens_of(content: Sequence[Any]) -> list[Token]:
    """`choice.logprobs.content` of an answer of the openai package."""
    return [Token(_bytes(t), t.logprob, tuple((_bytes(other), other.logprob) for other in t.top_logprobs or ())) for t in content]


def ways(tokens: Sequence[Token], options: Sequence[str]) -> list[Way]:
    """All options, in ways whose probabilities sum to one. Raises BackendError if the answer is none of the options.

    An option that is no beginning of any listed alternative counts as the least likely of those: it is at most as likely.
    """
    answer = b"".join(token.piece for token in tokens)
    lead = _LEAD.match(answer)
    if lead is None:
        raise BackendError(f"the service was to answer with one of {list(options)}; it wrote {answer.decode('utf-8', 'replace')[:200]!r}")
    targets = {option: _spellings(lead[0], option) for option in options}
    live, logprob, begin, found = list(options), 0.0, 0, []
    for token in tokens:
        end = begin + len(token.piece)
        if len(live) > 1 and end > lead.end():
            parts, missing = _part(answer[:begin], token, {option: targets[option] for option in live})
            known = {token.piece: token.logprob, **dict(token.top)}
            least = min(known.values())
            total = _log_sum([known[piece] for piece in parts] + [least] * len(missing))
            found += [Way(tuple(group), logprob + known[piece] - total) for piece, group in parts.items() if piece != token.piece]
            found += [Way((option,), logprob + least - total) for option in missing]
            if token.piece not in parts:
                raise BackendError(f"the service was to answer with one of {live}; it wrote {answer.decode('utf-8', 'replace')[:200]!r}")
            live, logprob = parts[token.piece], logprob + token.logprob - total
        begin = end
    if len(live) > 1:
        raise BackendError(f"the service broke off its choice among {live}: it wrote {answer.decode('utf-8', 'replace')[:200]!r}")
    return [*found, Way(tuple(live), logprob)]


def _part(head: bytes, token: Token, targets: dict[str, tuple[bytes, ...]]) -> tuple[dict[bytes, list[str]], list[str]]:
    """The options by the piece that they go on with after `head`, the answer's own where it can be, and those that no piece fits."""
    pieces = [token.piece, *(piece for piece, _ in sorted(token.top, key=lambda t: -t[1]) if piece)]
    parts: dict[bytes, list[str]] = {}
    missing = []
    for option, spellings in targets.items():
        piece = next((p for p in pieces if any(_agree(head + p, spelling) for spelling in spellings)), None)
        if piece is None:
            missing.append(option)
        else:
            parts.setdefault(piece, []).append(option)
    return parts, missing


def _agree(text: bytes, target: bytes) -> bool:
    return target.startswith(text) or text.startswith(target)


def _spellings(lead: bytes, option: str) -> tuple[bytes, ...]:
    """How the answer is written up to the quote that ends the option: as it is, or in ASCII."""
    return tuple({lead + json.dumps(option, ensure_ascii=ascii_only)[1:].encode() for ascii_only in (False, True)})


def _bytes(token: Any) -> bytes:
    return token.token.encode() if token.bytes is None else bytes(token.bytes)


def _log_sum(logprobs: Sequence[float]) -> float:
    top = max(logprobs)
    return top + math.log(sum(math.exp(p - top) for p in logprobs))
