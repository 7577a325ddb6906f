"""The page about a run: complete, self-contained, escaped, and its data is that of the traces."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reports.sample import pipeline_trace

from meshwright.reports import DataTable, Figure, Report, report_html, write_report
from meshwright.reports.page.page_data import MAX_INSTRUCTIONS

EVIL = '</script><script>alert("x")</script><img src=x onerror=y>&'
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Tree(HTMLParser):
    """Checks that elements close in order and collects tags, attributes and visible text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.words.append(data)


def parsed(page: str) -> Tree:
    tree = Tree()
    tree.feed(page)
    tree.close()
    assert tree.open == []
    return tree


def full_report(text: str = "run") -> Report:
    return Report(
        title=text,
        subtitle=text,
        figures=[Figure(text, "1.2 s", text)],
        plan=[{"schedule": text, "microbatches": 8, "recompute": False, text: None}],
        predicted=pipeline_trace(),
        measured=pipeline_trace(noise=0.1, engine="executed"),
        capacity_bytes=2e9,
        measured_peak_bytes={0: 1.9e9},
        loss=[(float(i), 5.0 / (i + 1)) for i in range(20)],
        held_out_loss=[(0.0, 5.0), (19.0, 1.0)],
        loss_levels=[(text, 3.2)],
        tables=[DataTable(text, [{text: text, "step": 0.25}, {"bubble": 1}], text)],
        assumptions=[text],
        provenance={text: text},
    )


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="traces">(.*?)</script>', page, re.S)
    assert found
    return dict(json.loads(found[1]))


def test_the_page_parses_and_has_every_part() -> None:
    tree = parsed(report_html(full_report()))
    headings = "".join(tree.words)
    for name in ("Plan", "Timeline", "Predicted and measured", "Memory", "Loss", "Provenance", "Assumed"):
        assert name in headings
    assert sum(tag == "canvas" for tag, _ in tree.tags) == 2
    assert all(attrs.get("aria-label") for tag, attrs in tree.tags if tag == "canvas")


def test_nothing_is_fetched() -> None:
    page = report_html(full_report())
    assert not re.search(r"https?:|//[a-z]+\.[a-z]|@import|url\(|fetch\(|XMLHttpRequest", page)
    tree = parsed(page)
    assert not [a for tag, a in tree.tags if tag in ("link", "img", "iframe") or "src" in a or "href" in a]
    policy = [a["content"] for tag, a in tree.tags if tag == "meta" and a.get("http-equiv")]
    assert len(policy) == 1 and str(policy[0]).startswith("default-src 'none'")


def test_everything_given_is_escaped() -> None:
    plain, evil = parsed(report_html(full_report())), parsed(report_html(full_report(EVIL)))
    assert [tag for tag, _ in evil.tags] == [tag for tag, _ in plain.tags]
    assert not [attrs for _, attrs in evil.tags if "onerror" in attrs]
    assert "".join(evil.words).count(EVIL) >= 8


def test_inlined_data_is_the_trace() -> None:
    report = full_report()
    page = data_of(report_html(report))
    assert page["same"] is True
    for data, trace in zip(page["traces"], (report.predicted, report.measured), strict=True):
        assert trace is not None
        assert data["text"] == [trace.program.text_of(row) for row in data["row"]]
        start = np.empty(len(data["row"]))
        for _, _, low, high in data["groups"]:
            start[low:high] = np.cumsum(data["start"][low:high])
        rows = data["row"]
        assert start * page["tick"] == pytest.approx(trace.start_s[-1][rows], abs=2 * page["tick"])
        ends = (start + data["length"]) * page["tick"]
        assert ends == pytest.approx(trace.end_s[-1][rows], abs=2 * page["tick"])


def test_other_programs_are_not_compared_row_by_row() -> None:
    report = Report("two", predicted=pipeline_trace(4, 8), measured=pipeline_trace(4, 6))
    assert data_of(report_html(report))["same"] is False


def test_an_empty_report_is_a_page(tmp_path: Path) -> None:
    path = write_report(Report("nothing yet"), tmp_path / "report.html")
    tree = parsed(path.read_text(encoding="utf-8"))
    assert "nothing yet" in "".join(tree.words)
    assert not [tag for tag, _ in tree.tags if tag in ("canvas", "svg")]


def test_a_huge_trace_is_sampled() -> None:
    trace = pipeline_trace(16, 1150)
    assert trace.program.num_rows > 100_000 > MAX_INSTRUCTIONS
    page = report_html(Report("huge", predicted=trace))
    assert len(data_of(page)["traces"][0]["row"]) <= MAX_INSTRUCTIONS
    assert len(page) < 8_000_000
    assert "too many instructions" in page
