"""What do 8-bit activations and a half-precision cache cost in quality?

    python benchmarks/quality.py [--model smollm2-135m] [--tokens 4000] [--text FILE] [--json FILE]

The model reads a text twice: with the fast kernels on the packed weights, and in float32 on the numbers that the file's blocks
stand for. Printed is how far the first is from the second: the KL divergence of the next-token distributions in nats, and how
often both would choose the same token. The text is this repository's documentation unless another is given.
"""
from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from ramet.kernels import get_kernels
from ramet.kernels.interface import AttnMeta, DecoderInput
from ramet.runtime.config import DEFAULT_MODEL, EngineConfig
from ramet.runtime.hub import resolve
from ramet.runtime.tokenizer_files import load_tokenizer
from ramet.runtime.weights import LoadedModel, load_model

CHUNK, CONTEXT = 128, 2048  # rows of a pass; after so many tokens the context begins anew


class Reader:
    """One way to run the model: gives the logits of a text, chunk after chunk."""

    def __init__(self, loaded: LoadedModel, compute: str, cache: torch.dtype) -> None:
        self.decoder: Any = get_kernels("cpu", "cpu", dtype=compute).decoder(loaded.weights)
        shape = loaded.config
        self.pools = [torch.zeros(shape.n_layers, CONTEXT, shape.n_kv_heads, shape.head_dim, dtype=cache) for _ in range(2)]

    def logits(self, ids: torch.Tensor, start: int) -> torch.Tensor:
        """(rows, vocabulary) of ids at positions start.. of the current context."""
        rows, stop = len(ids), start + len(ids)
        places = torch.arange(stop, dtype=torch.int32)
        meta = AttnMeta(torch.tensor([0, rows], dtype=torch.int32), torch.tensor([stop], dtype=torch.int32), places.unsqueeze(0), stop, rows)
        every = torch.arange(rows, dtype=torch.int32)
        out: torch.Tensor = self.decoder.forward(DecoderInput(ids, places[start:].clone(), places[start:].clone(), every, meta), *self.pools)
        return out


def compare(loaded: LoadedModel, ids: torch.Tensor, cache: torch.dtype) -> dict[str, float]:
    exact, fast = Reader(loaded, "float32", torch.float32), Reader(loaded, "auto", cache)
    divergences, same = [], []
    for begin in range(0, len(ids), CHUNK):
        part = ids[begin : begin + CHUNK]
        want, got = (reader.logits(part, begin % CONTEXT).log_softmax(-1) for reader in (exact, fast))
        divergences.append((want.exp() * (want - got)).sum(-1))
        same.append(want.argmax(-1) == got.argmax(-1))
    all_kl = torch.cat(divergences)
    return {
        "kl_mean": all_kl.mean().item(), "kl_99": all_kl.quantile(0.99).item(), "kl_max": all_kl.max().item(),
        "same_choice": torch.cat(same).float().mean().item(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    config = EngineConfig.of(model_path=options.model)
    files = resolve(options.model)
    root = Path(__file__).resolve().parents[1]
    texts = [options.text] if options.text else [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    text = "\n\n".join(path.read_text(encoding="utf-8") for path in texts)
    ids = torch.tensor(load_tokenizer(files, config).encode(text)[: options.tokens], dtype=torch.int32)
    loaded = load_model(files, config)
    results = {}
    for cache in (torch.float32, torch.float16, torch.bfloat16):
        name = f"8-bit activations, {str(cache).removeprefix('torch.')} cache"
        results[name] = figures = compare(loaded, ids, cache)
        print(f"{name:36} {len(ids)} tokens: KL mean {figures['kl_mean']:.5f}, 99% {figures['kl_99']:.4f}, max {figures['kl_max']:.3f};"
              f" same first choice {figures['same_choice']:.1%}", flush=True)  # fmt: skip
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"tokens": len(ids), "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
