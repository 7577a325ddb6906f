"""The real server in a real browser, as a person walks through it: a slider, a plan, a zoom, a shared link, pasted texts."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from tests.workbench.conftest import until, violations
from tests.workbench.server.test_app import CONFIG, EVIL, MEGATRON
from tests.workbench.server.test_run_app import line

from meshwright.api.trainings.held_file import hold
from meshwright.workbench.document.followed import FollowedRun
from meshwright.workbench.server.app import Workbench, create_app
from meshwright.workbench.server.run_app import create_run_app
from meshwright.workbench.server.serving import listening_on

SMALL = "#model=llama-3.2-1b&cluster=8xH100&global-batch=16&seq=1024&tp=2&pp=2"
CLUSTER = """schema = 1
name = "ours"
[[devices]]
preset = "H100"
count = 4
[[levels]]
name = "node"
num_devices = 4
bandwidth = "300GB/s"
latency = "2us"
wiring = "switch"
"""
PATIENCE_S = 60.0
Opening = Callable[..., Any]


@contextmanager
def served(create: Callable[[int], Any]) -> Iterator[str]:
    """The address of an application, as `meshwright view` serves it."""
    with listening_on(0) as listening:
        port = listening.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(create(port), log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{port}/"
        server.should_exit = True
        thread.join(10)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a workbench."""
    workbench = Workbench()
    with served(partial(create_app, workbench)) as found:
        yield found
    workbench.close()


@pytest.fixture
def walked(browser: Any, address: str) -> Iterator[Opening]:
    """Opens pages of the workbench; at the end no page may have said anything on its console."""
    said, opened = list[str](), list[Any]()

    def opening(state: str = SMALL, site: str = address) -> Any:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(f"dialog: {dialog.message}"))
        opened.append(page)
        page.goto(site + state)
        if site == address:
            settled(page)
        return page

    yield opening
    for page in opened:
        page.close()
    assert said == []


def settled(page: Any) -> None:
    """Waits until the page shows what its address says."""
    until(
        page,
        "document.querySelector('canvas.lanes[data-mode]') || document.querySelector('.error')",
        PATIENCE_S,
    )
    until(
        page,
        "![...document.querySelectorAll('nav [role=status]')].some((each) => each.innerText)",
        PATIENCE_S,
    )


def step(page: Any) -> str:
    """The step's time, as the facts say it."""
    found: str = page.locator("dl.figures div").first.inner_text()
    return found


def words(page: Any) -> dict[str, str]:
    """The address."""
    found: dict[str, str] = page.evaluate("Object.fromEntries(new URLSearchParams(location.hash.slice(1)))")
    return found


def paste(page: Any, button: str, text: str) -> None:
    page.get_by_role("button", name=button).click()
    page.locator("#paste-text").fill(text)
    page.get_by_role("button", name="Read it").click()
    until(page, "!document.querySelector('dialog')", PATIENCE_S)
    settled(page)


def test_a_slider_moves_the_view_and_a_refusal_is_told_without_an_error_of_the_browser(
    walked: Opening,
) -> None:
    page = walked()
    before = step(page)
    page.get_by_role("slider", name="Pipeline stages").focus()
    page.keyboard.press("ArrowRight")
    until(page, "location.hash.includes('pp=4')")
    settled(page)
    assert step(page) != before and page.get_by_role("alert").count() == 0
    page.get_by_label("Tokens a sequence").fill("-3")
    page.get_by_role("alert").wait_for()
    assert "seq" in page.get_by_role("alert").inner_text()
    page.get_by_label("Tokens a sequence").fill("1024")
    until(page, "!document.querySelector('[role=alert]')", PATIENCE_S)


