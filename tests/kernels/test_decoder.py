"""The fused stack against the same arithmetic layer by layer, and whole against chunks, shared and mixed passes."""
from __future__ import annotations

import gc
import itertools
import threading
import time

import pytest
import torch

from ramet.kernels import KernelError
from ramet.kernels.cpu.peer import CpuDecoder, CpuKernels
from ramet.kernels.interface import DecoderInput, DecoderWeights, Kernels, LayerWeights, Linear, PackedWeight, RopeTable

from .conftest import Sequence, cpu_kernels, ints, poisoned_pool, ragged
from .test_attention import TREE
from .test_blocks import random_packed

VOCABULARY, HIDDEN, INNER, POSITIONS, SLOTS = 130, 256, 512, 1024, 2048


def weights(kind: str = "Q4_1", *, heads: int = 6, groups: int = 2, size: int = 32, biased: bool = False, head_norms: bool = False) -> DecoderWeights:
    """Two layers of random weights. kind: a GGML kind for all, "mixed" for several, or "plain"."""
    kinds = iter(["Q4_K", "Q4_K", "Q6_K", "Q4_0", "Q8_0", "Q6_K", "Q4_1"] * 3)
    generator = torch.Generator().manual_seed(7)

    def matrix(outputs: int, inputs: int) -> torch.Tensor | PackedWeight:
        chosen = next(kinds) if kind == "mixed" else kind
        if chosen == "plain" or inputs % 256 and chosen.endswith("K"):
            return torch.randn(outputs, inputs, generator=generator).mul(inputs**-0.5).to(torch.bfloat16)
        weight = random_packed(chosen, outputs, inputs, seed=outputs)
        return weight

    def linear(outputs: int, inputs: int) -> Linear:
        return Linear(matrix(outputs, inputs), torch.randn(outputs, generator=generator) if biased else None)

    def norm(n: int) -> torch.Tensor:
        return 1 + 0.1 * torch.randn(n, generator=generator)

    layers = tuple(
        LayerWeights(
            norm(HIDDEN), linear(heads * size, HIDDEN), linear(groups * size, HIDDEN), linear(groups * size, HIDDEN),
            linear(HIDDEN, heads * size), norm(HIDDEN), Linear(matrix(INNER, HIDDEN)), Linear(matrix(INNER, HIDDEN)), linear(HIDDEN, INNER),
            norm(size) if head_norms else None, norm(size) if head_norms else None,
        )
        for _ in range(2)
    )  # fmt: skip
    embed = matrix(VOCABULARY, HIDDEN)
    angles = torch.arange(POSITIONS).unsqueeze(1) * 1000.0 ** -(torch.arange(size // 2) / (size // 2))
    return DecoderWeights(embed, layers, norm(HIDDEN), Linear(embed), RopeTable(angles.cos(), angles.sin()), heads, groups, size, 1e-5)


def layer_by_layer(k: Kernels, w: DecoderWeights, batch: DecoderInput, pool_k: torch.Tensor, pool_v: torch.Tensor) -> torch.Tensor:
    x = k.embed(batch.input_ids, w.embed)
    for i, layer in enumerate(w.layers):
        normed = k.rms_norm(x, layer.attn_norm, w.rms_eps)
        q, key, value = (k.linear(normed, part).unflatten(-1, (-1, w.head_dim)) for part in (layer.q, layer.k, layer.v))
        if layer.q_norm is not None:
            q, key = k.rms_norm(q, layer.q_norm, w.rms_eps), k.rms_norm(key, layer.k_norm, w.rms_eps)
        k.rope(q, key, batch.positions, w.rope)
        k.store_kv(key, value, pool_k[i], pool_v[i], batch.write_slots)
        x = x + k.linear(k.attention(q, pool_k[i], pool_v[i], batch.attn, w.head_dim**-0.5).flatten(1), layer.o)
        normed = k.rms_norm(x, layer.mlp_norm, w.rms_eps)
        x = x + k.linear(k.silu_mul(k.linear(normed, layer.gate), k.linear(normed, layer.up)), layer.down)
    return k.linear(k.rms_norm(x, w.norm, w.rms_eps)[batch.logit_rows.long()], w.head)


def a_pass(sequences: list[Sequence], *, share: bool = False, all_logits: bool = True) -> DecoderInput:
    meta = ragged(sequences, SLOTS, share=share)
    starts, lengths = meta.query_start.tolist(), meta.context_len.tolist()
    positions = [p for s, length in enumerate(lengths) for p in range(length - (starts[s + 1] - starts[s]), length)]
    slots = [int(meta.tables[s, p]) for s, length in enumerate(lengths) for p in range(length - (starts[s + 1] - starts[s]), length)]
    ids = torch.randint(0, VOCABULARY, (starts[-1],), generator=torch.Generator().manual_seed(3), dtype=torch.int32)
    rows = list(range(starts[-1])) if all_logits else [end - 1 for begin, end in itertools.pairwise(starts) if end > begin]
    return DecoderInput(ids, ints(positions), ints(slots), ints(rows), meta)


def pools(w: DecoderWeights, batch: DecoderInput, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    layers = [poisoned_pool(batch.attn, SLOTS, w.n_kv_heads, w.head_dim, dtype, seed=i) for i in range(len(w.layers))]
    return torch.stack([k for k, _ in layers]), torch.stack([v for _, v in layers])


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    """Equal up to rounding in float32, of sums whose terms are as large as the largest number."""
    torch.testing.assert_close(got, want, rtol=1e-4, atol=3e-5 * float(want.nan_to_num().abs().max()), equal_nan=True)


MIXED = [Sequence(5, 5), Sequence(1, 100), Sequence(0, 0), Sequence(33, 200), Sequence(1, 1)]


@pytest.mark.parametrize("options", [{}, {"size": 24, "heads": 4, "groups": 4}, {"biased": True}, {"head_norms": True}], ids=str)
@pytest.mark.parametrize("kind", ["plain", "Q4_1", "mixed"])
def test_exact_stack_is_the_reference(exact: CpuKernels, reference: Kernels, kind: str, options: dict) -> None:
    if options.get("size") == 24:
        kind = "plain"  # 96 inputs of `o` are not whole blocks of the K kinds
    w, batch = weights(kind, **options), a_pass(MIXED)
    one, two = pools(w, batch, torch.float32), pools(w, batch, torch.float32)
    got = exact.decoder(w).forward(batch, *one)
    close(got, layer_by_layer(reference, w, batch, *two))
    for a, b in zip(one, two, strict=True):
        close(a, b)


@pytest.mark.parametrize("kind", ["plain", "Q4_1", "mixed"])
def test_fast_stack_is_its_own_kernels_one_by_one(cpu: CpuKernels, kind: str) -> None:
    w, batch = weights(kind), a_pass(MIXED)
    got = cpu.decoder(w).forward(batch, *pools(w, batch, torch.float16))
    want = layer_by_layer(cpu, w, batch, *pools(w, batch, torch.float16))
    close(got, want)


def test_a_row_has_the_same_bits_in_any_company(cpu: CpuKernels) -> None:
    w = weights()
    decoder, batch = cpu.decoder(w), a_pass(TREE)
    whole = decoder.forward(batch, *pools(w, batch, torch.float16))
    shared = decoder.forward(a_pass(TREE, share=True), *pools(w, batch, torch.float16))
    assert torch.equal(shared, whole)
    single = cpu_kernels(threads=1).decoder(w)
    meta = batch.attn
    for s in range(len(TREE)):
        begin, end = meta.query_start[s : s + 2].tolist()
        if begin == end:
            continue
        k, v = pools(w, batch, torch.float16)
        for first, last in [(begin, (begin + end) // 2), ((begin + end) // 2, end)]:  # in two chunks
            length = int(meta.context_len[s]) - (end - last)
            if first == last:
                continue
            part = DecoderInput(
                batch.input_ids[first:last], batch.positions[first:last], batch.write_slots[first:last], ints(list(range(last - first))),
                type(meta)(ints([0, last - first]), ints([length]), meta.tables[s : s + 1, :length].contiguous(), length, last - first),
            )  # fmt: skip
            assert torch.equal(single.forward(part, k, v), whole[first:last])


def test_only_wanted_rows_get_logits(cpu: CpuKernels) -> None:
    w, batch = weights(), a_pass(MIXED)
    every = cpu.decoder(w).forward(batch, *pools(w, batch, torch.float16))
    for rows in ([], [0], [39, 2, 2]):
        some = DecoderInput(batch.input_ids, batch.positions, batch.write_slots, ints(rows), batch.attn)
        assert torch.equal(cpu.decoder(w).forward(some, *pools(w, batch, torch.float16)), every[rows])


def test_nothing_but_the_rows_own_slots_is_written(cpu: CpuKernels) -> None:
    w, batch = weights(), a_pass(MIXED)
    k, v = pools(w, batch, torch.bfloat16)
    before = k.clone(), v.clone()
    cpu.decoder(w).forward(batch, k, v)
    others = torch.ones(SLOTS, dtype=torch.bool)
    others[batch.write_slots.long()] = False
    for now, then in zip((k, v), before, strict=True):
        assert torch.equal(now[:, others].view(torch.int16), then[:, others].view(torch.int16))
        assert now[:, ~others].isfinite().all()


def test_an_empty_pass(cpu: CpuKernels) -> None:
    w, batch = weights(), a_pass([])
    assert cpu.decoder(w).forward(batch, *pools(w, batch, torch.float16)).shape == (0, VOCABULARY)


@pytest.mark.parametrize(("field", "value", "match"), [
    ("input_ids", VOCABULARY, "vocabulary"), ("input_ids", -1, "vocabulary"), ("positions", POSITIONS, "rotary"),
    ("write_slots", SLOTS, "slot"), ("logit_rows", 40, "logit_rows"),
])  # fmt: skip
def test_numbers_out_of_range_are_refused(cpu: CpuKernels, field: str, value: int, match: str) -> None:
    w, batch = weights(), a_pass(MIXED)
    getattr(batch, field)[2] = value
    with pytest.raises(KernelError, match=match):
        cpu.decoder(w).forward(batch, *pools(w, batch, torch.float16))


def test_a_pool_of_another_shape_is_refused(cpu: CpuKernels) -> None:
    w, batch = weights(), a_pass(MIXED)
    k, v = pools(w, batch, torch.float16)
    with pytest.raises(KernelError, match="pool"):
        cpu.decoder(w).forward(batch, k[:1], v[:1])
    with pytest.raises(KernelError, match="float64"):
        cpu.decoder(w).forward(batch, k.double(), v.double())


def test_two_engines_at_once(cpu: CpuKernels) -> None:
    """Passes of two threads through one pool, and through two pools, do not mix."""
    w, batch = weights(), a_pass(MIXED)
    decoders = [cpu.decoder(w), cpu.decoder(w), cpu_kernels(threads=3).decoder(w)]
    want = decoders[0].forward(batch, *pools(w, batch, torch.float16))
    wrong: list[int] = []

    def work(decoder: CpuDecoder) -> None:
        for i in range(20):
            if not torch.equal(decoder.forward(batch, *pools(w, batch, torch.float16)), want):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(d,)) for d in decoders]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_idle_threads_use_no_processor(cpu: CpuKernels) -> None:
    w, batch = weights(), a_pass(MIXED)
    cpu.decoder(w).forward(batch, *pools(w, batch, torch.float16))
    time.sleep(0.1)
    begin = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - begin < 0.1


def test_decoders_come_and_go() -> None:
    for _ in range(3):
        peer = cpu_kernels(threads=3)
        w, batch = weights(), a_pass(MIXED)
        peer.decoder(w).forward(batch, *pools(w, batch, torch.float16))
        del peer, w
        gc.collect()
