"""The workbench in a real browser: moves ask for views, the newest wins, the address shares them, refusals are text."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.workbench.conftest import Answer, Site, until, violations
from tests.workbench.drawn_case import UNFRIENDLY, document, sections

Opening = Callable[..., Any]
CATALOG = {
    "models": [{"name": "llama-70b", "title": UNFRIENDLY, "tps": [1, 2, 4, 8], "experts": 0}],
    "clusters": [{"name": "64xH100", "title": "64 H100", "devices": 64}],
    "schedules": ["1f1b", "gpipe"],
    "recomputes": ["none", "full"],
    "zeros": ["0", "1"],
    "offloads": ["none"],
    "precisions": ["bfloat16"],
    "defaults": {
        "model": "llama-70b",
        "cluster": "64xH100",
        "global-batch": "64",
        "seq": "8192",
        "micro": "1",
        "dp": "8",
        "tp": "8",
        "pp": "1",
        "cp": "1",
        "schedule": "1f1b",
    },
    "load_defaults": {
        "workload": "serve", "model": "llama-70b", "cluster": "64xH100", "rate_per_s": "4", "prompt": "1000",
        "tp": "8", "pp": "1", "replicas": "1", "max_batch_tokens": "2048",
    },
}  # fmt: skip
TITLE = {"train": ("dp", "tp", "pp", "cp"), "serve": ("rate_per_s", "tp", "pp", "replicas")}
REFUSAL = {"message": f"seq is {UNFRIENDLY}", "allowed": ["1024", "2048"], "next": "Give one of them."}


class Told:
    """A server by the contract, whose views say the state that was asked for; it keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.polls = 0
        self.is_held = threading.Event()
        self.is_held.set()

    def __call__(self, method: str, path: str, body: dict[str, Any]) -> Answer:
        self.asked.append((f"{method} {path}", body))
        if path == "/api/catalog":
            return 200, CATALOG
        if path == "/api/view":
            return self.view(body)
        if path == "/api/segments":
            inside = {
                **document()["sections"][0],
                "type": "segments",
                "title": "Inside stage",
                "stage": body["stage"],
            }
            return 200, {**document(), "sections": [inside]}
        if path == "/api/import":
            return 200, {"state": {"tp": "2", "pp": "4", "dp": "8"}, "notes": ["--swiglu is kept"]}
        if method == "POST" and path == "/api/plan":
            return 200, {"job": "7"}
        if method == "DELETE":
            return 200, {"job": "7", "state": "cancelled"}
        self.polls += 1
        if self.polls < 2:
            return 200, {"job": "7", "state": "running", "share": 0.5, "text": "priced 12 of 24"}
        found = [each for each in sections() if each["type"] in ("plans", "frontier")]
        found[0] = {**found[0], "ids": ["dp=4&tp=4&pp=4", "", ""]}
        return 200, {"job": "7", "state": "done", "document": {**document(), "sections": found}}

    def view(self, body: dict[str, Any]) -> Answer:
        self.is_held.wait(10)
        state = body["state"]
        if state.get("seq") == "7":
            return 200, {"error": REFUSAL}
        title = " ".join(f"{word}={state[word]}" for word in TITLE[state.get("workload", "train")])
        parts = document()["sections"][:1] if "timeline" in body["parts"] else []
        binds = [each for each in sections() if each["type"] in body["parts"]]
        return 200, {**document(), "title": title, "sequence": body["sequence"], "sections": [*parts, *binds]}

    def count(self, what: str) -> int:
        return sum(each == what for each, _ in self.asked)


@pytest.fixture
def told(site: Site) -> Told:
    site.answer = found = Told()
    return found


def title(page: Any) -> str:
    found: str = page.locator("h1").inner_text()
    return found


def slide(page: Any, name: str, *keys: str) -> None:
    page.get_by_role("slider", name=name).focus()
    for key in keys:
        page.keyboard.press(key)


def test_a_move_asks_for_a_view_and_the_address_shares_it(open_page: Opening, told: Told) -> None:
    page = open_page()
    until(page, "document.querySelector('h1')?.innerText === 'dp=8 tp=8 pp=1 cp=1'")
    slide(page, "Pipeline stages", "ArrowRight", "ArrowRight")
    until(page, "document.querySelector('h1').innerText === 'dp=2 tp=8 pp=4 cp=1'")
    assert "2 × 8 × 4 × 1 = 64 of 64 devices" in page.locator(".product").inner_text()
    address = page.evaluate("location.href")
    assert "pp=4" in address and "dp=2" in address
    other = open_page(address.partition("/#")[2] and "#" + address.partition("#")[2])
    until(other, "document.querySelector('h1')?.innerText === 'dp=2 tp=8 pp=4 cp=1'")
    assert all(
        isinstance(each, str) for _, body in told.asked if "state" in body for each in body["state"].values()
    )


@pytest.mark.slow
def test_back_and_forward_go_through_the_moves(open_page: Opening, told: Told) -> None:
    page = open_page()
    until(page, "document.querySelector('h1')")
    slide(page, "Tensor parallel", "ArrowLeft")
    until(page, "document.querySelector('h1').innerText.includes('tp=4')")
    page.go_back()
    until(page, "document.querySelector('h1').innerText.includes('tp=8')")
    assert page.get_by_role("slider", name="Tensor parallel").get_attribute("aria-valuetext") == "8"
    page.go_forward()
    until(page, "document.querySelector('h1').innerText.includes('tp=4')")


