"""Pinned prefixes stay; they expire, are limited, and give way rather than stop the engine."""

from __future__ import annotations

import time

import hypothesis.strategies as st
import numpy as np
import pytest
from fakes import FakeRunner, byte_tokenizer
from hypothesis import given, settings

from ramet.radix_cache import Namespace, PrefixCache
from ramet.runtime.config import EngineConfig
from ramet.runtime.engine import Engine
from ramet.runtime.errors import RequestError, UnsupportedError
from ramet.runtime.pins import Pins
from ramet.runtime.protocol import GenerateRequest, SamplingParams


def engine(slots: int = 100, **options) -> Engine:
    return Engine(FakeRunner(slots=slots), byte_tokenizer(), EngineConfig(**options))


def run(engine: Engine, ids, rid: str, tokens: int = 0, salt: str = ""):
    request = GenerateRequest(rid, tuple(ids), SamplingParams(max_new_tokens=tokens, temperature=0, ignore_eos=True), cache_salt=salt)
    last = list(engine.generate(request))[-1]
    engine.check()
    return last


def test_a_pinned_prefix_outlives_what_would_evict_it():
    made, prefix = engine(), range(40)
    run(made, prefix, "a")
    assert made.pins.pin(tuple(prefix), 60) == 40
    for i in range(4):
        run(made, [50 + i] * 50, f"b{i}")
    assert run(made, [*prefix, 99], "again").usage.cached_tokens == 40
    assert made.pins.unpin(tuple(prefix)) and not made.pins.unpin(tuple(prefix))
    for i in range(4):
        run(made, [150 + i] * 90, f"c{i}")
    assert run(made, [*prefix, 99], "gone").usage.cached_tokens == 0


def test_pins_expire():
    made = engine()
    run(made, range(40), "a")
    made.pins.pin(tuple(range(40)), 0.01)
    time.sleep(0.02)
    run(made, [7] * 90, "b")
    assert len(made.pins) == 0


def test_pins_give_way_to_a_request_that_nothing_else_lets_run():
    made = engine()
    run(made, range(40), "a")
    made.pins.pin(tuple(range(40)), 60)
    assert run(made, [7] * 90, "needs nearly all").finish is not None
    assert len(made.pins) == 0


def test_their_share_is_limited_and_pinning_again_renews():
    made = engine()
    run(made, range(60), "a")
    with pytest.raises(RequestError, match="half of the pool"):
        made.pins.pin(tuple(range(60)), 60)
    assert made.pins.pin(tuple(range(40)), 60) == made.pins.pin(tuple(range(40)), 60) == made.pins.tokens == 40
    made.check()


def test_a_pin_that_would_grow_over_the_share_stays_as_it_was():
    made = engine()
    run(made, range(40), "a")
    assert made.pins.pin(tuple(range(60)), 60) == 40  # what is cached of it
    run(made, range(60), "b")
    with pytest.raises(RequestError, match="half of the pool"):
        made.pins.pin(tuple(range(60)), 60)
    assert made.pins.tokens == 40 and made.pins.unpin(tuple(range(60)))
    made.check()


def test_salts_flush_and_no_cache():
    made = engine()
    run(made, range(20), "a", salt="s")
    assert made.pins.pin(tuple(range(20)), 60) == 0 and made.pins.pin(tuple(range(20)), 60, Namespace("s")) == 20
    assert made.flush_cache() and len(made.pins) == 0 and made.cache.free == 100
    with pytest.raises(UnsupportedError, match="disabled"):
        engine(disable_radix_cache=True).pins.pin((1, 2), 60)


ids = st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple)


@given(st.lists(st.tuples(st.sampled_from(["pin", "unpin", "use", "way"]), ids), max_size=20))
@settings(max_examples=60, deadline=None)
def test_whatever_is_pinned_every_slot_is_accounted_for(actions):
    cache = PrefixCache(64)
    pins = Pins(cache)
    for action, prefix in actions:
        if action == "pin":
            assert pins.pin(prefix, 60) == cache.peek(np.array(prefix, dtype=np.int32))
        elif action == "unpin":
            pins.unpin(prefix)
        elif action == "way":
            pins.give_way()
        else:
            array = np.array(prefix, dtype=np.int32)
            lease = cache.match_and_lock(array)
            if cache.reserve(lease, len(prefix) - len(lease.slots)) is not None or len(lease.slots) == len(prefix):
                cache.release(lease, array)
            else:
                cache.release(lease, array[: len(lease.slots)])
        cache.check()
    pins.clear()
    assert cache.flush() and cache.free == 64
