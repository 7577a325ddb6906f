"""How much of its devices a step uses is the same number in every verb that shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.running import Runner

from meshwright.executor.job.pool import Pool
from meshwright.specs import Cluster, Plan, Workload
from meshwright.specs.config.source import load_model

LLAMA = load_model("llama-3.1-8b")


@pytest.fixture
def gpu_plan(tmp_path: Path) -> Path:
    path = tmp_path / "gpu.toml"
    plan = Plan.of(
        LLAMA,
        Cluster("8xH100"),
        Workload(16, 8192),
        dp=8,
        sharding="zero3",
        recompute="full",
        dtype="bfloat16",
    )
    plan.save(path)
    return path


def _log(path: Path, step_s: float) -> Path:
    """Of torchtitan, ten steps."""
    tps = 2 * 8192 / step_s
    path.write_text(
        "".join(
            f"[titan] 2025-01-01 00:00:00,000 - root - INFO - step: {n}  loss: 5.0  memory: 40.00GiB(50.00%)  "
            f"tps: {tps:,.1f}  tflops: 1.00  mfu: 1.00%\n"
            for n in range(1, 11)
        )
    )
    return path


def test_simulate_plan_and_compare_say_the_same(run: Runner, gpu_plan: Path, tmp_path: Path) -> None:
    simulated = run("simulate", gpu_plan, "--json").data
    rate, mfu = simulated["flops_per_s_per_device"], simulated["mfu"]
    assert rate == pytest.approx(LLAMA.train_flops_per_token(8192) * 2 * 8192 / simulated["step"]["value"])
    assert mfu == pytest.approx(rate / 989.4e12) and 0.2 < mfu < 0.6
    shown = run("simulate", gpu_plan)
    assert f"{rate / 1e12:.3g} TFLOP/s a device (MFU {100 * mfu:.1f} %)" in " ".join(shown.stdout.split())
    fast = run("compare", gpu_plan, _log(tmp_path / "log", simulated["step"]["value"] / 1.05), "--json").data
    assert (fast["predicted"]["flops_per_s_per_device"], fast["predicted"]["mfu"]) == (rate, mfu)
    assert fast["measured"]["mfu"] == pytest.approx(1.05 * mfu, rel=1e-3) and fast["doubts"] == []
    wrong = run("compare", gpu_plan, _log(tmp_path / "log", simulated["step"]["value"] / 2), "--json").data
    assert "shorter than the products of matrices" in wrong["doubts"][0]
    text = run("compare", gpu_plan, tmp_path / "log").stdout
    assert "MFU" in text and "TFLOP/s" in text and "CAUTION" in text


def test_a_training_says_them_in_its_line_result_and_lines(
    run: Runner, plan_file: Path, profile: None, shared_pool: Pool, tmp_path: Path
) -> None:
    files = ("--metrics", tmp_path / "m.jsonl", "-o", tmp_path / "measured.npz")
    ran = run("train", plan_file, "--iterations", 3, "--json", *files)
    assert ran.code == 0, ran.stderr
    assert "FLOP/s" in ran.stderr and "MFU" in ran.stderr
    predicted = run("simulate", plan_file, "--json", "-o", tmp_path / "predicted.npz").data
    plan = Plan.load(plan_file)
    per_token = plan.model.train_flops_per_token(plan.workload.sequence_length) / plan.num_devices
    assert ran.data["flops_per_s_per_device"] == pytest.approx(ran.data["tokens_per_s"] * per_token)
    peak = ran.data["flops_per_s_per_device"] / ran.data["mfu"]
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    for row in lines:
        assert row["flops_per_s_per_device"] == pytest.approx(row["tokens_per_s"] * per_token)
        assert row["mfu"] == pytest.approx(row["flops_per_s_per_device"] / peak)
    compared = run("compare", tmp_path / "predicted.npz", tmp_path / "measured.npz", "--json").data
    rows = {row["name"]: row for row in compared["rows"]}
    assert rows["MFU"]["predicted"] == pytest.approx(predicted["mfu"])
    rate = rows["model FLOP/s, a device"]
    assert rate["measured"] == pytest.approx(per_token * 8 * 16 / rows["step"]["measured"])
    assert rate["predicted"] == pytest.approx(predicted["flops_per_s_per_device"])
