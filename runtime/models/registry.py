"""The model families that Ramet computes, by the names that model files give them."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UnknownArchitectureError


@dataclass(frozen=True, slots=True)
class Family:
    """A variation of the Llama decoder. `qkv_bias` and `qk_norm` are what every model of the family has."""

    name: str  # model_type of config.json, general.architecture of a GGUF file
    hf_class: str  # in `architectures` of config.json
    qkv_bias: bool = False
    qk_norm: bool = False
    gguf_interleaved: bool = False  # GGUF files hold the rows of q and k in pairs (i, i + D/2)


FAMILIES = (
    Family("llama", "LlamaForCausalLM", gguf_interleaved=True),  # Llama 1-3, SmolLM2; in GGUF files Mistral too
    Family("mistral", "MistralForCausalLM"),
    Family("qwen2", "Qwen2ForCausalLM", qkv_bias=True),
    Family("qwen3", "Qwen3ForCausalLM", qk_norm=True),
)


def family(name: str) -> Family:
    """By architecture or class name. Raises UnknownArchitectureError listing the known ones."""
    for known in FAMILIES:
        if name in (known.name, known.hf_class):
            return known
    raise UnknownArchitectureError(f"architecture {name!r} is not implemented; known: {', '.join(f.hf_class for f in FAMILIES)}")
