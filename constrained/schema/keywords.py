"""Each keyword twice: what it asserts (ENFORCE) and how a value may violate it (DENY). The handlers are in keywords_*.py."""
from . import keywords_any, keywords_array, keywords_object, keywords_scalar  # noqa: F401 (they enter themselves)
from .keywords_any import joined_alternatives
from .state import DENY, ENFORCE

__all__ = ["DENY", "ENFORCE", "joined_alternatives"]
