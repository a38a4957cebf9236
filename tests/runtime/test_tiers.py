"""KV below the pool: what comes up again must be what went down, whatever happens to the files."""
from __future__ import annotations

import json
import logging
import os
import random
import time

import hypothesis.strategies as st
import numpy as np
import pytest
from fakes import FakeRunner, byte_tokenizer, fake_logits
from hypothesis import HealthCheck, given, settings

from ramet.radix_cache import Namespace
from ramet.runtime import kv_files, tiers
from ramet.runtime.config import EngineConfig
from ramet.runtime.engine import Engine
from ramet.runtime.errors import CancelledError, ConfigError, DeadlineError
from ramet.runtime.kv_files import PAGE, PageFiles, page_keys
from ramet.runtime.loop import EngineLoop
from ramet.runtime.protocol import GenerateRequest, SamplingParams


class FakePool:
    """FakeRunner's "KV" (a token id and a position a slot) as rows of 16 bytes."""

    row_bytes = 16

    def __init__(self, runner: FakeRunner) -> None:
        self.runner = runner
        self.fail = False

    def read(self, slots):
        return np.stack([self.runner.token[slots], self.runner.position[slots]], axis=1).view(np.uint8)

    def write(self, slots, rows):
        if self.fail:
            raise OSError("the fake pool was told to fail")
        values = np.ascontiguousarray(rows).view(np.int64)
        self.runner.token[slots], self.runner.position[slots] = values[:, 0], values[:, 1]


class StorableRunner(FakeRunner):
    def __init__(self, slots: int = 512, model: str = "a" * 32) -> None:
        super().__init__(slots)
        self.pool, self.model = FakePool(self), model

    def fingerprint(self) -> str:
        return self.model


def engine(folder=None, slots: int = 512, model: str = "a" * 32, **options) -> Engine:
    config = EngineConfig(cache_dir=None if folder is None else str(folder), **options)
    return Engine(StorableRunner(slots, model), byte_tokenizer(), config)


def prompt(seed: int, n: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(97, 123), k=n))


def expected(ids, n: int) -> tuple[int, ...]:
    ids, start = list(ids), len(ids)
    for _ in range(n):
        ids.append(int(fake_logits(np.array(ids), 257).argmax()))
    return tuple(ids[start:])


def request(rid: str, ids, tokens: int = 4, **fields) -> GenerateRequest:
    return GenerateRequest(rid, tuple(ids), SamplingParams(max_new_tokens=tokens, temperature=0, ignore_eos=True), **fields)


def ask(made: Engine, ids, rid: str = "r", tokens: int = 4, **fields):
    """Runs one request to its end, checks answer and cache; its usage."""
    chunks = list(made.generate(request(rid, ids, tokens, **fields)))
    assert chunks[-1].error is None, chunks[-1].error
    assert tuple(i for c in chunks for i in c.token_ids) == expected(ids, tokens)
    made.check()
    return chunks[-1].usage


def files_of(folder):
    return sorted(folder.rglob("kv-*.safetensors"))


def test_a_restarted_engine_answers_warm(tmp_path):
    first = engine(tmp_path)
    ask(first, prompt(1, 100))
    ask(first, prompt(2, 70), tenant="t")
    first.close()
    second = engine(tmp_path)
    assert ask(second, prompt(1, 100)).cached_tokens == 96
    assert ask(second, prompt(2, 70)).cached_tokens == 0  # of another tenant
    assert ask(second, prompt(2, 70), tenant="t").cached_tokens == 64
    assert second.runner.rows < 100
    assert second.tiers.stats()["loaded_tokens"] == 160
    second.close()


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 31, 32, 33, 34, 48, 49, 100])
def test_a_prompt_that_lies_below_whole_still_computes_its_last_id(tmp_path, n):
    for turn in range(3):
        made = engine(tmp_path)
        for again in range(2):
            cached = ask(made, prompt(1, n), tokens=8).cached_tokens
            below = (n - 1) // PAGE * PAGE
            assert cached == (n - 1 if again else below if turn and below >= 2 * PAGE else 0)
        made.close()


