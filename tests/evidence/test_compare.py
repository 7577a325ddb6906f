"""Predicted beside measured: the numbers are the metrics of both traces, and different programs are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.costs.fixed_costs import FixedCosts
from meshwright.evidence import compare
from meshwright.evidence.compare import step_s
from meshwright.ir.judge import metrics
from meshwright.ir.program import Program
from meshwright.ir.text import from_text, to_text
from meshwright.ir.trace import MemoryCurve, Trace
from meshwright.lowering import lower
from meshwright.reports.page.comparison import as_rows
from meshwright.reports.page.html import report_html
from meshwright.reports.page.report import Report
from meshwright.schedules import registered
from meshwright.simulator import simulate_program
from meshwright.specs import Cluster, ModelSpec, Plan, ProgramError, Workload

MODEL = ModelSpec.decoder(4, 64, 4, max_sequence_length=64)
COSTS = FixedCosts.from_times(0.1, 0.1, 0.1)


def program(**choices: object) -> Program:
    plan = Plan.of(MODEL, Cluster("4xcpu"), Workload(8, 64), **{"pp": 2, "dp": 2, **choices})
    return lower(plan, registered()[plan.schedule], in_segments=True)


def simulated(of: Program, iterations: int = 4) -> Trace:
    return simulate_program(of, COSTS, COSTS, iterations=iterations)


def measured(of: Program, factor: float = 1.25, iterations: int = 4) -> Trace:
    """As if executed: everything `factor` times as long, twice the memory."""
    trace = simulated(of, iterations)
    memory = tuple(MemoryCurve(c.device, c.tier, c.times_s, 2 * c.bytes) for c in trace.memory)
    times = {name: factor * getattr(trace, name) for name in ("posted_s", "start_s", "end_s")}
    return replace(trace, **times, engine="executed", memory=memory)


def test_every_quantity_is_the_metric_of_both() -> None:
    of = program()
    predicted, executed = simulated(of), measured(of)
    found = compare(predicted, executed)
    assert found.step.predicted == pytest.approx(metrics.period_s(predicted))
    assert found.step.measured == pytest.approx(1.25 * metrics.period_s(predicted))
    assert found.step.error == pytest.approx(1 / 1.25 - 1)
    assert found.device_time.predicted == pytest.approx(metrics.device_time_s(predicted))
    assert found.bubble.predicted == pytest.approx(found.bubble.measured)
    assert [peak.measured for peak in found.peaks] == pytest.approx([2 * p.predicted for p in found.peaks])
    assert [peak.predicted for peak in found.peaks] == [metrics.peak_bytes(predicted, d) for d in (0, 1)]


def test_names_have_medians_and_counts() -> None:
    of = program(recompute="full")
    rows = {row.name: row for row in compare(simulated(of), measured(of)).names}
    assert rows["F"].seconds.predicted == pytest.approx(0.1)
    assert rows["B"].seconds.measured == pytest.approx(0.25)
    assert rows["R"].num_predicted == rows["R"].num_measured == 4 * 2 * 2  # microbatches, stages, replicas
    assert rows["SEND_F"].num_measured == 4 * 2
    assert list(rows)[:2] == ["F", "R"] or {"F", "R", "B", "STEP"} == set(list(rows)[:4])


def test_a_collapsed_axis_is_the_same_program() -> None:
    of = program()
    assert of.num_lists == 2
    found = compare(simulated(of), measured(of.expand("dp")))
    assert found.is_same_program and len(found.peaks) == 4
    stage_0, stage_1 = (metrics.peak_bytes(simulated(of), stage) for stage in (0, 1))
    assert [peak.predicted for peak in found.peaks] == [stage_0, stage_0, stage_1, stage_1]
    assert found.names[0].num_predicted == found.names[0].num_measured


def test_other_programs_are_refused_unless_asked_for() -> None:
    one, other = program(), program(schedule="gpipe")
    with pytest.raises(ProgramError, match="different programs") as error:
        compare(simulated(one), measured(other))
    assert one.digest() in str(error.value) and other.digest() in str(error.value)
    found = compare(simulated(one), measured(other), allow_different=True)
    assert not found.is_same_program and found.step.measured


def test_the_first_of_many_iterations_is_left_out() -> None:
    of = program()
    executed = measured(of, factor=1.0)
    late = {name: getattr(executed, name) + 10.0 for name in ("posted_s", "start_s", "end_s")}
    for name, times in late.items():
        times[0] = getattr(executed, name)[0]
    slow_first = replace(executed, **late)
    assert compare(simulated(of), slow_first).step.error == pytest.approx(0.0, abs=1e-9)


def test_one_disturbed_iteration_does_not_move_the_step() -> None:
    trace = measured(program(), iterations=8)
    shift = np.zeros((8, 1))
    shift[4:] = 3.0
    disturbed = replace(trace, **{n: getattr(trace, n) + shift for n in ("posted_s", "start_s", "end_s")})
    assert step_s(disturbed) == pytest.approx(step_s(trace))


def test_rows_feed_the_reports() -> None:
    of = program()
    said = {"value": 1.0, "low": 0.5, "high": 9.0, "basis": "interpolated"}
    predicted = replace(simulated(of), metadata={"step": said})
    found = compare(predicted, measured(of))
    rows = as_rows(found.rows())
    assert (rows[0].name, rows[0].low, rows[0].high, rows[0].basis) == ("step", 0.5, 9.0, "interpolated")
    assert "1.25x" in str(found) and "peak memory, device 1" in str(found)
    assert "<table" in found._repr_html_()
    assert found.to_dict()["counts"]["F"] == {"predicted": 16, "measured": 16}


@pytest.mark.parametrize(
    ("low", "high", "is_beyond"), [(0.5, 9.0, False), (0.5, 0.9, True), (3.0, 9.0, True)]
)
def test_a_step_outside_of_its_interval_is_said_with_what_differs_most(
    low: float, high: float, is_beyond: bool
) -> None:
    of = program()
    said = {"value": 1.0, "low": low, "high": high, "basis": "interpolated"}
    found = compare(replace(simulated(of), metadata={"step": said}), measured(of))
    assert bool(found.beyond_interval) is is_beyond
    assert not is_beyond or "differs most, 1.25x" in found.beyond_interval


def test_columns_are_called_what_the_traces_are() -> None:
    of = program()
    one, executed = simulated(of), measured(of)
    found = compare(one, simulated(of, iterations=2))
    assert found.labels == ("predicted 1", "predicted 2") and found.to_dict()["labels"] == [*found.labels]
    assert all(label in shown for label in found.labels for shown in (str(found), found._repr_html_()))
    assert "measured" not in str(found) + found._repr_html_()
    assert compare(one, executed).labels == ("predicted", "measured")
    assert str(compare(executed, one)).index("measured") < str(compare(executed, one)).index("predicted")
    page = report_html(Report("two", predicted=one, measured=one))
    assert "Predicted 1 and predicted 2" in page and "Ratio is predicted 2 over predicted 1" in page


def test_two_predictions_are_not_said_to_be_beyond_an_interval() -> None:
    of = program()
    said = replace(
        simulated(of), metadata={"step": {"value": 1.0, "low": 0.1, "high": 0.2, "basis": "interpolated"}}
    )
    assert compare(said, measured(of)).beyond_interval and not compare(said, simulated(of)).beyond_interval


def test_of_segments_every_kind_has_its_median_and_count() -> None:
    of = program(tp=2, dp=1)
    found = {row.name: row for row in compare(simulated(of), measured(of)).segments}
    num_blocks, num_microbatches = 4, of.num_lists and len(of.tables.microbatches)
    attention = found["F of attention"]
    assert attention.num_predicted == attention.num_measured == num_blocks * num_microbatches
    assert 0 < attention.seconds.predicted < found["F of mlp"].seconds.predicted < 0.1 / 2
    assert attention.seconds.measured == pytest.approx(1.25 * attention.seconds.predicted)
    assert {"B of mlp", "F of embedding", "B of split_cross_entropy"} <= set(found)
    assert compare(simulated(program()), measured(program())).segments == ()


def test_names_of_segments_are_in_the_text_and_not_in_the_hash() -> None:
    of = program(tp=2, dp=1)
    again = from_text(to_text(of))
    assert again.tables.stage_names == of.tables.stage_names and again.digest() == of.digest()
    assert (
        of.tables.name_of_stage(2) == "0:attention.0"
        and of.with_tables(stage_names=()).digest() == of.digest()
    )
    assert program().tables.name_of_stage(0) == "" and "stage-names" not in to_text(program())
