"""The picture of plans for a load: who is beaten by nobody, and names that do not stand over each other."""

from __future__ import annotations

from dataclasses import replace

from tests.planner.serving.test_serving_search import served

from meshwright.cli.view.load_picture import load_chart, load_report, undominated
from meshwright.planner.serving.served_plan import ServedPlan
from meshwright.planner.serving.serving_search import ServingPlans
from meshwright.reports.page.report import Picture


def found(*ranked: ServedPlan) -> ServingPlans:
    """Of a search."""
    return ServingPlans("a model", "2xH100", (served(2.0, 2, 0.02, price=2.0),), ranked, {}, {}, ())


def test_a_plan_is_beaten_by_more_good_requests_of_a_device_and_less_time_per_token() -> None:
    """Goodput counts by device: 10 a second of four are 2.5, 9 of two 4.5."""
    many, few, slow, quick = served(10, 4, 0.02), served(9, 2, 0.03), served(8, 4, 0.025), served(1, 1, 0.01)
    assert undominated([many, few, slow, quick]) == [few, many, quick]
    same = served(9, 2, 0.03)
    assert undominated([few, same]) == [few]


def test_every_ranked_plan_is_a_mark_and_close_ones_share_a_name() -> None:
    """Two that are nearly alike are named together; what is beaten is not named, what serves less than half of the best not
    drawn; where nothing was ranked the plan of the whole load is drawn."""
    ranked = [
        served(4, 1, 0.0300), served(7.98, 2, 0.0299), served(5, 2, 0.0100), served(5, 2, 0.0302), served(1, 1, 0.2)
    ]  # fmt: skip
    chart = load_chart(found(*ranked))
    edge, beaten, best = chart.series
    assert edge.form == "steps" and len(edge.x) == len(best.x) == 3 and len(beaten.x) == 1
    assert list(best.labels) == ["tp1, 2 x tp1", "", "2 x tp1"] and not beaten.labels
    assert all("good requests a second on" in hint for hint in (*best.hints, *beaten.hints))
    (alone,) = load_chart(found()).series
    assert list(alone.x) == [1.0] and list(alone.y) == [0.02]


def test_a_plan_whose_outputs_have_one_token_has_no_time_per_token_and_no_mark() -> None:
    """NaN is nowhere."""
    plain = served(4, 1, 0.03)
    single = replace(
        plain, report=replace(plain.report, tpot_s=dict.fromkeys(plain.report.tpot_s, float("nan")))
    )
    (best,) = load_chart(found(single, plain)).series
    assert len(best.x) == 1


def test_the_page_has_the_picture_and_the_table() -> None:
    """In front, with what the best plan does."""
    report = load_report(found(served(4, 1, 0.03), served(6, 2, 0.02)), [{"plan": "tp1"}], "9 requests")
    picture, table = report.leading
    assert isinstance(picture, Picture) and "busiest time" in picture.note and "<circle" in picture.svg
    assert table.title == "Plans" and any("USD" in figure.value for figure in report.figures)
