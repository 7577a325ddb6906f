"""Kinds of instructions are told apart by colour or by pattern, on light and on dark ground, also by the colour-blind."""

from __future__ import annotations

import re
from itertools import combinations

import pytest
from tests.colour_vision import LEAST_DISTANCE, LEAST_GROUND_DISTANCE, LEAST_TEXT_CONTRAST, contrast, distance
from tests.conftest import CHECKOUT

from meshwright.reports.chart.palette import COLOUR_OF_KIND, INK, shade
from meshwright.reports.trace.legend import MEANINGS
from meshwright.workbench.document.document import DrawnKind
from meshwright.workbench.document.drawn.kind import drawn_kinds

THEMES = ("light", "dark")
WEB = CHECKOUT / "web" / "src"


def of_theme(kind: DrawnKind, theme: str) -> str:
    return kind.color_light if theme == "light" else kind.color_dark


def known() -> list[DrawnKind]:
    """All kinds that the package has names for."""
    computes = [(name, "COMPUTE") for name in MEANINGS]
    found, _ = drawn_kinds(*zip(*computes, *((kind, kind) for kind in COLOUR_OF_KIND)))
    assert {each.name for each in found} >= {
        "forward",
        "backward",
        "input gradient",
        "collective",
        "memory",
        "host",
    }
    return found


def odd_shade(theme: str) -> float:
    """What the page multiplies the colour of odd microbatches by."""
    table = re.search(
        r"ODD_MICROBATCH.*\{ light: ([\d.]+), dark: ([\d.]+) \}", (WEB / "timeline" / "ink.ts").read_text()
    )
    assert table
    return float(table[1 + THEMES.index(theme)])


@pytest.mark.parametrize("theme", THEMES)
def test_any_two_kinds_differ_by_pattern_or_by_colour(theme: str) -> None:
    same = [
        f"{one.name} and {other.name}"
        for one, other in combinations(known(), 2)
        if one.pattern == other.pattern
        and distance(of_theme(one, theme), of_theme(other, theme)) < LEAST_DISTANCE
    ]
    assert same == []


@pytest.mark.parametrize("theme", THEMES)
def test_what_a_training_is_made_of_differs_by_colour_alone(theme: str) -> None:
    """Rows that are narrower than a pattern, and lanes that are flat."""
    often = [
        each
        for each in known()
        if each.name in ("forward", "backward", "weight gradient", "recompute", "optimizer step")
    ]
    same = [
        f"{one.name} and {other.name}"
        for one, other in combinations(often, 2)
        if distance(of_theme(one, theme), of_theme(other, theme)) < LEAST_DISTANCE
    ]
    assert len(often) == 5 and same == []


@pytest.mark.parametrize("theme", THEMES)
def test_numbers_on_computes_can_be_read_and_all_kinds_stand_out(theme: str) -> None:
    rule = (WEB / "app.css").read_text().split(":root")[1 + THEMES.index(theme)]
    track = re.search(r"--track: (#\w{6})", rule)
    assert track
    for each in known():
        drawn = of_theme(each, theme)
        assert distance(drawn, track[1]) >= LEAST_GROUND_DISTANCE, each.name
        if each.name in MEANINGS.values():
            for shown in (drawn, shade(drawn, odd_shade(theme))):
                assert contrast(shown, INK) >= LEAST_TEXT_CONTRAST, (each.name, shown)


def test_names_of_one_s_own_look_the_same_everywhere() -> None:
    (mine, other), _ = drawn_kinds(["MINE", "THEIRS"], ["COMPUTE", "COMPUTE"])
    assert drawn_kinds(["THEIRS", "MINE"], ["COMPUTE", "COMPUTE"])[0] == [other, mine]
    assert mine.pattern != "solid"
