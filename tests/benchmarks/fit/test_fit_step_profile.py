"""The profile that is written: what was seen of each device, a fit without each source, and a file that is read back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fit.cross_validation import folds_of
from fit.fit_step_profile import main, seen, step_profile
from fit.step_data import measured_steps
from tests.benchmarks.step_sample import JOBS, SMALL, SOURCES, made_steps, noise, step_row, three_sources
from tests.evidence.training_sample import table_row, write_table

from meshwright.costs.step.profile import MANY_DEVICES, STEP_PROFILE_SCHEMA, StepProfile
from meshwright.prediction.predicted import predict

EXPERTS = {"n_experts": 8, "topk": 2, "moe_ffn": 768, "ffn": 0, "dense_layers": 0, "shared_ffn": 0}


def test_of_each_device_the_largest_number_and_what_ran_at_all() -> None:
    rows = [
        step_row("a-1"),
        step_row("a-2", gpus=32, global_batch_seqs=32),
        step_row("a-3", precision="fp8"),
        step_row("a-4", gpu="A100-80GB-SXM", **EXPERTS),
    ]
    steps, _ = measured_steps(rows)
    assert seen(steps) == {
        "H100": {"most_devices": 32, "float8": True, "experts": False},
        "A100-80": {"most_devices": 8, "float8": False, "experts": True},
    }


def test_a_profile_has_a_fit_without_each_source_and_one_without_many_devices() -> None:
    found = folds_of(made_steps(three_sources(), noise))
    profile = step_profile(found)
    assert set(profile.left_out) == {*SOURCES, MANY_DEVICES} and profile.fit == found.fit()
    assert all(profile.left_out[source] == found.fit((source,)) for source in SOURCES)
    assert profile.left_out[MANY_DEVICES] == found.fit((MANY_DEVICES,), "size")
    assert set(profile.seen) == {"H100", "A100-80"}
    assert StepProfile.from_dict(json.loads(json.dumps(profile.to_dict()))).to_dict() == profile.to_dict()


def test_tables_become_the_packages_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = [
        write_table(
            tmp_path / f"{source}.csv",
            [table_row(f"{source}-{n}", 0.08, **{**SMALL, **layout, **job}) for n, job in enumerate(JOBS[:2])]
            + [table_row(f"{source}-8", 9.0, **{**SMALL, **layout, "gpu": "abacus"})]
            + [table_row(f"{source}-9", 9.0, **{**SMALL, **layout, "core": 0, "gpu": "abacus"})],
        )
        for source, layout in SOURCES.items()
    ]
    target = tmp_path / "steps.json"
    assert main([*map(str, tables), "-o", str(target)]) == 0
    profile = StepProfile.from_dict(json.loads(target.read_text(encoding="utf-8")))
    told = capsys.readouterr()
    assert told.out == "" and "6 rows, 3 sources" in told.err
    assert told.err.count("abacus") == 3, "rows that are skipped say why"
    assert "c-9:" not in told.err, "rows that are not core are not read"
    assert json.loads(target.read_text(encoding="utf-8"))["schema"] == STEP_PROFILE_SCHEMA
    job = measured_steps([step_row("d-1")])[0][0].job
    assert predict(job.plan, job.cluster, fit=profile.without("a")).step.value > 0
    assert replace(profile, source="").seen["H100"]["most_devices"] == 8
