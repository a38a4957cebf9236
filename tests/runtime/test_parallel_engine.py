"""Engines whose model several processes compute: the answers of one rank, and what happens when a rank dies."""
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers

from ramet.runtime.config import EngineConfig
from ramet.runtime.engine import Engine
from ramet.runtime.errors import ConfigError, EngineClosedError
from ramet.runtime.hub import resolve
from ramet.runtime.loop import EngineLoop
from ramet.runtime.parallel import children, runner
from ramet.runtime.parallel import group as groups
from ramet.runtime.protocol import Constraint, GenerateRequest, SamplingParams

SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "people": {"type": "integer"}}, "required": ["city", "people"]}
TEXT = "A ramet is one stem of a plant whose stems all grow from one root system. " * 14


def open_engine(ranks: int, **options) -> Engine:
    """One whose answers are exact, and which takes in more requests than its pool has room for."""
    options = {"dtype": "float32", "max_total_tokens": 1024, "context_length": 512, "chunked_prefill_size": 96, **options}
    return Engine.open(EngineConfig(tensor_parallel_size=ranks, schedule_conservativeness=0.0, **options))


def running(pid: int) -> bool:
    """Whether a process is there, and is not only waiting to be counted."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


class Watched:
    """A runner that notes whether passes shared segments, and their rows."""

    def __init__(self, runner) -> None:
        self.runner, self.shared, self.rows = runner, 0, set()

    def __getattr__(self, name):
        return getattr(self.runner, name)

    def build(self, plan):
        batch = self.runner.build(plan)
        self.shared += batch.inputs.attn.segments is not None
        self.rows.add(len(batch.inputs.input_ids))
        return batch


def greedy(n: int, **options) -> SamplingParams:
    return SamplingParams(max_new_tokens=n, temperature=0.0, ignore_eos=True, **options)


def ask(engine: Engine, *requests: GenerateRequest) -> dict[str, tuple]:
    """All at once: (ids, text, logprobs) by rid."""
    out: dict[str, tuple] = {}
    for request in requests:
        engine.submit(request)
    while engine.busy:
        for chunk in engine.step():
            assert chunk.error is None, chunk.error
            ids, text, logprobs = out.get(chunk.rid, ((), "", ()))
            out[chunk.rid] = (ids + tuple(chunk.token_ids), text + chunk.text, logprobs + tuple(p.logprob for p in chunk.logprobs))
        engine.check()
    return out


def mix(engine: Engine) -> dict[str, tuple]:
    """A long prompt in chunks with the logprobs of all its tokens; then branches under it, a schema, a stop, a drawn answer."""
    encode, schema = engine.tokenizer.encode, Constraint("json_schema", json.dumps(SCHEMA))
    engine.runner = watched = Watched(engine.runner)
    root = tuple(encode(TEXT))
    first = ask(engine, GenerateRequest("long", root, greedy(4), logprobs=True, logprob_start=0))
    then = ask(
        engine,
        *(GenerateRequest(f"branch {i}", root + tuple(encode(f" Point {i}:")), greedy(5)) for i in range(4)),
        GenerateRequest("json", "A large city as JSON: ", SamplingParams(max_new_tokens=24, temperature=0.0, constraint=schema)),
        GenerateRequest("stop", "One, two, three, four,", SamplingParams(max_new_tokens=12, temperature=0.0, stop=(",",))),
        GenerateRequest("drawn", "Once upon a time", SamplingParams(max_new_tokens=8, temperature=0.8, top_p=0.9, seed=4)),
    )
    assert watched.shared, "no pass read a run for several branches"
    assert 96 in watched.rows and min(watched.rows) == 1
    engine.runner = watched.runner
    return first | then


def test_answers_are_those_of_one_rank():
    one = open_engine(1)
    wanted = mix(one)
    one.close()
    engine = open_engine(2)
    try:
        assert "2 ranks over gloo" in engine.runner.describe()
        assert engine.runner.inner.pool.k.shape[2] == 2  # two of the three KV heads
        got = mix(engine)
        (pid,) = engine.runner.children.pids
        assert running(pid)
    finally:
        engine.close()
    assert not running(pid)
    for rid, (ids, text, logprobs) in wanted.items():
        assert got[rid][:2] == (ids, text), rid
        assert len(got[rid][2]) == len(logprobs) and got[rid][2] == pytest.approx(logprobs, abs=1e-4)
    assert json.loads(wanted["json"][1]).keys() == {"city", "people"}


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> dict[str, str]:
    """Options that open a small random model, with the tokenizer of the embedded one."""
    folder = tmp_path_factory.mktemp("small")
    torch.manual_seed(5)
    shape = {"hidden_size": 96, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16}
    transformers.AutoModelForCausalLM.from_config(
        transformers.LlamaConfig(vocab_size=49152, max_position_embeddings=512, tie_word_embeddings=True, initializer_range=0.2, **shape)
    ).save_pretrained(folder)
    return {"model_path": str(folder), "tokenizer_path": str(resolve("smollm2-135m").gguf)}


def test_requests_that_give_way_resume_with_the_answer_of_one_rank(small):
    """A pool with room for a third of what is asked."""
    options = {**small, "max_total_tokens": 220}
    out = []
    for ranks in (1, 2):
        engine = open_engine(ranks, **options)
        try:
            out.append(ask(engine, *(GenerateRequest(f"crowd {i}", f"Number {i} is", greedy(60)) for i in range(9))))
            assert engine.scheduler.retractions
        finally:
            engine.close()
    assert out[0] == out[1]


class Sink:
    """Collects the chunks of one request."""

    def __init__(self) -> None:
        self.chunks, self.ended = [], threading.Event()

    def __call__(self, chunk) -> None:
        self.chunks.append(chunk)
        if chunk.last:
            self.ended.set()


def test_a_killed_rank_ends_the_engine_and_is_named():
    """Of three, so that another rank loses it, too, and must not be blamed; in the middle of an answer."""
    loop = EngineLoop(open_engine(3, dtype="auto"))
    try:
        first, second = loop.engine.runner.children.pids
        sink = Sink()
        loop.submit(GenerateRequest("long", "Once", SamplingParams(max_new_tokens=400, temperature=0.0, ignore_eos=True)), sink)
        wait_for(lambda: sink.chunks)
        begun = time.monotonic()
        os.kill(first, signal.SIGKILL)
        assert sink.ended.wait(10)
        assert time.monotonic() - begun < 10
        error = sink.chunks[-1].error
        assert isinstance(error, EngineClosedError)
        assert f"rank 1 of 3 (process {first}) was killed by SIGKILL" in str(error)
        with pytest.raises(EngineClosedError, match="rank 1 of 3"):
            loop.submit(GenerateRequest("late", "Once"), Sink())
    finally:
        loop.close()
    assert not running(second)


def test_a_rank_that_dies_idle_is_noticed_by_the_next_step():
    engine = open_engine(2, dtype="auto")
    (pid,) = engine.runner.children.pids
    try:
        assert engine.step() == []
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineClosedError, match="rank 1 of 2 .* was killed by SIGKILL"):
            wait_for(lambda: engine.step())
        with pytest.raises(EngineClosedError, match="rank 1 of 2"):
            list(engine.generate(GenerateRequest("r", "Once")))
        engine.check()
    finally:
        engine.close()
        engine.close()


@pytest.mark.parametrize("error", [MemoryError("no room"), KeyboardInterrupt()])
def test_a_pass_that_ends_in_the_middle_is_the_last(error, monkeypatch, small):
    """The other rank is somewhere in it: what it would add to the next pass belongs to this one."""
    engine = open_engine(2, **small)
    try:
        ask(engine, GenerateRequest("before", "Once", greedy(2)))
        kernels, done = engine.runner.inner.kernels, []

        def fail(self, gate, up):
            done.append(1)
            raise error

        monkeypatch.setattr(type(kernels), "silu_mul", fail)
        engine.submit(GenerateRequest("r", "Once more", greedy(2)))
        with pytest.raises((EngineClosedError, KeyboardInterrupt)):
            engine.step()
        assert done == [1]
        monkeypatch.undo()
        with pytest.raises(EngineClosedError, match="rank 0 of 2 left a pass: (no room|KeyboardInterrupt)"):
            engine.step()
    finally:
        engine.close()


def test_a_rank_that_stands_still_ends_the_engine_in_time(monkeypatch, small):
    monkeypatch.setattr(groups, "TIMEOUT", timedelta(seconds=1))
    monkeypatch.setattr(children, "GRACE", 0.5)
    engine = open_engine(2, **small)
    (pid,) = engine.runner.children.pids
    try:
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(EngineClosedError, match="rank 1 of 2 did not answer within"):
            ask(engine, GenerateRequest("r", "Once", greedy(2)))
    finally:
        engine.close()
    assert not running(pid)


def test_no_rank_outlives_the_engines_process():
    code = (
        "import time; from ramet.runtime.engine import Engine; from ramet.runtime.config import EngineConfig;"
        "engine = Engine.open(EngineConfig(tensor_parallel_size=2, context_length=64, max_total_tokens=64));"
        "print(*engine.runner.children.pids, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        assert running(pid)
        parent.kill()
    wait_for(lambda: not running(pid), 5.0)


def test_ranks_that_do_not_start_are_an_error_at_once(monkeypatch, small):
    with monkeypatch.context() as patch:
        patch.setattr(children, "sys", SimpleNamespace(executable="/bin/false"))
        with pytest.raises(EngineClosedError, match="rank 1 of 2 .* ended with status 1"):
            open_engine(2, **small)
    with pytest.raises(ConfigError, match="tensor_parallel_size=4: this model has 3 KV heads"):
        open_engine(4, **small)
    ranks = children.Children(resolve(small["model_path"]), EngineConfig(tensor_parallel_size=2))
    (pid,) = ranks.pids
    try:
        ranks.say(nonsense=1)  # it reads its model first, then asks how many slots there are
        ranks.expect("loaded")
        with pytest.raises(EngineClosedError, match="rank 1 of 2 did not start: KeyError: 'slots'"):
            ranks.expect("ready")
    finally:
        ranks.close()
    assert not running(pid)


def test_a_rank_that_dies_before_they_meet_is_named(monkeypatch, small):
    started = []

    def start(*given):
        started.append(children.Children(*given))
        return started[0]

    def meet_too_late(share, meeting, device):
        os.kill(started[0].pids[0], signal.SIGKILL)
        return groups.Group(share, meeting, device)

    monkeypatch.setattr(runner, "Children", start)
    monkeypatch.setattr(runner, "Group", meet_too_late)
    monkeypatch.setattr(groups, "TIMEOUT", timedelta(seconds=0.2))
    with pytest.raises(EngineClosedError, match="rank 1 of 2 .* was killed by SIGKILL"):
        open_engine(2, **small)
