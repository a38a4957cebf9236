"""The same weights in transformers, in float32: what logits and ids must equal."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # transformers must never wait for a network in tests

import gguf
import numpy as np
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

from ramet.runtime.gguf_reader import GGUFFile

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def llama_from_gguf(path) -> LlamaForCausalLM:
    """A tied Llama whose numbers the gguf package unpacks and transformers puts together. Ramet only finds the bytes
    (gguf's own reader takes seconds; tests of the reader compare the two)."""
    file = GGUFFile(path)

    def value(key):
        return file.metadata[f"llama.{key}"]

    config = LlamaConfig(
        vocab_size=value("vocab_size"),
        hidden_size=value("embedding_length"),
        intermediate_size=value("feed_forward_length"),
        num_hidden_layers=value("block_count"),
        num_attention_heads=value("attention.head_count"),
        num_key_value_heads=value("attention.head_count_kv"),
        max_position_embeddings=value("context_length"),
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": value("rope.freq_base")},
        tie_word_embeddings=True,
        eos_token_id=2,
    )
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    state = {}
    for tensor_name, info in file.tensors.items():
        raw = np.memmap(path, np.uint8, "r", info.offset, (info.shape[0], info.nbytes // info.shape[0]))
        values = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(info.kind)).reshape(info.shape)
        parts = tensor_name.split(".")
        if parts[0] == "blk":
            if parts[2] in heads:  # undo llama.cpp's interleaving of each head's halves
                values = values.reshape(heads[parts[2]], -1, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
            name = f"model.layers.{parts[1]}.{NAMES[parts[2]]}.weight"
        else:
            name = {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[parts[0]]
        state[name] = torch.from_numpy(np.array(values))
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model = LlamaForCausalLM(config)
    model.load_state_dict(state, strict=True)
    return model.eval()
