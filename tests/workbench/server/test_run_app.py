"""A run that goes on is served as it is written, over and over."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.workbench.reading import section, values

from meshwright.api.trainings.held_file import hold
from meshwright.specs.error import SpecError
from meshwright.workbench.document.followed import ENDED, FollowedRun
from meshwright.workbench.server.run_app import create_run_app

PORT = 8124
EVIL = "<script>alert(1)</script>"


def line(step: int) -> str:
    """Of metrics, as a training writes them; the measured step drifts from the predicted one."""
    drifts = {"drift": {"name": EVIL}} if step == 3 else {}
    row = {
        "step": step,
        "loss": 4.0 / step,
        "tokens_per_s": 1000.0,
        "predicted_s": 0.5,
        "measured_s": 0.5 + 0.1 * step,
    }
    return json.dumps({**row, **drifts}) + "\n"


def asking(run: FollowedRun) -> Callable[[], dict[str, Any]]:
    client = TestClient(create_run_app(run, PORT), base_url=f"http://127.0.0.1:{PORT}")
    return lambda: dict(client.get("/api/run").json())


def steps(data: dict[str, Any]) -> list[float]:
    """Those of the line of losses."""
    (loss,) = section(data, "series")["lines"]
    return [float(each) for each in values(loss["x"])]


@pytest.mark.parametrize("is_folder", [False, True])
def test_every_answer_has_what_was_written_by_then(tmp_path: Path, is_folder: bool) -> None:
    file = tmp_path / "metrics.jsonl"
    file.touch()
    ask = asking(FollowedRun(tmp_path if is_folder else file))
    assert ask()["sections"] == [] and ask()["follow"] == {"url": "/api/run", "every_s": 1.0}
    with file.open("a") as writing:
        for step in (1, 2):
            writing.write(line(step))
            writing.flush()
            assert steps(ask()) == list(range(1, step + 1))
        half = len(line(3)) // 2
        writing.write(line(3)[:half])
        writing.flush()
        assert steps(ask()) == [1, 2]
        writing.write(line(3)[half:])
        writing.flush()
        data = ask()
    assert steps(data) == [1, 2, 3]
    beside = {each["label"]: values(each["y"])[-1] for each in data["sections"][1]["lines"]}
    assert beside == {"measured": pytest.approx(0.8), "predicted": 0.5}
    assert any(EVIL in note for note in data["notes"]) and data["follow"]


def test_what_was_read_is_not_read_again_and_another_run_is_read_from_its_beginning(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(line(1) + line(2))
    run = FollowedRun(file)
    ask = asking(run)
    assert steps(ask()) == [1, 2] and run.num_bytes == file.stat().st_size
    file.write_text("x" * (run.num_bytes - 1) + "\n" + line(3))  # as nobody writes it: shows what is read
    assert steps(ask()) == [1, 2, 3]
    file.write_text(line(7))
    assert steps(ask()) == [7]


def test_a_page_asks_no_more_when_the_run_has_ended_and_again_when_it_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    ask = asking(FollowedRun(tmp_path))
    for step in (1, 2):
        with file.open("a") as writing:
            hold(writing)
            writing.write(line(step))
            writing.flush()
            os.utime(file, (0, 0))
            assert ask()["follow"], "a step may take long: the training holds its file"
        ended = ask()
        assert (
            "follow" not in ended and ended["notes"][0] == ENDED and steps(ended) == list(range(1, step + 1))
        )


def test_a_file_that_nobody_holds_is_followed_for_a_while(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(line(1))
    ask = asking(FollowedRun(file))
    assert ask()["follow"]
    os.utime(file, (0, 0))
    assert "follow" not in ask()
    file.write_text(line(1) + line(2))
    assert ask()["follow"] and steps(ask()) == [1, 2]


def test_a_line_that_is_no_step_is_told_and_the_page_is_asked_again(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(line(1))
    ask = asking(FollowedRun(file))
    ask()
    file.write_text(line(1) + "nothing\n")
    assert "line 2" in ask()["error"]["message"]
    file.write_text(line(1) + line(2))
    assert steps(ask()) == [1, 2]
    with pytest.raises(SpecError, match="cannot be read"):
        FollowedRun(tmp_path / "absent.jsonl").document()


def test_the_page_has_the_document_as_text_and_is_guarded(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(line(3))
    client = TestClient(create_run_app(FollowedRun(file), PORT), base_url=f"http://127.0.0.1:{PORT}")
    page = client.get("/")
    assert 'id="document"' in page.text and "alert(1)" in page.text and EVIL not in page.text
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert client.get("/api/run", headers={"host": "elsewhere"}).status_code == 403
    assert client.post("/api/view", json={}).status_code == 404
