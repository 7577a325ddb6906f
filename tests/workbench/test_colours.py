"""The page's own colours: lines, parts and differences are told apart by the colour-blind, in light and in dark."""

from __future__ import annotations

import re
from itertools import combinations

import pytest
from tests.colour_vision import LEAST_DISTANCE, LEAST_LINE_CONTRAST, alike, contrast, distance
from tests.conftest import CHECKOUT

from meshwright.reports.chart.bars import FILLS
from meshwright.reports.chart.drawing import PAPER

THEMES = ("light", "dark")
WEB, REPORTS = CHECKOUT / "web" / "src", CHECKOUT / "src" / "meshwright" / "reports"
LINES = 10  # of one chart; more would not be told apart by anybody
HEX = r"#[0-9a-f]{6}"


def variables(theme: str) -> dict[str, str]:
    """The colours of a theme's style."""
    rule = (WEB / "app.css").read_text().split(":root")[1 + THEMES.index(theme)]
    return dict(re.findall(rf"--([a-z0-9]+): ({HEX})", rule))


def lines(theme: str) -> list[str]:
    return [variables(theme)[f"s{place}"] for place in range(1, 7)]


def listed(file: str, name: str) -> list[str]:
    """The colours of a constant."""
    found = re.search(rf"{name}\b.*?= (.*?);\n", (WEB / file).read_text(), re.DOTALL)
    assert found, f"{file} has no {name}"
    return re.findall(HEX, found[1])


@pytest.mark.parametrize("theme", THEMES)
def test_lines_differ_by_colour_or_by_dash_and_stand_out(theme: str) -> None:
    found = re.search(r"DASHES = \[(.*)\];", (WEB / "sections" / "Series.tsx").read_text())
    assert found
    dashes = re.findall(r"\[[\d, ]*\]", found[1])
    colours = lines(theme)
    assert len(set(dashes)) == len(dashes)
    same = [
        (one, other)
        for one, other in combinations(range(LINES), 2)
        if one % len(dashes) == other % len(dashes)
        and distance(colours[one % 6], colours[other % 6]) < LEAST_DISTANCE
    ]
    assert same == []
    assert min(contrast(each, variables(theme)["ground"]) for each in colours) >= LEAST_LINE_CONTRAST


@pytest.mark.parametrize("theme", THEMES)
def test_lines_of_reports_have_no_dash_and_differ_by_colour(theme: str) -> None:
    style = (REPORTS / "page.css").read_text().split(":root")[1 + THEMES.index(theme)]
    assert re.findall(rf"--s[1-6]: ({HEX})", style) == lines(theme)
    assert theme == "dark" or lines(theme) == list(PAPER.series)
    assert alike(lines(theme)) == []


def test_parts_of_a_step_are_the_colours_of_bars() -> None:
    assert listed("sections/Composition.tsx", "COLORS") == list(FILLS)


@pytest.mark.parametrize("theme", THEMES)
def test_longer_shorter_and_unmatched_rows_are_told_apart(theme: str) -> None:
    marks = {
        name: listed("timeline/ink.ts", name)[THEMES.index(theme)]
        for name in ("SLOWER", "FASTER", "UNMATCHED")
    }
    assert alike(marks) == []


@pytest.mark.parametrize("theme", THEMES)
def test_the_heats_of_links_are_told_apart(theme: str) -> None:
    assert alike([variables(theme)[f"heat{place}"] for place in range(5)]) == []
