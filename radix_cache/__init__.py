"""What is already computed: a radix tree of token ids over slots of the KV pool."""
from .cache import Lease, PrefixCache
from .slots import CacheError, IntBuffer, SlotAllocator
from .tree import RadixNode, RadixTree

__all__ = ["CacheError", "IntBuffer", "Lease", "PrefixCache", "RadixNode", "RadixTree", "SlotAllocator"]
