import pytest
from constraint_tools import small_vocabulary

from ramet.constrained import GrammarCompiler, Vocabulary


@pytest.fixture(scope="session")
def small():
    return GrammarCompiler(small_vocabulary())


@pytest.fixture(scope="session")
def real(embedded_model):
    """A compiler for the default model's own vocabulary."""
    from ramet.runtime.config import EngineConfig
    from ramet.runtime.tokenizer_files import load_tokenizer

    tokenizer = load_tokenizer(embedded_model, EngineConfig())
    return GrammarCompiler(Vocabulary(tokenizer.all_token_bytes(), tokenizer.eos_ids))
