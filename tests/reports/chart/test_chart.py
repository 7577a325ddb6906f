"""Lines, steps and points as SVG."""

from __future__ import annotations

import itertools
from xml.etree import ElementTree

import numpy as np
import pytest

from meshwright.reports.chart.chart import MAX_POINTS, Chart, Series, chart_svg
from meshwright.reports.chart.drawing import CHARACTER_WIDTH

SVG = "{http://www.w3.org/2000/svg}"


def test_points_keep_their_labels_and_order() -> None:
    chart = Chart(
        [Series("plans", [1, 2, 4], [3.0, 1.0, 2.0], "points", labels=["a", "<b>", "c"])], title="x & y"
    )
    root = ElementTree.fromstring(chart_svg(chart))
    dots = list(root.iter(f"{SVG}circle"))
    assert [dot[0].text for dot in dots] == ["a", "<b>", "c"]
    x = [float(dot.get("cx", "")) for dot in dots]
    y = [float(dot.get("cy", "")) for dot in dots]
    assert (x[2] - x[1]) / (x[1] - x[0]) == pytest.approx(2.0, abs=0.01)
    assert y[1] > y[2] > y[0]


def test_a_long_curve_is_thinned_but_keeps_its_extremes() -> None:
    y = np.sin(np.arange(100_000) / 500)
    y[77_777] = 9.0
    root = ElementTree.fromstring(chart_svg(Chart([Series("curve", np.arange(y.size), y)])))
    points = next(root.iter(f"{SVG}path")).get("d", "").removeprefix("M").split("L")
    assert len(points) <= MAX_POINTS + 2
    heights = [float(point.split()[1]) for point in points]
    assert min(heights) < sorted(heights)[1] - 50  # the spike stands alone, above everything else


def test_steps_hold_their_value_until_the_next_time() -> None:
    root = ElementTree.fromstring(
        chart_svg(Chart([Series("memory", [0.0, 1.0, 2.0], [1.0, 5.0, 2.0], "steps")]))
    )
    points = [tuple(map(float, p.split())) for p in next(root.iter(f"{SVG}path")).get("d", "")[1:].split("L")]
    assert len(points) == 5
    assert all(a[0] == b[0] or a[1] == b[1] for a, b in zip(points[:-1], points[1:], strict=True))


@pytest.mark.parametrize(
    "name", ["a plan", "one of several plans, another of them, and a third", "long " * 60]
)
def test_a_name_is_whole_and_no_line_strikes_it_through(name: str) -> None:
    x, y = [9.0, 5.0, 1.0], [3.0, 2.0, 1.0]  # as a frontier is: to the left, and down
    edge = Series("edge", x, y, "steps", dashed=True)
    root = ElementTree.fromstring(chart_svg(Chart([edge, Series("best", x, y, "points", [name, "", name])])))
    path = next(root.iter(f"{SVG}path")).get("d", "")[1:].split("L")
    corners = [tuple(map(float, pair.split())) for pair in path]
    words = [each for each in root.iter(f"{SVG}text") if (each.text or "")[:5] == name[:5]]
    assert len(words) == 2
    for each in words:
        left, line = float(each.get("x", 0)), float(each.get("y", 0))
        right = left + CHARACTER_WIDTH * len(each.text or "")
        assert left >= 0 and right <= 640 and each.get("text-anchor") == "start"
        for (a, b), (c, d) in itertools.pairwise(corners):
            assert b != d or not (line - 8 < b < line + 2) or right < min(a, c) or left > max(a, c)


def test_the_name_of_a_level_is_seen_on_a_narrow_page_too() -> None:
    svg = chart_svg(Chart([Series("s", [0, 1], [0.0, 1.0])], y_unit="B", levels=[("a device has", 2.0)]))
    (level,) = [
        each for each in ElementTree.fromstring(svg).iter(f"{SVG}text") if "a device has" in (each.text or "")
    ]
    assert float(level.get("x", 0)) < 100 and level.get("paint-order") == "stroke"


@pytest.mark.parametrize("y", [[], [np.nan], [2.0], [0.0, 0.0], [-1e-9, 1e12]])
def test_odd_data_gives_a_picture(y: list[float]) -> None:
    svg = chart_svg(Chart([Series("s", list(range(len(y))), y)], levels=[("level", 1.0)]))
    ElementTree.fromstring(svg)
    assert "nan" not in svg and "inf" not in svg.replace("information", "")


def test_ticks_of_ones_own_are_drawn_where_they_are_and_a_series_without_a_name_is_in_no_legend() -> None:
    series = [Series("measured", [0, 1, 2], [0, 1, 2], "points"), Series("", [0, 2], [0, 2])]
    chart = Chart(series, x_ticks=[(0, "1"), (1, "2"), (2, "4 GB")], y_ticks=[(0, "low"), (2, "high")])
    root = ElementTree.fromstring(chart_svg(chart))
    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert texts == ["low", "high", "1", "2", "4 GB", "measured"]
    assert len(list(root.iter(f"{SVG}circle"))) == 3 + 1  # three points and the legend's
