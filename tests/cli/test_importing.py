"""`import`, and `compare` and `calibrate` with the log of a run."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright.specs import Plan
from meshwright.specs.prediction import Basis, Prediction
from tests.cli.running import Ran, Runner
from tests.interop.recipe import GROK_1, TITAN_8B


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "pretrain.sh"
    path.write_text(GROK_1.replace("--bf16", "--bf16 --own-option 3 --lr 1e-4"))
    return path


@pytest.fixture
def imported_plan(run: Runner, tmp_path: Path) -> Path:
    (tmp_path / "job.toml").write_text(TITAN_8B)
    path = tmp_path / "imported.toml"
    ran = run("import", tmp_path / "job.toml", "--from", "torchtitan", "--cluster", "4x8xH200", "-o", path)
    assert ran.code == 0, ran.stderr
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "run.log"
    lines = [
        f"iteration {n} | elapsed time per iteration (ms): {1500 + n} | global batch size: 64 |"
        for n in range(20)
    ]
    path.write_text("\n".join(lines))
    return path


def predicting(monkeypatch: pytest.MonkeyPatch, seconds: float, basis: Basis = "interpolated") -> None:
    """Predictions of `seconds`, whatever the plan: what is tested here is what is made of them."""
    estimate = SimpleNamespace(
        step=Prediction.within(seconds, 0.1, basis), parts={"matmul": 0.6 * seconds, "network": 0.3 * seconds}
    )
    module = importlib.import_module(
        "meshwright.planner.step_prediction"
    )  # the room has a function of that name
    monkeypatch.setattr(module, "predict_step", lambda plan, cluster: estimate, raising=False)


def import_script(run: Runner, script: Path, *more: object) -> Ran:
    return run("import", script, "--from", "megatron", "--cluster", "64x8xH100", *more)


def test_import_writes_the_plan_and_lists_every_option(run: Runner, script: Path, tmp_path: Path) -> None:
    ran = import_script(run, script, "--json", "-o", tmp_path / "plan.toml")
    assert ran.code == 0, ran.stderr
    assert {option["name"] for option in ran.data["unknown"]} >= {
        "--own-option",
        "--moe-expert-capacity-factor",
    }
    assert {option["name"] for option in ran.data["irrelevant"]} == {"--lr", "--moe-aux-loss-coeff"}
    plan = Plan.load(tmp_path / "plan.toml")
    assert (plan.pp, plan.tp, plan.cp, plan.ep, plan.num_chunks) == (8, 4, 2, 8, 8)
    assert ran.data["model_digest"] == plan.model_digest


def test_people_see_what_was_not_understood(run: Runner, script: Path) -> None:
    shown = import_script(run, script).stdout
    assert "NOT understood" in shown and "--own-option" in shown and "--lr" in shown


def test_import_reads_deepspeed_with_a_model(run: Runner, tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}))
    arguments = (
        "import",
        path,
        "--from",
        "deepspeed",
        "--model",
        "llama-3.2-1b",
        "--cluster",
        "H100",
        "--gpus",
        16,
    )
    ran = run(*arguments, "--seq", 2048, "--json")
    assert ran.code == 0 and ran.data["sharding"] == "zero3" and ran.data["global_batch"] == 16
    assert run(*arguments).code == 2


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--from", "megatrom", "--cluster", "64x8xH100"), "megatron"),
        (("--from", "megatron"), "--cluster"),
        (("--from", "torchtitan", "--cluster", "H100"), "TOML"),
        (("--from", "megatron", "--cluster", "64x8xH100", "--set", "TP"), "NAME=VALUE"),
    ],
)
def test_a_mistake_is_told(run: Runner, script: Path, arguments: tuple[str, ...], word: str) -> None:
    ran = run("import", script, *arguments)
    assert ran.code == 2 and word in ran.stderr.replace("\n", " ") and "Traceback" not in ran.stderr


def test_compare_a_plan_with_a_log(
    run: Runner, imported_plan: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predicting(monkeypatch, 1.4)
    data: dict[str, Any] = run("compare", imported_plan, log, "--json").data
    assert data["measured"]["source"] == "megatron" and data["measured"]["num_warm_up"] == 2
    assert data["ratio"] == pytest.approx(1.5105 / 1.4, rel=1e-3) and data["is_inside"]
    assert [part["name"] for part in data["parts"]] == ["matmul", "network"]
    shown = run("compare", imported_plan, log)
    assert (
        shown.code == 0 and "inside the interval" in shown.stdout and "calibration would move" in shown.stdout
    )


def test_calibrate_from_a_log_and_compare_with_the_profile(
    run: Runner, imported_plan: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predicting(monkeypatch, 1.0)
    profile = tmp_path / "my.profile.json"
    ran = run("calibrate", "--from-log", log, "--plan", imported_plan, "-o", profile, "--json")
    assert ran.code == 0 and ran.data["constants"]["step_factor"] == pytest.approx(1.5105, rel=1e-3)
    compared = run("compare", imported_plan, log, "--profile", profile, "--json").data
    assert compared["ratio"] == pytest.approx(1.0) and compared["is_inside"]
    assert not run("compare", imported_plan, log, "--json").data["is_inside"]


def test_calibrate_from_a_trace(
    run: Runner, imported_plan: Path, trace_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predicting(monkeypatch, 1.0)
    ran = run("calibrate", "--from-trace", trace_file, "--plan", imported_plan, "--json")
    assert ran.code == 0 and ran.data["measured"]["source"] == "trace"


def test_what_was_never_seen_is_refused_unless_asked_for(
    run: Runner, imported_plan: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predicting(monkeypatch, 1.4, "never seen")
    refused = run("compare", imported_plan, log)
    assert refused.code == 3 and "--extrapolate" in refused.stdout
    assert run("compare", imported_plan, log, "--extrapolate").code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", "{trace}", "{trace}", "--cluster", "8xH100"),
        ("calibrate", "--from-log", "{log}"),
        ("calibrate", "--plan", "{plan}"),
        ("calibrate", "--from-log", "{log}", "--from-trace", "{trace}", "--plan", "{plan}"),
        ("compare", "{plan}", "{plan}"),
    ],
)
def test_a_mistake_beside_a_log_is_told(
    run: Runner, arguments: tuple[str, ...], imported_plan: Path, log: Path, trace_file: Path
) -> None:
    files = {"plan": imported_plan, "log": log, "trace": trace_file}
    ran = run(*(word.format(**files) for word in arguments))
    assert ran.code == 2 and ran.stderr and "Traceback" not in ran.stderr
