"""Text to ids and back: encoding, the bytes of every token, chats, and text that arrives token by token.

Everything that turns ids into text goes through bytes, so that `decode` and `TextStream` cannot disagree.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import tokenizers

from . import chat_template as chat
from .errors import PromptError, UnsupportedError


class Tokenizer:
    """A model's tokenizer. Immutable after construction; safe to share between threads."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_id: int | None = None,
        eos_ids: frozenset[int] = frozenset(),
        named: Mapping[str, str] | None = None,
        chat_templates: Mapping[str, str] | None = None,
        add_bos: bool = False,
    ) -> None:
        """`named` are the texts of bos_token, eos_token and the like, for chat templates; `chat_templates` by name, "default" first;
        `add_bos` puts BOS before a prompt where `backend` does not do so itself."""
        self.backend = backend
        self.bos_id = bos_id
        self.eos_ids = eos_ids
        self._add_bos = add_bos
        self._named = dict(named or {})
        self._templates = dict(chat_templates or {})
        self._special = {i: token.content for i, token in backend.get_added_tokens_decoder().items() if token.special}
        self.special_ids = frozenset(self._special)
        self._is_byte_level, self.strips_first_space = _decoder_kind(backend)

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id. A model's logits may have more columns: ids there stand for nothing."""
        return len(self._bytes)

    @property
    def chat_template(self) -> str | None:
        return self._templates.get("default")

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        """Ids of `text`; markers of special tokens in it become their ids. Raises PromptError for text that is not Unicode.

        With `add_special` the text begins a prompt: BOS and the like are added as the model wants them, but no second BOS
        before one that the text brings. Without, it continues one: sentencepiece puts no space before it."""
        if add_special:
            ids = self._with_bos(self._ids(text, add_special=True))
            return ids[1:] if self._adds_bos and ids[1:2] == [self.bos_id] else ids
        if not self.strips_first_space or self._before is None or not text:
            return self._ids(text)
        sentinel, before = self._before
        ids = self._ids(sentinel + text)
        return ids[len(before) :] if ids[: len(before)] == before else self._ids(text)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of `ids`. Bytes that are not UTF-8 become U+FFFD; sentencepiece tokenizers drop the space they put before a text."""
        stream = TextStream(self, skip_special=skip_special)
        return stream.push(ids) + stream.flush()

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text; b"" for special tokens and for ids that stand for nothing."""
        return self._bytes[token_id] or b"" if 0 <= token_id < len(self._bytes) else b""

    def token_text(self, token_id: int) -> str:
        """A token by itself, for people: parts of characters are U+FFFD, special tokens show their marker."""
        return self._special.get(token_id) or self.token_bytes(token_id).decode("utf-8", "replace")

    def all_token_bytes(self) -> list[bytes | None]:
        """`token_bytes` of every id; None where an id is special or stands for nothing."""
        return self._bytes.copy()

    def render_chat(
        self,
        messages: Sequence[chat.Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: str | None = None,
        **variables: Any,
    ) -> str:
        """The prompt text of a chat, by the model's own template unless another is given. Raises RequestError (field "messages")."""
        template = template or (self._templates.get("tool_use") if tools else None) or self.chat_template
        if template is None:
            raise UnsupportedError("this model has no chat template; open it with chat_template=...", field="messages")
        return chat.render(
            template,
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            **{**self._named, **variables},
        )

    def encode_chat(self, messages: Sequence[chat.Message], **options: Any) -> list[int]:
        """Ids of `render_chat(messages, **options)`, with exactly one BOS where the model uses one."""
        return self._with_bos(self._ids(self.render_chat(messages, **options)))

    def text_stream(self, prompt_ids: Sequence[int] = (), *, skip_special: bool = True) -> TextStream:
        return TextStream(self, prompt_ids, skip_special=skip_special)

    def _ids(self, text: str, *, add_special: bool = False) -> list[int]:
        try:
            ids: list[int] = self.backend.encode(text, add_special_tokens=add_special).ids
        except TypeError as error:  # what the Rust side says of a str that is not Unicode
            raise PromptError(f"the text is not Unicode: {_surrogate(text)}", field="prompt") from error
        return ids

    @cached_property
    def _before(self) -> tuple[str, list[int]] | None:
        """A character that merges with nothing after it, and its ids: whatever comes before a text ends up with these."""
        for character in ("\x01", "\n"):
            ids = self._ids(character)
            if ids and self.token_bytes(ids[-1]) == character.encode() and self.backend.id_to_token(ids[-1]) != character:
                return character, ids  # written as a byte: no merge has bytes in it
        return None

    @cached_property
    def _adds_bos(self) -> bool:
        return self.bos_id is not None and (self._add_bos or self.backend.encode("a").ids[:1] == [self.bos_id])

    def _with_bos(self, ids: list[int]) -> list[int]:
        wanted = self._adds_bos and ids[:1] != [self.bos_id]
        return [self.bos_id, *ids] if wanted and self.bos_id is not None else ids

    @cached_property
    def _bytes(self) -> list[bytes | None]:
        vocab = self.backend.get_vocab(with_added_tokens=True)
        table: list[bytes | None] = [None] * (max(vocab.values(), default=-1) + 1)
        to_bytes = _byte_level_bytes if self._is_byte_level else _sentencepiece_bytes
        for text, i in vocab.items():
            table[i] = to_bytes(text)
        for i, token in self.backend.get_added_tokens_decoder().items():
            table[i] = None if token.special else token.content.encode()
        return table

    @cached_property
    def _visible(self) -> list[bytes]:
        return [raw or b"" for raw in self._bytes]

    @cached_property
    def _marked(self) -> list[bytes]:
        """As `_visible`, with the markers of special tokens."""
        return [self._special.get(i, "").encode() or raw for i, raw in enumerate(self._visible)]


class TextStream:
    """Text of ids that arrive piece by piece, after a prompt that is never shown.

    All pieces joined, with the flush, are what the ids add to the prompt's own text. A character is given out when its
    last byte is there; a character begun by the prompt belongs to whoever completes it. Work is proportional to new ids.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = (), *, skip_special: bool = True) -> None:
        self._table = tokenizer._visible if skip_special else tokenizer._marked
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = tokenizer.strips_first_space and not any(self._raw(i) for i in prompt_ids)
        self._decoder.decode(self._last_bytes(prompt_ids))
        self._inherited = bool(self._decoder.getstate()[0])  # the prompt ends inside a character

    def push(self, ids: Iterable[int]) -> str:
        """The text that can now be given out."""
        return self._decode(b"".join(map(self._raw, ids)), final=False)

    def push_bytes(self, raw: bytes) -> str:
        """As `push`, for text that comes as bytes and not as whole tokens."""
        return self._decode(raw, final=False)

    def flush(self) -> str:
        """At the end: U+FFFD if the ids stop inside a character that they began, else nothing."""
        return self._decode(b"", final=True)

    def _decode(self, raw: bytes, *, final: bool) -> str:
        if self._at_start and raw:
            raw, self._at_start = raw.removeprefix(b" "), False
        text = self._decoder.decode(raw, final)
        if self._inherited and text:
            # What the prompt left unfinished was not finished: that U+FFFD is the prompt's, not ours.
            text, self._inherited = text.removeprefix("\ufffd"), False
        return text

    def _raw(self, token_id: int) -> bytes:
        return self._table[token_id] if 0 <= token_id < len(self._table) else b""

    def _last_bytes(self, ids: Sequence[int]) -> bytes:
        """Enough bytes to hold the last character whole, if there are so many."""
        tail = b""
        for token_id in reversed(ids):
            tail = self._raw(token_id) + tail
            if len(tail) >= 4:
                break
        return tail


def _surrogate(text: str) -> str:
    at = next((i for i, c in enumerate(text) if "\ud800" <= c <= "\udfff"), None)
    return f"half of a surrogate pair at position {at}" if at is not None else f"a {type(text).__name__}"


def _decoder_kind(backend: tokenizers.Tokenizer) -> tuple[bool, bool]:
    """(byte-level or sentencepiece, whether the first space of a text is dropped). Raises UnsupportedError for other kinds."""
    state = json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else {}
    steps = state.get("decoders", [state])
    kinds = [step.get("type") for step in steps]
    if "ByteLevel" in kinds:
        return True, False
    if "Metaspace" in kinds:
        step = steps[kinds.index("Metaspace")]
        return False, step.get("prepend_scheme", "always") != "never"
    if "ByteFallback" in kinds or {"type": "Replace", "pattern": {"String": "▁"}, "content": " "} in steps:
        return False, any(step.get("type") == "Strip" and step.get("start") for step in steps)
    raise UnsupportedError(f"tokenizer decoder {kinds}; byte-level BPE and sentencepiece are known", field="tokenizer_path")


def _printable_bytes() -> dict[int, int]:
    """The character that byte-level BPE writes for each byte, inverted: bytes that print stand for themselves, the others
    for characters from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {**{b: b for b in printable}, **{0x100 + i: b for i, b in enumerate(others)}}


_BYTE_OF = _printable_bytes()


def _byte_level_bytes(token: str) -> bytes:
    try:
        return token.translate(_BYTE_OF).encode("latin-1")
    except UnicodeEncodeError:  # not written in the byte alphabet: an unused token
        return token.encode()


def _sentencepiece_bytes(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return token.replace("▁", " ").encode()
