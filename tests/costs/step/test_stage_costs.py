"""Stage times price every stage by itself; a device's row is shared by its chunks; memory keeps the share of a stage."""

from __future__ import annotations

import pytest
from tests.schedules.timing import latency_edge_span

from meshwright import api
from meshwright.api.subjects.schedule_comparison import with_stage_times
from meshwright.costs.step.stage_costs import StageCosts, path_times, with_stage_works
from meshwright.ir.judge import metrics
from meshwright.ir.table import Work
from meshwright.schedules.searched.pipeline import times_of
from meshwright.schedules.searched.stage_times import StageTimes
from meshwright.specs.error import SpecError

UNEVEN = StageTimes((1.0, 2.0, 3.0), (0.5, 0.6, 0.7), (0.1, 0.2, 0.3), 0.25)


def test_every_compute_costs_what_its_stage_takes() -> None:
    program = api.subject("1f1b", stages=3, microbatches=2).program
    costs = StageCosts.from_times(UNEVEN)
    works = with_stage_works(program, 1).tables.works
    assert sorted(costs.cost(work).seconds for work in works) == pytest.approx([0.6, 0.8, 1.0, 1.0, 2.0, 3.0])
    assert costs.cost(Work("STEP")).seconds == 0


def test_chunks_share_the_row_of_their_device() -> None:
    shared = path_times(UNEVEN, [0, 1, 2, 2, 1, 0])
    assert shared == UNEVEN.folded()
    assert path_times(shared, [0, 1, 2, 2, 1, 0]) is shared
    with pytest.raises(SpecError, match="times of 3 stages for 2 devices"):
        path_times(UNEVEN, [0, 1, 0, 1])


@pytest.mark.parametrize("name", ["1f1b", "zb_h1", "zbv", "interleaved_1f1b", "hanayo"])
def test_equal_rows_are_what_times_say(name: str) -> None:
    made = api.subject(name, stages=4, microbatches=6)
    rows = StageTimes.uniform(4, 1.0, 1.2, 0.9, 0.1)
    plain = api.simulate(schedule=name, stages=4, microbatches=6, times=(1.0, 1.2, 0.9), comm=0.1)
    priced = api.simulate(with_stage_times(made, rows))
    assert metrics.span_s(priced) == pytest.approx(metrics.span_s(plain), rel=1e-12)
    assert metrics.peak_alive(priced) == metrics.peak_alive(plain)


def test_the_simulator_and_the_search_agree_on_uneven_stages() -> None:
    from meshwright import catalog

    for name, times, chunks in (("zb_h2", UNEVEN, 1), ("v_half", UNEVEN.folded(), 2)):
        trace = api.simulate(with_stage_times(api.subject(name, stages=3, microbatches=7), UNEVEN))
        exact = times_of(times, catalog.find_schedule(name).orders(3, 7), chunks)
        assert metrics.span_s(trace) == pytest.approx(exact.span_s, rel=1e-12)
        assert metrics.device_time_s(trace) == pytest.approx(exact.device_time_s, rel=1e-12)
        assert metrics.peak_alive(trace) == pytest.approx(exact.peaks)


def test_a_recomputed_stage_takes_its_forward_again() -> None:
    times = StageTimes((2.0,), (1.0,), (1.0,))
    made = with_stage_times(api.subject("1f1b", stages=1, microbatches=3, recompute=True), times)
    assert metrics.span_s(api.simulate(made)) == pytest.approx(3 * (2 + 2 + 2))


def test_equal_stages_match_the_longest_path() -> None:
    from meshwright import catalog

    orders = catalog.find_schedule("1f1b").orders(4, 5)
    rows = StageTimes.uniform(4, 1.0, 1.5, 0.5, 0.3)
    trace = api.simulate(with_stage_times(api.subject("1f1b", stages=4, microbatches=5), rows))
    assert metrics.span_s(trace) == pytest.approx(latency_edge_span(orders, (1.0, 1.5, 0.5), 1.0, 0.3))


def test_a_program_without_counts_is_refused() -> None:
    program = api.subject("1f1b", stages=2, microbatches=2).program
    with pytest.raises(SpecError, match="stage times"):
        with_stage_times(api.subject(program), UNEVEN)
