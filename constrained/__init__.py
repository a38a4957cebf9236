"""What may come next: regexes, choices, JSON schemas and grammars as exact masks over a vocabulary. Usable alone; no torch."""
from .compiler import KINDS, Grammar, GrammarCompiler, Limits
from .errors import GrammarError, LimitError
from .matcher import Matcher
from .vocabulary import Vocabulary

__all__ = ["KINDS", "Grammar", "GrammarCompiler", "GrammarError", "LimitError", "Limits", "Matcher", "Vocabulary"]
