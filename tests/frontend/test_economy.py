"""What programs cost on the real engine: forward passes and rows, counted by a fake model."""
from __future__ import annotations

import time

import pytest
from fakes import fake_engine
from serving import wait_for

import ramet
from ramet import gen, select
from ramet.runtime.loop import EngineLoop


@pytest.fixture
def counted():
    """A runtime and its fake model, which counts `passes` and `rows`."""
    engine = fake_engine(8192, 4096)
    with ramet.Runtime.on(EngineLoop(engine)) as runtime:
        yield runtime, engine.runner


def run(body, backend, **options):
    return ramet.function(body).run(backend=backend, temperature=0, ignore_eos=True, **options)


@pytest.mark.parametrize("count", [2, 3, 10, 50])
def test_select_is_one_pass_beyond_what_is_cached(counted, count):
    runtime, model = counted
    options = [f" option number {i}, of {count}" for i in range(count)]
    passes = []

    def body(s):
        s += "A prompt that is cached when the choice comes:" + gen("a", max_tokens=4)
        s.sync()
        before = model.passes
        s += select("v", options)
        s.sync()
        passes.append(model.passes - before)

    run(body, runtime)
    assert passes == [1]


def test_options_share_what_they_have_in_common(counted):
    runtime, model = counted
    options = ["a long common beginning " + x for x in "abcdefgh"]

    def body(s):
        s += "Pick:" + gen("a", max_tokens=1)
        s.sync()
        before = model.rows
        s += select("v", options)
        s.sync()
        return model.rows - before

    assert run(body, runtime).ret_value <= len(options[0]) + len(options) + 2


def test_forks_compute_their_common_text_once(counted):
    runtime, model = counted

    def body(s):
        s += "x" * 1000
        forks = s.fork(8)
        forks += lambda i: f"{i}?" + gen("a", max_tokens=1)
        forks.join()

    run(body, runtime)
    assert model.rows <= 1000 + 8 * 3


def test_the_second_gen_computes_the_new_text_only(counted):
    runtime, model = counted

    def body(s):
        s += "y" * 500 + gen("a", max_tokens=20)
        s.sync()
        before = model.rows
        s += "new text" + gen("b", max_tokens=1)
        s.sync()
        return model.rows - before

    state = run(body, runtime)
    assert state.ret_value == len("new text") + 1  # and the one token of the answer that had no keys and values yet
    assert state.get_meta_info("b")["cached_tokens"] == 500 + 20 - 1


def test_a_cancelled_branch_gives_its_memory_back(counted):
    runtime, _ = counted

    def body(s):
        s += "z"
        forks = s.fork(3)
        forks += lambda i: f"{i}" + gen("a", max_tokens=3000 if i else 5)
        forks.join("first")
        s += gen("b", max_tokens=3)
        return s["b"]

    start = time.monotonic()
    run(body, runtime)
    wait_for(lambda: runtime.get_stats()["running"] == 0, 5)
    assert time.monotonic() - start < 10
    pool = runtime.get_stats()["pool"]
    assert pool["free"] + pool["evictable"] == pool["slots"]


def test_a_compiled_program_computes_its_beginning_once(counted):
    runtime, model = counted

    @ramet.function
    def ask(s, question):
        s += "Few shots. " * 50
        s += question + gen("a", max_tokens=1)

    compiled = ask.compile(runtime)
    before = model.rows
    compiled.run_batch([(f"q{i}",) for i in range(10)], temperature=0, ignore_eos=True)
    assert model.rows - before <= 10 * 16