def test_logprobs_of_a_prompt_that_lies_below_are_computed(tmp_path):
    params = SamplingParams(max_new_tokens=3, temperature=0, ignore_eos=True)
    told = []
    for _ in range(2):
        made = engine(tmp_path)
        chunks = list(made.generate(GenerateRequest("r", prompt(1, 100), params, logprobs=True, logprob_start=60)))
        told.append([(p.token_id, p.logprob) for p in chunks[0].prompt_logprobs])
        assert len(told[-1]) == 40 and chunks[-1].usage.cached_tokens == (48 if len(told) == 2 else 0)
        made.close()
    assert told[0] == told[1]


def test_answers_are_kept_too_and_the_tree_grows_over_restarts(tmp_path):
    ids = prompt(1, 50)
    for turn in range(4):
        made = engine(tmp_path)
        usage = ask(made, ids, tokens=30)
        assert usage.cached_tokens == (0 if turn == 0 else (len(ids) - 6) // PAGE * PAGE)
        ids = (*ids, *expected(ids, 30), *prompt(turn, 5))
        made.close()


def test_only_what_the_tree_lacks_is_read_back(tmp_path):
    first = engine(tmp_path)
    ask(first, prompt(1, 200))
    first.close()
    second = engine(tmp_path)
    ask(second, prompt(1, 200)[:41], tokens=1)  # two pages from below, the rest of the third computed
    assert second.tiers.counts.loaded == 32
    assert ask(second, prompt(1, 200)).cached_tokens == 192
    assert second.tiers.counts.loaded == 192 - 9 + (32 - 32)  # from position 41 on, of which 32 were read before
    second.close()


def test_many_requests_for_one_prefix_read_it_once(tmp_path):
    first = engine(tmp_path, slots=1024)
    ask(first, prompt(1, 300))
    first.close()
    second = engine(tmp_path, slots=1024)
    for i in range(8):
        second.submit(request(f"r{i}", (*prompt(1, 300), 97 + i)))
    done = drain(second)
    assert all(done[f"r{i}"][-1].usage.cached_tokens >= 288 for i in range(8))
    assert second.tiers.counts.loaded == 288
    second.close()


def drain(made: Engine) -> dict:
    chunks: dict = {}
    while made.busy:
        for chunk in made.step():
            chunks.setdefault(chunk.rid, []).append(chunk)
        made.check()
    return chunks


def test_others_are_served_while_pages_are_read(tmp_path, monkeypatch):
    first = engine(tmp_path)
    ask(first, prompt(1, 200))
    first.close()
    second = engine(tmp_path)
    slow = PageFiles.read

    def read(self, keys):
        time.sleep(0.05)
        yield from slow(self, keys)

    monkeypatch.setattr(PageFiles, "read", read)
    second.submit(request("warm", prompt(1, 200)))
    second.submit(request("other", prompt(5, 20), tokens=3))
    order = [chunk.rid for chunk in iterate(second) if chunk.last]
    assert order == ["other", "warm"]
    second.close()


def iterate(made: Engine):
    while made.busy:
        yield from made.step()


@pytest.mark.parametrize("how", ["abort", "deadline"])
def test_a_request_that_waits_for_its_pages_can_be_ended(tmp_path, monkeypatch, how):
    first = engine(tmp_path)
    ask(first, prompt(1, 200))
    first.close()
    second = engine(tmp_path)
    monkeypatch.setattr(PageFiles, "read", lambda self, keys: time.sleep(0.05) or iter(()))
    second.submit(request("r", prompt(1, 200), deadline=0.01 if how == "deadline" else None))
    if how == "abort":
        second.abort("r")
    error = drain(second)["r"][-1].error
    assert isinstance(error, CancelledError if how == "abort" else DeadlineError)
    assert second.flush_cache() and second.cache.free == 512
    second.close()


class TestDamage:
    @pytest.fixture
    def folder(self, tmp_path):
        made = engine(tmp_path)
        ask(made, prompt(1, 100))
        made.close()
        return tmp_path

    def cold(self, folder, caplog, word: str, model: str = "a" * 32) -> None:
        """The next engine computes all, says why once, and leaves a folder that works."""
        with caplog.at_level(logging.WARNING, "ramet.cache"):
            made = engine(folder, model=model)
            assert ask(made, prompt(1, 100)).cached_tokens == 0
        assert word in caplog.text
        made.close()
        again = engine(folder, model=model)
        assert ask(again, prompt(1, 100)).cached_tokens == 96
        again.close()

    def test_a_flipped_bit(self, folder, caplog):
        path = files_of(folder)[0]
        data = bytearray(path.read_bytes())
        data[-16 * 90] ^= 1  # in the first pages
        path.write_bytes(data)
        self.cold(folder, caplog, "not what was written")

    def test_a_flipped_bit_far_back_spares_what_comes_before(self, folder):
        path = files_of(folder)[0]
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        made = engine(folder)
        assert ask(made, prompt(1, 100)).cached_tokens == 80
        made.close()

    @pytest.mark.parametrize("left", [0, 5, 60, 300, -1])
    def test_a_cut_file(self, folder, caplog, left):
        path = files_of(folder)[0]
        path.write_bytes(path.read_bytes()[:left])
        self.cold(folder, caplog, "bytes")

    def test_a_file_cut_while_the_engine_runs(self, folder, caplog):
        made = engine(folder)
        files_of(folder)[0].write_bytes(b"gone")
        assert ask(made, prompt(1, 100)).cached_tokens == 0
        assert "not what was written" in caplog.text
        made.close()

    def test_a_deleted_file(self, folder, caplog):
        files_of(folder)[0].unlink()
        self.cold(folder, caplog, "No such file")

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 99}', "\0" * 50, '{"format": 1}'])
    def test_a_damaged_index(self, folder, caplog, text):
        next(folder.rglob("index.json")).write_text(text)
        self.cold(folder, caplog, "index.json")
        assert len(files_of(folder)) == 1  # the orphan was removed

    @pytest.mark.parametrize("change", [{"pages": [["zz", 1]]}, {"pages": 5}, {"name": 7}, {"bytes": "many"}, {"pages": [["00" * 16, 1]]}])
    def test_a_damaged_entry(self, folder, caplog, change):
        path = next(folder.rglob("index.json"))
        index = json.loads(path.read_text())
        index["files"][0].update(change)
        path.write_text(json.dumps(index))
        self.cold(folder, caplog, "skipped")

    def test_a_file_of_another_model(self, folder, caplog):
        other = folder / ("b" * 16)
        os.rename(next(folder.glob("a*")), other)
        self.cold(folder, caplog, "fingerprint", model="b" * 32)

    def test_a_file_of_another_model_under_an_index_of_this_one(self, folder, caplog):
        other = folder / ("b" * 16)
        os.rename(next(folder.glob("a*")), other)
        index = other / "index.json"
        index.write_text(index.read_text().replace("a" * 32, "b" * 32))
        self.cold(folder, caplog, "another model", model="b" * 32)

    def test_models_do_not_mix(self, folder):
        other = engine(folder, model="c" * 32)
        assert ask(other, prompt(1, 100)).cached_tokens == 0
        other.close()
        same = engine(folder)
        assert ask(same, prompt(1, 100)).cached_tokens == 96
        same.close()

    def test_the_loader_fails(self, folder, caplog):
        made = engine(folder)
        made.runner.pool.fail = True
        assert ask(made, prompt(1, 100)).cached_tokens == 0
        assert "reading KV back failed" in caplog.text
        made.close()


