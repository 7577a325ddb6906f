"""The timeline in the terminal: golden text, one scale for two traces, widths, colours."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from tests.reports.sample import pipeline_trace

from meshwright.prediction.predicted import predict
from meshwright.reports.chart.palette import colour
from meshwright.reports.trace.legend import MAX_DEVICES
from meshwright.reports.trace.terminal import TimelineView, timeline_text, timeline_view
from meshwright.specs import Cluster, ModelSpec, Plan, Workload

GOLDEN_1F1B = """\
pp0 F0F1F2F3............B0==F4B1==F5B2==F6B3==F7B4==..B5==..B6==..B7==
pp1 ..F0F1F2........B0==F3B1==F4B2==F5B3==F6B4==F7B5==..B6==..B7==....
pp2 ....F0F1....B0==F2B1==F3B2==F4B3==F5B4==F6B5==F7B6==..B7==........
pp3 ......F0B0==F1B1==F2B2==F3B3==F4B4==F5B5==F6B6==F7B7==............
    |0                  |10                 |20                 |30
span 33   device time 33   bubble 27.3 %
F-- forward   B== backward   .. idle
"""
TWO_DEVICES = [
    "pp0 F0-F1->>>......>>>B0====>>>B1====",
    "pp1 ...>>>F0-B0====F1-B1====>>>......",
]


def in_colour(view: TimelineView, width: int = 100) -> tuple[str, str]:
    """The text with and without escape sequences."""
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=width)
    with console.capture() as captured:
        console.print(view)
    plain = "\n".join(line.plain for line in view.lines(width))
    return captured.get(), plain


def test_1f1b_in_plain_text() -> None:
    assert timeline_text(pipeline_trace(transfer_s=0.0, time_unit="")) == GOLDEN_1F1B


def test_passes_of_a_split_vocabulary_are_named() -> None:
    plan = Plan.of(
        ModelSpec.decoder(4, 64, 4, max_sequence_length=64), Cluster("2xcpu"), Workload(4, 64), pp=2, dp=1,
        vocabulary="two_barriers",
    )  # fmt: skip
    key = " ".join(timeline_text(predict(plan, Cluster("2xcpu")).trace()).split())
    assert "S-- softmax of the split vocabulary T-- gradient of the split head" in key
    assert "LOOKUP-- lookup in the split table" in key


def test_plain_text_is_ascii_and_shows_exposed_transfers() -> None:
    text = timeline_text(pipeline_trace(2, 2, transfer_s=1.0), 40)
    assert text.isascii()
    assert text.splitlines()[:2] == TWO_DEVICES


@pytest.mark.parametrize("width", [30, 60, 100, 200])
def test_no_line_is_wider_than_asked(width: int) -> None:
    trace = pipeline_trace(noise=0.1)
    assert max(map(len, timeline_text({"predicted": trace, "measured": trace}, width).splitlines())) <= width
    for line in TimelineView({"": trace}).lines(width):
        assert line.cell_len <= width


def test_two_traces_share_one_scale() -> None:
    fast, slow = pipeline_trace(scale=1.0), pipeline_trace(scale=2.0)
    lines = timeline_text({"predicted": fast, "measured": slow}, 100).splitlines()
    lengths = [
        len(lines[lines.index(label) + 1].rstrip(".")) - len("pp0 ") for label in ("predicted", "measured")
    ]
    assert lengths[1] / lengths[0] == pytest.approx(2.0, abs=0.1)
    assert sum("span" in line for line in lines) == 2


def test_colours_of_names_and_digits_are_there() -> None:
    escaped, plain = in_colour(timeline_view(pipeline_trace(transfer_s=0.0, time_unit="")))
    for name in ("F", "B"):
        red, green, blue = (int(colour(name)[i : i + 2], 16) for i in (1, 3, 5))
        assert f"48;2;{red};{green};{blue}m" in escaped
    first = plain.splitlines()[0]
    assert [c for c in first.removeprefix("pp0 ") if c.isdigit()] == list("0123041526374567")
    assert "\N{MIDDLE DOT}" in first


def test_a_console_without_colours_gets_plain_text() -> None:
    trace = pipeline_trace(transfer_s=0.0, time_unit="")
    console = Console(file=io.StringIO(), width=100)
    with console.capture() as captured:
        console.print(timeline_view(trace))
    assert captured.get() == GOLDEN_1F1B


def test_abstract_times_have_no_unit_and_facts_are_added() -> None:
    abstract = timeline_text(pipeline_trace(time_unit=""), facts={"peak activations": "4"})
    assert "peak activations 4" in abstract and "GB" not in abstract and " s " not in abstract
    assert "peak 1.8 GB" in timeline_text(pipeline_trace())


def test_many_devices_are_an_even_selection() -> None:
    lines = timeline_text(pipeline_trace(MAX_DEVICES + 8, 2), 80).splitlines()
    rows = [line for line in lines if line.lstrip().startswith("pp")]
    assert len(rows) == MAX_DEVICES
    assert rows[0].split()[0] == "pp0" and rows[-1].split()[0] == f"pp{MAX_DEVICES + 7}"
    assert any(f"{MAX_DEVICES} of {MAX_DEVICES + 8} devices" in line for line in lines)