@pytest.mark.slow
def test_degrees_become_smaller_with_the_cluster_and_ways_to_share_a_sequence_are_chosen(
    walked: Opening,
) -> None:
    page = walked(SMALL + "&cp=2")
    page.get_by_label("Attention").select_option("all_gather")
    until(page, "location.hash.includes('context=all_gather')")
    settled(page)
    assert page.get_by_role("alert").count() == 0
    page.get_by_label("Cluster", exact=True).fill("2xH100")
    page.keyboard.press("Tab")
    until(page, "location.hash.includes('cluster=2xH100')")
    settled(page)
    assert page.get_by_role("alert").count() == 0
    assert page.locator(".product").inner_text() == "1 × 2 × 1 × 1 = 2 of 2 devices ✓"
    assert page.get_by_label("Attention").count() == 0
    short = walked("#model=llama-3.2-1b&cluster=2xH100")
    assert "= 2 of 2 devices" in short.locator(".product").inner_text()
    assert short.get_by_role("alert").count() == 0


@pytest.mark.slow
def test_a_plan_that_was_found_is_shown_as_its_row_says_it(walked: Opening) -> None:
    page = walked()
    page.get_by_role("button", name="Plan: search for the best").click()
    table = page.get_by_role("region", name="Ranked plans")
    table.wait_for(timeout=1e3 * 2 * PATIENCE_S)
    heads = table.locator("th").all_inner_texts()
    column = next(place for place, head in enumerate(heads) if head.startswith("step"))
    rows = table.locator("tbody tr")
    assert rows.count() > 1
    for place in range(rows.count()):
        expected = rows.nth(place).locator("td").nth(column).inner_text()
        rows.nth(place).get_by_role("button").click()
        settled(page)
        assert page.get_by_role("alert").count() == 0, page.get_by_role("alert").first.inner_text()
        assert expected in step(page)
        used = page.locator(".product").inner_text()
        assert used.endswith("✓"), used
    page.get_by_label("Precision").select_option("fp32")
    settled(page)
    assert expected not in step(page), "what was found does not hide a word that changed"


@pytest.mark.slow
def test_a_shared_link_shows_the_same_view(walked: Opening) -> None:
    page = walked()
    page.get_by_role("slider", name="Tensor parallel").focus()
    page.keyboard.press("ArrowLeft")
    settled(page)
    page.locator("canvas.lanes").first.focus()
    page.keyboard.press("+")
    page.keyboard.press("+")
    until(page, "location.hash.includes('t1=')")
    other = walked(f"#{page.evaluate('location.hash.slice(1)')}")
    assert words(other) == words(page) and step(other) == step(page)
    for each in (page, other):
        each.locator("details.rows summary").first.click()
    captions = [each.locator("details.rows caption").first.inner_text() for each in (page, other)]
    assert captions[0] == captions[1] and "ms" in captions[0]
    page.reload()
    settled(page)
    assert step(page) == step(other)


@pytest.mark.slow
def test_a_copied_link_brings_what_was_pasted_to_another_server(walked: Opening) -> None:
    page = walked()
    paste(page, "Paste a cluster", CLUSTER)
    paste(page, "Paste a Megatron script", MEGATRON)
    page.get_by_role("button", name="Copy link").click()
    until(page, "location.hash.includes('given=')")
    link = page.evaluate("location.hash")
    other = Workbench()
    with served(partial(create_app, other)) as site:
        friend = walked(link, site)
        settled(friend)
        assert friend.get_by_role("alert").count() == 0 and step(friend) == step(page)
        assert friend.title() == page.title()
        torn = walked(link[:-20], site)
        settled(torn)
        assert "What the link carries could not be read" in torn.locator("main").inner_text()
    other.close()


def served_facts(page: Any) -> dict[str, str]:
    """Figures of a layout under its load, once all of its four charts are there."""
    until(page, "document.querySelector('h1')?.innerText.includes('served on')", PATIENCE_S)
    until(page, "document.querySelectorAll('section.series canvas').length === 4", PATIENCE_S)
    until(
        page,
        "![...document.querySelectorAll('nav [role=status]')].some((each) => each.innerText)",
        PATIENCE_S,
    )
    rows = page.locator("dl.figures > div").all()
    return {each.locator("dt").inner_text(): each.locator("dd").first.inner_text() for each in rows}


