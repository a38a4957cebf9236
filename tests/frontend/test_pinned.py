"""Compiled programs pin their constant beginnings, in process and on a server."""

from __future__ import annotations

import gc
import warnings

import pytest
from fakes import fake_engine
from serving import wait_for

import ramet
from ramet import gen
from ramet.frontend import pinned
from ramet.runtime.loop import EngineLoop

SHOTS = "Question: what is a ramet? Answer: one stem of many that share a root.\n" * 3


@ramet.function
def ask(s, question):
    s += SHOTS
    s += question + gen("a", max_tokens=1)


def runtime(slots=600, **config):
    return ramet.Runtime.on(EngineLoop(fake_engine(slots, 4096, **config)))


def flood(backend):
    """Fills the pool with other prompts, so that everything goes that can be evicted."""
    program = ramet.function(lambda s, i: s.__iadd__(f"{i}" * 150 + gen("x", max_tokens=1)) and None)
    for i in range(10, 16):
        program.run(f"{i}", backend=backend)


def cached(backend):
    return ask.run("why?", backend=backend).get_meta_info("a")["cached_tokens"]


def test_the_beginning_outlives_a_flood_and_is_let_go_at_close():
    with runtime() as backend:
        compiled = ask.compile(backend)
        assert compiled.pinned_tokens == compiled.prefix_tokens > 150
        flood(backend)
        assert cached(backend) >= compiled.prefix_tokens
        compiled.close()
        compiled.close()
        assert compiled.pinned_tokens == 0 and compiled.run("how?")["a"] is not None
        wait_for(lambda: flood(backend) or cached(backend) == 0, 5)


def test_a_program_that_is_forgotten_lets_go():
    with runtime() as backend:
        compiled = ask.compile(backend)
        flood(backend)
        assert cached(backend) > 150
        del compiled
        gc.collect()
        wait_for(lambda: flood(backend) or cached(backend) == 0, 5)


def test_two_programs_of_one_beginning_hold_it_together():
    with runtime() as backend:
        with ask.compile(backend) as first:
            ask.compile(backend).close()
            flood(backend)
            assert cached(backend) >= first.prefix_tokens
        wait_for(lambda: flood(backend) or cached(backend) == 0, 5)


class Noting(ramet.Fake):
    """Notes what it is asked to pin."""

    def __init__(self, refusal=None):
        super().__init__("ok")
        self.noted, self.refusal = [], refusal

    def pin(self, ids, ttl, cache_salt=""):
        self.noted.append((tuple(ids), ttl, cache_salt))
        if self.refusal is not None:
            raise self.refusal
        return len(ids)

    def unpin(self, ids, cache_salt=""):
        self.noted.append(tuple(ids))
        return True


def test_pins_are_renewed_by_use_before_they_expire(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(pinned.time, "monotonic", lambda: now[0])
    with Noting() as backend:
        holds = pinned.Pinned(backend, (1, 2, 3))
        holds.renew()
        assert backend.noted == [((1, 2, 3), pinned.TTL, "")]
        now[0] += 0.6 * pinned.TTL
        holds.renew()
        assert len(backend.noted) == 2
        holds.close()
        now[0] += pinned.TTL
        holds.renew()
        wait_for(lambda: backend.noted[2:] == [(1, 2, 3)], 2)


def test_a_pool_full_of_pins_is_a_warning_and_a_switched_off_cache_is_not():
    with Noting(ramet.RequestError("too much is pinned")) as backend, pytest.warns(RuntimeWarning, match="too much"):
        compiled = ask.compile(backend)
        assert compiled.pinned_tokens == 0 and compiled.run("?")["a"] == "ok"
    with warnings.catch_warnings(), runtime(disable_radix_cache=True) as backend:
        warnings.simplefilter("error")
        compiled = ask.compile(backend)
        assert compiled.pinned_tokens == 0 and compiled.prefix_tokens > 150


def test_backends_without_a_cache_of_their_own_have_nothing_to_pin(fake):
    backend = fake("ok")
    compiled = ask.compile(backend)
    assert compiled.pinned_tokens == 0 and len(backend.calls) == 1  # the beginning, computed ahead
    compiled.close()
