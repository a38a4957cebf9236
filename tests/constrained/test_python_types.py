"""Python types as schemas: what the type's own reader accepts is what the grammar accepts."""
from __future__ import annotations

import dataclasses
import enum
import json
import subprocess
import sys
from typing import Annotated, Any, Literal, NotRequired, Optional, TypedDict

import pydantic
import pytest

from ramet.constrained.errors import GrammarError
from ramet.constrained.python_types import schema_of

from .schema_helpers import Language


class Colour(enum.Enum):
    RED = "red"
    TWO = 2


class Node(pydantic.BaseModel):
    n: int = pydantic.Field(ge=0)
    name: str | None = None
    kids: list[Node] = []


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


def search(query: str, limit: int = 10) -> str:
    return query * limit


CASES: list[tuple[Any, list[str], list[str]]] = [
    (int, ["1"], ["1.5", '"1"']), (float, ["1", "1.5"], ["true"]), (bool, ["true"], ["1"]), (str, ['"a"'], ["1"]), (None, ["null"], ["0"]),
    (list[int], ["[1, 2]", "[]"], ['["a"]']), (dict[str, int], ['{"a": 1}'], ['{"a": "b"}']), (tuple[int, str], ['[1, "a"]'], ["[1]"]),
    (Literal["a", 1], ['"a"', "1"], ['"b"']), (Colour, ['"red"', "2"], ['"RED"']), (Optional[int], ["1", "null"], ['"a"']),  # noqa: UP045
    (Annotated[int, pydantic.Field(gt=3)], ["4"], ["3"]), (Point, ['{"x": 1}', '{"y": 2.5, "x": 1}'], ["{}"]),
    (Movie, ['{"title": "a"}', '{"title": "a", "year": 1}'], ['{"year": 1}']), (list[Movie], ['[{"title": "a"}]'], ["[{}]"]),
    (Node, ['{"n": 1, "kids": [{"n": 2, "name": "b"}]}'], ['{"n": -1}', '{"n": 1, "kids": [{}]}']),
    (pydantic.TypeAdapter(list[Node]), ['[{"n": 1}]'], ['{"n": 1}']), (search, ['{"query": "a", "limit": 3}'], ['{"limit": 3}', '{"query": "a", "x": 1}']),
    ('{"type": "null"}', ["null"], ["1"]), ({"const": 1}, ["1"], ["2"]), (True, ["1", "{}"], [""]),
]  # fmt: skip


@pytest.mark.parametrize(("source", "accepted", "refused"), CASES, ids=[getattr(case[0], "__name__", str(case[0]))[:40] for case in CASES])
def test_language(source: Any, accepted: list[str], refused: list[str]) -> None:
    language = Language(source)
    assert [text for text in accepted if text not in language] == []
    assert [text for text in refused if text in language] == []


def test_the_model_reads_what_the_grammar_writes() -> None:
    schema = schema_of(Node)
    assert isinstance(schema, dict)
    assert Node.model_validate_json('{"n": 1, "kids": [{"n": 2}]}').kids[0].n == 2
    assert json.loads(json.dumps(schema)) == schema


class Opaque:
    pass


@pytest.mark.parametrize("source", [5, [1], "[1]", "{", Opaque, object()])
def test_what_has_no_schema(source: Any) -> None:
    with pytest.raises(GrammarError):
        schema_of(source)


def test_plain_types_do_not_import_pydantic() -> None:
    code = "import sys; from ramet.constrained.python_types import schema_of; schema_of(int); schema_of('{}'); assert 'pydantic' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
