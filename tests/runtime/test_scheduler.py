"""The scheduler over the real cache, without a model: whatever comes, every request ends and every slot is accounted for."""
from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from scheduling import Clock, cached, commit, make, scheduler, starts

from ramet.runtime.cost_model import Coefficients, CostModel
from ramet.runtime.pacing import Pace
from ramet.runtime.policy import POLICIES
from ramet.runtime.protocol import FinishReason
from ramet.runtime.request import Request


class SchedulerMachine(RuleBasedStateMachine):
    """Random pools, policies, budgets, priorities, targets; arrivals, aborts, passes that fail, steps, in any order.

    A request may hold at most the pool: what the door lets in."""

    @initialize(
        policy=st.sampled_from(sorted(POLICIES)), slots=st.integers(4, 60), budget=st.integers(1, 40), running=st.integers(1, 8),
        caution=st.sampled_from([0.0, 1.0, 5.0]), paced=st.booleans(), enabled=st.booleans(),
    )  # fmt: skip
    def begin(self, policy, slots, budget, running, caution, paced, enabled):
        self.clock, self.slots, self.serial = Clock(), slots, 0
        cost = CostModel(Coefficients(), observed=100)
        pace = Pace(cost, auto=paced, tpot_target=0.012 if paced else None)
        self.owner = scheduler(slots, policy=policy, budget=budget, max_running=running, pace=pace, conservativeness=caution, clock=self.clock)
        self.owner.cache.enabled = enabled
        self.live: set[Request] = set()
        self.came: dict[Request, tuple[int, int]] = {}  # admissions of its priority before it came, and how many waited
        self.admitted: dict[int, int] = {}

    @rule(number=st.integers(0, 2**20), priority=st.sampled_from([0, 0, 0, 1, -1]), wish=st.sampled_from([None, None, 5.0, 500.0]))
    def arrive(self, number, priority, wish):
        draw = random.Random(number)
        n = draw.randrange(1, self.slots + 1)
        ids = [draw.randrange(2) for _ in range(n)] if draw.random() < 0.7 else list(range(n))
        most = draw.choice([0, 1, self.slots + 1 - n, draw.randrange(self.slots + 2 - n)])
        if most == 0 or n + most <= self.slots + 1:
            request = make(ids, rid=str(self.serial), max_new=most, priority=priority, ttft_target=wish, arrival=self.clock.now)
            self.serial += 1
            self.came[request] = (self.admitted.get(priority, 0), sum(r.started is None and r.source.priority == priority for r in self.owner.waiting))
            self.owner.add(request)
            self.live.add(request)

    @rule(index=st.integers(0, 1000))
    def abort(self, index):
        if self.live:
            request = sorted(self.live, key=lambda r: r.turn)[index % len(self.live)]
            self.live.discard(request)
            self.owner.drop(request)

    @rule(times=st.integers(1, 12))
    def steps(self, times):
        for _ in range(times):
            self.step()

    @rule()
    def a_pass_fails(self):
        plan = self.plan()
        self.owner.fail(plan)
        self.live.difference_update(item.request for item in plan.items)

    def plan(self):
        fresh = {r for r in self.owner.waiting if r.started is None}
        plan = self.owner.plan()
        for request in sorted((r for r in fresh if r.started is not None), key=lambda r: r.last_step):
            before, waited = self.came[request]
            started = self.admitted.get(request.source.priority, 0)
            # those admitted in one plan have no order that can be seen from here: each may come after all others of it
            assert started - before <= 2 * waited, "overtaken more often than it may be"
        for request in fresh:
            if request.started is not None:
                self.admitted[request.source.priority] = self.admitted.get(request.source.priority, 0) + 1
        assert plan.n_tokens <= self.owner.token_budget
        assert len({item.request for item in plan.items}) == len(plan.items)
        return plan

    def step(self):
        self.clock.now += 0.01
        plan = self.plan()
        for request in commit(self.owner, plan):
            self.live.remove(request)
            assert request.output_len == request.max_new_tokens
        self.owner.cache.check()

    @invariant()
    def the_books_are_right(self):
        if not hasattr(self, "owner"):
            return
        self.owner.cache.check()
        assert {*self.owner.running, *self.owner.waiting} == self.live
        assert len(self.owner.waiting) == len(list(self.owner.waiting))
        for request in self.owner.running:
            assert request.lease is not None and len(request.lease.slots) == request.computed

    def teardown(self):
        if hasattr(self, "owner"):
            work = sum(len(r.ids) + r.max_new_tokens for r in self.live)
            for _ in range(100 + 60 * work):  # a chunk may wait for PATIENCE steps
                if not self.live:
                    break
                self.step()
            assert not self.live, "requests wait for what does not come"
            assert self.owner.cache.evictable + self.owner.cache.free == self.slots


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=120, stateful_step_count=25, deadline=None)


