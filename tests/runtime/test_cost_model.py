"""The cost of steps: learned from steps, kept, and turned into sizes of chunks."""
from __future__ import annotations

import random

import pytest
import torch
from fakes import FakeRunner, fake_engine
from scheduling import make

from ramet.runtime import calibrate
from ramet.runtime.config import EngineConfig
from ramet.runtime.cost_model import Coefficients, CostModel, Work
from ramet.runtime.errors import ConfigError, RequestError
from ramet.runtime.pacing import ANYWAY, CALM, PATIENCE, SMALLEST, STRETCH, Pace
from ramet.runtime.protocol import GenerateRequest, SamplingParams

TRUE = Coefficients(base=0.02, token=0.002, draw=0.001, read=1e-5, pair=2e-6)


def work(*items: tuple[int, int, bool]) -> Work:
    total = Work()
    for start, n, draws in items:
        total.add(start, n, draws=draws)
    return total


def random_work(draw: random.Random) -> Work:
    items = [(draw.randrange(1000), 1, True) for _ in range(draw.randrange(1, 17))]
    if draw.random() < 0.5:
        items.append((draw.randrange(2000), draw.randrange(2, 200), draw.random() < 0.5))
    return work(*items)


def trained(noise: float = 0.0, steps: int = 400, seed: int = 1) -> CostModel:
    cost, truth, draw = CostModel(), CostModel(TRUE), random.Random(seed)
    for _ in range(steps):
        some = random_work(draw)
        cost.observe(some, truth.predict(some) * (1 + noise * draw.random()))
    return cost


def test_it_learns_a_machine_from_its_steps():
    cost, truth, draw = trained(), CostModel(TRUE), random.Random(2)
    for _ in range(50):
        some = random_work(draw)
        assert cost.predict(some) == pytest.approx(truth.predict(some), rel=0.05)
    assert cost.known and cost.margin < 1.05


def test_noise_widens_the_margin_and_a_step_that_was_held_up_does_not_count():
    noisy = trained(noise=0.5)
    assert 1.1 < noisy.margin < 1.5
    cost = trained()
    before = cost.predict(work((100, 1, True)))
    for _ in range(3):
        cost.observe(work((100, 1, True)), 60.0)
    assert cost.predict(work((100, 1, True))) < 2 * before


def test_steps_of_draws_alone_do_not_make_it_forget_what_chunks_cost():
    cost, truth = trained(), CostModel(TRUE)
    draw = random.Random(3)
    for _ in range(3000):
        some = work(*[(draw.randrange(1000), 1, True) for _ in range(draw.randrange(1, 9))])
        cost.observe(some, truth.predict(some))
    chunk = work((500, 128, False))
    assert cost.predict(chunk) == pytest.approx(truth.predict(chunk), rel=0.1)


def test_no_coefficient_is_negative_whatever_the_steps():
    draw, cost = random.Random(4), CostModel()
    for _ in range(300):
        cost.observe(random_work(draw), draw.uniform(0.001, 1.0))
        c = cost.coefficients
        assert min(c.base, c.token, c.draw, c.read, c.pair) >= 0


@pytest.mark.parametrize("start", [0, 100, 3000])
def test_what_is_said_to_fit_fits_and_one_more_does_not(start):
    cost = CostModel(TRUE)
    streams = work(*[(100, 1, True)] * 4)
    n = cost.fitting(0.2, streams, start)
    assert n > 0

    def seconds(n: int) -> float:
        whole = work(*[(100, 1, True)] * 4)
        whole.add(start, n, draws=True)
        return cost.predict(whole)

    assert seconds(n) <= 0.2 < seconds(n + 2)
    assert cost.fitting(0.001, streams, start) == 0


def test_it_is_kept_and_a_damaged_file_is_not_used(tmp_path):
    path = tmp_path / "costs" / "x.json"
    assert CostModel.load(path) is None
    cost = trained()
    cost.save(path, "test")
    again = CostModel.load(path)
    assert again is not None and again.known and again.coefficients == cost.coefficients
    for damage in ("", "{}", path.read_text().replace('"base": ', '"base": -'), path.read_text().replace('"base": ', '"base": "x')):
        path.write_text(damage)
        assert CostModel.load(path) is None
    CostModel().save(tmp_path / "guess.json", "nothing was learned")
    assert not (tmp_path / "guess.json").exists()
    cost.save(tmp_path / "costs" / "x.json" / "below a file.json", "cannot be written")


