"""Who is admitted next: against the plain definition of each policy, at any moment of random lives."""
from __future__ import annotations

import random
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling import Clock, cached, commit, make, scheduler, starts

from ramet.radix_cache import Namespace
from ramet.runtime.ageing import Ageing
from ramet.runtime.prefix_order import LongestPrefix, Shortest
from ramet.runtime.wait_queue import WaitQueue

# ---- orders of prefixes, against looking at everybody ------------------------------------------------------------------


class Tree:
    """A cache of id runs by the plain rule, told to the order under test as the scheduler tells it."""

    def __init__(self, kind) -> None:
        self.paths: set[tuple[int, ...]] = set()
        self.order = kind(self.peek)
        self.peeks = 0

    def cached(self, ids) -> int:
        best = 0
        for path in self.paths:
            n = next((i for i, (a, b) in enumerate(zip(path, ids, strict=False)) if a != b), min(len(path), len(ids)))
            best = max(best, n)
        return best

    def peek(self, request) -> int:
        self.peeks += 1
        return self.cached(request.ids.view[: request.match_limit].tolist())

    def insert(self, ids) -> None:
        start = self.cached(ids)
        self.paths.add(tuple(ids))
        self.order.grown(Namespace(), np.array(ids, dtype=np.int32), start)

    def evict(self, path) -> None:
        """Cuts the end off a path; whatever no other path holds is gone."""
        self.paths.discard(path)
        if len(path) > 1:
            self.paths.add(path[: len(path) // 2])


ACTIONS = st.lists(st.tuples(st.sampled_from(["add", "admit", "abort", "insert", "evict"]), st.integers(0, 2**16)), max_size=60)


@pytest.mark.parametrize("kind", [LongestPrefix, Shortest])
@settings(max_examples=150, deadline=None)
@given(actions=ACTIONS)
def test_the_best_is_the_best_at_any_moment(kind, actions):
    tree, waiting, turn = Tree(kind), [], 0

    def key(r):
        match = tree.cached(r.ids.view[: r.match_limit].tolist())
        return (-match, r.turn) if kind is LongestPrefix else (len(r.ids) - match, r.turn)

    for action, number in actions:
        draw = random.Random(number)
        ids = [draw.randrange(3) for _ in range(draw.randrange(1, 9))]
        if action == "add":
            request = make(ids)
            turn += 1
            request.turn = turn
            waiting.append(request)
            tree.order.add(request)
        elif action == "insert":
            tree.insert(ids)
        elif action == "evict" and tree.paths:
            tree.evict(draw.choice(sorted(tree.paths)))
        elif action in ("admit", "abort") and waiting:
            request = min(waiting, key=key) if action == "admit" else draw.choice(waiting)
            waiting.remove(request)
            tree.order.remove(request, admitted=action == "admit")
            tree.insert(request.ids.view.tolist())
        best = tree.order.best()
        assert (best is None) == (not waiting)
        if waiting:
            assert key(best) == min(map(key, waiting))


def test_ten_thousand_that_wait_are_not_looked_at_again_and_again():
    """Counts, not clocks: one look when a request comes, few for each that goes."""
    owner = scheduler(slots=60_000, budget=4096, max_running=20)
    draw = random.Random(1)
    prefixes = [[draw.randrange(5000) for _ in range(200)] for _ in range(50)]
    looks = 0
    peek = owner.cache.peek

    def counted(*args, **kwargs):
        nonlocal looks
        looks += 1
        return peek(*args, **kwargs)

    owner.cache.peek = counted
    for i in range(10_000):
        owner.add(make([*draw.choice(prefixes), *(draw.randrange(5000) for _ in range(10))], rid=str(i)))
    assert looks == 10_000
    looks = started = 0
    longest = 0.0
    for _ in range(60):
        before = len(owner.waiting)
        begin = time.thread_time()
        plan = owner.plan()
        longest = max(longest, time.thread_time() - begin)
        commit(owner, plan)
        started += before - len(owner.waiting)
    assert started > 200
    assert looks < 8 * started + 60  # at the tight places of ageing up to 16 are compared
    assert longest < 0.25


# ---- ageing -----------------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=120), st.randoms(use_true_random=False))
def test_nobody_is_overtaken_by_more_than_twice_as_many_as_waited(actions, draw):
    """Whoever is chosen, as cruelly as can be, among those that ageing leaves to choose from."""
    ageing, waiting, came, after = Ageing(), [], {}, {}
    for action in actions:
        if action < 2 or not waiting:
            request = make([1])
            came[request] = len(waiting)
            after[request] = 0
            waiting.append(request)
            ageing.add(request)
        elif action == 3 and draw.random() < 0.3:
            ageing.remove(waiting.pop(draw.randrange(len(waiting))), admitted=False)
        else:
            head = ageing.head()
            chosen = waiting[-1] if head is None else draw.choice(head)  # the newest, whenever that is allowed
            waiting.remove(chosen)
            ageing.remove(chosen, admitted=True)
            assert after[chosen] <= 2 * came[chosen]
            for other in waiting:
                after[other] += 1


def test_a_cold_request_starts_though_warm_ones_keep_coming():
    owner = scheduler(max_running=1)
    warm = list(range(100))
    cached(owner, warm)
    for i in range(5):
        owner.add(make([*warm, 200 + i], max_new=0))
    cold = make(range(500, 600), max_new=0, rid="cold")
    owner.add(cold)
    admissions = 0
    while cold.started is None:
        owner.add(make([*warm, 300 + admissions], max_new=0))
        commit(owner, owner.plan())
        admissions += 1
    assert 2 < admissions <= 2 * 5 + 1


# ---- the policies -----------------------------------------------------------------------------------------------------


def groups(n: int, each: int) -> list:
    """n prefixes of 50 ids with `each` requests, interleaved as they would arrive."""
    return [make([*range(1000 * g, 1000 * g + 50), 7 + i], rid=f"{g}.{i}", max_new=0) for i in range(each) for g in range(n)]


def order_of(policy: str, requests, prepare=lambda owner: None, **options) -> list[str]:
    owner = scheduler(policy=policy, max_running=1, **options)
    prepare(owner)
    for request in requests:
        owner.add(request)
    return [r.source.rid for r in starts(owner)]


def test_fcfs_is_the_order_of_arrival():
    assert order_of("fcfs", groups(3, 3)) == [r.source.rid for r in groups(3, 3)]


def test_dfs_takes_branch_after_branch():
    order = order_of("dfs", groups(3, 4))
    blocks = [rid[0] for i, rid in enumerate(order) if i == 0 or order[i - 1][0] != rid[0]]
    assert len(blocks) <= 5  # three branches, and what ageing asks for in between
    assert sum(a[0] == b[0] for a, b in pairwise(order)) >= 7


def test_lpm_takes_what_is_cached_first():
    first = order_of("lpm", groups(3, 4), lambda owner: cached(owner, range(2000, 2050)))
    assert first[0] == "0.0"  # it found nobody waiting: nobody overtakes it
    assert first[1] == "2.0"


def test_shortest_takes_what_is_left_to_compute_into_account():
    long = make([*range(2000, 2050), 1], rid="long but cached", max_new=0)
    requests = [make(range(n, 2 * n), rid=str(n), max_new=0) for n in (3, 60, 30, 20)]
    order = order_of("shortest", [*requests, long], lambda owner: cached(owner, range(2000, 2050)))
    assert order == ["3", "long but cached", "60", "20", "30"]  # 60 found one waiting: two went before it, and no more may


@pytest.mark.parametrize("policy", ["lpm", "fcfs", "dfs", "priority", "shortest"])
def test_higher_priorities_go_first_under_every_policy(policy):
    requests = [make([i, 1, 2], rid=f"{p}", priority=p, max_new=0) for i, p in enumerate([0, 2, 1, 2, 0, 1])]
    assert order_of(policy, requests) == ["2", "2", "1", "1", "0", "0"]


def test_priority_takes_the_place_of_a_lower_one_that_runs():
    for policy, expected in (("priority", ["high", "low"]), ("fcfs", ["low", "high"])):
        owner = scheduler(policy=policy, max_running=1)
        low, high = make([1, 2, 3], rid="low", max_new=6), make([4, 5, 6], rid="high", max_new=2, priority=1)
        owner.add(low)
        commit(owner, owner.plan())
        owner.add(high)
        ended = []
        while owner.running or owner.waiting:
            ended += [r.source.rid for r in commit(owner, owner.plan())]
            owner.cache.check()
        assert ended == expected
        assert (owner.preemptions, owner.retractions) == ((1, 0) if policy == "priority" else (0, 0))
        assert low.retractions == owner.preemptions


def test_targets_are_served_by_slack_when_they_are_near_and_not_when_they_are_lost():
    clock = Clock()
    queue = WaitQueue("fcfs", lambda r: 0, lambda r: 0.1, clock)
    plain = [make([1], rid=f"plain {i}") for i in range(6)]
    slow, quick, lost = make([2], rid="slow", ttft_target=2000), make([3], rid="quick", ttft_target=1500), make([4], rid="lost", ttft_target=10)
    for request in (*plain, slow, quick, lost):
        queue.add(request)

    def take() -> str:
        request = queue.next()
        queue.remove(request, admitted=True)
        return request.source.rid

    assert take() == "plain 0"  # all have time
    clock.now = 1.1  # half of either target is over
    assert take() == "quick"
    assert take() == "plain 1"  # it found one waiting, so two went before it, and no more may
    assert take() == "slow"
    assert take() == "plain 2"
    queue.remove(lost, admitted=False)
    assert len(queue) == 3 and {r.source.rid for r in queue} == {"plain 3", "plain 4", "plain 5"}
