"""Does a whole model say what transformers says? The same random weights in both, the same greedy ids."""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ramet.kernels import get_kernels
from ramet.kernels.interface import AttnMeta, DecoderInput, DecoderWeights, Kernels, LayerWeights, Linear, RopeTable
from ramet.runtime.models.llama import LlamaModel

from .card import Card, Row
from .correct import Wrong, some_rows
from .passes import ints


def check(card: Card) -> list[Row]:
    """In float32 the ids are equal; in bfloat16, where near ties fall either way, the logits of one pass are close. Raises Wrong."""
    try:
        import transformers
    except ImportError:
        card.skipped.append("greedy parity (transformers is not installed)")
        return []
    torch.manual_seed(7)
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1} if card.dry else {
        "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4}  # fmt: skip
    config = transformers.LlamaConfig(
        vocab_size=300 if card.dry else 32_000, num_attention_heads=4 if card.dry else 8, num_key_value_heads=2,
        max_position_embeddings=2048, tie_word_embeddings=False, attention_bias=False, eos_token_id=None, **shape,
    )  # fmt: skip
    theirs = transformers.LlamaForCausalLM(config).to(torch.float32).to(card.device).eval()
    prompt = torch.randint(0, config.vocab_size, (1, 20 if card.dry else 300), device=card.device)
    new = 3 if card.dry else 48
    with torch.no_grad():
        made = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=new, do_sample=False, pad_token_id=0)
    want = made[0, prompt.shape[1] :].tolist()
    ours = greedy(get_kernels(card.device, "triton", "float32"), weights_of(theirs, config), prompt[0].tolist(), new, card)
    if ours != want:
        at = next(i for i, pair in enumerate(zip(ours, want, strict=True)) if pair[0] != pair[1])
        raise Wrong(f"greedy ids differ from transformers' after {at} of {new}")
    found = [Row("greedy ids equal to transformers', float32", float(new), "ids")]
    if not card.dry:
        found.append(close(theirs.to(torch.bfloat16), config, prompt, card))
    return found


def close(theirs: Any, config: Any, prompt: Tensor, card: Card) -> Row:
    with torch.no_grad():
        want = theirs(prompt).logits[0, -1].float()
    kernels, weights = get_kernels(card.device, "triton", "bfloat16"), weights_of(theirs, config)
    pools = new_pools(weights, prompt.shape[1], kernels)
    got = forward(kernels, weights, prompt[0].tolist(), 0, pools, card)[0]
    error = float((got - want).abs().max() / want.abs().max())
    if not error < 0.15:
        raise Wrong(f"bfloat16 logits are off from transformers' by {error:.3f} of the largest")
    return Row("bfloat16 logits off from transformers'", error, "of the largest")


def weights_of(model: Any, config: Any) -> DecoderWeights:
    state = model.state_dict()

    def linear(name: str) -> Linear:
        return Linear(state[f"{name}.weight"].contiguous())

    def norm(name: str) -> Tensor:
        return state[f"{name}.weight"].float()

    layers = []
    for i in range(config.num_hidden_layers):
        at = f"model.layers.{i}"
        layers.append(LayerWeights(
            norm(f"{at}.input_layernorm"), *(linear(f"{at}.self_attn.{x}_proj") for x in "qkvo"),
            norm(f"{at}.post_attention_layernorm"), *(linear(f"{at}.mlp.{x}_proj") for x in ("gate", "up", "down")),
        ))  # fmt: skip
    size = config.hidden_size // config.num_attention_heads
    inverse = model.model.rotary_emb.inv_freq.float().cpu()
    angles = torch.outer(torch.arange(config.max_position_embeddings).float(), inverse).to(state["lm_head.weight"].device)
    return DecoderWeights(
        state["model.embed_tokens.weight"], tuple(layers), norm("model.norm"), linear("lm_head"), RopeTable(angles.cos(), angles.sin()),
        config.num_attention_heads, config.num_key_value_heads, size, config.rms_norm_eps,
    )  # fmt: skip


def new_pools(weights: DecoderWeights, slots: int, kernels: Kernels) -> list[Tensor]:
    shape = (len(weights.layers), slots, weights.n_kv_heads, weights.head_dim)
    return [torch.full(shape, float("nan"), dtype=kernels.kv_dtype, device=weights.norm.device) for _ in range(2)]


def forward(kernels: Kernels, weights: DecoderWeights, ids: list[int], start: int, pools: list[Tensor], card: Card) -> Tensor:
    """Logits (1, vocab) after `ids` at positions start.., each position in the slot of its number, counted from the end of the pool."""
    n, end, slots = len(ids), start + len(ids), pools[0].shape[1]
    table = torch.arange(slots - 1, slots - 1 - end, -1, dtype=torch.int32)[None].contiguous()
    meta = AttnMeta(ints([0, n]), ints([end]), table, end, n)
    inputs = (ints(ids), torch.arange(start, end, dtype=torch.int32), table[0, start:].contiguous(), ints([n - 1]))
    model = LlamaModel(SimpleNamespace(vocab_size=weights.head.out_features), weights, kernels)  # type: ignore[arg-type]  # all that a pass asks of it
    return model.forward(DecoderInput(*(x.to(card.device) for x in inputs), meta), *pools)


def greedy(kernels: Kernels, weights: DecoderWeights, prompt: list[int], new: int, card: Card) -> list[int]:
    """A prompt in two chunks, then ids one by one, by the device's own argmax."""
    pools = new_pools(weights, len(prompt) + new, kernels)
    half = len(prompt) // 2
    forward(kernels, weights, prompt[:half], 0, pools, card)
    logits = forward(kernels, weights, prompt[half:], half, pools, card)
    sampler = kernels.sampler()
    assert sampler is not None
    rows, _ = some_rows(1, logits.shape[1], card.device, temperature=0.0)
    ids: list[int] = []
    while True:
        ids.append(int(sampler.draw(logits, rows)[0]))
        if len(ids) == new:
            return ids
        logits = forward(kernels, weights, ids[-1:], len(prompt) + len(ids) - 1, pools, card)
