"""An error anywhere is raised where it is read, at the end of the run, and nothing waits for what cannot come."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
import traceback

import pytest
from fakes import fake_engine
from serving import wait_for

import ramet
from ramet import gen
from ramet.runtime.loop import EngineLoop


class Boom(Exception):
    pass


@pytest.fixture(autouse=True)
def within_five_seconds():
    start = time.monotonic()
    yield
    assert time.monotonic() - start < 5.0


def run(body, backend, **options):
    return ramet.function(body).run(backend=backend, **options)


def test_raised_at_the_read_and_by_run(fake):
    boom = Boom("no")
    seen = []

    def body(s):
        s += "x" + gen("a") + gen("b")
        for name in ("a", "b"):
            try:
                s[name]
            except Boom as exc:
                seen.append(exc)
        with pytest.raises(Boom):
            s.text()

    with pytest.raises(Boom) as caught:
        run(body, fake([boom]))
    assert seen == [boom, boom] and caught.value is boom


def test_raised_by_run_when_nothing_is_read(fake):
    with pytest.raises(Boom):
        run(lambda s: s.__iadd__("x" + gen("a")) and None, fake([Boom()]))


def test_raised_at_submit(fake):
    backend = fake(["x"])
    backend.shutdown()
    with pytest.raises(ramet.EngineClosedError, match="shut down"):
        run(lambda s: s.__iadd__("x" + gen("a")) and None, backend)


def test_nothing_to_go_on_from(fake):
    with pytest.raises(ramet.PromptError, match="empty"):
        run(lambda s: s.__iadd__(gen("a")) and None, fake(["x"]))


def test_an_error_of_the_body_comes_with_its_traceback(fake):
    def body(s):
        s += "x" + gen("a", max_tokens=3)
        raise Boom("in the body")

    with pytest.raises(Boom) as caught:
        run(body, fake("x", latency=0.2))
    assert "in the body" in "".join(traceback.format_exception(caught.value))
    assert caught.traceback[-1].name == "body"


def test_the_traceback_does_not_grow_with_reads(fake):
    depths = []

    def body(s):
        s += "x" + gen("a")
        for _ in range(3):
            try:
                s["a"]
            except Boom as exc:
                depths.append(len(traceback.extract_tb(exc.__traceback__)))

    with pytest.raises(Boom):
        run(body, fake([Boom()]))
    assert len(set(depths)) == 1


def test_a_failing_reader_of_typed_values(fake):
    with pytest.raises(ValueError) as caught:
        run(lambda s: s.__iadd__("x" + ramet.gen_as("a", list[int], finish="free")) and s["a"], fake(['["x"]']))
    assert any("'a'" in note for note in caught.value.__notes__)


def test_in_one_of_three_forks(fake):
    def body(s):
        s += "x"
        forks = s.fork(3)
        forks += lambda i: f"{i}" + gen("a")
        with pytest.raises(Boom) as caught:
            forks.join()
        assert "in branch 1 of 3" in caught.value.__notes__
        assert forks[0]["a"] == "ok" and forks[2]["a"] == "ok"
        assert isinstance(forks[1].error(), Boom)
        return "handled"

    assert run(body, fake(lambda p, r: Boom() if p.endswith("1") else "ok")).ret_value == "handled"


def test_a_fork_nobody_looks_at_raises_at_the_end(fake):
    def body(s):
        s += "x"
        s.fork(2)[1].__iadd__("y" + gen("a"))

    with pytest.raises(Boom):
        run(body, fake([Boom()]))


def test_forks_of_a_failed_branch_have_its_error(fake):
    boom = Boom()

    def body(s):
        s += "x" + gen("a")
        forks = s.fork(2)
        forks += "y" + gen("b")
        with pytest.raises(Boom) as caught:
            forks[0]["b"]
        assert caught.value is boom
        with pytest.raises(Boom):
            forks.join()

    with pytest.raises(Boom):
        run(body, fake([boom]))


def test_in_a_map(fake):
    def body(s):
        s += "x"

        def grow(f):
            f += gen("a")
            if f["a"] == "1":
                raise Boom
            return f["a"]

        with pytest.raises(Boom) as caught:
            s.fork(3).map(grow)
        assert any(note.startswith("in branch") for note in caught.value.__notes__)

    run(body, fake(["0", "1", "2"]))


def test_names_that_nothing_sets(fake):
    def body(s):
        s += "x" + gen("a")
        with pytest.raises(KeyError, match="never_set"):
            s["never_set"]

    program = ramet.function(body)
    state = program.run(backend=fake(["y"]))
    with pytest.raises(KeyError, match="never_set"):
        state["never_set"]
    state = program.run(backend=fake(["y"], latency=0.05), stream=True)
    assert state["a"] == "y"
    with pytest.raises(KeyError, match="never_set"):
        state["never_set"]
    with pytest.raises(KeyError):
        list(state.text_iter("never_set"))


def test_names_that_nothing_sets_in_a_thread_of_the_body(fake):
    def body(s):
        found = []

        def read():
            try:
                s["typo"]
            except KeyError as exc:
                found.append(exc)

        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
        return found

    assert len(run(body, fake()).ret_value) == 1


def test_a_reader_of_a_name_that_is_used_again(fake):
    """It waits for the first generation of that name, which fails while a second one is queued."""

    def body(s):
        s += "x" + gen("a")
        seen = []

        def read():
            try:
                s["a"]
            except Boom as exc:
                seen.append(exc)

        thread = threading.Thread(target=read)
        thread.start()
        time.sleep(0.05)
        s += gen("a")
        thread.join(timeout=3)
        assert not thread.is_alive()
        return seen

    with pytest.raises(Boom):
        run(body, fake([Boom(), "y"], latency=0.2))


def test_iterators_end_with_the_error(fake):
    def body(s):
        s += "x" + gen("a")
        s += "y" + gen("b")
        s["b"]

    state = ramet.function(body).run(backend=fake(["one two", Boom()], latency=0.02), stream=True)
    got, raised = [], []

    def iterate():
        try:
            for piece in state.text_iter():
                got.append(piece)
        except Boom as exc:
            raised.append(exc)

    thread = threading.Thread(target=iterate)
    thread.start()
    with pytest.raises(Boom):
        list(state.text_iter("b"))
    thread.join()
    assert "".join(got) == "xone twoy" and len(raised) == 1
    assert isinstance(state.error(), Boom)


def test_an_error_of_a_streaming_body(fake):
    def body(s):
        s += "x"
        raise Boom

    state = ramet.function(body).run(backend=fake(), stream=True)
    with pytest.raises(Boom):
        state["a"]
    with pytest.raises(Boom):
        state.text()


def test_timeout_of_a_run(fake):
    backend = fake("x", latency=3.0)
    start = time.monotonic()
    with pytest.raises(ramet.DeadlineError, match=r"0\.1 s"):
        run(lambda s: s.__iadd__("x" + gen("a")) and s["a"], backend, timeout=0.1)
    assert time.monotonic() - start < 1.0
    assert not backend._live


def test_timeout_of_a_gen(fake):
    def body(s):
        s += "x" + gen("a", timeout=0.05) + gen("b")
        s["b"]

    start = time.monotonic()
    with pytest.raises(ramet.DeadlineError, match="'a'"):
        run(body, fake("x", latency=3.0))
    assert time.monotonic() - start < 1.0


def test_timeout_of_a_gen_that_is_quick_enough(fake):
    def body(s):
        s += "x" + gen("a", timeout=0.05)
        s["a"]
        time.sleep(0.1)
        s += gen("b")

    assert run(body, fake(["y", "z"]), timeout=5)["b"] == "z"


def test_cancel_from_another_thread(fake):
    backend = fake("x", latency=3.0)
    state = ramet.function(lambda s: s.__iadd__("x" + gen("a")) and s["a"]).run(backend=backend, stream=True)
    time.sleep(0.05)
    state.cancel()
    with pytest.raises(ramet.CancelledError):
        state["a"]
    assert not backend._live


def test_cancel_of_a_branch_leaves_the_others(fake):
    def body(s):
        s += "x"
        forks = s.fork(2)
        forks += lambda i: f"{i}" + gen("a")
        forks[0].cancel()
        with pytest.raises(ramet.CancelledError):
            forks[0]["a"]
        return forks[1]["a"]

    assert run(body, fake(lambda p, r: p[-1], latency=0.05)).ret_value == "1"


def test_ctrl_c_cleans_up(fake):
    backend = fake("x", latency=3.0)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run(lambda s: s.__iadd__("x" + gen("a")) and s["a"], backend)
    timer.join()
    assert not backend._live


def test_errors_of_awaited_runs(fake):
    import asyncio

    @ramet.function
    def body(s):
        s += "x" + gen("a")
        return s["a"]

    with pytest.raises(Boom):
        asyncio.run(body.arun(backend=fake([Boom()])))

    async def cancelled(backend):
        task = asyncio.create_task(body.arun(backend=backend))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    backend = fake("x", latency=3.0)
    asyncio.run(cancelled(backend))
    assert not backend._live


def test_meta_info_does_not_wait_longer_than_told(fake):
    def body(s):
        s += "x" + gen("a")
        with pytest.raises(TimeoutError):
            s.get_meta_info("a", timeout=0.05)

    run(body, fake(["y"], latency=0.3))


def test_unknown_backend():
    with pytest.raises(ramet.RequestError, match="backend"):
        run(lambda s: None, "http://x")
    with pytest.raises(ramet.RequestError, match="backend"):
        ramet.set_default_backend(3)


def test_a_streaming_run_that_nobody_holds_is_cancelled():
    with ramet.Runtime.on(EngineLoop(fake_engine(4096, 4096))) as backend:
        program = ramet.function(lambda s: s.__iadd__("long:" + gen("a", max_tokens=3900, ignore_eos=True) + gen("b")) and s["b"])
        pieces = program.run(backend=backend, stream=True).text_iter("a")
        next(pieces)
        gc.collect()
        assert backend.get_stats()["running"] == 1  # the iterator holds it
        del pieces
        gc.collect()
        wait_for(lambda: backend.get_stats()["running"] == 0, 3)


def test_an_awaited_streaming_run_that_nobody_holds_is_cancelled():
    async def main(backend):
        program = ramet.function(lambda s: s.__iadd__("long:" + gen("a", max_tokens=3900, ignore_eos=True)) and s["a"])
        state = await program.arun(backend=backend, stream=True)
        run = state.run
        gc.collect()
        async for _ in state.text_async_iter("a"):
            break
        assert not run.ended
        del state
        gc.collect()
        while not run.ended:
            await asyncio.sleep(0.01)
        return run.stopped

    with ramet.Runtime.on(EngineLoop(fake_engine(4096, 4096))) as backend:
        stopped = asyncio.run(asyncio.wait_for(main(backend), 10))
        assert isinstance(stopped, ramet.CancelledError)