def test_a_full_disk_costs_nothing_but_warmth(tmp_path, monkeypatch, caplog):
    made = engine(tmp_path)
    ask(made, prompt(1, 100))
    with monkeypatch.context() as patch:
        patch.setattr(kv_files, "_sync", lambda path: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        made.close()
    assert "No space left" in caplog.text
    assert not files_of(tmp_path) and not list(tmp_path.rglob(".*.tmp.safetensors"))
    again = engine(tmp_path)
    assert ask(again, prompt(1, 100)).cached_tokens == 0
    again.close()
    assert ask(engine(tmp_path), prompt(1, 100)).cached_tokens == 96


def test_killed_at_any_moment_of_a_write_the_folder_still_opens(tmp_path):
    """A process dies after each step of the snapshot that changes the folder; the next engine is right, warm or cold."""
    ends = []
    for moment in (1, 2, 3, 4, 5, 99):
        child = os.fork()
        if child == 0:
            write_and_die(tmp_path, moment)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (0 if moment == 99 else 9)
        made = engine(tmp_path)
        ends.append(ask(made, prompt(77, 100)).cached_tokens)
        made.close(keep=False)
    assert ends[0] == 0 and ends[-1] == 96 and ends == sorted(ends)


def write_and_die(folder, moment: int) -> None:
    """In a process of its own: a snapshot that ends with status 9 at the given sync or rename, with 0 after the last, with 1 if all went wrong."""
    left = moment

    def stepping(function):
        def call(*args):
            nonlocal left
            function(*args)
            left -= 1
            if left == 0:
                os._exit(9)

        return call

    try:
        made = engine(folder)
        ask(made, prompt(moment, 100))
        ask(made, prompt(77, 100))
        kv_files._sync, kv_files.os.replace = stepping(kv_files._sync), stepping(os.replace)
        made.close()
        os._exit(0)
    finally:
        os._exit(1)


def test_one_folder_serves_one_engine(tmp_path):
    made = engine(tmp_path)
    with pytest.raises(ConfigError, match="another engine"):
        engine(tmp_path)
    engine(tmp_path, model="d" * 32).close()
    made.close()
    engine(tmp_path).close()


def test_a_folder_that_cannot_be_made_is_refused_by_name(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cache_dir"):
        engine(tmp_path / "file")
    for bad in ({"cache_dir": ""}, {"host_cache_bytes": -1}, {"cache_dir_bytes": 0}):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            EngineConfig(**bad)
    with pytest.raises(ConfigError, match="disable_radix_cache"):
        engine(tmp_path, disable_radix_cache=True)
    with pytest.raises(ConfigError, match="cannot be stored"):
        Engine(FakeRunner(), byte_tokenizer(), EngineConfig(cache_dir=str(tmp_path)))


def test_what_is_evicted_comes_back_from_host_memory(tmp_path):
    made = engine(slots=128, host_cache_bytes=64 * PAGE * 16)
    for seed in (1, 2, 3):
        ask(made, prompt(seed, 100))
    for seed in (1, 2, 3):
        assert ask(made, prompt(seed, 100)).cached_tokens == 96
    assert made.tiers.stats()["host_bytes"] <= 64 * PAGE * 16
    assert made.flush_cache() and ask(made, prompt(1, 100)).cached_tokens == 0
    made.close()


def test_host_memory_is_bounded_and_hands_on_to_disk_what_was_hit(tmp_path, monkeypatch):
    monkeypatch.setattr(tiers, "FILE_BYTES", 8 * PAGE * 16)
    made = engine(tmp_path, slots=128, host_cache_bytes=8 * PAGE * 16)
    for seed in (1, 1, 2, 3, 4, 5):
        made.tiers._writer.submit(lambda: None).result()
        ask(made, prompt(seed, 100))
    assert made.tiers.stats()["host_bytes"] <= 8 * PAGE * 16
    made.tiers._writer.submit(lambda: None).result()
    assert made.tiers.stats()["stored_disk_tokens"] > 0
    assert ask(made, prompt(1, 100)).cached_tokens > 0
    assert made.tiers.below(np.array(prompt(2, 100), dtype=np.int32), Namespace()) == 0  # never hit, and host memory has no room for it
    made.close()


def test_the_disk_is_bounded_and_keeps_what_was_used_last(tmp_path):
    limit = 4096 + 26 * PAGE * 16
    for seed in (1, 2, 3):
        made = engine(tmp_path, cache_dir_bytes=limit)
        ask(made, prompt(seed, 400))
        made.close()
    assert sum(path.stat().st_size for path in files_of(tmp_path)) <= limit
    made = engine(tmp_path, cache_dir_bytes=limit)
    assert ask(made, prompt(3, 400)).cached_tokens == 384
    assert ask(made, prompt(1, 400)).cached_tokens == 0
    made.close()


def test_a_load_that_finds_no_room_is_computed_when_its_turn_comes(tmp_path):
    first = engine(tmp_path, slots=256)
    ask(first, prompt(1, 200))
    first.close()
    second = engine(tmp_path, slots=256)
    second.submit(request("busy", prompt(9, 150), tokens=20))
    second.step()
    second.submit(request("warm", prompt(1, 200)))
    done = drain(second)
    assert all(chunks[-1].error is None for chunks in done.values())
    second.close()


def test_the_loop_writes_at_shutdown_and_not_after_a_death(tmp_path):
    loop = EngineLoop(engine(tmp_path))
    done = []
    loop.submit(request("r", prompt(1, 100)), done.append)
    while not (done and done[-1].last):
        time.sleep(0.005)
    loop.close()
    assert len(files_of(tmp_path)) == 1
    made = engine(tmp_path)
    made.step = lambda: (_ for _ in ()).throw(RuntimeError("dead"))
    dying = EngineLoop(made)
    dying.submit(request("r", prompt(2, 100)), done.append)
    dying.close()
    assert len(files_of(tmp_path)) == 1


def test_keys_tell_namespaces_and_all_that_comes_before_apart():
    a, b = np.arange(64, dtype=np.int32), np.arange(64, dtype=np.int32)
    b[3] = 99
    assert len(page_keys(Namespace(), a)) == 4 and len(page_keys(Namespace(), a[:63])) == 3
    keys = {k for space in (Namespace(), Namespace("a", "b"), Namespace("ab")) for ids in (a, b) for k in page_keys(space, ids)}
    assert len(keys) == 24


def test_nothing_of_prompts_or_salts_is_written_in_the_clear(tmp_path):
    made = engine(tmp_path)
    ask(made, prompt(1, 100), cache_salt="very-secret-salt")
    made.close()
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.suffix == ".json":
            assert b"secret" not in path.read_bytes() and b"salt" not in path.read_bytes()


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 120), st.integers(1, 6)), min_size=1, max_size=12), st.integers(0, 40), st.booleans())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_traffic_over_restarts_gives_the_same_answers(tmp_path_factory, traffic, host_pages, disk):
    folder = tmp_path_factory.mktemp("kv") if disk else None
    made = engine(folder, slots=160, host_cache_bytes=host_pages * PAGE * 16, chunked_prefill_size=48)
    for i, (seed, n, tokens) in enumerate(traffic):
        ask(made, prompt(seed, 120)[:n], f"r{i}", tokens)
        if i % 4 == 3:
            made.close()
            made = engine(folder, slots=160, host_cache_bytes=host_pages * PAGE * 16)
    made.close()


