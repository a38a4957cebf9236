"""How near to the card's limits? Times as shares of floors that are measured on the same card in the same run."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from ramet.kernels import get_kernels
from ramet.kernels.interface import AttnMeta, DecoderInput, DecoderWeights, Kernels, LayerWeights, Linear, RopeTable
from ramet.runtime.models.llama import LlamaModel

from .card import Card, Row
from .correct import some_rows
from .passes import crowd, tree


@dataclass(frozen=True)
class Shape:
    """A Llama with random weights."""

    name: str
    layers: int
    hidden: int
    inner: int
    heads: int
    groups: int
    size: int
    vocabulary: int

    @property
    def products(self) -> int:
        """Numbers in the matrices of all layers."""
        return self.layers * (self.hidden * (2 * self.heads + 2 * self.groups) * self.size + 3 * self.hidden * self.inner)

    @property
    def weight_bytes(self) -> int:
        """What a step reads: all layers and the head."""
        return 2 * (self.products + self.hidden * self.vocabulary)

    @property
    def kv_bytes(self) -> int:
        """Of a position."""
        return self.layers * self.groups * self.size * 4


SHAPES = [Shape("1B", 16, 2048, 8192, 32, 8, 64, 128_256), Shape("8B", 32, 4096, 14_336, 32, 8, 128, 128_256)]
BATCHES, CONTEXTS, PROMPT = (1, 16, 64, 256), (1024, 8192), 8192
DRY = [Shape("tiny", 1, 64, 96, 4, 2, 16, 300)]
DRY_BATCHES, DRY_CONTEXTS, DRY_PROMPT = (1, 2), (300,), 130


@dataclass
class Floors:
    bandwidth: float  # bytes a second, read and written, of a copy
    rate: float  # bfloat16 operations a second of a large product


def floors(card: Card) -> Floors:
    n, size = (64, 1 << 16) if card.dry else (8192, 1 << 30)
    source = torch.empty(size, dtype=torch.uint8, device=card.device)
    target = torch.empty_like(source)
    a, b = (torch.randn(n, n, device=card.device).bfloat16() for _ in range(2))
    return Floors(2 * size / card.seconds(lambda: target.copy_(source)), 2 * n**3 / card.seconds(lambda: a @ b))


def attention(card: Card, kernels: Kernels, limits: Floors) -> list[Row]:
    """Of one layer of 8B shape: decode rows, and branches under a long prompt, as one prefix and as strangers."""
    heads, groups, size = (4, 2, 16) if card.dry else (32, 8, 128)
    branches, root, own = (3, 520, 5) if card.dry else (64, 8192, 64)
    passes = [(1, 300)] if card.dry else [(1, 1024), (1, 8192), (16, 8192), (64, 1024), (64, 8192), (256, 1024)]
    slots = max(max(b * c for b, c in passes), root + branches * own)
    pools = [torch.randn(slots, groups, size, device=card.device).to(kernels.kv_dtype) for _ in range(2)]
    bytes_each = pools[0].element_size() * 2 * groups * size

    def time_of(meta: AttnMeta) -> float:
        q = torch.randn(int(meta.query_start[-1]), heads, size, device=card.device).to(kernels.activation_dtype)
        return card.seconds(card.captured(lambda: kernels.attention(q, pools[0], pools[1], meta, size**-0.5)))

    found = []
    for batch, context in passes:
        took = time_of(crowd([context] * batch, [1] * batch))
        floor = batch * context * bytes_each / limits.bandwidth
        found.append(Row(f"attention, {batch} rows of {context} positions", took * 1e6, "us", floor / took, "85 %"))
    apart, together = (time_of(tree(branches, root, own, share=share)) for share in (False, True))
    floor = (root + branches * own) * bytes_each / limits.bandwidth
    found.append(Row(f"attention, {branches} branches under {root}, shared", together * 1e6, "us", floor / together))
    return [*found, Row(f"attention, {branches} branches under {root}: sharing is faster by", apart / together, "x", None, "5 x")]


def random_weights(shape: Shape, device: str, dtype: torch.dtype, positions: int) -> DecoderWeights:
    def linear(out: int, size: int) -> Linear:
        return Linear(torch.randn(out, size, device=device, dtype=dtype) * size**-0.5)

    def norm() -> Tensor:
        return torch.ones(shape.hidden, device=device)

    wide, narrow, hidden = shape.heads * shape.size, shape.groups * shape.size, shape.hidden
    layers = tuple(
        LayerWeights(
            norm(), linear(wide, hidden), linear(narrow, hidden), linear(narrow, hidden), linear(hidden, wide),
            norm(), linear(shape.inner, hidden), linear(shape.inner, hidden), linear(hidden, shape.inner),
        )
        for _ in range(shape.layers)
    )  # fmt: skip
    angles = torch.outer(torch.arange(positions), 500_000.0 ** (-torch.arange(0, shape.size, 2) / shape.size)).to(device)
    head = linear(shape.vocabulary, hidden)
    table = RopeTable(angles.cos().contiguous(), angles.sin().contiguous())
    assert isinstance(head.weight, Tensor)
    return DecoderWeights(head.weight, layers, norm(), head, table, shape.heads, shape.groups, shape.size, 1e-5)


class Model:
    """A model of random weights, and passes of it."""

    def __init__(self, card: Card, kernels: Kernels, shape: Shape) -> None:
        self.card, self.kernels, self.shape = card, kernels, shape
        self.weights = random_weights(shape, card.device, kernels.activation_dtype, max(CONTEXTS) + 1)
        self.on(kernels)

    def on(self, kernels: Kernels) -> None:
        self.kernels = kernels
        self.model = LlamaModel(SimpleNamespace(vocab_size=self.weights.head.out_features), self.weights, kernels)  # type: ignore[arg-type]  # all that a pass asks of it

    def step(self, batch: int, rows: int, context: int) -> Callable[[], Tensor]:
        """A forward pass of `batch` sequences, the last `rows` of each, as a function of nothing that returns logits."""
        shape, device = self.shape, self.card.device
        meta = crowd([context] * batch, [rows] * batch)
        pools = [torch.zeros(shape.layers, batch * context, shape.groups, shape.size, device=device, dtype=self.kernels.kv_dtype) for _ in range(2)]
        positions = torch.arange(context - rows, context, dtype=torch.int32).repeat(batch)
        last = torch.arange(1, batch + 1, dtype=torch.int32) * rows - 1
        ids = torch.randint(0, shape.vocabulary, (batch * rows,), dtype=torch.int32)
        slots = meta.tables[:, context - rows :].reshape(-1)
        inputs = DecoderInput(*(x.contiguous().to(device) for x in (ids, positions, slots, last)), meta)
        return lambda: self.model.forward(inputs, *pools)


def model(card: Card, kernels: Kernels, shape: Shape, limits: Floors, trace: Path | None, steps: dict[int, float]) -> Iterator[Row]:
    """Decode, prefill, gaps and the deterministic mode. steps: seconds of a decode step by batch, at the shorter context, are noted there."""
    batches, contexts, prompt = (DRY_BATCHES, DRY_CONTEXTS, DRY_PROMPT) if card.dry else (BATCHES, CONTEXTS, PROMPT)
    made = Model(card, kernels, shape)
    for context in contexts:
        for batch in batches:
            kv = batch * context * shape.kv_bytes
            what = f"{shape.name} decode, {batch} at {context}"
            if kv * 1.1 + (4 << 30 if not card.dry else 0) > card.memory():
                card.skipped.append(f"{what} ({kv / 2**30:.0f} GiB of KV do not fit)")
                continue
            if not card.has(20, what):
                continue
            run = card.captured(made.step(batch, 1, context))
            took = card.seconds(run, turns=10)
            goal = "80 %" if shape.name == "8B" and batch in (1, 64) and context == 1024 else ""
            yield Row(what, batch / took, "tokens/s", (shape.weight_bytes + kv) / limits.bandwidth / took, goal)
            if context == contexts[0]:
                steps[batch] = took
            del run
            release(card)
    if card.has(15, f"{shape.name} prefill"):
        took = card.seconds(made.step(1, prompt, prompt), turns=5)
        yield Row(f"{shape.name} prefill of {prompt}", prompt / took, "tokens/s", 2 * shape.products * prompt / limits.rate / took, "65 %")
    release(card)
    if card.has(25, f"{shape.name} gaps"):
        yield from gaps(card, made, batches[-2], contexts[0], trace)
    if card.has(25, f"{shape.name} deterministic"):
        made.on(get_kernels(card.device, "triton", deterministic=True))
        batch = batches[-2]
        took = card.seconds(card.captured(made.step(batch, 1, contexts[0])), turns=10)
        what = f"{shape.name} decode, {batch} at {contexts[0]}, deterministic"
        yield Row(what, batch / took, "tokens/s", steps.get(batch, took) / took, "", "the speed with cuBLAS")
    del made
    release(card)


def gaps(card: Card, made: Model, batch: int, context: int, trace: Path | None) -> list[Row]:
    """Steps as an engine makes them: a captured pass, and the draw of the next ids, queued one after the other."""
    run = card.captured(made.step(batch, 1, context))
    sampler = made.kernels.sampler()
    assert sampler is not None
    rows, _ = some_rows(batch, made.shape.vocabulary, card.device, temperature=0.0)
    logits = torch.randn(batch, made.shape.vocabulary, device=card.device)
    draw = card.captured(lambda: sampler.draw(logits, rows))

    def step() -> None:
        run()
        draw()

    idle = card.idle_share(step, 10, trace)
    return [Row(f"{made.shape.name} idle between kernels, steps of {batch} at {context}", 100 * idle, "% of the time", None, "3 %")]


KINDS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0}, "all ids": {}, "top-p 0.9": {"temperature": 0.7, "top_p": 0.9}, "top-k 50": {"top_k": 50},
    "penalties": {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.1},
}  # fmt: skip


def sampling(card: Card, kernels: Kernels, batch: int, step: float | None) -> list[Row]:
    """What a draw costs beside the `step` (seconds) that made its logits; and what a mask adds to it, its copy to the card included."""
    vocabulary, found = 300 if card.dry else 128_256, []
    sampler = kernels.sampler()
    assert sampler is not None
    logits = torch.randn(batch, vocabulary, device=card.device) * 3
    times = {}
    for name, params in KINDS.items():
        rows, _ = some_rows(batch, vocabulary, card.device, **params)
        times[name] = card.seconds(card.captured(partial(sampler.draw, logits, rows)))
        of_step = "" if step is None else f", {100 * times[name] / step:.2f} % of a step"
        found.append(Row(f"draw, {batch} rows, {name}{of_step}", times[name] * 1e6, "us"))
    bits = torch.randint(-(2**31), 2**31 - 1, (batch, (vocabulary + 31) // 32), dtype=torch.int32)
    bits = bits if card.dry else bits.pin_memory()
    on_card = torch.full_like(bits, -1, device=card.device)
    rows, _ = some_rows(batch, vocabulary, card.device, **KINDS["top-p 0.9"])
    masked = replace(rows, bits=on_card, bits_row=torch.arange(batch, dtype=torch.int32, device=card.device))
    draw = card.captured(partial(sampler.draw, logits, masked))

    def constrained() -> None:
        on_card.copy_(bits, non_blocking=True)
        draw()

    if step is not None:
        extra = card.seconds(constrained) - times["top-p 0.9"]
        found.append(Row(f"mask of {batch} rows beside a step", 100 * extra / step, "% of the step", None, "3 %"))
    chosen = torch.zeros(batch, 1, dtype=torch.int32, device=card.device)
    took = card.seconds(card.captured(partial(sampler.logprobs, logits, chosen, 5)))
    return [*found, Row(f"logprobs, {batch} rows, 5 likeliest", took * 1e6, "us")]


def release(card: Card) -> None:
    if not card.dry:
        torch.cuda.empty_cache()
