"""What is already computed: a radix tree of token ids over slots of the KV pool."""
from .cache import Lease, PrefixCache
from .eviction import POLICIES as EVICTION_POLICIES
from .explain import Eviction, Explanation
from .namespace import SHARED, Namespace
from .slots import CacheError, IntBuffer, SlotAllocator
from .tree import RadixNode, RadixTree

__all__ = [
    "EVICTION_POLICIES", "SHARED", "CacheError", "Eviction", "Explanation", "IntBuffer", "Lease", "Namespace", "PrefixCache", "RadixNode",
    "RadixTree", "SlotAllocator",
]  # fmt: skip
