"""KV on disk: pages of PAGE tokens in safetensors files, and an index beside them.

    FOLDER/<fingerprint>/kv-<random>.safetensors   tensor "kv": uint8 (pages * PAGE, row_bytes); metadata: the fingerprint
    FOLDER/<fingerprint>/index.json                per file: its size and, page by page, key and checksum
    FOLDER/<fingerprint>/lock                      held by the one process that uses the folder

A page's key is a hash of everything that its KV depends on besides the model: the namespace and all ids up to its end (`page_keys`).
Files are written under another name, synced and renamed, then the index is; so a process may be killed at any moment and the disk
may be full: what is not in the index does not exist. What the index names is checked when it is read, and never used if it differs.
Neither ids, text nor salts are written. Reading is plain file reading (a map of a file that shrinks would kill the process).
"""
from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import secrets
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..radix_cache import Namespace
from ..radix_cache.slots import Ints
from .errors import ConfigError

PAGE = 16  # tokens
FILE_BYTES = 64 << 20  # of one file, about

Rows = NDArray[np.uint8]  # (tokens, row_bytes)

_FORMAT = 1
log = logging.getLogger("ramet.cache")


def page_keys(space: Namespace, ids: Ints) -> list[bytes]:
    """The keys of the whole pages of a prompt: each depends on all ids up to the page's end."""
    data, width = np.ascontiguousarray(ids, dtype=np.int32).tobytes(), PAGE * 4
    keys = [hashlib.blake2b(space.encoded(), digest_size=16).digest()]
    for at in range(0, len(data) - width + 1, width):
        keys.append(hashlib.blake2b(keys[-1] + data[at : at + width], digest_size=16).digest())
    return keys[1:]


@dataclass(slots=True)
class _File:
    path: Path
    size: int
    used: float  # wall clock
    pages: dict[bytes, tuple[int, int]]  # key -> place, checksum
    start: int = 0  # of the data


