"""A `tokenizers` tokenizer out of the vocabulary that a GGUF file carries.

Two kinds: "gpt2" (byte-level BPE, merges in the file, text first split by the rule that `tokenizer.ggml.pre` names) and
"llama" (sentencepiece BPE with byte fallback; its merges follow from the scores).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from .errors import CorruptModelError, UnsupportedError
from .gguf_reader import GGUFFile

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # tokenizer.ggml.token_type

# How text is cut before merging, by tokenizer.ggml.pre. The rules belong to the models' published tokenizers.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS: dict[str, tuple[str, ...]] = {
    "gpt-2": (GPT2,),
    "smollm": (r"\p{N}", GPT2),
    "starcoder": (r"\p{N}", GPT2),
    "refact": (r"\p{N}", GPT2),
    "llama-bpe": (LLAMA3,),
    "llama3": (LLAMA3,),
    "llama-v3": (LLAMA3,),
    "smaug-bpe": (LLAMA3,),
    "qwen2": (QWEN2,),
    "deepseek-r1-qwen": (QWEN2,),
    "tekken": (TEKKEN,),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
}
NFC = ("qwen2", "deepseek-r1-qwen")  # their tokenizers compose characters first
WHOLE_WORDS_FIRST = ("llama-bpe", "llama3", "llama-v3", "tekken")  # a word that is a token is not built by merges


def from_gguf(file: GGUFFile) -> Tokenizer:
    """Raises CorruptModelError where the file has no whole vocabulary, UnsupportedError for other kinds of tokenizer."""
    kind = file.metadata.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise UnsupportedError(f"{file.path}: tokenizer kind {kind!r} (tokenizer.ggml.model); known: gpt2, llama", field="tokenizer_path")
    tokens, types = _array(file, "tokens"), _array(file, "token_type")
    if len(tokens) != len(types):
        raise CorruptModelError(f"{file.path}: {len(tokens)} tokens and {len(types)} token types")
    tokenizer = _byte_level(file, tokens) if kind == "gpt2" else _sentencepiece(file, tokens, types)
    tokenizer.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t, k in zip(tokens, types, strict=True) if k in (UNKNOWN, CONTROL)]
    )
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t, k in zip(tokens, types, strict=True) if k == USER_DEFINED])
    _add_borders(tokenizer, file, tokens)
    return tokenizer


def _byte_level(file: GGUFFile, tokens: Sequence[str]) -> Tokenizer:
    pre = file.metadata.get("tokenizer.ggml.pre", "default")
    if pre not in SPLITS:
        raise UnsupportedError(
            f"{file.path}: pre-tokenizer {pre!r} (tokenizer.ggml.pre); known: {', '.join(sorted(SPLITS))}", field="tokenizer_path"
        )
    merges = [tuple(merge.split(" ", 1)) for merge in _array(file, "merges")]
    try:
        model = models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges, ignore_merges=pre in WHOLE_WORDS_FIRST)
    except Exception as error:  # tokenizers raises bare Exception for a merge of unknown tokens
        raise CorruptModelError(f"{file.path}: tokenizer.ggml.merges: {error}") from error
    tokenizer = Tokenizer(model)
    if pre in NFC:
        tokenizer.normalizer = normalizers.NFC()
    cuts = [pre_tokenizers.Split(Regex(rule), "isolated") for rule in SPLITS[pre]]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(file: GGUFFile, tokens: Sequence[str], types: Sequence[int]) -> Tokenizer:
    scores = _array(file, "scores")
    if len(scores) != len(tokens):
        raise CorruptModelError(f"{file.path}: {len(tokens)} tokens and {len(scores)} scores")
    unknown = next((t for t, k in zip(tokens, types, strict=True) if k == UNKNOWN), None)
    vocab = {t: i for i, t in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=_merges(tokens, types, scores), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    prefixed = bool(file.metadata.get("tokenizer.ggml.add_space_prefix", True))
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefixed else spaces
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefixed else steps)
    return tokenizer


def _merges(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """All pairs of tokens that make a token, best score first: sentencepiece merges the best pair it sees."""
    score = {t: s for t, k, s in zip(tokens, types, scores, strict=True) if k == NORMAL}
    pairs = [(s, t[:cut], t[cut:]) for t, s in score.items() for cut in range(1, len(t)) if t[:cut] in score and t[cut:] in score]
    pairs.sort(key=lambda pair: (pair[0], len(pair[1]), len(pair[2])), reverse=True)
    return [(left, right) for _, left, right in pairs]


def _add_borders(tokenizer: Tokenizer, file: GGUFFile, tokens: Sequence[str]) -> None:
    """BOS and EOS around a text, where the file asks for them or its kind has them without being asked."""
    by_itself = file.metadata["tokenizer.ggml.model"] == "llama" or file.metadata.get("tokenizer.ggml.pre") in (
        "llama-bpe",
        "llama3",
        "llama-v3",
    )
    parts, special = ["$A"], []
    for name, default, before in (("bos", by_itself, True), ("eos", False, False)):
        id_ = file.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if id_ is not None and file.metadata.get(f"tokenizer.ggml.add_{name}_token", default):
            if id_ >= len(tokens):
                raise CorruptModelError(f"{file.path}: tokenizer.ggml.{name}_token_id is {id_}, of {len(tokens)} tokens")
            parts.insert(0 if before else len(parts), tokens[id_])
            special.append((tokens[id_], id_))
    if special:
        tokenizer.post_processor = processors.TemplateProcessing(single=parts, pair=[*parts, "$B"], special_tokens=special)


def _array(file: GGUFFile, name: str) -> list[Any]:
    value = file.metadata.get(f"tokenizer.ggml.{name}")
    if value is None or isinstance(value, str | int | float):
        raise CorruptModelError(f"{file.path}: tokenizer.ggml.{name} is missing")
    return list(value)
