"""Prometheus metrics, one registry a server: `ramet:` and the nouns that SGLang's dashboards use."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ..errors import CancelledError
from ..protocol import Chunk, GenerateRequest, Usage

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKENS = (1, 4, 16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)

# name in the engine's stats -> metric, its text; "_total" ones are counters
FROM_STATS = {
    "running": ("num_running_reqs", "Requests that are computed"),
    "waiting": ("num_queue_reqs", "Requests that wait"),
    "used_tokens": ("num_used_tokens", "KV slots in use by requests and by the tree"),
    "protected_tokens": ("kv_protected_tokens", "KV slots that running requests hold"),
    "evictable_tokens": ("kv_evictable_tokens", "KV slots of the tree that may be evicted"),
    "free_tokens": ("kv_available_tokens", "KV slots that are free"),
    "pool_tokens": ("max_total_num_tokens", "KV slots of the pool"),
    "token_usage": ("token_usage", "Used share of the pool"),
    "cache_hit_rate": ("cache_hit_rate", "Prompt tokens found in the tree, of those asked for"),
    "gen_throughput": ("gen_throughput", "Tokens a second, lately"),
    "steps": ("num_steps_total", "Forward passes"),
    "evicted_tokens": ("evicted_tokens_total", "KV slots evicted"),
    "retractions": ("num_retracted_requests_total", "Requests taken back to the queue"),
    "grammars_compiled": ("num_grammar_total", "Grammars asked for"),
    "grammar_cache_hits": ("num_grammar_cache_hit_total", "Grammars found compiled"),
    "grammar_compile_seconds": ("grammar_compilation_time_seconds_total", "Seconds spent compiling grammars"),
    "grammar_cache_bytes": ("grammar_cache_bytes", "Bytes that compiled grammars take"),
}


class Metrics:
    """Counts at the border; the engine's own numbers come from its latest stats when they are read."""

    def __init__(self, stats: Callable[[], dict[str, Any]]) -> None:
        self.registry = CollectorRegistry()

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"ramet:{name}", text, buckets=buckets, registry=self.registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"ramet:{name}", text, labels, registry=self.registry)

        self.ttft = histogram("time_to_first_token_seconds", "From submit to the first token", _SECONDS)
        self.tpot = histogram("time_per_output_token_seconds", "Mean gap between the tokens of one output after the first", _SECONDS)
        self.queue = histogram("queue_time_seconds", "From submit until first planned", _SECONDS)
        self.e2e = histogram("e2e_request_latency_seconds", "From submit to the last token", _SECONDS)
        self.prompt_length = histogram("prompt_tokens_histogram", "Prompt tokens of one request", _TOKENS)
        self.output_length = histogram("generation_tokens_histogram", "Tokens of one output", _TOKENS)
        self.prompt = counter("prompt_tokens_total", "Prompt tokens")
        self.cached = counter("cached_tokens_total", "Prompt tokens found in the tree")
        self.generated = counter("generation_tokens_total", "Output tokens, forced ones too")
        self.forced = counter("forced_tokens_total", "Output tokens appended without sampling")
        self.requests = counter("num_requests_total", "Outputs that ended, by reason", "finish_reason")
        self.aborted = counter("num_aborted_requests_total", "Outputs aborted")
        self.http = counter("http_requests_total", "HTTP requests answered", "method", "path", "status")
        self.registry.register(_FromStats(stats))

    def observe(self, request: GenerateRequest, chunk: Chunk) -> None:
        """Called with every chunk that arrives; only the last of an output counts."""
        if chunk.error is not None:
            aborted = isinstance(chunk.error, CancelledError)
            self.requests.labels("abort" if aborted else "error").inc()
            if aborted:
                self.aborted.inc()
        elif chunk.finish is not None:
            self.requests.labels(chunk.finish.type).inc()
            if chunk.finish.type == "abort":
                self.aborted.inc()
            if chunk.usage is not None:
                self._count(chunk.usage, first=chunk.index == 0)
            if chunk.timings is not None:
                for metric, value in ((self.queue, chunk.timings.queue), (self.ttft, chunk.timings.ttft), (self.e2e, chunk.timings.e2e)):
                    metric.observe(value)
                if chunk.usage is not None and chunk.usage.completion_tokens > 1:
                    self.tpot.observe(chunk.timings.tpot)

    def _count(self, usage: Usage, *, first: bool) -> None:
        if first:  # the n outputs of a request share its prompt
            self.prompt.inc(usage.prompt_tokens)
            self.cached.inc(usage.cached_tokens)
            self.prompt_length.observe(usage.prompt_tokens)
        self.generated.inc(usage.completion_tokens)
        self.forced.inc(usage.forced_tokens)
        self.output_length.observe(usage.completion_tokens)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _FromStats:
    def __init__(self, stats: Callable[[], dict[str, Any]]) -> None:
        self.stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self.stats()
        for key, (name, text) in FROM_STATS.items():
            value = stats.get(key)
            if isinstance(value, (int, float)):
                kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                yield kind(f"ramet:{name}", text, value=value)
