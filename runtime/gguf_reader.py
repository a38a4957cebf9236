"""Reads a GGUF file: metadata at once, tensors as views of the mapped file.

The layout is that of the GGUF specification, versions 2 and 3, little-endian: header, key-values, tensor table, aligned
tensor data. The `gguf` package knows it too, but makes a Python object of every vocabulary entry, which takes seconds a
start; here arrays of strings stay in the file until someone asks. Unpacking of blocks is left to that package.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import CorruptModelError, ModelNotFoundError, UnsupportedError

if TYPE_CHECKING:
    from torch import Tensor

    from ..kernels.interface import PackedWeight

PLAIN = {0: ("float32", 4), 1: ("float16", 2), 30: ("bfloat16", 2)}  # torch's name, bytes
PACKED = {
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    8: ("Q8_0", 32, 34),
    12: ("Q4_K", 256, 144),
    14: ("Q6_K", 256, 210),
}  # name, block, bytes

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}  # value type -> struct code
STRING, ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class Strings:
    """An array of strings, decoded when iterated."""

    buffer: mmap.mmap
    start: int
    count: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[str]:
        position, length_at = self.start, struct.Struct("<Q").unpack_from
        for _ in range(self.count):
            (length,) = length_at(self.buffer, position)
            yield self.buffer[position + 8 : position + 8 + length].decode("utf-8", "replace")
            position += 8 + length


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies. `shape` in torch's order, slowest first; `offset` from the start of the file."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int
    nbytes: int


class GGUFFile:
    """One opened file. `metadata` maps key to value; `tensors` maps name to TensorInfo; `load` gives a view.

    Raises CorruptModelError where the file is not a whole GGUF file, UnsupportedError for block types Ramet does not read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, TensorInfo] = {}
        try:
            with open(path, "rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # private: torch asks for writable memory
        except FileNotFoundError as error:
            raise ModelNotFoundError(f"{path}: no such file") from error
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise CorruptModelError(f"{path}: cannot be read: {error}") from error
        self._position = 0
        try:
            self._read_header()
        except (struct.error, OverflowError, RecursionError) as error:
            raise CorruptModelError(
                f"{path}: truncated or damaged: its header ends at byte {self._position}; fetch the file again"
            ) from error

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything but the tensor data: metadata, vocabulary, tensor table."""
        return hashlib.sha256(memoryview(self._map)[: self._header_end]).hexdigest()[:32]

    def load(self, name: str) -> Tensor | PackedWeight:
        """The tensor as the file holds it, without a copy. Pages are read when touched."""
        import torch  # here, so that a tokenizer alone can be read without it

        from ..kernels.interface import PackedWeight

        info = self.tensors[name]
        if info.kind in PLAIN:
            dtype = getattr(torch, PLAIN[info.kind][0])
            return torch.frombuffer(self._map, dtype=dtype, count=prod(info.shape), offset=info.offset).view(info.shape)
        data = torch.frombuffer(self._map, dtype=torch.uint8, count=info.nbytes, offset=info.offset)
        return PackedWeight(PACKED[info.kind][0], data.view(info.shape[0], -1), info.shape[1])

    def _read_header(self) -> None:
        if self._map[:4] != b"GGUF":
            raise CorruptModelError(f"{self.path}: not a GGUF file")
        self._position = 4
        version = self._scalar("I")
        if version not in (2, 3):
            raise UnsupportedError(f"{self.path}: GGUF version {version}; versions 2 and 3 (little-endian) are read")
        n_tensors, n_values = self._scalar("Q"), self._scalar("Q")
        for _ in range(n_values):
            key = self._string()
            self.metadata[key] = self._value(self._scalar("I"))
        if self.metadata.get("split.count", 1) > 1:
            raise UnsupportedError(f"{self.path}: one part of {self.metadata['split.count']}; join them with `llama-gguf-split --merge`")
        table = [self._tensor_entry() for _ in range(n_tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 8 or alignment % 8:
            raise CorruptModelError(f"{self.path}: general.alignment is {alignment!r}")
        self._header_end = self._position
        data_start = -(-self._position // alignment) * alignment
        for name, shape, kind, offset in table:
            self.tensors[name] = self._place(name, shape, kind, data_start + offset)

    def _place(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> TensorInfo:
        if kind in PLAIN:
            nbytes = prod(shape) * PLAIN[kind][1]
        elif kind in PACKED:
            block, size = PACKED[kind][1:]
            if len(shape) != 2 or shape[1] % block:
                raise CorruptModelError(f"{self.path}: tensor {name} of shape {shape} cannot be made of blocks of {block}")
            nbytes = prod(shape) // block * size
        else:
            known = ", ".join(["F32", "F16", "BF16", *sorted(entry[0] for entry in PACKED.values())])
            raise UnsupportedError(f"{self.path}: tensor {name} is {_type_name(kind)}; read are {known}", field="model_path")
        if offset + nbytes > len(self._map):
            raise CorruptModelError(
                f"{self.path}: truncated: tensor {name} ends at byte {offset + nbytes}, the file at {len(self._map)}; fetch the file again"
            )
        return TensorInfo(name, shape, kind, offset, nbytes)

    def _tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        n_dims = self._scalar("I")
        if not 1 <= n_dims <= 4:
            raise CorruptModelError(f"{self.path}: tensor {name} has {n_dims} dimensions")
        shape = tuple(self._scalar("Q") for _ in range(n_dims))[::-1]  # the file writes the fastest first
        if 0 in shape:
            raise CorruptModelError(f"{self.path}: tensor {name} of shape {shape} is empty")
        return name, shape, self._scalar("I"), self._scalar("Q")

    def _scalar(self, code: str) -> Any:
        layout = struct.Struct("<" + code)
        (value,) = layout.unpack_from(self._map, self._position)
        self._position += layout.size
        return value

    def _string(self) -> str:
        length = self._scalar("Q")
        self._need(length)
        text = self._map[self._position : self._position + length].decode("utf-8", "replace")
        self._position += length
        return text

    def _value(self, kind: int) -> Any:
        if kind in SCALARS:
            return self._scalar(SCALARS[kind])
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            return self._array(self._scalar("I"), self._scalar("Q"))
        raise CorruptModelError(f"{self.path}: unknown value type {kind} at byte {self._position}")

    def _array(self, kind: int, count: int) -> Any:
        if kind in SCALARS:
            layout = struct.Struct("<" + SCALARS[kind])
            self._need(count * layout.size)
            values = struct.unpack_from(f"<{count}{SCALARS[kind]}", self._map, self._position)
            self._position += count * layout.size
            return values
        if kind == STRING:
            return self._skip_strings(count)
        self._need(count)
        return [self._value(kind) for _ in range(count)]

    def _skip_strings(self, count: int) -> Strings:
        position, length_at = self._position, struct.Struct("<Q").unpack_from
        self._need(8 * count)
        strings = Strings(self._map, position, count)
        for _ in range(count):
            position += 8 + length_at(self._map, position)[0]
        self._position = position
        self._need(0)
        return strings

    def _need(self, nbytes: int) -> None:
        if self._position + nbytes > len(self._map):
            raise CorruptModelError(f"{self.path}: truncated inside its header at byte {len(self._map)}; fetch the file again")


def _type_name(kind: int) -> str:
    from gguf import GGMLQuantizationType  # slow to import; only for this message

    try:
        return GGMLQuantizationType(kind).name
    except ValueError:
        return f"of the unknown type {kind}"


def dequantize(weight: PackedWeight) -> Tensor:
    """(out, in) float32: the values that the blocks stand for."""
    import torch
    from gguf import GGMLQuantizationType, quants

    values = quants.dequantize(weight.data.numpy(), GGMLQuantizationType[weight.kind])
    return torch.from_numpy(values).view(weight.out_features, weight.in_features)
