"""Colours are told apart by the colour-blind, too, carry their texts, and stand out from what is behind them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.colour_vision import (
    LEAST_GROUND_DISTANCE,
    LEAST_LINE_CONTRAST,
    LEAST_TEXT_CONTRAST,
    alike,
    ciede2000,
    contrast,
    distance,
)

from meshwright.reports.chart.bars import FILLS
from meshwright.reports.chart.drawing import PAPER
from meshwright.reports.chart.palette import COLOUR_OF_NAME, INK, ODD_MICROBATCH_SHADE, colour, shade

WHITE = "#ffffff"


@pytest.mark.parametrize(
    "one, other, expected",  # of Sharma et al. 2005, table 1
    [
        ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
        ((50.0, 2.5, 0.0), (73.0, 25.0, -18.0), 27.1492),
        ((50.0, 2.5, 0.0), (61.0, -5.0, 29.0), 22.8977),
        ((50.0, 2.5, 0.0), (58.0, 24.0, 15.0), 19.4535),
    ],
)
def test_distances_are_those_of_the_formula_s_paper(
    one: tuple[float, ...], other: tuple[float, ...], expected: float
) -> None:
    assert ciede2000(np.array(one), np.array(other)) == pytest.approx(expected, abs=1e-4)


def test_what_is_known_to_look_alike_does() -> None:
    assert alike({"red": "#a00000", "dark green": "#5c4a00"}) and not alike(["#000000", "#ffffff"])


def test_computes_are_told_apart_where_there_is_no_room_for_a_pattern() -> None:
    distinct = {name: colour(name) for name in ("F", "B", "W", "R", "STEP", "T")}
    assert alike(distinct) == []
    assert alike({name: shade(each, ODD_MICROBATCH_SHADE) for name, each in distinct.items()}) == []


def test_the_parts_of_bars_are_told_apart() -> None:
    assert alike(FILLS) == []


def test_the_lines_of_charts_are_told_apart_and_stand_out() -> None:
    assert alike(PAPER.series) == []
    assert min(contrast(each, WHITE) for each in PAPER.series) >= LEAST_LINE_CONTRAST


def test_texts_on_areas_can_be_read_and_areas_stand_out() -> None:
    computes = set(COLOUR_OF_NAME.values())
    darkest = [*FILLS, *computes, *(shade(each, ODD_MICROBATCH_SHADE) for each in computes)]
    assert min(contrast(each, INK) for each in darkest) >= LEAST_TEXT_CONTRAST
    assert min(distance(each, WHITE) for each in [*FILLS, *computes]) >= LEAST_GROUND_DISTANCE
