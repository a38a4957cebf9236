"""Below the pool: KV that was evicted, or left by an earlier run, in host memory and on disk.

Down: what is evicted from the pool goes to host memory (`host_cache_bytes`); what host memory has no room for, and was hit at
least once, goes to disk (`cache_dir`), from a thread of its own. At `close` what the pool still holds goes to disk too, the last
used first.

Up: a request whose prompt lies below, beyond what the tree holds, waits here while a thread reads its pages, checks them and
writes them into slots that a lease reserves; then they enter the tree, and the request is queued as one with a warm prefix.
The step loop meanwhile goes on. What cannot be read back is computed, as if it had never been there.
"""
from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Container, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..radix_cache import Lease, Namespace, PrefixCache, RadixNode
from ..radix_cache.slots import Ints
from ..radix_cache.tree import space_of
from .config import EngineConfig
from .errors import ConfigError
from .kv_files import FILE_BYTES, PAGE, PageFiles, Rows, page_keys
from .request import Request

LEAST = 2 * PAGE  # tokens that are worth being read back
log = logging.getLogger("ramet.cache")


class Pool(Protocol):
    """Where KV lies, as `radix_cache.pool.KVPool`."""

    @property
    def row_bytes(self) -> int: ...
    def read(self, slots: Ints) -> Rows: ...
    def write(self, slots: Ints, rows: Rows) -> None: ...


@runtime_checkable
class Storable(Protocol):
    """A runner whose KV can be kept."""

    pool: Any  # a Pool

    def fingerprint(self) -> str: ...


@dataclass(eq=False, slots=True)
class _Load:
    """Pages on their way up. `slots` are the lease's from `live` on; `good` grows as pages arrive."""

    lease: Lease
    ids: Ints
    keys: list[bytes]
    live: int
    slots: Ints
    waiters: list[Request]
    good: int = 0
    arrived: bool = False


@dataclass(slots=True)
class Counts:
    """Tokens."""

    loaded: int = 0
    to_host: int = 0
    to_disk: int = 0
    dropped: int = 0  # evicted while too much waited to be written


@dataclass(slots=True)
class Host:
    """Pages in host memory, least recently used first, at most `limit` bytes."""

    limit: int
    size: int = 0
    pages: OrderedDict[bytes, tuple[Rows, bool]] = field(default_factory=OrderedDict)  # rows, whether they were ever hit

    def put(self, key: bytes, rows: Rows, hit: bool) -> list[tuple[bytes, Rows, bool]]:
        """Keeps a page; what there is no room for any more comes back."""
        self.pages[key] = rows, hit
        self.size += rows.nbytes
        gone = []
        while self.size > self.limit:
            old, (held, was_hit) = self.pages.popitem(last=False)
            self.size -= held.nbytes
            gone.append((old, held, was_hit))
        return gone

    def get(self, key: bytes) -> Rows | None:
        found = self.pages.get(key)
        if found is None:
            return None
        self.pages[key] = found[0], True
        self.pages.move_to_end(key)
        return found[0]


