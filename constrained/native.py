"""The compiled automaton (*.cpp beside this file) behind ctypes: grammars in, states as integers out.

A state is an int that never changes its meaning while its grammar lives. Calls release the GIL, take microseconds on states seen
before, and may come from any thread.
"""
from __future__ import annotations

import ctypes
import sys
from array import array
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_double, c_int32, c_int64, c_uint8, c_uint64, c_void_p
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ramet.runtime import native

from .errors import GrammarError, LimitError
from .grammar import GrammarSource
from .vocabulary import Vocabulary

DEAD, _LIMIT = -1, -2
UNKNOWN = 1 << 30  # a need that no sequence of tokens meets
MAX_FORCED = 1 << 14  # bytes of one jump
_MESSAGE = ctypes.c_char * 512
_FORCED = (ctypes.c_char * 256, ctypes.c_char * MAX_FORCED)  # most are short; types are dear to make
_FLAGS = c_uint8 * 256
_OPS = {"empty": 0, "nothing": 1, "lit": 2, "chars": 3, "seq": 4, "alt": 5, "rep": 6, "ref": 7, "both": 8, "not": 9, "json": 10, "pick": 11, "words": 12,
        "compare": 13, "multiple": 14}  # fmt: skip
_UTF_32 = f"utf-32-{sys.byteorder[0]}e"
_HERE = Path(__file__).parent


@cache
def library() -> ctypes.CDLL:
    """Compiles on first use (some seconds), then one dlopen. Raises NativeUnavailable."""
    included = sorted({*_HERE.glob("*.h"), *_HERE.glob("*.cpp")} - {_HERE / "api.cpp"})
    lib = native.load("constrained", [_HERE / "api.cpp"], ["-O2"], headers=included)
    for name, result, arguments in (
        ("vocabulary", c_void_p, (c_int32, c_char_p, c_void_p, c_int32, c_void_p, c_uint64)),
        ("vocabulary_free", None, (c_void_p,)),
        ("grammar", c_int32, (c_void_p, c_void_p, c_int64, c_int32, c_uint64, c_double, POINTER(c_void_p), c_char_p, c_int64)),
        ("grammar_free", None, (c_void_p,)),
        ("start", c_int32, (c_void_p,)),
        ("advance", c_int32, (c_void_p, c_int32, c_int32)),
        ("advance_bytes", c_int32, (c_void_p, c_int32, c_char_p, c_int64)),
        ("fill", c_int32, (c_void_p, c_int32, c_void_p, c_int32)),
        ("flags", c_int32, (c_void_p, c_int32)),
        ("forced", c_int32, (c_void_p, c_int32, c_char_p, c_int32)),
        ("need", c_int32, (c_void_p, c_int32)),
        ("live_bytes", c_int32, (c_void_p, c_int32, POINTER(c_uint8))),
        ("sizes", None, (c_void_p, POINTER(c_uint64))),
    ):
        function = getattr(lib, f"ramet_{name}")
        function.restype, function.argtypes = result, arguments
    return lib


class NativeVocabulary:
    """The token trie and the store of terms and masks that all grammars of one vocabulary share."""

    def __init__(self, vocabulary: Vocabulary, store_bytes: int) -> None:
        self.lib = library()
        texts = [token or b"" for token in vocabulary.token_bytes]
        offsets = np.zeros(len(texts) + 1, dtype=np.int64)
        np.cumsum([len(text) for text in texts], out=offsets[1:])
        eos = array("i", sorted(vocabulary.eos_ids))
        self.handle = self.lib.ramet_vocabulary(
            len(texts), b"".join(texts), offsets.ctypes.data, len(eos), eos.buffer_info()[0], store_bytes
        )

    def __del__(self) -> None:
        if handle := getattr(self, "handle", None):
            self.lib.ramet_vocabulary_free(handle)


