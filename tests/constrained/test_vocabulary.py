"""Token bytes of the three kinds of tokenizer."""

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from ramet.constrained import GrammarCompiler, GrammarError, Vocabulary


def test_byte_level():
    tokenizer = Tokenizer(models.BPE({"Ġthe": 0, "Ã©": 1, "Ċ": 2, "<|end|>": 3}, []))
    tokenizer.decoder, tokenizer.pre_tokenizer = decoders.ByteLevel(), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.add_tokens(["Ġplain text"])
    vocabulary = Vocabulary.from_tokenizer(tokenizer, eos_ids=[3])
    assert vocabulary.token_bytes == (b" the", "é".encode(), b"\n", None, "Ġplain text".encode())


def test_sentencepiece_with_byte_fallback():
    vocab = [("<unk>", 0.0), ("</s>", 0.0), ("<0x0A>", -1.0), ("▁the", -2.0), ("é", -3.0), ("<0xZZ>", -4.0)]
    tokenizer = Tokenizer(models.Unigram(vocab, 0, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    vocabulary = Vocabulary.from_tokenizer(tokenizer, eos_ids=[1])
    assert vocabulary.token_bytes == (None, None, b"\n", b" the", "é".encode(), b"<0xZZ>")


def test_tiktoken_style():
    class Encoding:
        n_vocab, eot_token, special_tokens_set = 5, 4, {"<|end|>"}

        def encode_single_token(self, text):
            return 4

        def decode_single_token_bytes(self, token):
            return {0: b"a", 1: b"\xff", 3: b"bc"}[token]

    vocabulary = Vocabulary.from_tokenizer(Encoding())
    assert vocabulary.token_bytes == (b"a", b"\xff", None, b"bc", None) and vocabulary.eos_ids == {4}


def test_the_default_model(real, embedded_model):
    texts = real.vocabulary.token_bytes
    assert {bytes([b]) for b in range(0x20, 0xC0)} <= set(texts) and b" the" in texts
    assert all(texts[i] is None for i in real.vocabulary.eos_ids)


def test_wordpiece_is_refused():
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(GrammarError, match="WordPiece"):
        Vocabulary.from_tokenizer(tokenizer, eos_ids=[0])


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Vocabulary([], []), "at least one"),
        (lambda: Vocabulary([b"a"], [1]), "outside"),
        (lambda: Vocabulary.from_tokenizer("gpt2"), "fast tokenizer"),
        (lambda: Vocabulary.from_tokenizer(Tokenizer(models.BPE({"a": 0}, []))), "eos_ids"),
    ],
)
def test_refusals(make, why):
    with pytest.raises(GrammarError, match=why):
        make()


def test_a_vocabulary_without_every_byte():
    """Where no tokens write a document the distance is not known, and is said so."""
    compiler = GrammarCompiler(Vocabulary([b"a", b"bb", None], [2]))
    assert compiler.compile("regex", "a*bb").min_tokens == 1
    matcher = compiler.compile("regex", "aab").matcher()
    assert matcher.need is None
    with pytest.raises(GrammarError, match="no sequence"):
        _ = matcher.grammar.min_tokens
