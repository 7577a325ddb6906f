"""`meshwright view`: the page, where it is kept, and whether the browser shows it."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import pytest
from tests.cli.running import Runner


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(webbrowser, "open", found.append)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return found


def test_a_page_is_written_and_nothing_is_opened(
    run: Runner, opened: list[str], trace_file: Path, tmp_path: Path
) -> None:
    target = tmp_path / "page.html"
    done = run("view", trace_file, "--no-open", "-o", target)
    assert done.code == 0 and not opened
    assert target.read_text().startswith("<!doctype html>") and str(target) in done.stdout.replace("\n", "")


def test_the_browser_gets_a_file(run: Runner, opened: list[str], plan_file: Path) -> None:
    assert run("view", plan_file).code == 0
    (uri,) = opened
    assert "<title>" in Path(uri.removeprefix("file://")).read_text()


def test_what_cannot_be_viewed_is_a_mistake(run: Runner, opened: list[str], tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"a": 1}')
    for given in ((bad,), (tmp_path / "absent.toml",), ("gpt2",)):
        done = run("view", *given, "--no-open")
        assert done.code == 2 and "Traceback" not in done.stderr


def test_one_run_is_followed_and_nothing_else(run: Runner, opened: list[str], tmp_path: Path) -> None:
    for given in ((), (tmp_path / "a.jsonl", tmp_path / "b.jsonl")):
        done = run("view", *given, "--follow", "--no-open")
        assert done.code == 2 and "--follow" in done.stderr
    done = run("view", tmp_path / "absent.jsonl", "--follow", "--no-open")
    assert done.code == 2 and "cannot be read" in done.stderr