@given(st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_aborts_at_any_moment_among_many_leak_nothing(tmp_path_factory, data):
    """Prompts that share prefixes, in a pool too small for all, ended after any number of steps; loads are slow or fail now and then."""
    draw = data.draw
    folder = tmp_path_factory.mktemp("kv")
    seeded = engine(folder, slots=300)
    for seed in (0, 1):
        ask(seeded, prompt(seed, 120))
    seeded.close()
    made = engine(folder, slots=200, host_cache_bytes=draw(st.integers(0, 12)) * PAGE * 16, chunked_prefill_size=40,
                  eviction_policy=draw(st.sampled_from(["lru", "slru", "cost-aware"])))  # fmt: skip
    live: dict[str, tuple[int, ...]] = {}
    chunks: dict[str, list] = {}
    for i in range(draw(st.integers(4, 24))):
        ids = (*prompt(draw(st.integers(0, 2)), 120)[: draw(st.integers(1, 120))], *prompt(100 + i, draw(st.integers(1, 12))))
        live[f"r{i}"] = ids
        made.submit(request(f"r{i}", ids, tokens=draw(st.integers(1, 5))))
        made.runner.pool.fail = draw(st.integers(0, 5)) == 0
        for _ in range(draw(st.integers(0, 3))):
            for chunk in made.step():
                chunks.setdefault(chunk.rid, []).append(chunk)
            made.check()
        if draw(st.booleans()):
            made.abort(f"r{draw(st.integers(0, i))}")
            made.check()
    for rid, more in drain(made).items():
        chunks.setdefault(rid, []).extend(more)
    for rid, ids in live.items():
        got = chunks[rid]
        if got[-1].error is None:
            tokens = tuple(token for chunk in got for token in chunk.token_ids)
            assert tokens == expected(ids, len(tokens)), "a wrong answer"
        else:
            assert isinstance(got[-1].error, CancelledError)
    assert made.cache.free + made.cache.evictable == 200 and made.cache.tree.locked == 0
    assert made.flush_cache() and made.cache.free == 200
    assert ask(made, prompt(50, 196), tokens=5).cached_tokens == 0  # one that needs the whole pool runs
    made.close()