class PageFiles:
    """One model's pages in a folder. Methods may be called from any thread."""

    def __init__(self, folder: str | Path, fingerprint: str, row_bytes: int, limit: int) -> None:
        """Takes the folder, or raises ConfigError: another process has it, or it cannot be written."""
        self.folder = Path(folder).expanduser() / fingerprint[:16]
        self.row_bytes, self.limit = row_bytes, limit
        self._fingerprint = fingerprint
        self._mutex = threading.Lock()
        self._files: list[_File] = []
        self._where: dict[bytes, _File] = {}
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigError(f"cache_dir={str(folder)!r}: {error.strerror or error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ConfigError(f"cache_dir={str(folder)!r}: another engine uses it for the same model; give each its own") from None
        self._open()

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(file.size for file in self._files)

    def __len__(self) -> int:
        """Pages."""
        return len(self._where)

    def __contains__(self, key: bytes) -> bool:
        return key in self._where

    def read(self, keys: Sequence[bytes]) -> Iterator[Rows]:
        """The pages of the keys in order, (PAGE, row_bytes) each, up to the first that is not there or not as it was written."""
        for key in keys:
            with self._mutex:
                file = self._where.get(key)
                if file is None:
                    return
                place, checksum = file.pages[key]
                file.used = time.time()
            nbytes = PAGE * self.row_bytes
            try:
                with open(file.path, "rb", buffering=0) as handle:
                    data = os.pread(handle.fileno(), nbytes, file.start + place * nbytes)
            except OSError as error:
                self._forget(file, str(error))
                return
            if len(data) != nbytes or _checksum(key, data) != checksum:
                self._forget(file, f"page {place} is not what was written")
                return
            yield np.frombuffer(data, dtype=np.uint8).reshape(PAGE, self.row_bytes)

    def write(self, pages: Sequence[tuple[bytes, Rows]]) -> int:
        """Keeps pages that are not here yet; how many it could keep. What does not fit into the limit drives out the files not used longest."""
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

        most = max(0, (self.limit - 4096) // (PAGE * self.row_bytes))
        new = dict([(key, rows) for key, rows in pages if key not in self][:most])
        if not new:
            return 0
        name = f"kv-{secrets.token_hex(8)}.safetensors"
        path, temporary = self.folder / name, self.folder / f".{name}.tmp"
        try:
            save_file({"kv": np.concatenate(list(new.values()))}, temporary, {"fingerprint": self._fingerprint, "format": str(_FORMAT)})
            _sync(temporary)
            os.replace(temporary, path)
            places = {key: (place, _checksum(key, rows.tobytes())) for place, (key, rows) in enumerate(new.items())}
            file = _File(path, path.stat().st_size, time.time(), places)
            file.start = self._check(file)
            with self._mutex:
                self._make_room(file.size)
                self._enter(file)
                self._write_index()
        except (OSError, SafetensorError, ValueError) as error:
            temporary.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            with self._mutex:
                self._files = [known for known in self._files if known.path != path]
                self._where = {key: known for key, known in self._where.items() if known.path != path}
            log.warning("cache_dir: %d pages could not be written to %s: %s", len(new), self.folder, error)
            return 0
        return len(new)

    def clear(self) -> None:
        """Deletes all pages."""
        with self._mutex:
            for file in list(self._files):
                self._remove(file)
            self._write_index()

    def close(self) -> None:
        """Writes down what was used when, and lets the folder go."""
        with self._mutex:
            try:
                self._write_index()
            except OSError as error:
                log.warning("cache_dir: the index could not be written to %s: %s", self.folder, error)
        os.close(self._lock)

    # ---- opening ----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        for entry in self._read_index():
            try:
                pages = {bytes.fromhex(key): (place, int(checksum)) for place, (key, checksum) in enumerate(entry["pages"])}
                file = _File(self.folder / Path(entry["name"]).name, int(entry["bytes"]), float(entry["used"]), pages)
                file.start = self._check(file)
            except (OSError, ValueError, KeyError, TypeError) as error:
                log.warning("cache_dir: %s is skipped: %s", entry.get("name") if isinstance(entry, dict) else entry, error)
            else:
                self._enter(file)
        known = {file.path.name for file in self._files}
        for path in (*self.folder.glob("kv-*.safetensors"), *self.folder.glob(".*.tmp")):
            if path.name not in known:  # a write that was cut short, or a file that was just skipped
                path.unlink(missing_ok=True)

    def _read_index(self) -> list[Any]:
        path = self.folder / "index.json"
        if not path.exists():
            return []
        try:
            index = json.loads(path.read_bytes())
            same = {"format": _FORMAT, "fingerprint": self._fingerprint, "page": PAGE, "row_bytes": self.row_bytes}
            for name, value in same.items():
                if index[name] != value:
                    raise ValueError(f"{name} is {index[name]!r}, here it is {value!r}")
            return list(index["files"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("cache_dir: %s is skipped: %s", path, error)
            return []

    def _check(self, file: _File) -> int:
        """Where the data of a file begins. Raises ValueError unless it is one of ours, whole."""
        size = file.path.stat().st_size
        if size != file.size:
            raise ValueError(f"it has {size} bytes, {file.size} were written")
        with open(file.path, "rb") as handle:
            length = int.from_bytes(handle.read(8), "little")
            if not 0 < length < size:
                raise ValueError("not a safetensors file")
            header = json.loads(handle.read(length))
        if header.get("__metadata__", {}).get("fingerprint") != self._fingerprint:
            raise ValueError("it is of another model")
        shape, (begin, end) = header["kv"]["shape"], header["kv"]["data_offsets"]
        if shape != [len(file.pages) * PAGE, self.row_bytes] or 8 + length + end != size:
            raise ValueError("it holds other pages than the index says")
        return 8 + length + int(begin)

    # ---- under the mutex --------------------------------------------------------------------------------------------

    def _enter(self, file: _File) -> None:
        self._files.append(file)
        for key in file.pages:
            self._where.setdefault(key, file)

    def _make_room(self, nbytes: int) -> None:
        while self._files and self.size + nbytes > self.limit:
            self._remove(min(self._files, key=lambda file: file.used))

    def _remove(self, file: _File) -> None:
        if file in self._files:
            self._files.remove(file)
        for key in file.pages:
            if self._where.get(key) is file:
                del self._where[key]
                for other in self._files:  # two writers at the same time may both have written it
                    if key in other.pages:
                        self._where[key] = other
        file.path.unlink(missing_ok=True)

    def _write_index(self) -> None:
        files = [
            {"name": f.path.name, "bytes": f.size, "used": f.used, "pages": [[key.hex(), checksum] for key, (_, checksum) in f.pages.items()]}
            for f in self._files
        ]
        index = {"format": _FORMAT, "fingerprint": self._fingerprint, "page": PAGE, "row_bytes": self.row_bytes, "files": files}
        temporary = self.folder / ".index.json.tmp"
        temporary.write_text(json.dumps(index))
        _sync(temporary)
        os.replace(temporary, self.folder / "index.json")
        _sync(self.folder)

    def _forget(self, file: _File, why: str) -> None:
        log.warning("cache_dir: %s is skipped: %s", file.path, why)
        with self._mutex:
            self._remove(file)


def _checksum(key: bytes, data: bytes) -> int:
    """Of the key too, so that a damaged index cannot give a page another's name."""
    return zlib.crc32(data, zlib.crc32(key))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