def test_calibration_measures_an_idle_runner_within_its_time():
    class Idle(FakeRunner):  # whose pool holds nothing yet
        def forward(self, batch):
            self.passes += 1
            return torch.zeros(len(batch.inputs.logit_rows), self.vocab_size)

    runner = Idle(slots=4096)
    cost = calibrate.calibrate(runner, seconds=1.0)
    assert cost.known and cost.observed == runner.passes - 1
    small = Idle(slots=40)
    calibrate.calibrate(small, seconds=0.2)  # shapes that do not fit are left out
    assert small.passes


# ---- pace --------------------------------------------------------------------------------------------------------------


def stream(length: int = 100, **fields):
    request = make(range(length), **fields)
    request.computed = length - 1
    return request


def test_without_streams_nothing_holds_a_chunk_back():
    pace = Pace(CostModel(TRUE, observed=100), tpot_target=0.05)
    assert pace.chunk(pace.begin([]), 0, 512) == 512


def test_a_step_with_streams_stays_within_the_least_target():
    cost = CostModel(TRUE, observed=100)
    pace = Pace(cost, tpot_target=0.5)
    streams = [stream(), stream(tpot_target=150.0)]
    total = pace.begin(streams)
    n = pace.chunk(total, 0, 512)
    total.add(0, n, draws=False)
    assert SMALLEST <= n < 512 and 0.9 * 0.15 < cost.predict(total) * cost.margin <= 0.15


def test_streams_without_a_target_are_not_stalled_either():
    cost = CostModel(TRUE, observed=100)
    pace = Pace(cost)
    total = pace.begin([stream() for _ in range(16)])
    alone = cost.predict(total)
    n = pace.chunk(total, 0, 512)
    total.add(0, n, draws=False)
    assert 0 < n < 512 and cost.predict(total) <= max(STRETCH * alone, CALM)
    assert Pace(cost, auto=False).chunk(work(), 0, 512) == 512


def test_chunks_that_find_no_room_are_computed_now_and_then():
    pace = Pace(CostModel(TRUE, observed=100), tpot_target=0.001)
    sizes = []
    for _ in range(3 * (PATIENCE + 1)):
        sizes.append(pace.chunk(pace.begin([stream()]), 0, 512))
    assert sizes == 3 * ([0] * PATIENCE + [ANYWAY])


def test_no_more_streams_than_a_target_bears():
    cost = CostModel(TRUE, observed=100)
    running = []
    pace = Pace(cost, tpot_target=0.1)
    while pace.bears(running, one := stream()):
        running.append(one)
    assert 5 < len(running) < 40
    assert cost.predict(work(*[(99, 1, True)] * len(running))) * cost.margin <= 0.1
    assert Pace(cost).bears(running * 10, one)  # without a target any number
    assert pace.bears([], stream(10_000))  # one always runs


# ---- targets at the door and in the counts ------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["ttft_target", "tpot_target"])
@pytest.mark.parametrize("value", [0, -1.0, float("nan"), "soon", True])
def test_a_target_is_a_number_of_milliseconds(field, value):
    with pytest.raises(RequestError, match=field) as caught:
        fake_engine().submit(GenerateRequest("r", "abc", **{field: value}))
    assert caught.value.field == field
    if field == "tpot_target" and not isinstance(value, str | bool):
        with pytest.raises(ConfigError, match=field):
            EngineConfig(tpot_target=value)


def test_goodput_counts_those_that_came_with_targets():
    engine = fake_engine()
    params = SamplingParams(max_new_tokens=5, temperature=0.0, ignore_eos=True)
    targets = [{}, {"ttft_target": 60_000.0, "tpot_target": 60_000.0}, {"ttft_target": 1e-6}, {"tpot_target": 1e-6}, {"deadline": 60.0}]
    for i, fields in enumerate(targets):
        engine.submit(GenerateRequest(f"r{i}", "some text", params, **fields))
    engine.submit(GenerateRequest("late", "some text", params, deadline=0.0))
    engine.submit(GenerateRequest("left", "some text", params, ttft_target=1.0))
    engine.abort("left")
    while engine.busy:
        engine.step()
    assert (engine.goodput.asked, engine.goodput.met) == (5, 2)
    assert engine.goodput.share == 0.4
