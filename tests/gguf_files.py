"""Small GGUF files, written by the gguf package."""

import gguf
import numpy as np

TINY = {
    "vocab": 97,
    "hidden": 256,
    "mlp": 512,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "context": 128,
}


def write_model(path, *, architecture="llama", quantization="F32", drop=(), extra=(), metadata=(), shape=TINY, seed=0):
    """A random model. `quantization` is the type of all matrices; `drop` and `extra` (name, array) change the tensors."""
    s = shape
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_vocab_size(s["vocab"])
    writer.add_context_length(s["context"])
    writer.add_embedding_length(s["hidden"])
    writer.add_block_count(s["layers"])
    writer.add_feed_forward_length(s["mlp"])
    writer.add_head_count(s["heads"])
    writer.add_head_count_kv(s["kv_heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    for name, value in metadata:
        {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32, bool: writer.add_bool}[type(value)](name, value)
    keys = s["hidden"] // s["heads"] * s["kv_heads"]
    layer = {
        "attn_norm": (s["hidden"],),
        "attn_q": (s["hidden"], s["hidden"]),
        "attn_k": (keys, s["hidden"]),
        "attn_v": (keys, s["hidden"]),
        "attn_output": (s["hidden"], s["hidden"]),
        "ffn_norm": (s["hidden"],),
        "ffn_gate": (s["mlp"], s["hidden"]),
        "ffn_up": (s["mlp"], s["hidden"]),
        "ffn_down": (s["hidden"], s["mlp"]),
    }
    shapes = {"token_embd": (s["vocab"], s["hidden"]), "output_norm": (s["hidden"],)}
    shapes |= {f"blk.{i}.{name}": shape for i in range(s["layers"]) for name, shape in layer.items()}
    random = np.random.default_rng(seed)
    kind = gguf.GGMLQuantizationType[quantization]
    for name, size in shapes.items():
        values = random.normal(0, 0.05, size).astype(np.float32)
        if f"{name}.weight" in drop:
            continue
        if len(size) == 1:
            writer.add_tensor(f"{name}.weight", values + 1)
        else:
            writer.add_tensor(f"{name}.weight", pack(values, kind), raw_dtype=kind)
    for name, values in extra:
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def pack(values: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """As the file holds them. Q4_K and Q6_K have no writer in the gguf package: blocks of random bits with tame scales."""
    try:
        return gguf.quants.quantize(values, kind)
    except NotImplementedError:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        random = np.random.default_rng(values.shape[0])
        raw = random.integers(0, 256, (values.size // block, size), dtype=np.uint8)
        half = np.array([0.0005], np.float16).view(np.uint8)
        at = [(0, 2), (2, 4)] if kind.name == "Q4_K" else [(208, 210)]
        for start, stop in at:
            raw[:, start:stop] = half
        return raw.reshape(values.shape[0], -1)


def write_vocabulary(path, tokens, types, *, model, scores=None, merges=None, metadata=()):
    """A file that holds a tokenizer and one small tensor."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if scores is not None:
        writer.add_token_scores(scores)
    if merges is not None:
        writer.add_token_merges(merges)
    for name, value in metadata:
        {str: writer.add_string, int: writer.add_uint32, bool: writer.add_bool}[type(value)](f"tokenizer.ggml.{name}", value)
    writer.add_tensor("x", np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
