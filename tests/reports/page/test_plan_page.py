"""The page of a plan: what it says, in order; nothing is fetched, all text is escaped, the same data give the same page."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

from tests.reports.page.test_html import EVIL, parsed
from tests.reports.sample import pipeline_trace

from meshwright.reports import Figure, report_html
from meshwright.reports.chart.bars import FILLS, scaled_bars_svg
from meshwright.reports.page.plan_page import (
    REST,
    Assumed,
    DeviceHolders,
    PlanFigures,
    PlanPage,
    merged,
    plan_report,
    undominated,
)

SECTIONS = (
    "Ranked plans", "Where the step goes", "Memory of the best plan", "Step against memory", "Timeline",
    "How the search went", "Assumptions", "Provenance",
)  # fmt: skip


def plan(label: str, step_s: float, peak_bytes: float, text: str = "tp2 dp4") -> PlanFigures:
    cells = {"": label, "plan": text, "step": f"{step_s} s"}
    return PlanFigures(label, text, step_s, peak_bytes, cells, {"matmul": step_s - 1, text: 1.0})


def page(text: str = "some words", **changes: Any) -> PlanPage:
    shown = [plan("1", 4.0, 70e9, text), plan("2", 5.0, 60e9, text)]
    given: dict[str, Any] = {
        "title": text,
        "subtitle": text,
        "figures": [Figure(text, "1.2 s", text)],
        "shown": shown,
        "simulated": [*shown, plan("3", 6.0, 75e9, text)],
        "devices": [DeviceHolders(text, {"gradients": 3e10, text: 4e10})],
        "capacity_bytes": 80e9,
        "trace": replace(pipeline_trace(), memory=()),
        "reasons": [text],
        "search": [(text, "1,000", text)],
        "assumed": [Assumed(text, f"--fix {text}"), Assumed("nothing to type")],
        "provenance": {"model": text},
        **changes,
    }
    return PlanPage(**given)


def html(text: str = "some words", **changes: Any) -> str:
    return report_html(plan_report(page(text, **changes)))


def test_every_part_is_there_in_the_order_of_reading() -> None:
    drawn = html()
    titles = re.findall(r"<h2>(.*?)</h2>", drawn)
    assert tuple(titles) == SECTIONS
    words = " ".join(parsed(drawn).words)
    for said in (
        "1.2 s",
        "Some words.",
        "--fix some words",
        "nothing to type",
        "1,000",
        "a device has 80 GB",
    ):
        assert said in words, said


def test_what_is_not_known_has_no_section() -> None:
    bare = PlanFigures("1", "pp2", 1.0, 1e9, {"": "1", "plan": "pp2"})
    drawn = html(devices=(), trace=None, search=(), assumed=(), shown=[bare], simulated=[bare])
    assert re.findall(r"<h2>(.*?)</h2>", drawn) == ["Ranked plans", "Provenance"]


def test_nothing_is_fetched_and_the_same_data_give_the_same_page() -> None:
    drawn = html()
    assert drawn == html()
    assert not re.search(r"https?:|//[a-z]+\.[a-z]|@import|url\(|fetch\(|XMLHttpRequest", drawn)
    tags = parsed(drawn).tags
    assert not [a for tag, a in tags if tag in ("link", "img", "iframe") or "src" in a or "href" in a]


def test_everything_given_is_escaped() -> None:
    plain, evil = parsed(html()), parsed(html(EVIL))
    # the key of colours may break its line elsewhere, so tags are compared by number; bars beside long names are too short
    # for the numbers in them
    counts = [Counter(tag for tag, _ in each.tags) for each in (plain, evil)]
    assert not counts[1] - counts[0] and set(counts[0] - counts[1]) <= {"text"}
    assert not [attrs for _, attrs in evil.tags if "onerror" in attrs]
    assert "".join(evil.words).count(EVIL) >= 12


def test_the_frontier_is_what_no_plan_beats_in_both() -> None:
    plans = [plan("1", 4.0, 70e9), plan("2", 5.0, 80e9), plan("3", 6.0, 60e9), plan("4", 6.0, 65e9)]
    assert [each.label for each in undominated(plans)] == ["1", "3"]
    assert [each.label for each in undominated(plans[:1])] == ["1"]


def test_a_capacity_far_above_all_plans_does_not_squeeze_the_picture() -> None:
    assert "a device has 80 GB" in html(devices=())
    assert "a device has" not in html(devices=(), capacity_bytes=800e9)


def test_more_parts_than_colours_share_the_last() -> None:
    many = {f"part {place}": float(100 - place) for place in range(len(FILLS) + 3)}
    found = merged({"1": many, "2": {"part 0": 1.0}})
    assert len(found["1"]) == len(FILLS) and REST in found["1"]
    assert sum(found["1"].values()) == sum(many.values())
    assert found["1"][REST] == sum(sorted(many.values())[:4])
    assert list(merged({"1": {"a": 1.0, "b": 2.0}})["1"]) == ["b", "a"]


def test_bars_have_one_scale_and_a_level_at_its_place() -> None:
    rect = re.compile(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="(?:24|12)"')
    drawn = scaled_bars_svg({"a": {"x": 2.0, "y": 2.0}, "b": {"x": 1.0}}, "B", level=("most", 8.0))
    (left, first), _, (_, last) = ((float(x), float(wide)) for x, wide in rect.findall(drawn))
    assert abs(first / last - 2.0) < 0.01
    found = re.search(r'<line x1="([\d.]+)"', drawn)
    assert found and abs((float(found[1]) - left) / first - 4.0) < 0.01
    assert "most 8 B" in drawn
    thin = scaled_bars_svg({str(place): {"x": 1.0} for place in range(40)})
    assert len(re.findall(r'height="12"', thin)) == 40


def test_every_picture_is_drawn_for_a_telephone_too() -> None:
    drawn = html()
    assert drawn.count('<figure class="wide broad">') == drawn.count('<figure class="narrow">') == 3
    narrow = re.findall(r'<figure class="narrow"><svg[^>]* width="(\d+)"', drawn)
    assert [int(width) for width in narrow] == [358] * 3
