"""A trace for people: terminal, HTML, SVG, Perfetto, notebook; predicted beside measured. Imports ir and specs only."""

from meshwright.reports.chart.chart import Chart, Series, chart_svg
from meshwright.reports.chart.drawing import Theme
from meshwright.reports.notebook import TimelineDisplay, display, show_traces_in_notebooks
from meshwright.reports.page.comparison import (
    ComparisonRow,
    comparison_html,
    comparison_rows,
    comparison_table,
    comparison_text,
)
from meshwright.reports.page.html import report_html, write_report
from meshwright.reports.page.report import DataTable, Figure, Picture, Report
from meshwright.reports.page.validation import validation_report
from meshwright.reports.trace.perfetto import perfetto_events, perfetto_json, write_perfetto
from meshwright.reports.trace.svg import timeline_svg, write_timeline_svg
from meshwright.reports.trace.terminal import TimelineView, timeline_text, timeline_view

__all__ = [
    "Chart",
    "ComparisonRow",
    "DataTable",
    "Figure",
    "Picture",
    "Report",
    "Series",
    "Theme",
    "TimelineDisplay",
    "TimelineView",
    "chart_svg",
    "comparison_html",
    "comparison_rows",
    "comparison_table",
    "comparison_text",
    "display",
    "perfetto_events",
    "perfetto_json",
    "report_html",
    "show_traces_in_notebooks",
    "timeline_svg",
    "timeline_text",
    "timeline_view",
    "validation_report",
    "write_perfetto",
    "write_report",
    "write_timeline_svg",
]
