"""Who may share KV with whom: the part of a cache key that is not token ids."""
from __future__ import annotations

from typing import NamedTuple


class Namespace(NamedTuple):
    """Requests share KV only when all of this is equal. Each value has its own place, so salt "a" of tenant "b" is nobody else's "ab".

    `extra` is for whatever else changes what a prompt's KV is, as (tag, value) pairs: ("adapter", "sql-7"), ("model", "v2")."""

    salt: str = ""
    tenant: str = ""
    extra: tuple[tuple[str, str], ...] = ()

    def encoded(self) -> bytes:
        """The same for equal namespaces only: every value is preceded by its length and, in `extra`, by its tag."""
        parts = [self.salt, self.tenant, *(text for pair in sorted(self.extra) for text in pair)]
        return b"".join(b"%d:%s" % (len(raw), raw) for raw in (part.encode("utf-8", "surrogatepass") for part in parts))


SHARED = Namespace()
