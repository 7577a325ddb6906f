"""A document in a real browser: drawn, zoomed, searched, compared, read aloud, and text where others chose it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.workbench.conftest import Site, until, violations
from tests.workbench.drawn_case import UNFRIENDLY, document

Opening = Callable[..., Any]
NARROW = {"width": 390, "height": 844}


@pytest.fixture(autouse=True)
def shown(site: Site) -> None:
    site.document = document()


def colours(page: Any, place: int = 0) -> int:
    """How many colours the lanes of a trace have: what is not drawn has one."""
    found: int = (
        page.locator("canvas.lanes")
        .nth(place)
        .evaluate(
            "(canvas) => new Set(new Uint32Array(canvas.getContext('2d')"
            ".getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size"
        )
    )
    return found


def picture(page: Any) -> str:
    """The lanes of the first trace as the browser sees them."""
    found: str = page.locator("canvas.lanes").first.evaluate("(canvas) => canvas.toDataURL()")
    return found


def test_every_section_is_drawn_and_a_name_is_text(open_page: Opening) -> None:
    page = open_page()
    heads = page.locator("h2").all_inner_texts()
    assert heads == [
        *("Timeline", "Where the step goes", "Plans", "Frontier"),
        *("Communication", "Loss", "Memory", "What would help", "Notes"),
    ]
    assert page.locator("h1").inner_text() == UNFRIENDLY
    assert page.locator(".parts span").first.inner_text() == UNFRIENDLY
    assert page.locator(".error").count() == 0
    until(page, "document.querySelector('canvas.lanes').dataset.mode")
    assert colours(page) > 5 and colours(page, 1) > 5


@pytest.mark.slow
def test_a_zoom_is_in_the_address_and_survives_a_reload(open_page: Opening) -> None:
    page = open_page()
    page.locator("canvas.lanes").first.focus()
    page.keyboard.press("+")
    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    until(page, "location.hash.includes('t1=')")
    address = page.evaluate("location.hash")
    width = [float(each) for each in re.findall(r"t[01]=([\d.e-]+)", address)]
    whole = document()["sections"][0]["traces"][1]["span_s"]
    assert width[1] - width[0] == pytest.approx(0.36 * whole, rel=1e-4)
    page.reload()
    page.locator("details.rows summary").click()
    assert f"{1e3 * width[0]:.4g} ms" in page.locator("details.rows caption").first.inner_text()
    page.locator("canvas.lanes").first.focus()
    page.keyboard.press("0")
    until(page, "!location.hash.includes('t1=')")


@pytest.mark.slow
def test_the_wheel_zooms_about_the_pointer_once_the_timeline_is_clicked(open_page: Opening) -> None:
    page = open_page()
    box = page.locator("canvas.lanes").first.bounding_box()
    at = (box["x"] + 0.7 * box["width"], box["y"] + 5)
    page.mouse.move(*at)
    page.mouse.wheel(0, 40)
    until(page, "scrollY > 0")
    assert "t0" not in page.evaluate("location.hash")
    page.evaluate("scrollTo(0, 0)")
    page.mouse.click(*at)
    page.mouse.wheel(0, -400)
    until(page, "location.hash.includes('t1=')")
    assert page.evaluate("scrollY") == 0


def test_search_lights_up_what_it_finds_and_enter_goes_there(open_page: Opening) -> None:
    page = open_page()
    page.keyboard.press("/")
    page.keyboard.type("B2 device=pp1")
    assert page.locator(".hits").inner_text() == "2 found"  # one in each trace
    page.keyboard.press("Enter")
    assert page.locator(".hits").inner_text() == "1 of 2 found"
    card = page.locator(".card").inner_text()
    assert card.startswith("B 2") and "pp1 (one of 2 alike)" in card and "×1.10" in card
    page.keyboard.press("Escape")
    assert page.locator(".hits").inner_text() == "" and page.locator(".card").count() == 0


@pytest.mark.slow
def test_differences_are_counted_and_the_critical_path_is_lit(open_page: Opening) -> None:
    page = open_page()
    until(page, "document.querySelector('canvas.lanes').dataset.mode")
    before = picture(page)
    page.get_by_role("button", name="Critical path").click()
    page.wait_for_timeout(100)
    assert picture(page) != before
    assert page.get_by_role("button", name="Critical path").get_attribute("aria-pressed") == "true"
    page.get_by_role("button", name="Differences").click()
    said = page.locator(".differences").inner_text()
    assert "128 of 128 rows" in said and "64 are longer and 0 shorter" in said
    page.locator(".differences summary").click()
    page.locator(".differences button.link").first.click()
    assert page.locator(".card.pinned").is_visible()


@pytest.mark.slow
def test_a_head_sorts_by_what_its_cells_are_worth(open_page: Opening) -> None:
    page = open_page()
    table = page.get_by_role("region", name="Memory")
    table.get_by_role("button", name="Step").click()
    assert table.locator("td:last-child").all_inner_texts() == ["70 ms", "900 ms", "1.2 s"]


@pytest.mark.slow
def test_lines_are_a_table_too_and_the_legend_has_their_dashes(open_page: Opening) -> None:
    page = open_page()
    section = page.get_by_role("region", name="Loss")
    assert section.locator(".u-legend line").count() == 1
    assert section.locator("table").count() == 1, "the legend; the table is made when it is asked for"
    section.locator("summary").focus()
    page.keyboard.press("Enter")
    table = section.get_by_role("group", name="nats as a table")
    assert table.locator("th").all_inner_texts() == ["step", "loss"]
    cells = table.locator("td").all_inner_texts()
    assert cells[::2] == [str(step) for step in range(9)] and cells[1:6:2] == ["1", "0.3679", "0.1353"]


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_no_serious_violation_in_either_theme(open_page: Opening, scheme: str) -> None:
    page = open_page(color_scheme=scheme)
    page.get_by_role("button", name="Differences").click()
    for each in page.locator("details summary").all():
        each.click()
    assert violations(page) == []


@pytest.mark.slow
def test_a_narrow_page_has_no_second_scroll_bar(open_page: Opening) -> None:
    page = open_page(viewport=NARROW)
    page.get_by_role("button", name="Differences").click()
    assert page.evaluate("document.documentElement.scrollWidth") == NARROW["width"]


@pytest.mark.slow
def test_a_document_of_another_schema_is_refused(open_page: Opening, site: Site) -> None:
    site.document = {**document(), "schema": "meshwright-view 99"}
    assert "meshwright-view 99" in open_page().get_by_role("alert").inner_text()