class NativeAutomaton:
    """One grammar, compiled lazily. Grows as states are visited; never changes an answer."""

    def __init__(self, vocabulary: NativeVocabulary, source: GrammarSource, *, whole: bool, byte_limit: int, seconds: float) -> None:
        self._lib = vocabulary.lib
        self._vocabulary = vocabulary  # keeps the tokens alive
        code = encode(source)
        handle, message = c_void_p(), _MESSAGE()
        status = self._lib.ramet_grammar(
            vocabulary.handle, code.buffer_info()[0], len(code), whole, byte_limit, seconds, byref(handle), message, len(message)
        )
        if status:
            raise (LimitError if status == _LIMIT else GrammarError)(message.value.decode())
        self._handle = handle.value
        self.start: int = self._lib.ramet_start(self._handle)
        self._advance, self._fill, self._flags = self._lib.ramet_advance, self._lib.ramet_fill, self._lib.ramet_flags

    def __del__(self) -> None:
        if handle := getattr(self, "_handle", None):
            self._lib.ramet_grammar_free(handle)

    def advance(self, state: int, token: int) -> int:
        after: int = self._advance(self._handle, state, token)
        return after if after >= DEAD else self._fail(after)

    def advance_bytes(self, state: int, text: bytes) -> int:
        after: int = self._lib.ramet_advance_bytes(self._handle, state, text, len(text))
        return after if after >= DEAD else self._fail(after)

    def fill(self, state: int, address: int, budget: int) -> None:
        status = self._fill(self._handle, state, address, budget)
        if status:
            self._fail(status)

    def accepting(self, state: int) -> bool:
        return bool(self._flags(self._handle, state) & 1)

    def finished(self, state: int) -> bool:
        return bool(self._flags(self._handle, state) & 2)

    def forced(self, state: int) -> bytes:
        for kind in _FORCED:
            room = kind()
            n = self._lib.ramet_forced(self._handle, state, room, len(room))
            if n < 0:
                self._fail(n)
            if n <= len(room) - 4:  # else cut off, before a character of up to four bytes
                break
        return room.raw[:n]

    def need(self, state: int) -> int | None:
        n: int = self._lib.ramet_need(self._handle, state)
        return (None if n >= UNKNOWN else n) if n >= 0 else self._fail(n)

    def live_bytes(self, state: int) -> bytes:
        room = _FLAGS()
        n = self._lib.ramet_live_bytes(self._handle, state, room)
        return bytes(b for b in range(256) if room[b]) if n >= 0 else self._fail(n)  # type: ignore[return-value]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """States made, their bytes, and the bytes of the store shared with other grammars."""
        out = (c_uint64 * 3)()
        self._lib.ramet_sizes(self._handle, out)
        return out[0], out[1], out[2]

    def _fail(self, status: int) -> int:
        if status == _LIMIT:
            raise LimitError("the constraint passed its limit on memory or time while it was used")
        raise GrammarError("the automaton failed inside (out of memory?)")


def encode(source: GrammarSource) -> array[int]:
    """The flat code that load.cpp reads: counts, the start rule, the term of each rule, a record a term, the text of the literals.

    A record is [op, + 256 if regular][count][args...], and an arg that is a term is its number, ~length of a literal, or _REF - number of
    the rule that is used. What literals and words say stands in the text, in that order; the args of words are their lengths."""
    rules = _Rules({name: n for n, name in enumerate(source.rules)})
    if source.start not in rules:
        raise GrammarError(f"the grammar has no rule {source.start!r} to start from", place=source.start)
    order = list({id(root): root for root in source.rules.values()}.values())
    index = {id(term): n for n, term in enumerate(order)}  # by identity, which costs no hashing; what is equal twice is only written twice
    records = [0, len(rules), rules[source.start], *[index[id(root)] for root in source.rules.values()]]
    texts: list[str] = []
    write, number, say = records.append, index.get, texts.append
    for term in order:  # grows as terms are met
        op, args = term.op, term.args
        code = _OPS[op] + 256 if term.regular else _OPS[op]
        if op in _JOINTS:
            kids = args
            records += (code, len(args))
        elif op == "pick":
            kids = args[3:]
            records += (code, len(args), *[-1 if n is None else n for n in args[:3]])
        elif op == "rep":
            kids = args[:1]
            records += (code, 3)
        else:
            kids = ()
            data = _DATA[op](args, rules, texts)
            records += (code, len(data), *data)
        for kid in kids:
            kind = kid.op
            if kind == "lit":
                text = kid.args[0]
                say(text)
                write(~len(text))
                continue
            if kind == "ref":
                write(_REF - rules[kid.args[0]])
                continue
            n = number(id(kid))
            if n is None:
                n = index[id(kid)] = len(order)
                order.append(kid)
            write(n)
        if op == "rep":
            records += [-1 if n is None else n for n in args[1:]]
    records[0] = len(order)
    flat = array("i", records)
    flat.frombytes("".join(texts).encode(_UTF_32))
    return flat


class _Rules(dict[str, int]):
    """The number of each rule."""

    def __missing__(self, name: str) -> int:
        raise GrammarError(f"a rule uses a rule {name!r} that does not exist", place=name)


_REF = -(1 << 30)
_JOINTS = frozenset(("seq", "alt", "both", "not", "json"))
"""Made of terms alone."""


def _listed(args: tuple[str, ...], rules: dict[str, int], texts: list[str]) -> list[int]:
    texts += args
    return [*map(len, args)]


def _compared(args: tuple[Any, ...], rules: dict[str, int], texts: list[str]) -> list[int]:
    negative, whole, point, wanted, _ = args
    return [wanted, negative, len(whole), *map(int, whole + point)]


def _multiplied(args: tuple[Any, ...], rules: dict[str, int], texts: list[str]) -> list[int]:
    modulus, places, wanted, _ = args
    return [*divmod(modulus, 1 << 31), places, wanted]


_DATA: dict[str, Callable[[Any, dict[str, int], list[str]], list[int]]] = {
    "empty": lambda *_: [], "nothing": lambda *_: [], "lit": _listed, "words": _listed, "ref": lambda args, rules, _: [rules[args[0]]],
    "chars": lambda args, *_: [*chain.from_iterable(args)], "compare": _compared, "multiple": _multiplied,
}  # fmt: skip
"""The args of a term without terms inside. What it says is added to the texts."""
