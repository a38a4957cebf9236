"""Random models of every family, small enough to compute in transformers beside ours."""

import torch
import transformers
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

TINY = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
THETA = {"rope_theta": 10000.0}
FAMILIES = {
    "llama tied": LlamaConfig(**TINY, tie_word_embeddings=True),
    "llama untied, biased": LlamaConfig(**TINY, attention_bias=True, mlp_bias=True),
    "llama, one KV head, wide heads": LlamaConfig(**{**TINY, "num_key_value_heads": 1}, head_dim=32, rms_norm_eps=1e-5),
    "llama, linear rope": LlamaConfig(**TINY, rope_parameters={**THETA, "rope_type": "linear", "factor": 4.0}),
    "llama 3": LlamaConfig(
        **TINY,
        rope_parameters={
            "rope_theta": 500000.0,
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "llama, yarn": LlamaConfig(
        **TINY, rope_parameters={**THETA, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    ),
    "mistral": MistralConfig(**TINY, sliding_window=None),
    "qwen2": Qwen2Config(**TINY),
    "qwen2 tied": Qwen2Config(**TINY, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**TINY, head_dim=24),
}


def save(config, folder, **options):
    """A random model of `config` in `folder`; biases and norms are random too, which transformers would leave at 0 and 1."""
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.data = torch.rand_like(parameter) + (0.5 if "norm" in name else -0.5)
    model.save_pretrained(folder, **options)
    return model
