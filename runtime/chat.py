"""`ramet chat`: a conversation on the terminal. The prefix cache makes each turn pay for what is new alone."""
from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING

from .errors import CancelledError, RametError, UnsupportedError
from .protocol import Chunk, GenerateRequest, SamplingParams

if TYPE_CHECKING:
    from .loop import EngineLoop

HELP = "/reset forgets the conversation, /exit ends it, Ctrl-C stops an answer"
_counter = itertools.count()


def converse(
    loop: EngineLoop, *, system: str | None = None, max_tokens: int = 512, temperature: float = 0.7, ask: Callable[[str], str] = input
) -> None:
    """Reads lines until /exit or the end of input, and answers them. Raises UnsupportedError for a model without a chat template."""
    if loop.tokenizer.chat_template is None:
        raise UnsupportedError("this model has no chat template; use `ramet generate --raw`, or --set chat_template=FILE", field="model")
    start = [{"role": "system", "content": system}] if system else []
    messages = list(start)
    print(HELP)
    while True:
        try:
            line = ask("> ").strip()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print("\n(/exit ends the chat)")
            continue
        if line == "/exit":
            return
        if line == "/reset":
            messages = list(start)
            print("(forgotten)")
        elif line.startswith("/"):
            print(HELP)
        elif line:
            messages.append({"role": "user", "content": line})
            _turn(loop, messages, max_tokens, temperature)


def _turn(loop: EngineLoop, messages: list[dict[str, str]], max_tokens: int, temperature: float) -> None:
    """One answer, appended to `messages` as far as it got; a question that cannot be answered is taken back."""
    try:
        ids = loop.tokenizer.encode_chat(messages)
        answer = _stream(loop, tuple(ids), SamplingParams(max_new_tokens=max_tokens, temperature=temperature))
    except RametError as error:
        print(f"({error})", file=sys.stderr)
        messages.pop()
        return
    messages.append({"role": "assistant", "content": answer})


def _stream(loop: EngineLoop, ids: tuple[int, ...], params: SamplingParams) -> str:
    """Prints an answer as it comes; Ctrl-C stops it and keeps what there is."""
    rid = f"chat-{next(_counter)}"
    chunks: SimpleQueue[Chunk] = SimpleQueue()
    loop.submit(GenerateRequest(rid, ids, params), chunks.put)
    text = ""
    while True:
        try:
            chunk = chunks.get()
        except KeyboardInterrupt:
            loop.abort(rid)
            continue
        text += chunk.text
        print(chunk.text, end="", flush=True)
        if chunk.last:
            print(" (stopped)" if isinstance(chunk.error, CancelledError) else "")
            if chunk.error is not None and not isinstance(chunk.error, CancelledError):
                raise chunk.error
            return text