def test_of_many_moves_the_newest_is_shown_and_few_are_asked(open_page: Opening, told: Told) -> None:
    page = open_page()
    until(page, "document.querySelector('h1')")
    page.wait_for_timeout(500)
    before = told.count("POST /api/view")
    told.is_held.clear()
    slide(page, "Pipeline stages", *["ArrowRight"] * 5, *["ArrowLeft"] * 3)
    page.wait_for_timeout(100)
    told.is_held.set()
    until(page, "document.querySelector('h1').innerText === 'dp=2 tp=8 pp=4 cp=1'")
    assert told.count("POST /api/view") - before <= 3


def test_serving_has_words_and_parts_of_its_own_and_training_is_found_as_it_was_left(
    open_page: Opening, told: Told
) -> None:
    page = open_page()
    until(page, "document.querySelector('h1')?.innerText === 'dp=8 tp=8 pp=1 cp=1'")
    slide(page, "Pipeline stages", "ArrowRight")
    until(page, "document.querySelector('h1').innerText === 'dp=4 tp=8 pp=2 cp=1'")
    page.get_by_role("radio", name="Serve").check()
    until(page, "document.querySelector('h1').innerText === 'rate_per_s=4 tp=8 pp=1 replicas=1'")
    slide(page, "Replicas", *["ArrowRight"] * 7)
    until(page, "document.querySelector('h1').innerText === 'rate_per_s=4 tp=8 pp=1 replicas=8'")
    slide(page, "Tensor parallel", "ArrowRight")
    until(page, "document.querySelector('h1').innerText === 'rate_per_s=4 tp=16 pp=1 replicas=4'")
    assert "4 × 16 × 1 = 64 of 64 devices" in page.locator(".product").inner_text()
    page.get_by_label("Requests a second", exact=True).fill("2.5")
    until(page, "document.querySelector('h1').innerText.startsWith('rate_per_s=2.5')")
    end = time.monotonic() + 10
    while told.asked[-1][1].get("parts") != ["against_load"]:
        assert time.monotonic() < end
        page.wait_for_timeout(20)
    state = told.asked[-1][1]["state"]
    assert state["workload"] == "serve" and not {"dp", "schedule", "global-batch"} & state.keys()
    page.get_by_role("radio", name="Train").check()
    until(page, "document.querySelector('h1').innerText === 'dp=4 tp=8 pp=2 cp=1'")
    assert "workload" not in page.evaluate("location.hash")
    page.go_back()
    until(page, "document.querySelector('h1').innerText.startsWith('rate_per_s=2.5 tp=16')")
    assert page.get_by_role("radio", name="Serve").is_checked()


@pytest.mark.slow
def test_data_parallelism_takes_the_devices_of_a_cluster_that_is_typed(
    open_page: Opening, told: Told
) -> None:
    page = open_page()
    page.get_by_label("Cluster", exact=True).fill("16x8xH100")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('h1')?.innerText === 'dp=16 tp=8 pp=1 cp=1'")
    assert "= 128 of 128 devices" in page.locator(".product").inner_text()


@pytest.mark.slow
def test_a_refusal_is_text_and_the_view_stays(open_page: Opening, told: Told) -> None:
    page = open_page("#seq=7")
    page.get_by_role("alert").wait_for()
    said = page.get_by_role("alert").inner_text()
    assert UNFRIENDLY in said and "1024, 2048" in said and "Give one of them." in said
    page.get_by_label("Tokens a sequence").fill("2048")
    until(page, "document.querySelector('h1')?.innerText.startsWith('dp=8')")
    assert page.get_by_role("alert").count() == 0


@pytest.mark.slow
def test_a_plan_is_searched_and_a_row_opens_it(open_page: Opening, told: Told) -> None:
    page = open_page()
    page.get_by_role("button", name="Plan: search for the best").click()
    page.get_by_role("region", name="Plans").get_by_role("button", name=UNFRIENDLY).click()
    until(page, "document.querySelector('h1').innerText === 'dp=4 tp=4 pp=4 cp=1'")
    assert "pp=4" in page.evaluate("location.hash")


@pytest.mark.slow
def test_a_script_is_pasted(open_page: Opening, told: Told) -> None:
    page = open_page()
    page.get_by_role("button", name="Paste a Megatron script").click()
    page.get_by_label("A Megatron or DeepSpeed launch script").fill("torchrun pretrain_gpt.py --swiglu")
    page.get_by_role("button", name="Read it").click()
    until(page, "document.querySelector('h1')?.innerText === 'dp=8 tp=2 pp=4 cp=1'")
    assert page.locator("dialog").count() == 0
    assert "--swiglu is kept" in page.get_by_label("Notes").last.inner_text()


@pytest.mark.slow
def test_a_click_on_an_instruction_opens_its_stage(open_page: Opening, told: Told) -> None:
    page = open_page()
    until(page, "document.querySelector('canvas.lanes')?.dataset.mode")
    page.locator("canvas.lanes").first.click(position={"x": 90, "y": 8})
    page.get_by_role("heading", name="Inside stage").wait_for()
    assert ("POST /api/segments", 0) in [(each, body.get("stage")) for each, body in told.asked]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_violation_and_nothing_wider_than_the_page(
    open_page: Opening, told: Told, scheme: str
) -> None:
    page = open_page(viewport={"width": 390, "height": 844}, color_scheme=scheme)
    until(page, "document.querySelector('canvas.lanes')?.dataset.mode")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert violations(page) == []
    page.get_by_text("Controls").click()
    page.get_by_role("button", name="Paste a model").click()
    assert violations(page) == []
