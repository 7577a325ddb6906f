"""Predicted beside measured, as rows, text and HTML."""

from __future__ import annotations

import pytest
from tests.reports.sample import pipeline_trace

from meshwright.ir.judge import metrics
from meshwright.reports.chart.quantity import ratio_verdict
from meshwright.reports.page.comparison import (
    ComparisonRow,
    as_rows,
    comparison_html,
    comparison_rows,
    comparison_text,
)


def test_rows_of_two_traces_are_their_metrics() -> None:
    predicted, measured = pipeline_trace(), pipeline_trace(scale=1.5, engine="executed")
    rows = {row.name: row for row in comparison_rows(predicted, measured)}
    assert rows["step (span)"].predicted == metrics.span_s(predicted)
    assert rows["step (span)"].ratio == pytest.approx(metrics.span_s(measured) / metrics.span_s(predicted))
    assert rows["F"].ratio == rows["B"].ratio == pytest.approx(1.5)
    assert rows["peak memory"].unit == "B"
    names = list(rows)
    assert names.index("B") < names.index("SEND_F")


def test_text_of_rows_given_as_plain_data() -> None:
    rows = [
        {"name": "F", "predicted": 0.0123, "measured": 0.0127, "basis": "measured here"},
        {"name": "bubble", "predicted": 0.25, "measured": 0.4, "unit": "share", "low": 0.2, "high": 0.3},
        {"name": "lost", "predicted": None, "measured": 1e9, "unit": "B"},
    ]
    lines = comparison_text(rows, width=90).splitlines()
    cells = [line.split() for line in lines if line.strip()]
    assert ["F", "12.3", "ms", "12.7", "ms", "1.03x", "measured", "here"] in cells
    assert ["bubble", "25.0", "%", "20.0", "%", "to", "30.0", "%", "40.0", "%", "1.60x"] in cells
    assert ["lost", "-", "1", "GB", "-"] in cells


def test_html_is_escaped_and_marks_what_is_off() -> None:
    html = comparison_html([ComparisonRow("<F>", 1.0, 2.0), ComparisonRow("B", 1.0, 1.05)], "a & b")
    assert "&lt;F&gt;" in html and "<F>" not in html and "a &amp; b" in html
    assert 'class="number off">2.00x' in html and 'class="number right">1.05x' in html


def test_a_ratio_is_judged_alike_both_ways() -> None:
    for ratio, verdict in ((1.0, "right"), (1.09, "right"), (1.2, "near"), (1.3, "off"), (None, "unknown")):
        assert ratio_verdict(ratio) == verdict
        if ratio:
            assert ratio_verdict(1 / ratio) == verdict


def test_rows_without_a_prediction_have_no_ratio() -> None:
    assert as_rows([{"name": "x", "predicted": 0.0, "measured": 1.0}])[0].ratio is None
