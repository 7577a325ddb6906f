"""`train`, `compare`, `calibrate` and `quickstart` on two gloo workers, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import SOURCE, Runner, rough_profile, small_plan

from meshwright import api
from meshwright.cli.frame import progress
from meshwright.cli.quickstart import quickstart
from meshwright.executor.job.pool import Pool
from meshwright.ir.trace import Trace


@pytest.fixture
def small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quickstart that a test has the time for."""
    for name, value in {"LAYERS": 4, "HIDDEN": 32, "HEADS": 2, "SEQUENCE": 16, "BATCH": 4}.items():
        monkeypatch.setattr(quickstart, name, value)
    monkeypatch.setattr(quickstart, "HELD_OUT_SEQUENCES", 8)


def interrupt_after(num_iterations: int) -> Callable[[Any, Any], None]:
    """Ctrl-C, as the process sees it, once so many iterations are done."""

    def call(self: Any, iteration: Any) -> None:
        if iteration.number + 1 == num_iterations:
            raise KeyboardInterrupt

    return call


def test_train_runs_a_plan_and_compares(
    run: Runner, plan_file: Path, profile: None, shared_pool: Pool, tmp_path: Path
) -> None:
    measured, predicted, page = tmp_path / "m.npz", tmp_path / "p.npz", tmp_path / "r.html"
    ran = run("train", plan_file, "--iterations", 3, "-o", measured, "--report", page, "--json")
    assert ran.code == 0, ran.stderr
    assert ran.data["num_iterations"] == len(ran.data["losses"]) == 3
    assert ran.data["comparison"]["is_same_program"]
    assert Trace.load(measured).is_measured and "</html>" in page.read_text()
    assert run("simulate", plan_file, "-o", predicted).code == 0
    compared = run("compare", predicted, measured, "--json")
    assert compared.code == 0
    names = [row["name"] for row in compared.data["rows"]]
    assert {"step", "bubble", "F", "B", "SEND_F"} <= set(names)
    assert "measured" in run("compare", predicted, measured).stdout


def test_train_reads_a_file_of_text(
    run: Runner, plan_file: Path, profile: None, shared_pool: Pool, tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, " * 200)
    ran = run("train", plan_file, "--data", text, "--iterations", 2)
    assert ran.code == 0 and "trained 2 steps" in ran.stdout and "nothing is kept of it" in ran.stdout
    again = run("train", plan_file, "--data", text, "--iterations", 30, "--learning-rate", 0.01, "--json")
    assert again.data["losses"][-1] < 0.9 * again.data["losses"][0]


@pytest.mark.slow
def test_train_divides_sequences_along_cp(
    run: Runner, profile: None, shared_pool: Pool, tmp_path: Path
) -> None:
    """Documents that are packed into sequences, and held-out losses, as on the pipeline."""
    lines, losses = tmp_path / "lines.jsonl", []
    lines.write_text("".join(f'{{"body": "line {number} of all"}}\n' for number in range(200)))
    common = ("--data", lines, "--text-field", "body", "--iterations", 2, "--evaluate-every", 2, "--json")
    for choices in ({"pp": 2}, {"pp": 1, "cp": 2}):
        path = tmp_path / "plan.toml"
        small_plan(**choices).save(path)
        ran = run("train", path, *common)
        assert ran.code == 0, ran.stderr
        losses.append([*ran.data["losses"], ran.data["held_out_losses"][0]["loss"]])
        assert ran.data["comparison"]["is_same_program"]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_train_reads_json_lines_with_and_without_masked_documents(
    run: Runner, plan_file: Path, profile: None, shared_pool: Pool, tmp_path: Path
) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(f'{{"body": "line {number} of all"}}\n' for number in range(200)))
    common = ("train", plan_file, "--data", lines, "--iterations", 2, "--json")
    masked = run(*common, "--text-field", "body")
    assert masked.code == 0, masked.stderr
    assert run(*common, "--text-field", "body").data["losses"] == masked.data["losses"]
    seeing = run(*common, "--text-field", "body", "--no-document-mask")
    assert seeing.code == 0 and seeing.data["losses"][0] != masked.data["losses"][0]
    refused = run(*common)
    assert refused.code == 2 and "lines.jsonl, line 1" in refused.stderr


