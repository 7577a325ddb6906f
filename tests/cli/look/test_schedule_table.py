"""The table of schedules: published, searched and own ones, memory caps, stage times, the picture, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.running import Runner

from meshwright import catalog
from meshwright.api.subjects.schedule_comparison import compare_schedules
from meshwright.ir.text import to_torch_csv
from meshwright.schedules.searched.stage_times import StageTimes
from meshwright.specs.error import SpecError, UnknownNameError

COUNTS = ("-p", 4, "-m", 8)


@pytest.fixture
def times_file(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    path.write_text("stage,F,I,W\n0,1.2,1.1,0.9\n1,1,1,0.8\n2,1,1,0.8\n3,1.4,1.5,0.6\n")
    return path


def test_all_kinds_stand_in_one_table(run: Runner, schedule_file: Path) -> None:
    ran = run("simulate", "--schedule", "all", "--schedule", f"{schedule_file}:wave", *COUNTS, "--json")
    rows = {row["schedule"]: row for row in ran.data["schedules"]}
    assert set(catalog.names("schedules")) < set(rows)
    assert {row["origin"] for row in rows.values()} == {"published", "searched", "own"}
    assert rows["search (cap 4)"]["peak"] <= 4 and rows["search (cap 4)"]["span"] == pytest.approx(27)
    assert rows["search V (cap 4)"]["span"] == pytest.approx(25.5)
    assert all(row["generation_s"] >= 0 for row in rows.values())
    assert all(row["span"] >= ran.data["bounds"][str(row["chunks"])] - 1e-9 for row in rows.values()
               if row["origin"] == "searched")  # fmt: skip


def test_the_frontier_is_what_no_other_beats() -> None:
    found = compare_schedules(stages=4, microbatches=8)
    figures = {row.name: (round(row.span_s, 9), row.peak) for row in found.simulated}
    for name, (span, peak) in figures.items():
        beaten = any(s <= span and p <= peak and (s, p) != (span, peak) for s, p in figures.values())
        assert (name in {row.name for row in found.frontier}) != beaten, name


def test_what_needs_more_than_the_cap_is_marked_and_stands_last(run: Runner, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    ran = run("simulate", "--schedule", "all", "-p", 4, "-m", 4, "--memory-cap", 3, "-o", path)
    for row in json.loads(path.read_text())["schedules"]:
        assert row["fits_cap"] == (row["peak"] <= 3)
        assert row["fits_cap"] or not row["is_on_frontier"]
        assert row["origin"] != "searched" or row["fits_cap"]
    lines = ran.stdout.splitlines()
    marked = ["above the cap" in line for line in lines if " % " in line]
    assert any(marked) and marked == sorted(marked)


def test_nothing_within_the_cap_is_the_honest_no(run: Runner) -> None:
    ran = run("simulate", "--schedule", "gpipe", *COUNTS, "--memory-cap", 2)
    assert ran.code == 3 and "nothing keeps within" in ran.stdout


@pytest.mark.slow
def test_search_goes_through_several_caps() -> None:
    found = compare_schedules(["search"], stages=3, microbatches=6, memory_cap=4)
    assert {row.origin for row in found.rows} == {"searched"}
    peaks = [row.peak for row in found.frontier]
    spans = [row.span_s for row in found.frontier]
    assert peaks == sorted(peaks) and max(peaks) <= 4
    assert spans == sorted(spans, reverse=True) and len(spans) >= 2


@pytest.mark.slow
def test_stage_times_price_every_schedule(run: Runner, times_file: Path) -> None:
    data = run("simulate", "--schedule", "all", "-m", 8, "--stage-times", times_file, "--json").data
    rows = {row["schedule"]: row for row in data["schedules"]}
    assert rows["1f1b"]["stages"] == 4
    single = run("simulate", "--schedule", "1f1b", "-m", 8, "--stage-times", times_file, "--json").data
    assert single["span"] == pytest.approx(rows["1f1b"]["span"])
    # the slowest device is busy all the time behind what must come before it
    assert single["span"] > 8 * 3.5
    assert rows["search (cap 4)"]["span"] <= rows["zb_h1"]["span"]


def test_rows_for_every_stage_of_the_path_leave_one_stage_a_device_out() -> None:
    times = StageTimes((0.5, 0.4, 0.3, 0.2), (0.5,) * 4, (0.5,) * 4)
    found = compare_schedules(stages=2, microbatches=4, stage_times=times)
    taken = {row.name for row in found.simulated}
    assert "zbv" in taken and "search V (cap 2)" in taken
    assert {row.name for row in found.rows if row.error} == {
        name for name in catalog.names("schedules") if catalog.find_schedule(name).num_chunks == 1
    }


def test_an_own_schedule_that_is_refused_is_said_beside_the_others(run: Runner, schedule_file: Path) -> None:
    ran = run("simulate", "--schedule", "1f1b", "--schedule", f"{schedule_file}:backwards", *COUNTS)
    assert ran.code == 3 and "1f1b" in ran.stdout and "left out: " in ran.stdout


def test_orders_from_a_csv_file_are_compared(tmp_path: Path) -> None:
    from meshwright import api

    path = tmp_path / "orders.csv"
    path.write_text(to_torch_csv(api.subject("zb_h1", stages=4, microbatches=8).program))
    found = compare_schedules(["zb_h1", str(path)], stages=4, microbatches=8)
    (theirs, ours) = found.rows
    assert {theirs.origin, ours.origin} == {"own", "published"}
    assert theirs.span_s == pytest.approx(ours.span_s) and theirs.peak == ours.peak


def test_picture_and_page_are_written(run: Runner, tmp_path: Path, times_file: Path) -> None:
    svg, page = tmp_path / "frontier.svg", tmp_path / "f.html"
    assert run("simulate", "--schedule", "all", "-o", svg, "--report", page, *COUNTS).code == 0
    assert "v_half" in svg.read_text() and "searched here" in svg.read_text()
    assert "Span against peak" in page.read_text() and "times are those given" in page.read_text()
    times = ("--stage-times", times_file)
    assert run("simulate", "--schedule", "1f1b", "--schedule", "zbv", *times, "--report", page).code == 0
    assert "times of every stage from" in page.read_text() and "those given" not in page.read_text()


def test_the_fastest_that_fits_is_a_file_for_other_commands(
    run: Runner, tmp_path: Path, times_file: Path
) -> None:
    path = tmp_path / "fastest.csv"
    asked = ("--stage-times", times_file, "-m", 5, "--json")
    best = run("simulate", "--schedule", "search", "--memory-cap", 3, "-o", path, *asked).data
    fastest = min(row["span"] for row in best["schedules"])
    assert run("check", "--schedule", path).code == 0
    again = run("simulate", "--schedule", path, "--schedule", "1f1b", *asked).data
    assert min(row["span"] for row in again["schedules"]) == pytest.approx(fastest)


def test_copies_of_stages_are_said_and_are_no_schedule_of_torchs(run: Runner, tmp_path: Path) -> None:
    path = tmp_path / "fastest.csv"
    asked = ("--schedule", "dualpipe", "--schedule", "zbv", *COUNTS)
    rows = run("simulate", *asked, "-o", path, "--json").data["schedules"]
    assert [(row["schedule"], row["num_copies"]) for row in rows] == [("zbv", 1), ("dualpipe", 2)]
    assert run("simulate", "--schedule", path, "--json").data["span"] == pytest.approx(rows[0]["span"])
    assert "dualpipe has every stage on 2 devices" in run("simulate", *asked).stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("--schedule", "all", "--memory-cap", 0.5),
        ("--schedule", "all", "--stage-times", "nothing.csv"),
        ("--schedule", "1f1b", "--stage-times", "nothing.csv"),
        ("--schedule", "all", "--schedule", "1f1c"),
        ("--schedule", "all", "--cluster", "8xH100"),
        ("--schedule", "all", "--chunks", 0),
        ("--schedule", "1f1b", "--chunks", 2),
        ("--schedule", "dualpipe", "--stages", 3),
        ("plan.toml", "--memory-cap", 3),
    ],
)
def test_mistakes_are_told(run: Runner, arguments: tuple[object, ...]) -> None:
    ran = run("simulate", *arguments)
    assert ran.code == 2 and ran.stdout == "" and "Traceback" not in ran.stderr


def test_times_are_said_once_and_names_are_found_first(times_file: Path) -> None:
    with pytest.raises(SpecError, match="both times"):
        compare_schedules(stage_times=times_file, times=(1, 1, 1))
    with pytest.raises(UnknownNameError):
        compare_schedules(["all", "1f1c"])
