"""Two small tokenizers of the two kinds, made by hand: sentencepiece with byte fallback, and byte-level BPE."""

import gguf
from gguf_files import write_vocabulary

NORMAL, UNKNOWN, CONTROL, USER, BYTE = (gguf.TokenType[n] for n in ("NORMAL", "UNKNOWN", "CONTROL", "USER_DEFINED", "BYTE"))


def write_sentencepiece(path, **metadata):
    """<unk> <s> </s>, 256 bytes, a user-defined token, single letters and words whose parts are words."""
    tokens = [("<unk>", UNKNOWN, 0.0), ("<s>", CONTROL, 0.0), ("</s>", CONTROL, 0.0)]
    tokens += [(f"<0x{b:02X}>", BYTE, 0.0) for b in range(256)]
    tokens += [("[INST]", USER, 0.0)]
    words = ["▁▁", "▁▁▁▁", "he", "ll", "hell", "ello", "hello", "▁he", "▁hello", "▁two", "▁tw", "wo", "in", "ing", "▁t", "▁tr", "ail"]
    words += ["iling", "ai", "il", "trail", "de", "ent", "dent", "▁lead", "ead", "le", "ad", "né", "漢字"]
    tokens += [(word, NORMAL, -1.0 - i) for i, word in enumerate(words)]
    letters = sorted({c for word in words for c in word} | set("▁abcdefghijklmnopqrstuvwxyzé!"))
    tokens += [(c, NORMAL, -100.0 - i) for i, c in enumerate(letters)]
    texts, types, scores = map(list, zip(*tokens, strict=True))
    settings = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, **metadata}
    return write_vocabulary(path, texts, types, model="llama", scores=scores, metadata=settings.items())


def write_byte_level(path, pre, **metadata):
    """All bytes, a few merges, <|endoftext|> and a tool marker that is not special."""
    alphabet = list(byte_alphabet())
    merges = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("Ġ", "1"), ("1", "2"), ("12", "3"), ("'", "s"), ("Ċ", "Ċ"), ("Ã", "©"), (".", ".")]
    texts = [*alphabet, *("".join(pair) for pair in merges), "<|endoftext|>", "<|im_end|>", "<tool>"]
    types = [NORMAL] * (len(texts) - 3) + [CONTROL, CONTROL, USER]
    settings = {"pre": pre, "bos_token_id": len(texts) - 3, "eos_token_id": len(texts) - 2, "add_bos_token": False, **metadata}
    return write_vocabulary(path, texts, types, model="gpt2", merges=[" ".join(pair) for pair in merges], metadata=settings.items())


def byte_alphabet():
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return bytes_to_unicode().values()
