"""`simulate`: the contract that others script against, pictures, files and refusals."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.cli.running import Runner, small_plan

from meshwright import api
from meshwright.ir.text import to_torch_csv
from meshwright.ir.trace import Trace
from meshwright.reports.chart import png


def test_simulate_json_keeps_its_contract(run: Runner) -> None:
    data = run(
        *("simulate", "--schedule", "1f1b", "--stages", 8, "--microbatches", 24),
        *("--times", "1,1,1", "--comm", 0.1, "--json"),
    ).data
    assert data["span"] == pytest.approx(98.4, abs=1e-9)
    assert data["device_time"] == pytest.approx(98.4, abs=1e-9)
    assert data["bubble"] == pytest.approx(1 - 72 / 98.4, abs=1e-9)
    assert data["peak_activations"] == [8, 7, 6, 5, 4, 3, 2, 1]


@pytest.mark.parametrize(
    ("schedule", "options", "span"),
    [
        ("gpipe", (), 93),
        ("interleaved_1f1b", (), 82.5),
        ("interleaved_1f1b", ("--chunks", 4), 77.25),
        ("zb_h1", (), 79),
        ("1f1b", ("--recompute",), 117),
        ("1f1b", ("--times", "1,1.2,0.9"), 96.1),
    ],
)
def test_spans_are_those_of_the_papers(
    run: Runner, schedule: str, options: tuple[object, ...], span: float
) -> None:
    data = run("simulate", "--schedule", schedule, "-p", 8, "-m", 24, *options, "--json").data
    assert data["device_time"] == pytest.approx(span, abs=1e-9)


def test_split_backward_shortens_the_way_back(run: Runner) -> None:
    plain, split = (
        run("simulate", "--schedule", "gpipe", *more, "--json").data["span"] for more in ((), ("--split",))
    )
    assert split < plain


def test_the_one_second_demo_draws_every_device(run: Runner) -> None:
    ran = run("simulate", "--schedule", "1f1b", "--stages", 4, "--microbatches", 8)
    rows = [line for line in ran.stdout.splitlines() if line.startswith("pp")]
    assert len(rows) == 4 and rows[0].startswith("pp0 F0F1F2F3....")
    assert "bubble 27.3 %" in ran.stdout


def test_all_prints_every_schedule(run: Runner) -> None:
    found = run("simulate", "--schedule", "all", "-p", 4, "-m", 8, "--json").data["schedules"]
    assert {row["schedule"] for row in found} >= {"1f1b", "gpipe", "interleaved_1f1b", "zb_h1"}
    times = [row["device_time"] for row in found]
    assert times == sorted(times)


def test_what_every_schedule_refuses_is_the_users_mistake(run: Runner) -> None:
    ran = run("simulate", "--schedule", "all", "-p", 0)
    assert ran.code == 2 and "0 stages" in ran.stderr


def test_a_program_without_instructions_takes_no_time(run: Runner, tmp_path: Path) -> None:
    path = tmp_path / "empty.program"
    path.write_text("meshwright-program 1   axes pp=1   microbatches 0\n0:\n")
    assert run("simulate", path, "--iterations", 2, "--json").data["span"] == 0
    assert run("check", path, "--json").code == 0


def test_a_users_file_and_torch_csv_are_simulated(run: Runner, schedule_file: Path, tmp_path: Path) -> None:
    own = run("simulate", "--schedule", f"{schedule_file}:wave", "-p", 2, "-m", 3, "--json")
    assert own.code == 0 and own.data["peak_activations"] == [3, 3]
    csv = tmp_path / "orders.csv"
    from meshwright import api

    csv.write_text(to_torch_csv(api.subject("1f1b", stages=2, microbatches=3).program))
    for arguments in (("simulate", csv), ("simulate", "--schedule", csv)):
        assert run(*arguments, "--json").data["span"] == pytest.approx(12, abs=1e-9)


def test_a_trace_is_written_and_read_again(run: Runner, tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    span = run("simulate", "--schedule", "zb_h1", "-o", path, "--json").data["span"]
    assert Trace.load(path).num_iterations == 1
    assert run("show", path, "--json").data["span"] == span


def test_a_timeline_is_a_picture_in_pixels(run: Runner, tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    drawn = tmp_path / "timeline.png"
    assert run("simulate", "--schedule", "1f1b", "-p", 2, "-m", 2, "-o", drawn).code == 0
    assert drawn.read_bytes().startswith(b"\x89PNG")


def test_pixels_are_refused_before_the_work_where_nothing_makes_them(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    monkeypatch.setattr(api, "simulate", lambda *given, **choices: pytest.fail("it ran"))
    png._has_font.cache_clear()
    ran = run("simulate", "--schedule", "1f1b", "-p", 2, "-m", 2, "-o", tmp_path / "timeline.png")
    assert ran.code == 2 and "meshwright[png]" in ran.stderr and not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", [".svg", ".perfetto.json", ".program"])
def test_pictures_and_text_are_written(run: Runner, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out{suffix}"
    assert run("simulate", "--schedule", "1f1b", "-o", path).code == 0
    assert path.stat().st_size > 100
    if suffix == ".program":
        assert run("check", path).code == 1 - 1
        assert run("simulate", path, "--json").data["span"] == pytest.approx(33)


def test_a_plan_is_simulated_with_what_this_machine_was_measured_to_take(
    run: Runner, plan_file: Path, profile: None
) -> None:
    data = run("simulate", plan_file, "--json", "--explain").data
    assert data["span"] > 0 and len(data["peak_bytes"]) == 2
    assert any("profile" in line for line in data["explanation"])


def test_a_crash_in_a_users_file_is_told_with_its_line(run: Runner, schedule_file: Path) -> None:
    ran = run("simulate", "--schedule", f"{schedule_file}:crash")
    assert ran.code == 2 and "line 10" in ran.stderr and "ZeroDivisionError" in ran.stderr


def test_a_plan_for_an_unknown_cluster_asks_for_it(run: Runner, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    small_plan().changed(cluster="ours").save(path)
    ran = run("simulate", path)
    assert ran.code == 2 and "--cluster" in ran.stderr
    assert run("simulate", path, "--cluster", "2xH100", "--json").data["span"] > 0