class Tiers:
    """The tiers of one engine; does nothing without a host limit or a folder. The step thread calls all of its public methods."""

    def __init__(self, cache: PrefixCache, pool: Pool | None = None, *, host_bytes: int = 0, files: PageFiles | None = None) -> None:
        self._cache, self._pool, self._files = cache, pool, files
        self._host = Host(host_bytes)
        self._outbox: dict[bytes, Rows] = {}  # evicted, not yet on disk
        self._mutex = threading.Lock()  # of host and outbox
        self._loading: dict[bytes, _Load] = {}  # by the key of its first page
        self._writing = False  # the outbox is on its way
        self._landed: deque[_Load] = deque()
        self._landing = threading.Event()
        self._loader = ThreadPoolExecutor(1, "ramet-load")
        self._writer = ThreadPoolExecutor(1, "ramet-store")
        self.counts = Counts()
        self.on = pool is not None and bool(host_bytes or files is not None)
        if self.on:
            cache.on_evict = self._evicted

    @classmethod
    def open(cls, config: EngineConfig, cache: PrefixCache, runner: object) -> Tiers:
        """As the config says. Raises ConfigError."""
        if not config.cache_dir and not config.host_cache_bytes:
            return cls(cache)
        if not cache.enabled:
            raise ConfigError("cache_dir and host_cache_bytes keep what the radix cache holds: leave disable_radix_cache out")
        if not isinstance(runner, Storable):
            raise ConfigError("cache_dir and host_cache_bytes: this runner's KV cannot be stored")
        files = None
        if config.cache_dir:
            files = PageFiles(config.cache_dir, runner.fingerprint(), runner.pool.row_bytes, config.cache_dir_bytes)
        return cls(cache, runner.pool, host_bytes=config.host_cache_bytes, files=files)

    # ---- up -----------------------------------------------------------------------------------------------------------

    def fetch(self, request: Request) -> bool:
        """True if pages of the request's prompt are worth reading: it waits here, and comes back from `arrived`."""
        if not self.on:
            return False
        ids, space = request.ids.view[: request.match_limit].copy(), request.namespace
        live = self._cache.peek(ids, space)
        if len(ids) // PAGE * PAGE - live < LEAST:
            return False
        keys = page_keys(space, ids)[live // PAGE :]
        stop = (live // PAGE + self._known(keys)) * PAGE
        if stop - live < LEAST:
            return False
        load = self._loading.get(keys[0])
        if load is None:
            load = self._start(request, ids[:stop], keys, live)
        if load is not None:
            load.waiters.append(request)
        return load is not None

    def arrived(self) -> list[Request]:
        """Requests that need not wait any longer. Their pages are in the tree now, as far as they could be read."""
        freed: list[Request] = []
        while self._landed:
            load = self._landed.popleft()
            del self._loading[load.keys[0]]
            self._cache.release(load.lease, load.ids, keep=load.live + load.good)
            self.counts.loaded += load.good
            # Some may have pages behind those (a longer prompt); a load that brought nothing is not tried again.
            freed += [one for one in load.waiters if not (load.good and self.fetch(one))]
        return freed

    def drop(self, request: Request) -> bool:
        """Lets go of a request that waits here; False if it does not."""
        for load in self._loading.values():
            if request in load.waiters:
                load.waiters.remove(request)
                return True
        return False

    @property
    def loading(self) -> int:
        """Loads on their way, or landed and not yet taken in by `arrived`."""
        return len(self._loading)

    def rest(self, seconds: float = 0.005) -> None:
        """For a step that has nothing to compute: waits until a load ends, if one is on its way."""
        if self._loading and not self._landed:
            self._landing.clear()
            if not self._landed:
                self._landing.wait(seconds)

    def below(self, ids: Ints, space: Namespace) -> int:
        """How many leading ids lie here, in whole pages."""
        return self._known(page_keys(space, ids)) * PAGE if self.on else 0

    def _start(self, request: Request, ids: Ints, keys: list[bytes], live: int) -> _Load | None:
        """Reserves slots for ids[live:] and sends the loader; None if the pool has no room for them."""
        lease = self._cache.match_and_lock(ids, request.namespace, limit=live, owner=f"reading back for {request.source.rid}")
        slots = self._cache.reserve(lease, len(ids) - live)
        if slots is None:
            self._cache.release(lease, ids, keep=live)
            return None
        n = len(ids) // PAGE - live // PAGE
        load = _Load(lease, ids, keys[:n], live, slots, [])
        self._loading[keys[0]] = load
        self._loader.submit(self._load, load)
        return load

    def _load(self, load: _Load) -> None:
        """On the loader's thread: pages from below into the reserved slots, up to the first that is not to be had."""
        assert self._pool is not None
        try:
            skip = load.live % PAGE  # of the first page, which the tree holds in part
            for rows in self._read(load.keys):
                part = rows[skip:]
                self._pool.write(load.slots[load.good : load.good + len(part)], part)
                load.good, skip = load.good + len(part), 0
        except Exception:
            log.exception("reading KV back failed; the rest of the prompt is computed")
        self._landed.append(load)
        self._landing.set()

    def _read(self, keys: list[bytes]) -> Iterable[Rows]:
        for key in keys:
            with self._mutex:
                rows = self._host.get(key)
                if rows is None:
                    rows = self._outbox.get(key)
            if rows is None and self._files is not None:
                rows = next(iter(self._files.read([key])), None)
            if rows is None:
                return
            yield rows

    def _known(self, keys: Iterable[bytes]) -> int:
        n = 0
        with self._mutex:
            for key in keys:
                if not self._has(key):
                    break
                n += 1
        return n

    def _has(self, key: bytes) -> bool:
        return key in self._host.pages or key in self._outbox or (self._files is not None and key in self._files)

    # ---- down -----------------------------------------------------------------------------------------------------------

    def _evicted(self, node: RadixNode, last: int) -> None:
        """Saves the pages that lose tokens when the last tokens of a leaf go, as far as they are whole."""
        if not self._host.limit and not node.hits:
            return
        # The end of a prompt goes in first, so that it is the first to go on: without its beginning it is worth nothing.
        for key, rows in reversed(list(self._pages(node, (node.stop - last) // PAGE))):
            with self._mutex:
                overflow = self._host.put(key, rows, node.hits > 0)
                self.counts.to_host += PAGE
                for old, held, hit in overflow:
                    if hit:
                        self._to_disk(old, held)

    def _pages(self, node: RadixNode, first: int, but: Container[bytes] = ()) -> Iterator[tuple[bytes, Rows]]:
        """The whole pages of the path to `node`, from number `first` on, that are neither below yet nor in `but`: copies of what the pool holds."""
        assert self._pool is not None
        path = node.path()
        ids, slots = np.concatenate([n.key for n in path]), np.concatenate([n.slots for n in path])
        for i, key in enumerate(page_keys(space_of(node), ids)):
            if i >= first and key not in but and not self._known([key]):
                yield key, self._pool.read(slots[i * PAGE : (i + 1) * PAGE])

    def _to_disk(self, key: bytes, rows: Rows) -> None:
        """Under the mutex: what host memory has no room for."""
        if self._files is None or key in self._files:
            return
        size = len(self._outbox) * rows.nbytes
        if size > 2 * FILE_BYTES:
            self.counts.dropped += PAGE
            return
        self._outbox[key] = rows
        if size > FILE_BYTES // 2 and not self._writing:
            self._writing = True
            self._writer.submit(self._write_outbox)

    def _write_outbox(self) -> None:
        """On the writer's thread."""
        assert self._files is not None
        with self._mutex:
            pages = list(self._outbox.items())
        try:
            self.counts.to_disk += self._files.write(pages) * PAGE
        finally:
            with self._mutex:
                self._writing = False
                for key, _ in pages:
                    self._outbox.pop(key, None)

    def snapshot(self) -> int:
        """Writes to disk what pool and host memory hold, the last used first, up to the limit; the tokens written."""
        if self._files is None:
            return 0
        self._writer.submit(self._write_outbox).result()
        before, room = self.counts.to_disk, self._files.limit // (PAGE * self._files.row_bytes)
        batch: dict[bytes, Rows] = {}
        for key, rows in islice(self._worth_keeping(batch), room):
            batch[key] = rows
            if len(batch) * rows.nbytes >= FILE_BYTES:
                self.counts.to_disk += self._files.write(list(batch.items())) * PAGE
                batch.clear()
        self.counts.to_disk += self._files.write(list(batch.items())) * PAGE
        return self.counts.to_disk - before

    def _worth_keeping(self, taken: Container[bytes]) -> Iterator[tuple[bytes, Rows]]:
        """Pages that are not on disk, with what they need before them, the last used first."""
        leaves = [node for node in self._cache.tree.nodes() if not node.children]
        for leaf in sorted(leaves, key=lambda node: -node.last_used):
            yield from self._pages(leaf, 0, taken)
        with self._mutex:
            held = [(key, rows) for key, (rows, _) in reversed(self._host.pages.items())]
        yield from held

    def clear(self) -> None:
        """Forgets and deletes all that lies below. Nothing may be on its way."""
        with self._mutex:
            self._host.pages.clear()
            self._host.size = 0
            self._outbox.clear()
        if self._files is not None:
            self._files.clear()

    def close(self, *, keep: bool = True) -> None:
        """Ends the threads; with `keep`, a snapshot is written first. Twice is once."""
        if self._files is not None and self.on and keep:
            self.snapshot()
        self._loader.shutdown(wait=True)
        self._writer.shutdown(wait=True)
        if self._files is not None and self.on:
            self._files.close()
        self.on, self._cache.on_evict = False, None

    def stats(self) -> dict[str, Any]:
        """Sizes in bytes and counts in tokens."""
        disk = self._files
        return {
            "host_bytes": self._host.size, "disk_bytes": disk.size if disk else 0, "disk_tokens": len(disk) * PAGE if disk else 0,
            "loaded_tokens": self.counts.loaded, "stored_host_tokens": self.counts.to_host, "stored_disk_tokens": self.counts.to_disk,
            "dropped_tokens": self.counts.dropped, "loading": len(self._loading),
        }  # fmt: skip
