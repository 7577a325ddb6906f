"""Timelines as SVG: well-formed, complete, on one scale, small for large traces."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from tests.reports.sample import pipeline_trace

from meshwright.reports.trace.svg import MAX_CELLS, timeline_svg, write_timeline_svg

SVG = "{http://www.w3.org/2000/svg}"


def hinted(text: str) -> list[str]:
    root = ElementTree.fromstring(text)
    return [title.text.split()[0] for rect in root.iter(f"{SVG}rect") for title in rect.iter(f"{SVG}title")]


def test_every_instruction_that_takes_time_is_drawn_once() -> None:
    trace = pipeline_trace()
    names = [trace.program.text_of(row) for row in range(trace.program.num_rows)]
    assert sorted(hinted(timeline_svg(trace))) == sorted(names)
    computes = [name for name in names if "_" not in name]
    assert sorted(hinted(timeline_svg(pipeline_trace(transfer_s=0.0)))) == sorted(computes)


def test_cells_stay_inside_and_are_as_wide_as_their_time() -> None:
    root = ElementTree.fromstring(
        timeline_svg({"predicted": pipeline_trace(), "measured": pipeline_trace(scale=2)})
    )
    cells = [rect for rect in root.iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None]
    assert all(float(c.get("x", "")) + float(c.get("width", "")) <= 900 for c in cells)
    forward = [float(c.get("width", "")) for c in cells if c[0].text and c[0].text.startswith("0F0 ")]
    assert len(forward) == 2 and abs(forward[1] / forward[0] - 2) < 0.01


def test_labels_are_escaped(tmp_path: Path) -> None:
    path = write_timeline_svg({'<a & "b">': pipeline_trace(2, 2)}, tmp_path / "timeline.svg")
    text = path.read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    assert "&lt;a &amp;" in text


def test_a_large_trace_is_sampled() -> None:
    trace = pipeline_trace(8, 400)
    assert trace.program.num_rows > MAX_CELLS
    text = timeline_svg(trace)
    ElementTree.fromstring(text)
    assert len(text) < 1_500_000
    assert text.count("<rect") < 8 * 3 * 900
