"""How many tokens a second, alone and in a crowd? Ramet against transformers, and against llama-server where there is one.

    python benchmarks/decode.py [--model smollm2-135m] [--rounds 3] [--json FILE] [--lines decode_1,prefill]
                                [--llama-server PATH [--llama-model FILE.gguf ...]]

Rounds alternate between the peers, and a figure is the median of its rounds. Decode lines are named by the number of streams
(and the context where it is not 128 tokens): tokens a second of all streams together, after each has its first token. Prefill
lines are prompt tokens a second up to the first answer token. Each figure of Ramet is also given as a share of its floor, see
benchmarks/machine.py. transformers runs `generate` on the same weights, in bfloat16 unless --transformers-dtype says float32, which is
quicker on processors without bfloat16.
"""
from __future__ import annotations

import argparse
import json
import os
import random
import statistics
from dataclasses import dataclass

import torch
from decode_peers import LlamaServerPeer, Peer, RametPeer, TransformersPeer
from machine import Machine, Work, measure, work_of

from ramet.runtime.config import DEFAULT_MODEL, EngineConfig
from ramet.runtime.hub import resolve
from ramet.runtime.weights import load_model


@dataclass(frozen=True)
class Line:
    """`streams` prompts of `prompt` tokens, each continued by `new`."""

    streams: int
    prompt: int
    new: int

    @property
    def prefill(self) -> bool:
        return self.new == 1

    def floor(self, work: Work, machine: Machine) -> float:
        """The most tokens a second that this machine allows."""
        if self.prefill:
            return self.prompt / work.prefill_floor(machine, self.prompt)
        return self.streams / max(work.step_floor(machine, self.streams, self.prompt + self.new // 2))


LINES = {
    "decode_1": Line(1, 96, 64),
    "decode_4": Line(4, 96, 64),
    "decode_16": Line(16, 96, 64),
    "decode_32": Line(32, 96, 64),
    "decode_1_ctx512": Line(1, 480, 64),
    "decode_16_ctx512": Line(16, 480, 64),
    "prefill": Line(1, 512, 1),
    "prefill_2000": Line(1, 2000, 1),
}


def figure(peer: Peer, line: Line, vocabulary: int, seed: int) -> float:
    draw = random.Random(seed)
    prompts = [tuple(draw.randrange(3, vocabulary) for _ in range(line.prompt)) for _ in range(line.streams)]
    timing = peer.run(prompts, line.new)
    return line.prompt / timing.first if line.prefill else timing.rate


def show(name: str, figures: dict[str, float], floor: float) -> str:
    ours = figures["ramet"]
    others = "".join(f" {value:13.1f} {ours / value:6.2f}x" for peer, value in figures.items() if peer != "ramet")
    return f"{name:18} {ours:9.1f}{others} {ours / floor:9.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--lines", default=",".join(LINES), help="which of " + ", ".join(LINES))
    parser.add_argument("--transformers-dtype", choices=("bfloat16", "float32", "none"), default="bfloat16", help="none: leave it out")
    parser.add_argument("--llama-server", metavar="PATH")
    parser.add_argument("--llama-model", metavar="FILE", nargs="*", help="GGUF files for it; default: the model's own")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    unknown = set(options.lines.split(",")) - set(LINES)
    if unknown:
        parser.error(f"unknown lines {', '.join(sorted(unknown))}; there are {', '.join(LINES)}")

    files = resolve(options.model)
    weights = load_model(files, EngineConfig.of(model_path=options.model)).weights
    machine, work = measure(options.threads), work_of(weights)
    peers: list[Peer] = [RametPeer(options.model, {"threads": options.threads})]
    if options.transformers_dtype != "none":
        peers.append(TransformersPeer(weights, options.threads, getattr(torch, options.transformers_dtype)))
    results: dict[str, dict[str, float]] = {}
    try:
        for model in (options.llama_model or [str(files.gguf)]) if options.llama_server else []:
            peers.append(LlamaServerPeer(options.llama_server, model, options.threads, 32, 1024 * 3, f"llama {os.path.basename(model)}"))
        print(f"{'tokens/s':18} {'ramet':>9}" + "".join(f" {p.name[-13:]:>13} {'ratio':>7}" for p in peers[1:]) + f" {'of floor':>9}")
        for name in options.lines.split(","):
            line = LINES[name]
            rounds: dict[str, list[float]] = {peer.name: [] for peer in peers}
            for number in range(options.rounds):
                for peer in peers:
                    rounds[peer.name].append(figure(peer, line, weights.head.out_features, number))
            results[name] = {peer: statistics.median(values) for peer, values in rounds.items()}
            print(show(name, results[name], line.floor(work, machine)), flush=True)
    finally:
        for peer in peers:
            peer.close()
    if options.json:
        with open(options.json, "w") as file:
            json.dump(_report(results, machine, work), file, indent=1)


def _report(results: dict[str, dict[str, float]], machine: Machine, work: Work) -> dict[str, object]:
    """Figures, ratios to transformers and to llama.cpp's best file of each line, and shares of the floor."""
    report: dict[str, object] = {"figures": results, "machine": vars(machine), "work": vars(work)}
    report["share_of_floor"] = {name: figures["ramet"] / LINES[name].floor(work, machine) for name, figures in results.items()}
    for key, prefix in (("ratio_to_transformers", "transformers"), ("ratio_to_llama_cpp", "llama ")):
        best = {name: max((v for peer, v in figures.items() if peer.startswith(prefix)), default=0.0) for name, figures in results.items()}
        report[key] = {name: results[name]["ramet"] / value for name, value in best.items() if value}
    return report


if __name__ == "__main__":
    main()
