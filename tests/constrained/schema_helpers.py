"""A schema's language by bytes, without a model's vocabulary: for the tests of schemas."""
from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from ramet.constrained import GrammarCompiler, Vocabulary

_COMPILER = GrammarCompiler(Vocabulary([bytes([b]) for b in range(256)] + [None], [256]))


class Language:
    """The texts that a schema's grammar accepts."""

    def __init__(self, schema: Any, **options: Any) -> None:
        self.grammar = _COMPILER.compile("json_schema", schema, **options)

    def __contains__(self, text: str) -> bool:
        matcher = self.grammar.matcher()
        return matcher.advance_bytes(text.encode()) and matcher.accepting

    def holds(self, value: Any) -> bool:
        """Whether `value` is accepted with its properties in some order."""
        return any(json.dumps(other, ensure_ascii=False) in self for other in orders(value))

    def forced(self) -> str:
        return self.grammar.matcher().forced().decode()


def orders(value: Any) -> Iterator[Any]:
    """`value` with the properties of every object in it in every order."""
    if isinstance(value, dict):
        for names in itertools.permutations(value):
            for items in itertools.product(*[list(orders(value[name])) for name in names]):
                yield dict(zip(names, items, strict=True))
    elif isinstance(value, list):
        for members in itertools.product(*[list(orders(item)) for item in value]):
            yield list(members)
    else:
        yield value
