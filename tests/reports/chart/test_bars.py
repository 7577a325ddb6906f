"""Stacked bars: equal length, parts in proportion and in one order of colours, all text escaped."""

from __future__ import annotations

import re

from meshwright.reports.chart.bars import FILLS, bars_svg

RECT = re.compile(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="24" fill="(#\w+)"')


def test_parts_are_in_proportion_and_bars_of_equal_length() -> None:
    drawn = RECT.findall(bars_svg({"one": {"matmul": 3.0, "waiting": 1.0}, "two": {"waiting": 50.0}}))
    assert len(drawn) == 3
    matmul, waiting, other = (float(wide) for _, _, wide, _ in drawn)
    assert abs(matmul / waiting - 3.0) < 0.01
    assert abs(matmul + waiting - other) < 0.2
    assert [fill for *_, fill in drawn] == [FILLS[0], FILLS[1], FILLS[1]]


def test_names_are_text_and_sums_are_shown() -> None:
    drawn = bars_svg({"<b>": {"a&b": 0.25, "c": 0.25}})
    assert "<b>" not in drawn
    assert "&lt;b&gt;" in drawn
    assert "a&amp;b: 250 ms, 50.0 %" in drawn
    assert "500 ms</text>" in drawn


def test_a_part_of_nothing_is_not_drawn() -> None:
    assert len(RECT.findall(bars_svg({"one": {"a": 1.0, "b": 0.0}}))) == 1
