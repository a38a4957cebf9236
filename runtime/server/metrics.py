"""Prometheus metrics, one registry a server: `ramet:` and the nouns that SGLang's dashboards use."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from ..errors import CancelledError
from ..protocol import Chunk, GenerateRequest, Usage

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKENS = (1, 4, 16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)

# path in the engine's stats -> metric and its text; names that end in "_total" are counters
FROM_STATS = {
    "running": ("num_running_reqs", "Requests that are computed"),
    "waiting": ("num_queue_reqs", "Requests that wait"),
    "steps": ("num_steps_total", "Forward passes"),
    "computed_tokens": ("computed_tokens_total", "Rows of all forward passes"),
    "pool.slots": ("max_total_num_tokens", "KV slots of the pool"),
    "pool.free": ("kv_available_tokens", "KV slots that are free"),
    "pool.cached": ("kv_cached_tokens", "KV slots that the tree holds"),
    "pool.evictable": ("kv_evictable_tokens", "KV slots of the tree that may be evicted"),
    "pinned_tokens": ("kv_pinned_tokens", "KV slots that pins protect"),
    "tree_nodes": ("radix_tree_nodes", "Nodes of the tree"),
    "evicted_tokens": ("evicted_tokens_total", "KV slots evicted"),
    "saved_tokens": ("saved_tokens_total", "Tokens that requests found in the tree when they began, answers of earlier turns included"),
    "tiers.host_bytes": ("host_cache_bytes", "KV in host memory below the pool"),
    "tiers.disk_bytes": ("disk_cache_bytes", "KV in cache_dir"),
    "tiers.loaded_tokens": ("loaded_tokens_total", "Tokens whose KV was read back from host memory or disk"),
    "tiers.loading": ("num_loading_prefixes", "Prefixes that are being read back"),
    "retractions": ("num_retracted_requests_total", "Requests taken back to the queue"),
    "grammars.compiled": ("num_grammar_total", "Grammars compiled"),
    "grammars.hits": ("num_grammar_cache_hit_total", "Grammars found compiled"),
    "grammars.bytes": ("grammar_cache_bytes", "Bytes that compiled grammars take"),
}


HISTOGRAMS = {
    "step_seconds": ("step_seconds", "Time of a forward pass with all that belongs to it"),
    "between_steps_seconds": ("between_steps_seconds", "Time between two steps while there is work"),
    "grammars.compile_seconds": ("grammar_compilation_time_seconds", "Time that compiling a grammar took"),
    "delivery_seconds": ("delivery_seconds", "Time of a step's chunks from the engine process to this one"),
    "event_loop_lag_seconds": ("event_loop_lag_seconds", "By how much this process came too late to its event loop"),
}


def lookup(stats: dict[str, Any], path: str) -> float | None:
    """A number of nested stats; None when it is not there."""
    value = _at(stats, path)
    return value if isinstance(value, (int, float)) else None


def _at(stats: dict[str, Any], path: str) -> Any:
    value: Any = stats
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _buckets(shot: dict[str, Any]) -> list[tuple[str, float]]:
    """Cumulative counts, as Prometheus wants them."""
    return list(zip([*map(floatToGoString, shot["bounds"]), "+Inf"], accumulate(shot["counts"]), strict=True))


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
        self.hit_rate = Gauge("ramet:cache_hit_rate", "Prompt tokens found in the tree, of those of the last 1000 requests", registry=self.registry)
        self._recent: deque[Usage] = deque(maxlen=1000)
        self.latencies: deque[dict[str, float]] = deque(maxlen=200)  # of the last outputs, for the page
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
                    self.latencies.append({"time": time.time(), "ttft": chunk.timings.ttft, "tpot": chunk.timings.tpot})

    def _count(self, usage: Usage, *, first: bool) -> None:
        if first:  # the n outputs of a request share its prompt
            self.prompt.inc(usage.prompt_tokens)
            self.cached.inc(usage.cached_tokens)
            self.prompt_length.observe(usage.prompt_tokens)
            self._recent.append(usage)
        self.generated.inc(usage.completion_tokens)
        self.forced.inc(usage.forced_tokens)
        self.output_length.observe(usage.completion_tokens)

    def recent_hit_rate(self) -> float:
        asked = sum(usage.prompt_tokens for usage in self._recent)
        return sum(usage.cached_tokens for usage in self._recent) / asked if asked else 0.0

    def text(self) -> bytes:
        self.hit_rate.set(self.recent_hit_rate())
        return generate_latest(self.registry)


class _FromStats:
    """Reads the engine's latest stats when the registry is read."""

    def __init__(self, stats: Callable[[], dict[str, Any]]) -> None:
        self.stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self.stats()
        for path, (name, text) in FROM_STATS.items():
            if (value := lookup(stats, path)) is not None:
                yield (CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily)(f"ramet:{name}", text, value=value)
        for path, (name, text) in HISTOGRAMS.items():
            if (shot := _at(stats, path)) is not None:
                yield HistogramMetricFamily(f"ramet:{name}", text, buckets=_buckets(shot), sum_value=shot["sum"])
        slots, free = lookup(stats, "pool.slots"), lookup(stats, "pool.free")
        if slots and free is not None:
            yield GaugeMetricFamily("ramet:num_used_tokens", "KV slots in use", value=slots - free)
            yield GaugeMetricFamily("ramet:token_usage", "Used share of the pool", value=1 - free / slots)
