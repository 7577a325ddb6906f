"""Whatever people have is opened by what is in it, and what is nothing of ours is refused in words."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cli.running import small_plan
from tests.workbench.reading import read, section, values

from meshwright import api
from meshwright.ir.text import to_text
from meshwright.specs.error import MeshwrightError, SpecError
from meshwright.workbench.document.opening import open_document

STEP = {"step": 1, "measured_s": 0.5, "loss": 3.0, "predicted_s": 0.4, "tokens_per_s": 100.0, "mfu": None}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.npz"
    api.simulate(schedule="1f1b", stages=2, microbatches=3).save(path)
    return path


def test_a_trace_and_two_of_them(trace: Path, tmp_path: Path) -> None:
    assert read(open_document([trace]))["kind"] == "trace"
    known = api.load(trace)
    measured = tmp_path / "measured.npz"
    replace(known, engine="executed", start_s=2 * known.start_s, end_s=2 * known.end_s).save(measured)
    data = read(open_document([trace, measured]))
    first, second = section(data, "timeline")["traces"]
    assert data["kind"] == "comparison" and (first["source"], second["source"]) == ("simulated", "measured")
    assert second["span_s"] == pytest.approx(2 * first["span_s"])
    ratios = {row[""]: row["ratio"] for row in section(data, "table")["rows"]}
    assert ratios["F"] == ratios["B"] == "2.00x"


def test_a_program_and_a_plan(trace: Path, tmp_path: Path) -> None:
    program = tmp_path / "it.program"
    program.write_text(to_text(api.load(trace).program))
    data = read(open_document([program]))
    assert (data["kind"], data["title"]) == ("program", "it.program")
    assert data["subtitle"].endswith(", 1 iteration")
    plan = tmp_path / "plan.toml"
    small_plan().save(plan)
    data = read(open_document([plan]))
    assert data["kind"] == "plan" and section(data, "timeline")["traces"][0]["span_s"] > 0


@pytest.mark.parametrize("is_folder", [False, True])
def test_metrics_of_a_run_with_half_a_last_line(tmp_path: Path, is_folder: bool) -> None:
    file = tmp_path / "metrics.jsonl"
    lines = [json.dumps({**STEP, "step": number + 1, "loss": 3.0 / (number + 1)}) for number in range(5)]
    file.write_text("\n".join(lines) + '\n{"step": 6, "lo')
    data = read(open_document([tmp_path if is_folder else file]))
    loss = next(each for each in data["sections"] if each["id"] == "loss")
    assert values(loss["lines"][0]["y"]).tolist() == [3.0 / (number + 1) for number in range(5)]
    steps = next(each for each in data["sections"] if each["id"] == "steps")
    assert [line["label"] for line in steps["lines"]] == ["measured", "predicted"]


RESULTS = {
    "sweep": {
        "schedules": [
            {"schedule": "1f1b", "origin": "published", "span": 12.0, "device_time": 11.0, "bubble": 0.2, "peak": 4.0,
             "is_on_frontier": True},
            {"schedule": "mine", "origin": "own", "error": "device 1 waits for ever"},
        ],
        "frontier": ["1f1b"],
    },
    "load": {
        "num_requests": 3, "input_tokens_per_s": 2292.07, "ttft_s": {"p50": 0.1, "p99": None},
        "tpot_s": {"p50": 0.01}, "itl_s": {}, "e2e_s": {"p50": 1.0},
    },
    "plan": {
        "num_candidates": 2,
        "plans": [{"place": 1, "step_time_s": 1.0, "peak_memory_bytes": 4e9, "description": "<script>", "bubble": 0.1}],
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", RESULTS)
def test_what_commands_write(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "result.json"
    file.write_text(json.dumps({"schema": "x", "meshwright": "0.1.0", **RESULTS[kind], "wall_s": 1.0}))
    data = read(open_document([file]))
    assert data["kind"] == kind and section(data, "table")["rows"]


def test_a_load_names_its_rates_and_only_the_percentiles_that_it_has(tmp_path: Path) -> None:
    file = tmp_path / "load.json"
    file.write_text(json.dumps({"meshwright": "0.1.0", **RESULTS["load"]}))
    data = read(open_document([file]))
    facts = {each["name"]: each["value"] for each in data["facts"]}
    assert facts["input tokens a second"] == "2,292"
    assert [column["key"] for column in section(data, "table")["columns"]] == ["time", "p50", "p99"]


def test_a_validation_tells_how_far_off_it_is_beside_the_line_of_equals(tmp_path: Path) -> None:
    row = {
        "row_id": "a-1", "source": "a", "is_core": True, "predicted_s": 1.1, "low_s": 1.0, "high_s": 1.3, "measured_s": 1.0,
        "error": 0.1, "basis": "interpolated", "predicted_peak_bytes": None, "measured_peak_bytes": None, "skipped": "",
    }  # fmt: skip
    core = {
        "num_rows": 1, "num_skipped": 0, "median_error": 0.1, "average_median_error": 0.1, "within_10": 1.0, "coverage": 1.0,
        "half_width": 0.14, "memory_error": None, "num_memory_rows": 0,
    }  # fmt: skip
    file = tmp_path / "validation.json"
    file.write_text(json.dumps({"meshwright": "0.1.0", "rows": [row], "summary": {"lines": {"core": core}}}))
    data = read(open_document([file]))
    assert data["facts"][0]["name"].startswith("median error") and data["facts"][0]["value"] == "10.0 %"
    assert section(data, "frontier")["has_diagonal"]


def test_a_result_that_lacks_parts_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(
        json.dumps({"meshwright": "0.1.0", **RESULTS["sweep"], "schedules": [{"schedule": "1f1b"}]})
    )
    with pytest.raises(SpecError, match="lacks"):
        open_document([file])


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (tmp_path / "ran",)

    file = tmp_path / "trace.npz"
    np.savez(file, header=np.array([Bomb()], dtype=object))
    (tmp_path / "pickle.npz").write_bytes(pickle.dumps(Bomb()))
    for each in (file, tmp_path / "pickle.npz"):
        with pytest.raises(MeshwrightError):
            open_document([each])
    assert not (tmp_path / "ran").exists()


@given(
    st.binary(max_size=400), st.sampled_from([".json", ".jsonl", ".npz", ".toml", ".program", ".csv", ".x"])
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_bytes_are_opened_or_refused(tmp_path: Path, content: bytes, suffix: str) -> None:
    file = tmp_path / f"it{suffix}"
    file.write_bytes(content)
    try:
        open_document([file])
    except MeshwrightError as error:
        assert str(error)


@pytest.mark.parametrize("files", [["absent.npz"], ["."], ["a.toml", "b.toml"], ["a.npz", "b.npz", "c.npz"]])
def test_what_is_not_there_or_too_many(tmp_path: Path, files: list[str]) -> None:
    with pytest.raises(SpecError, match=r"."):
        open_document([tmp_path / each for each in files])
