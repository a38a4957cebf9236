"""Token ids for backends that have none: one id a byte, and one id each for the marks around chat messages.

Text and ids turn into one another without loss, so states work the same with a service that takes text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

BOS, EOS = 256, 257
BEGIN = {"system": 258, "user": 259, "assistant": 260, "tool": 261}
END = 262
VOCAB = 263

# A mark in text is a private-use character around the role's name, which no user's text holds by accident.
OPEN, CLOSE = "\ue0f0", "\ue0f1"
_MARKS = {**{f"{OPEN}{role}{CLOSE}": i for role, i in BEGIN.items()}, f"{OPEN}{CLOSE}": END}
_NAMES = {i: mark for mark, i in _MARKS.items()}
_SPLIT = re.compile(f"({OPEN}(?:{'|'.join(BEGIN)})?{CLOSE})")


def encode(text: str) -> list[int]:
    ids: list[int] = []
    for piece in _SPLIT.split(text):
        mark = _MARKS.get(piece)
        ids.extend(piece.encode("utf-8", "surrogatepass") if mark is None else (mark,))
    return ids


def decode(ids: Sequence[int]) -> str:
    """Text of `ids`; marks as `encode` reads them, the ends of text as nothing, half a character as U+FFFD."""
    out, run = [], bytearray()
    for i in ids:
        if i < 256:
            run.append(i)
            continue
        out.append(run.decode("utf-8", "replace"))
        run.clear()
        out.append(_NAMES.get(i, ""))
    out.append(run.decode("utf-8", "replace"))
    return "".join(out)


def render_chat(messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = False) -> str:
    text = "".join(f"{OPEN}{m['role']}{CLOSE}{m['content']}{OPEN}{CLOSE}" for m in messages)
    return text + (f"{OPEN}assistant{CLOSE}" if add_generation_prompt else "")


def messages_of(ids: Sequence[int]) -> tuple[list[dict[str, str]], bool] | None:
    """The messages that `ids` hold and whether the last one is still open; None if there is text outside of messages."""
    roles = {i: role for role, i in BEGIN.items()}
    messages: list[dict[str, str]] = []
    start: int | None = None
    for at, i in enumerate(ids):
        if i in roles and start is None:
            messages.append({"role": roles[i], "content": ""})
            start = at + 1
        elif i == END and start is not None:
            messages[-1]["content"] = decode(ids[start:at])
            start = None
        elif start is None or i in roles:
            return None
    if start is not None:
        messages[-1]["content"] = decode(ids[start:])
    return messages, start is not None
