"""The simulator of benchmarks/: the scheduler's promises hold in whole runs, and the seeds' claims have their shape."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def sim(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
    from simulator import machine, questions, traffic

    return type("Sim", (), {"machine": machine, "questions": questions, "traffic": traffic})


def test_lpm_comes_near_the_optimum_and_nobody_is_overtaken_too_often(sim):
    setup = sim.machine.Setup(max_total_tokens=131_072)
    rows = sim.questions.policies(800, load=0.8, seed=3, setup=setup, names=("lpm", "dfs", "shortest"))
    for row in rows:
        assert row["requests"] == 800 and row["overdrawn"] <= 0, row["policy"]
        assert row["of_optimum"] <= 1.0
    assert rows[0]["of_optimum"] > 0.96


def test_where_memory_is_short_lpm_computes_less_than_fcfs(sim):
    setup = sim.machine.Setup(max_total_tokens=40_000, max_running_requests=16)
    rows = sim.questions.policies(600, load=2.0, seed=1, setup=setup, names=("lpm", "fcfs"), workloads=("documents",))
    assert rows[0]["hit"] > rows[1]["hit"] + 0.05


def test_the_optimum_is_what_depth_first_order_computes(sim):
    """All calls there from the start, one at a time, a pool that holds everything: the least that any order can compute."""
    source = sim.traffic.Source(5)
    calls = sim.traffic.few_shot(source, 120)
    result = sim.machine.Simulation(sim.machine.Setup(schedule_policy="dfs", max_running_requests=1)).run(calls)
    computed = sum(len(a.call.prompt) - a.cached for a in result.answers)
    assert computed == sim.machine.unique(calls)
    sessions = sim.traffic.agents(source, 40)
    result = sim.machine.Simulation(sim.machine.Setup(max_running_requests=1)).run(sessions)
    assert sum(len(a.call.prompt) - a.cached for a in result.answers) == sim.machine.unique(sessions)


def test_whole_prompts_stall_streams_and_chunks_do_not(sim):
    rows, _ = sim.questions.stalls(setup=sim.machine.Setup(), seed=1, prompts=1)
    by = {row["setting"]: row for row in rows}
    base = by["no long prompts"]
    assert by["whole prompts"]["gap_max_ms"] > 50 * base["gap_p99_ms"]
    assert by["chunks of 512"]["gap_max_ms"] > 10 * base["gap_p99_ms"]
    chunks = by["chunks beside streams"]
    assert chunks["gap_p99_ms"] <= 2.3 * base["gap_p99_ms"] and 0 < chunks["of_alone"] <= 3


def test_a_target_for_gaps_holds(sim):
    source = sim.traffic.Source(2)
    calls = sim.traffic.arrive(sim.traffic.strangers(source, 200), source, 2.0)
    setup = sim.machine.Setup(tpot_target=80.0)
    result = sim.machine.Simulation(setup, tokens=True).run(calls)
    gaps = np.concatenate([np.diff(a.when) for a in result.answers])
    assert (gaps <= 0.080).mean() > 0.95
    free = sim.machine.Simulation(replace(setup, tpot_target=None, chunked_prefill_size=512), tokens=True).run(calls)
    assert (np.concatenate([np.diff(a.when) for a in free.answers]) <= 0.080).mean() < 0.9


def test_a_pool_reserved_for_the_longest_answers_holds_little(sim):
    taken, reserved = sim.questions.memory(120, setup=sim.machine.Setup(), seed=1)
    assert taken["hold_tokens"] > 0.98 and reserved["hold_tokens"] < 0.5
    assert taken["at_a_time"] > 1.5 * reserved["at_a_time"]
