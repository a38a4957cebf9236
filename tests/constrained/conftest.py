import pytest
from constraint_tools import small_vocabulary
from hypothesis import Phase, settings

from ramet.constrained import GrammarCompiler, Vocabulary

settings.register_profile("no-shrink", phases=[Phase.explicit, Phase.reuse, Phase.generate])  # for a quick look: --hypothesis-profile=no-shrink


@pytest.fixture(scope="session", autouse=True)
def compiled():
    """The C++ part is built before anything is timed."""
    from ramet.constrained.native import library

    library()


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