@pytest.mark.slow
def test_a_load_is_served_and_a_layout_that_was_found_is_shown_as_its_row_says_it(walked: Opening) -> None:
    page = walked()
    page.get_by_role("radio", name="Serve").check()
    before = served_facts(page)
    page.get_by_label("Requests a second", exact=True).fill("40")
    page.get_by_label("Prompt tokens").fill("300")
    until(
        page,
        "document.querySelector('header.about p').innerText.startsWith('40 requests a second of 300')",
        PATIENCE_S,
    )
    assert (loaded := served_facts(page))["tokens/s"] != before["tokens/s"]
    page.get_by_role("slider", name="Tensor parallel").focus()
    page.keyboard.press("ArrowLeft")
    until(page, "document.querySelector('header.about p').innerText.endsWith('by tp4')", PATIENCE_S)
    assert served_facts(page)["TPOT p50"] != loaded["TPOT p50"]
    page.get_by_label("TTFT within").fill("soon")
    page.keyboard.press("Enter")
    page.get_by_role("alert").wait_for()
    assert "ttft is 'soon'" in page.get_by_role("alert").inner_text()
    page.get_by_label("TTFT within").fill("1s")
    page.keyboard.press("Enter")
    until(page, "!document.querySelector('[role=alert]')", PATIENCE_S)
    told = served_facts(page)
    page.reload()
    assert served_facts(page) == told
    page.get_by_role("button", name="Plan: search for the best").click()
    table = page.get_by_role("region", name="Layouts that serve the load")
    table.wait_for(timeout=1e3 * 2 * PATIENCE_S)
    heads = [each.rstrip(" ↑↓") for each in table.locator("th").all_inner_texts()]
    rows = table.locator("tbody tr")
    for place in range(rows.count()):
        row = dict(zip(heads, rows.nth(place).locator("td").all_inner_texts(), strict=True))
        rows.nth(place).get_by_role("button").click()
        until(
            page,
            f"document.querySelector('header.about p').innerText.endsWith('by {row['plan']}')",
            PATIENCE_S,
        )
        shown = served_facts(page)
        assert {name: shown[name] for name in ("TTFT p50", "TPOT p50", "tokens/s")}.items() <= row.items()
        assert (shown["good requests/s"], shown["devices"]) == (row["good/s"], row["GPUs"])
    assert violations(page) == []


@pytest.mark.slow
def test_pasted_texts_are_seen_and_names_are_text(walked: Opening) -> None:
    page = walked()
    paste(page, "Paste a Megatron script", MEGATRON)
    assert (words(page)["tp"], words(page)["micro"]) == ("2", "2")
    assert page.get_by_role("alert").count() == 0
    assert page.locator(".product").inner_text().endswith("✓")
    paste(page, "Paste a model", json.dumps({**CONFIG, "_name_or_path": EVIL}))
    assert words(page)["model"].startswith("pasted-")
    assert EVIL in page.locator("h1").inner_text() and EVIL in page.locator("#w-model").inner_text()
    assert page.locator("main script").count() == 0
    paste(page, "Paste a cluster", CLUSTER)
    assert words(page)["cluster"].startswith("pasted-")
    assert "= 4 of 4 devices" in page.locator(".product").inner_text()
    assert violations(page) == []


@pytest.mark.slow
def test_the_page_of_a_run_grows_with_it(walked: Opening, tmp_path: Path) -> None:
    file, asked = tmp_path / "metrics.jsonl", list[str]()
    with served(partial(create_run_app, FollowedRun(file))) as site, file.open("w") as writing:
        hold(writing)
        writing.write(line(1))
        writing.flush()
        page = walked("", site)
        page.on("request", lambda request: asked.append(request.url))
        until(page, "document.querySelector('.live')")
        assert "1 step," in page.locator("header.about").inner_text()
        writing.write(line(2) + line(3))
        writing.flush()
        until(page, "document.querySelector('header.about').innerText.includes('3 steps')")
        assert EVIL in page.get_by_label("Notes").last.inner_text()
        writing.close()
        until(page, "!document.querySelector('.live')")
        assert page.locator("nav .badge").inner_text() == "ended" and "has ended" in page.inner_text("main")
        before = len(asked)
        page.wait_for_timeout(2500)
        assert len(asked) == before, "nothing is asked of a run that has ended"
        page.close()