def test_a_request_that_equals_the_pool_runs():
    for policy in POLICIES:
        owner = scheduler(100, policy=policy)
        cached(owner, range(60))
        owner.add(make(range(500, 540), max_new=61))  # the last token needs no slot
        owner.add(make(range(700, 800), max_new=1))
        assert len(starts(owner)) == 2


@pytest.mark.parametrize("budget", [4096, 512, 300, 33])
def test_equal_prompts_of_one_step_are_computed_once_plus_their_tails(budget):
    """32 times the same 1,000 tokens and 10 of its own: 1,000 + 32 x 10, whatever chunks they take."""
    owner = scheduler(20_000, budget=budget)
    for i in range(32):
        owner.add(make([*range(1000), *range(2000 + 10 * i, 2010 + 10 * i)], rid=str(i), max_new=1))
    computed = 0
    while owner.running or owner.waiting:
        plan = owner.plan()
        computed += plan.n_tokens
        commit(owner, plan)
        owner.cache.check()
    assert computed == 1000 + 32 * 10


def test_equal_prompts_beside_streams_whose_steps_have_a_target():
    """The same where chunks are cut by the pace, so that several prompts are under way at a time."""
    owner = scheduler(20_000, pace=Pace(CostModel(Coefficients(), observed=100), tpot_target=0.1))
    owner.add(make([7, 8, 9], max_new=400))
    commit(owner, owner.plan())
    for i in range(32):
        owner.add(make([*range(1000), *range(2000 + 10 * i, 2010 + 10 * i)], rid=str(i), max_new=1))
    computed = sizes = 0
    while owner.waiting or len(owner.running) > 1:
        plan = owner.plan()
        sizes += 1
        computed += sum(item.n_tokens for item in plan.items if len(item.request.ids) > 500)
        commit(owner, plan)
    assert sizes > 15 and computed == 1000 + 32 * 10


def test_the_cheapest_to_compute_again_gives_way():
    """Of those that came later: lower priority first, then who holds the fewest tokens that nobody else holds."""
    owner = scheduler(100, conservativeness=0.0)
    shared = list(range(30))
    first = make([500], rid="first", max_new=80)
    long, short = make(range(200, 220), rid="long", max_new=80), make([*shared, 1], rid="short", max_new=80)
    twin = make([*shared, 2], rid="twin", max_new=80)
    for request in (first, long, short, twin):
        owner.add(request)
    while owner.retractions == 0:
        commit(owner, owner.plan())
    gone = [r.source.rid for r in (first, long, short, twin) if r.retractions]
    assert gone == ["twin"]  # its prefix is held by `short` too; between equals the younger
    low = make([9], rid="low", max_new=80, priority=-1)
    owner = scheduler(60, conservativeness=0.0)
    for request in (first := make([500], max_new=80), low, make(range(300, 303), max_new=80)):
        owner.add(request)
    while owner.retractions == 0:
        commit(owner, owner.plan())
    assert low.retractions == 1


def test_promised_room_is_not_given_away():
    """With answers as long as they may be, expectations spare most retractions; without any, requests are thrown out again and again."""
    counts = []
    for caution in (0.0, 2.0):
        owner = scheduler(400, conservativeness=caution)
        for i in range(12):
            owner.add(make(range(100 * i, 100 * i + 20), rid=str(i), max_new=100))
        starts(owner)
        counts.append(owner.retractions)
    assert counts[0] > 4 and counts[1] <= counts[0] / 4


def test_lengths_follow_what_is_seen():
    owner = scheduler(4000)
    before = owner.lengths.share
    for i in range(300):
        request = make([i, i], max_new=100, rid=str(i))
        owner.add(request)
        while request.output_len < 20:
            commit(owner, owner.plan())
        request.finish = FinishReason("stop")  # as if the model had ended it
        owner.settle(request)
    assert before > owner.lengths.share and abs(owner.lengths.share - 0.2) < 0.01
    assert make([1], max_new=3) and owner.lengths.left(make([1], max_new=3)) == 3  # never more than may come
