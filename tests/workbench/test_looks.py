"""Three pages look as they did when somebody last looked at them; `make looks` draws the pictures anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from PIL import Image
from tests.workbench.conftest import Site, until
from tests.workbench.drawn_case import comparison_page, plan_page
from tests.workbench.look import LOOKS, MOST_WIDTH, drawn, keep, kept, otherwise

MOST_OTHERWISE = 0.02  # of the patches
MOST_BYTES = 60_000  # of a picture
Opening = Callable[..., Any]


@dataclass(frozen=True)
class Look:
    """A page to look at: what it shows, how wide in CSS pixels, in which theme, and what is pressed."""

    document: Callable[[], dict[str, Any]]
    width: int
    theme: str
    pressed: tuple[str, ...] = ()


PAGES = {
    "plan-light-1440": Look(plan_page, 1440, "light"),
    "plan-dark-390": Look(plan_page, 390, "dark"),
    "compared-light-1440": Look(comparison_page, 1440, "light", ("Differences",)),
}
FIRST = "plan-light-1440"
OTHER_FONTS = "document.body.style.fontFamily = 'DejaVu Serif, Liberation Serif, serif'"
BROKEN = {
    "a section is gone": "document.querySelector('section.composition').remove()",
    "sections have changed places": "document.querySelector('main').append(document.querySelector('section.timeline'))",
    "facts stand under one another": "document.querySelector('.figures').style.display = 'block'",
    "the other theme": "document.documentElement.dataset.theme = 'dark'",
}


def looked_at(look: Look, open_page: Opening, site: Site, change: str = "") -> Image.Image:
    site.document = look.document()
    size = {"width": look.width, "height": 900}
    page = open_page(
        viewport=size, color_scheme=look.theme, device_scale_factor=min(1.0, MOST_WIDTH / look.width)
    )
    until(page, "document.querySelector('canvas.lanes').dataset.mode")
    for each in look.pressed:
        page.get_by_role("button", name=each).click()
    if change:
        page.evaluate(change)
    page.wait_for_timeout(150)  # two frames: canvases are drawn in the next one
    return drawn(page)


@pytest.mark.parametrize(
    "name", [FIRST, *(pytest.param(each, marks=pytest.mark.slow) for each in PAGES if each != FIRST)]
)
def test_a_page_looks_as_it_did(
    name: str, open_page: Opening, site: Site, request: pytest.FixtureRequest
) -> None:
    picture = looked_at(PAGES[name], open_page, site)
    if request.config.getoption("--redraw-looks"):
        keep(picture, name)
    share = otherwise(Image.open(kept(name)), picture)
    assert share <= MOST_OTHERWISE, (
        f"{share:.1%} of {name} look otherwise: make looks, and look at what has changed"
    )


@pytest.mark.slow
def test_other_letters_are_no_other_look(open_page: Opening, site: Site) -> None:
    for name, look in PAGES.items():
        share = otherwise(Image.open(kept(name)), looked_at(look, open_page, site, OTHER_FONTS))
        assert share <= MOST_OTHERWISE, name


@pytest.mark.slow
@pytest.mark.parametrize("change", BROKEN)
def test_what_is_broken_looks_otherwise(change: str, open_page: Opening, site: Site) -> None:
    broken = looked_at(PAGES[FIRST], open_page, site, BROKEN[change])
    assert otherwise(Image.open(kept(FIRST)), broken) > MOST_OTHERWISE


@pytest.mark.slow
def test_another_colour_of_a_kind_looks_otherwise(open_page: Opening, site: Site) -> None:
    changed = plan_page()
    changed["sections"][0]["traces"][0]["kinds"][1]["color_light"] = "#e57fa3"
    broken = looked_at(Look(lambda: changed, 1440, "light"), open_page, site)
    assert otherwise(Image.open(kept(FIRST)), broken) > MOST_OTHERWISE


def test_the_pictures_are_those_of_the_pages_and_small() -> None:
    assert {path.stem for path in LOOKS.iterdir()} == set(PAGES)
    assert max(path.stat().st_size for path in LOOKS.iterdir()) <= MOST_BYTES
