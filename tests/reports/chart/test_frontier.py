"""The frontier's picture: every name as text, marks that differ in shape, the staircase, the cap, and no name on another."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from meshwright.reports.chart.drawing import CHARACTER_WIDTH, PAGE
from meshwright.reports.chart.frontier import LEFT, WIDTH, FrontierPoint, frontier_svg, write_frontier_svg

POINTS = [
    FrontierPoint("gpipe", 8, 33),
    FrontierPoint("1f1b", 4, 33),
    FrontierPoint("v_min", 2, 29.5, is_on_frontier=True),
    FrontierPoint("v_half", 3, 26.5, is_on_frontier=True),
    FrontierPoint("zbv", 4, 25.5, is_on_frontier=True),
    FrontierPoint("search V (cap 4)", 4, 25.5, "searched", is_on_frontier=True),
    FrontierPoint("<mine>", 7, 33, "own", hint="span 33"),
]
SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> dict[str, tuple[float, float, str]]:
    """Every text with its place and anchor."""
    found = ElementTree.fromstring(svg).iter(f"{SVG}text")
    return {
        e.text or "": (float(e.get("x", 0)), float(e.get("y", 0)), e.get("text-anchor", "")) for e in found
    }


def test_every_schedule_is_named_and_those_at_one_place_share_a_text() -> None:
    said = texts(frontier_svg(POINTS))
    assert {"gpipe", "1f1b", "v_min", "v_half", "zbv, search V (cap 4)", "<mine>"} <= set(said)
    assert {"published", "searched here", "your own"} <= set(said)


def test_kinds_differ_in_shape_not_in_colour_alone() -> None:
    root = ElementTree.fromstring(frontier_svg(POINTS))
    assert len(list(root.iter(f"{SVG}circle"))) == 5 + 1  # and one in the key
    squares = [e for e in root.iter(f"{SVG}rect") if float(e.get("width", 0)) < 20]
    assert len(squares) == 1 + 1
    diamonds = [e for e in root.iter(f"{SVG}path") if (e.get("d") or "").endswith("Z")]
    assert len(diamonds) == 1 + 1
    assert "filter" not in frontier_svg(POINTS) and "shadow" not in frontier_svg(POINTS)


def test_the_staircase_goes_through_the_frontier_only() -> None:
    root = ElementTree.fromstring(frontier_svg(POINTS))
    (line,) = [e.get("d") or "" for e in root.iter(f"{SVG}path") if not (e.get("d") or "").endswith("Z")]
    corners = [tuple(map(float, pair.split())) for pair in re.split("[ML]", line)[1:]]
    assert len(corners) == 2 * 3 - 1
    across, down = zip(*corners, strict=True)
    assert list(across) == sorted(across) and list(down) == sorted(down)  # more memory, smaller span
    one = frontier_svg([POINTS[2]])
    assert "<path" not in one


def test_no_name_lies_on_another_where_marks_are_close() -> None:
    close = [FrontierPoint(f"schedule {k}", 4 + k % 3 * 0.4, 25 + k * 0.3) for k in range(8)]
    close += [FrontierPoint("far", 12, 40)]
    boxes = []
    for name, (x, y, anchor) in texts(frontier_svg(close)).items():
        if name.startswith("schedule"):
            wide = CHARACTER_WIDTH * len(name)
            left = x - wide if anchor == "end" else x
            boxes.append((left, y - 8, left + wide, y + 2))  # of letters 11 pixels high
    assert len(boxes) == 8
    for k, a in enumerate(boxes):
        for b in boxes[k + 1 :]:
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], (a, b)


def test_a_cap_is_drawn_and_a_page_uses_its_own_colours(tmp_path: Path) -> None:
    path = write_frontier_svg(POINTS, tmp_path / "f.svg", memory_cap=5)
    assert "memory cap 5" in texts(path.read_text())
    inside = frontier_svg(POINTS, 5, PAGE, standalone=False)
    assert "xmlns" not in inside and "var(--ink)" in inside and "<mine>" not in inside


@pytest.mark.parametrize("cap", [0.5, 1, 2, 4, 8.5])
def test_the_name_of_a_cap_is_whole_and_the_frontier_does_not_strike_it_through(cap: float) -> None:
    steep = [FrontierPoint(f"s{k}", k, 40 - 4 * k, is_on_frontier=True) for k in range(1, 9)]
    svg = frontier_svg(steep, cap)
    x, y, anchor = texts(svg)[f"memory cap {cap:g}"]
    wide = CHARACTER_WIDTH * len(f"memory cap {cap:g}")
    left = x - wide if anchor == "end" else x
    assert LEFT <= left and left + wide <= WIDTH
    root = ElementTree.fromstring(svg)
    (line,) = [e.get("d") or "" for e in root.iter(f"{SVG}path")]
    corners = [tuple(map(float, pair.split())) for pair in re.split("[ML]", line)[1:]]
    for (a, b), (c, d) in pairwise(corners):
        is_beside = max(a, c) < left or min(a, c) > left + wide
        assert is_beside or max(b, d) < y - 8 or min(b, d) > y + 2
