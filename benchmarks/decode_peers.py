"""Who generates tokens in benchmarks/decode.py: Ramet's engine, transformers, llama-server. Each is timed the same way:
seconds until every stream has its first token, and tokens a second of all streams from there on."""
from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
import urllib.request
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ramet.kernels.blocks import dequantize
from ramet.kernels.interface import DecoderWeights, PackedWeight

Prompts = list[tuple[int, ...]]


@dataclass(frozen=True)
class Timing:
    first: float  # seconds until all streams had a token
    rate: float  # tokens a second after that; 0 where only one was wanted


class Peer(Protocol):
    name: str

    def run(self, prompts: Prompts, new: int) -> Timing: ...

    def close(self) -> None: ...


class RametPeer:
    """The engine, stepped in this process, with nothing in its cache."""

    name = "ramet"

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        from ramet.runtime.config import EngineConfig
        from ramet.runtime.engine import Engine

        self.engine = Engine.open(EngineConfig.of(model_path=model, **options))
        self._runs = 0

    def run(self, prompts: Prompts, new: int) -> Timing:
        from ramet.runtime.protocol import GenerateRequest, SamplingParams

        self.engine.flush_cache()
        self._runs += 1
        params = SamplingParams(max_new_tokens=new, temperature=0.0, ignore_eos=True)
        begin = time.perf_counter()
        for i, prompt in enumerate(prompts):
            self.engine.submit(GenerateRequest(f"{self._runs}-{i}", prompt, params))
        counts: dict[str, int] = {}
        first = at_first = 0.0
        while self.engine.busy:
            for chunk in self.engine.step():
                if chunk.error is not None:
                    raise chunk.error
                counts[chunk.rid] = counts.get(chunk.rid, 0) + len(chunk.token_ids)
            if not first and len(counts) == len(prompts):
                first, at_first = time.perf_counter(), sum(counts.values())
        assert set(counts.values()) == {new}, f"every stream must have {new} tokens: {counts}"
        rest = sum(counts.values()) - at_first
        return Timing(first - begin, rest / (time.perf_counter() - first) if rest else 0.0)

    def close(self) -> None:
        pass


class TransformersPeer:
    """`generate` on the numbers that the file's blocks stand for. Its rate is that of the first few tokens: in bfloat16, on a
    processor that has no bfloat16 of its own, more would take minutes."""

    name = "transformers"
    MOST = 12

    def __init__(self, weights: DecoderWeights, threads: int, dtype: torch.dtype) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.set_num_threads(threads)
        layer = weights.layers[0]
        config = LlamaConfig(
            vocab_size=weights.head.out_features, hidden_size=layer.q.in_features, intermediate_size=layer.up.out_features,
            num_hidden_layers=len(weights.layers), num_attention_heads=weights.n_heads, num_key_value_heads=weights.n_kv_heads,
            head_dim=weights.head_dim, rms_norm_eps=weights.rms_eps, max_position_embeddings=weights.rope.cos.shape[0],
            tie_word_embeddings=weights.embed is weights.head.weight, eos_token_id=None, bos_token_id=None,
        )  # fmt: skip
        with torch.device("meta"):
            self.model = LlamaForCausalLM(config)
        self.model.load_state_dict(_state(weights, dtype), strict=False, assign=True)
        self.model.tie_weights()
        self.model.model.rotary_emb = type(self.model.model.rotary_emb)(config)
        self.model.eval()

    def run(self, prompts: Prompts, new: int) -> Timing:
        from transformers import StoppingCriteriaList

        new = min(new, self.MOST)
        times: list[float] = []

        def note(ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            times.append(time.perf_counter())
            return torch.zeros(ids.shape[0], dtype=torch.bool)

        ids = torch.tensor(prompts)
        begin = time.perf_counter()
        with torch.inference_mode():
            out = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0,
                stopping_criteria=StoppingCriteriaList([note]),  # type: ignore[list-item]
            )  # fmt: skip
        assert out.shape[1] == ids.shape[1] + new
        return Timing(times[0] - begin, len(prompts) * (new - 1) / (times[-1] - times[0]) if new > 1 else 0.0)

    def close(self) -> None:
        pass


def _state(weights: DecoderWeights, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    def plain(weight: torch.Tensor | PackedWeight) -> torch.Tensor:
        return (dequantize(weight) if isinstance(weight, PackedWeight) else weight).to(dtype)

    names = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
             "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}  # fmt: skip
    state = {"model.embed_tokens.weight": plain(weights.embed), "model.norm.weight": weights.norm.to(dtype)}
    state["lm_head.weight"] = state["model.embed_tokens.weight"] if weights.embed is weights.head.weight else plain(weights.head.weight)
    for i, layer in enumerate(weights.layers):
        for ours, theirs in names.items():
            state[f"model.layers.{i}.{theirs}.weight"] = plain(getattr(layer, ours).weight)
        state[f"model.layers.{i}.input_layernorm.weight"] = layer.attn_norm.to(dtype)
        state[f"model.layers.{i}.post_attention_layernorm.weight"] = layer.mlp_norm.to(dtype)
    return state


class LlamaServerPeer:
    """A llama-server that this object starts and stops, on one GGUF file."""

    def __init__(self, binary: str, model: str, threads: int, streams: int, context: int, name: str) -> None:
        self.name = name
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process = subprocess.Popen(
            [binary, "-m", model, "--port", str(self.port), "-t", str(threads), "-np", str(streams), "-c", str(streams * context), "-fa", "on",
             "--no-webui"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._wait()

    def _wait(self) -> None:
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                if self.process.poll() is not None:
                    raise RuntimeError(f"{self.name}: the server ended with {self.process.returncode}") from None
            time.sleep(0.1)
        raise RuntimeError(f"{self.name}: the server did not come up within a minute")

    def run(self, prompts: Prompts, new: int) -> Timing:
        firsts, errors = [0.0] * len(prompts), []

        def one(i: int) -> None:
            body = {"prompt": list(prompts[i]), "n_predict": new, "temperature": 0, "ignore_eos": True, "cache_prompt": False, "stream": True}
            request = urllib.request.Request(f"http://127.0.0.1:{self.port}/completion", json.dumps(body).encode())
            try:
                with urllib.request.urlopen(request, timeout=600) as answer:
                    for line in answer:
                        if line.startswith(b"data:") and not firsts[i]:
                            firsts[i] = time.perf_counter()
            except OSError as error:
                errors.append(error)

        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(prompts))]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        end = time.perf_counter()
        if errors:
            raise errors[0]
        # Streams that started early had tokens before the last began: the server is credited with its whole decode time.
        return Timing(max(firsts) - begin, len(prompts) * (new - 1) / (end - sum(firsts) / len(firsts)) if new > 1 else 0.0)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()