def test_ctrl_c_ends_a_training_with_what_was_reached(
    run: Runner, plan_file: Path, profile: None, shared_pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress.TrainingLine, "__call__", interrupt_after(2))
    ran = run("train", plan_file, "--seconds", 60, "--json")
    assert ran.code == 130 and ran.data["interrupted"]
    assert 2 <= ran.data["num_iterations"] == len(ran.data["losses"])


def test_a_terminated_training_is_saved_like_an_interrupted_one(
    run: Runner,
    plan_file: Path,
    profile: None,
    shared_pool: Pool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def terminate(self: Any, iteration: Any) -> None:
        if iteration.number == 1:
            # To this thread: a signal to the process may come upon any of its threads, whose stacks are others' to size.
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    def unheard(number: int, frame: Any) -> None:
        raise AssertionError("nobody listened")

    monkeypatch.setattr(progress.TrainingLine, "__call__", terminate)
    first = signal.signal(
        signal.SIGTERM, unheard
    )  # else a mistake would end the process that runs all the tests
    try:
        ran = run("train", plan_file, "--seconds", 60, "--checkpoints", tmp_path / "runs")
        assert signal.getsignal(signal.SIGTERM) is unheard
    finally:
        signal.signal(signal.SIGTERM, first)
    assert ran.code == 130 and "saved in" in ran.stdout
    assert "stopping at the end of a step, then saving" in ran.stderr
    assert len(list((tmp_path / "runs").glob("step-*"))) == 1


def test_data_are_refused_before_any_process_starts(
    run: Runner, plan_file: Path, profile: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def started(self: Pool) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(Pool, "start", started)
    binary, short = tmp_path / "binary", tmp_path / "short"
    for folder, content in ((binary, b"\0\1"), (short, b"hi")):
        folder.mkdir()
        for name in ("a.txt", "b.txt"):
            (folder / name).write_bytes(content)
    for folder, said in (
        (tmp_path / "none", "there is no folder"),
        (binary, "0 files to train on"),
        (short, "do not fit"),
    ):
        ran = run("train", plan_file, "--data", folder, "--iterations", 1)
        assert ran.code in (1, 2) and said in " ".join(ran.stderr.split()), ran.stderr
        assert "rank" not in ran.stderr


def test_train_refuses_what_does_not_fit(run: Runner, tmp_path: Path, profile: None) -> None:
    path = tmp_path / "plan.toml"
    small_plan(pp=1, dp=2, microbatch_size=4).save(path)
    cluster = tmp_path / "tiny.toml"
    cluster.write_text(
        'schema = 1\nname = "tiny"\n[[devices]]\nname = "cpu"\ncount = 2\nmemory = "100kB"\n'
        'memory_bandwidth = "1GB/s"\nhost = "in_order"\n[devices.flops_per_s]\nfloat32 = "1GFLOP/s"\n'
        '[[levels]]\nname = "node"\nnum_devices = 2\nbandwidth = "1GB/s"\nlatency = "1us"\n'
    )
    ran = run("train", path, "--cluster", cluster)
    assert ran.code == 3 and "largest holders" in ran.stderr


def test_compare_refuses_different_programs_unless_asked(run: Runner, tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.npz" for name in ("gpipe", "1f1b")]
    for path in paths:
        api.simulate(path.stem, stages=2, microbatches=3).save(path)
    assert run("compare", *paths).code == 3
    assert run("compare", *paths, "--different", "--json").data["is_same_program"] is False


def test_calibrate_keeps_and_writes_the_profile(
    run: Runner, monkeypatch: pytest.MonkeyPatch, cache: Path, tmp_path: Path
) -> None:
    def measured(num_processes: int, *, effort: str, progress: Any, slowing: Any) -> Any:
        assert slowing is None
        progress("matmul", 0.5)
        return rough_profile(num_processes=num_processes)

    monkeypatch.setattr("meshwright.executor.measure.measure.measure", measured)
    ran = run("calibrate", "--processes", 2, "-o", tmp_path / "mine.profile.json", "--json")
    assert ran.code == 0 and "50 %  matmul" in ran.stderr
    assert ran.data["matmul_flops_per_s"] > 0 and Path(ran.data["path"]).is_file()
    assert (tmp_path / "mine.profile.json").is_file()


def test_quickstart_does_the_whole_loop(
    run: Runner, profile: None, shared_pool: Pool, small_model: None, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    ran = run("quickstart", "--seconds", 2, "--folder", folder, "--json")
    assert ran.code == 0, ran.stderr
    data = ran.data
    steps = [row["step_s"] for row in data["plans"]]
    assert steps == sorted(steps) and len(steps) > 20
    plans = " ".join(row["plan"] for row in data["plans"])
    for word in ("dp=2", "gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "recompute", "microbatch 4"):
        assert word in plans
    assert data["plan"] == data["plans"][0]["plan"] and data["num_iterations"] >= 2
    assert 3 < data["unigram_entropy"] < 3.5 and 0 < data["held_out_loss"] < 6
    assert data["sample"].startswith("def ")
    served = run("generate", folder / "trained", "--prompt", "def ", "--max-tokens", 5, "--json")
    assert served.code == 0 and len(served.data["outputs"][0]["token_ids"]) == 5, served.stderr
    assert {path.name for path in folder.iterdir()} == {
        *("report.html", "trace.perfetto.json", "predicted.npz", "measured.npz", "plan.toml", "trained")
    }
    assert "measured 20" in ran.stderr  # which profile it took


@pytest.mark.slow
def test_quickstart_goes_on_where_nothing_can_be_written(
    run: Runner, profile: None, shared_pool: Pool, small_model: None, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    ran = run("quickstart", "--seconds", 1, "--folder", tmp_path / "file")
    assert ran.code == 0 and "nothing was written" in ran.stderr and "held-out loss" in ran.stdout
    rows = [line for line in ran.stdout.splitlines() if "pp=" in line and "ms" in line]
    assert (
        "more, down to" in ran.stdout and len(rows) <= 14
    )  # ten, the slowest, and what is said of the picked one


@pytest.mark.slow
def test_ctrl_c_ends_the_quickstart_with_what_was_reached(
    run: Runner,
    profile: None,
    shared_pool: Pool,
    small_model: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(progress.TrainingLine, "__call__", interrupt_after(2))
    ran = run("quickstart", "--seconds", 60, "--folder", tmp_path / "out")
    assert ran.code == 130 and "interrupted after" in ran.stdout and "held-out loss" in ran.stdout


@pytest.mark.slow
def test_quickstart_compares_every_plan(
    run: Runner, profile: None, shared_pool: Pool, small_model: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = api.plan
    monkeypatch.setattr(api, "plan", lambda *given, **choices: plans(*given, **choices)[:3])
    ran = run("quickstart", "--compare", "--rounds", 1, "--json")
    assert ran.code == 0, ran.stderr
    assert len(ran.data["plans"]) == 3 and ran.data["rounds"] == 1 and ran.data["regret"] >= 0
    assert all(row["measured_s"] > 0 for row in ran.data["plans"])


@pytest.mark.slow
def test_a_real_ctrl_c_leaves_no_process(tmp_path: Path, plan_file: Path) -> None:
    rough_profile().save(tmp_path / "cache" / "meshwright" / "profile.json")
    command = [sys.executable, "-m", "meshwright", "train", str(plan_file), "--seconds", "60", "--json"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore it
    )  # fmt: skip
    assert process.stderr is not None
    assert any(line.startswith("step ") for line in iter(process.stderr.readline, ""))
    workers = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=30)
    assert process.returncode == 130 and '"interrupted": true' in stdout
    assert len(workers) == 2
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize(
    ("found", "named"), [("/usr/bin/meshwright", "meshwright"), (None, ".venv/bin/meshwright")]
)
def test_what_quickstart_says_next_can_be_typed(
    monkeypatch: pytest.MonkeyPatch, found: str | None, named: str
) -> None:
    """Where the shell does not find the command, `make quickstart` names it as it was called."""
    monkeypatch.setattr(quickstart.shutil, "which", lambda name: found)
    monkeypatch.setattr(sys, "argv", [".venv/bin/meshwright", "quickstart"])
    assert quickstart.command_name() == named
