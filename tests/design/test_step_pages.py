"""The pages about predicted steps say what the package has: constants, widths, classes, figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fit.fit_steps import FAMILIES, NAMES

from meshwright.costs.step.profile import packaged_step_profile
from meshwright.prediction.step_trait import UNCERTAIN
from meshwright.specs.plan.software import CLASSES

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("how-a-step-is-predicted.md", "accuracy-training.md", "prediction-in-pictures.md")
SCALES = {"us": 1e6, "ms": 1e3}
LARGEST_FIGURE_BYTES = 200_000
REFRESH = "write the pages anew: python -m benchmarks.chapter TABLE.csv ... --docs docs"


def block(name: str, page: str = PAGES[0]) -> list[list[str]]:
    """Cells of the table between two marks, without its head."""
    text = (DOCS / page).read_text(encoding="utf-8")
    inside = text.split(f"<!-- {name} -->", 1)[1].split(f"<!-- end {name} -->", 1)[0]
    rows = [line.strip("|").split("|") for line in inside.splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in row] for row in rows[2:]]


def test_the_table_of_constants_is_that_of_the_package() -> None:
    fit = packaged_step_profile().fit
    shown = {row[0]: (SCALES.get(row[1], 1.0), row[-len(FAMILIES) :]) for row in block("constants")}
    assert tuple(shown) == NAMES
    for name, (scale, values) in shown.items():
        packaged = [f"{scale * getattr(fit.of(family), name):.3g}" for family in FAMILIES]
        assert values == packaged, f"{name}: {REFRESH}"


def test_the_table_of_widths_is_that_of_the_package() -> None:
    width = packaged_step_profile().fit.width
    packaged = [f"{100 * width.spreads[name]:.0f}" for name in UNCERTAIN]
    assert block("width")[0][1:] == [*packaged, f"{width.low:.2f} to {width.high:.2f}"], REFRESH


def test_every_software_class_is_explained() -> None:
    assert [row[0] for row in block("software")] == list(CLASSES), REFRESH


@pytest.mark.parametrize("page", PAGES)
def test_figures_are_there_and_small(page: str) -> None:
    named = re.findall(r"\]\((figures/[^)]+)\)", (DOCS / page).read_text(encoding="utf-8"))
    assert named
    assert all(0 < (DOCS / name).stat().st_size < LARGEST_FIGURE_BYTES for name in named)


@pytest.mark.parametrize("page", PAGES)
def test_every_mark_has_an_end(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    names = re.findall(r"<!-- (?!end )(.+?) -->", text)
    assert names
    assert all(text.count(f"<!-- end {name} -->") == 1 for name in names)
