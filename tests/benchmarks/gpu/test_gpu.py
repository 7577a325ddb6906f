"""What `make gpu` does, as far as it goes without a device: the parts on the CPU, verdicts, the page, and no device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.gpu.device import Found, found_device, kind_of
from benchmarks.gpu.equality import read_report
from benchmarks.gpu.kernels import kernels, operators_of
from benchmarks.gpu.part import Part, exit_code, page, timed
from benchmarks.gpu.step import plan_for, step

import meshwright as mw
from benchmarks.gpu import __main__ as program
from meshwright.specs import ModelSpec

MODEL = ModelSpec.decoder(2, 64, 4, num_kv_heads=2, vocabulary_size=256, max_sequence_length=64)
H100 = Found("NVIDIA H100 80GB HBM3", 85_000_000_000, "H100", "2.11.0+cu130", "13.0", "2.28.3", "580", "3.12")


def test_without_a_device_it_says_so_and_is_content(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(program, "found_device", lambda: (None, "PyTorch 2.13.0 sees no CUDA device"))
    assert program.main(["-o", str(tmp_path / "out")]) == 0
    assert "no CUDA device" in capsys.readouterr().out and not (tmp_path / "out").exists()


def test_of_this_machine_there_is_a_device_or_a_reason() -> None:
    found, why_not = found_device()
    assert (found is None) == bool(why_not)


@pytest.mark.parametrize(
    ("name", "memory", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", 85_000_000_000, "H100"),
        ("NVIDIA H100 NVL", 100_000_000_000, "H100-96GB-HBM2e"),
        ("NVIDIA H200", 150_000_000_000, "H200"),
        ("NVIDIA A100-SXM4-40GB", 42_000_000_000, "A100-40"),
        ("NVIDIA GeForce GTX 1080", 8_000_000_000, ""),
    ],
)
def test_the_data_sheet_of_a_device_is_found_by_its_name_and_memory(
    name: str, memory: int, kind: str
) -> None:
    assert kind_of(name, memory) == kind


def test_every_operator_of_a_decoder_is_timed_beside_its_curve() -> None:
    operators = operators_of(MODEL, 2, 32)
    part = kernels(operators, "H100", device="cpu", dtype="float32")
    rows = part.figures["rows"]
    assert part.verdict == "passed" and part.ran == len(rows)
    assert {row["operator"] for row in rows} == {each.variant for each in operators}
    assert all(row["seconds"] > 0 and row["curve_s"] > 0 for row in rows)
    assert sum(line.startswith("| matmul ") for line in part.lines) == 1


def test_a_device_without_curves_has_its_times_alone() -> None:
    part = kernels(operators_of(MODEL, 1, 32)[:3], "", device="cpu", dtype="float32")
    assert part.ran == 3 and all(row["curve_s"] is None for row in part.figures["rows"])


@pytest.mark.slow
def test_a_training_is_put_beside_its_prediction() -> None:
    plan = mw.Plan.of(MODEL, mw.Cluster("1xH100"), mw.Workload(4, 64), dtype="float32")
    part = step(plan, device="cpu")
    assert part.verdict == "passed" and part.ran == len(part.figures["losses"])
    assert part.figures["predicted_s"] > 0 and part.figures["measured_s"] > 0
    assert any(line.startswith("| step |") for line in part.lines)


def test_the_plan_of_a_device_is_for_one_of_it() -> None:
    plan = plan_for("H100")
    assert plan.num_devices == 1 and plan.model.name and plan.dtype == "bfloat16"


REPORT = """<testsuites><testsuite><testcase name="one"/><testcase name="two"><failure message="1e-3 is not 0&#10;more"/>
</testcase><testcase name="three"><skipped message="no NCCL"/></testcase></testsuite></testsuites>"""


def test_what_pytest_says_is_counted_and_named() -> None:
    part = read_report(REPORT)
    assert part.verdict == "failed" and part.ran == 2
    assert part.figures == {"passed": 1, "failed": {"two": "1e-3 is not 0"}, "skipped": 1}
    assert part.lines[-1] == "- skipped: no NCCL"
    assert read_report("<testsuites/>").verdict == "failed"
    assert read_report("<s><testcase><skipped message='no'/></testcase></s>").verdict == "skipped"


def test_a_part_that_breaks_is_one_that_failed() -> None:
    def broken() -> Part:
        raise RuntimeError("an illegal memory access")

    part = timed("kernels", broken)
    assert part.verdict == "failed" and "illegal memory access" in part.figures["error"]
    assert exit_code([part, Part("equality", "passed", 3)]) == 1


def test_a_run_in_which_nothing_ran_has_failed() -> None:
    assert exit_code([Part("equality", "skipped"), Part("kernels", "skipped")]) == 1
    assert exit_code([Part("equality", "passed", 2), Part("kernels", "skipped")]) == 0


def test_a_page_and_a_file_are_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    parts = [Part("equality", "passed", 3, ["3 of 3 passed."], {"passed": 3}, 2.0)]
    monkeypatch.setattr(program, "found_device", lambda: (H100, ""))
    monkeypatch.setattr(program, "parts_on", lambda found: parts)
    assert program.main(["-o", str(tmp_path)]) == 0
    written = (tmp_path / "gpu.md").read_text()
    assert written == page("meshwright on NVIDIA H100 80GB HBM3", H100.to_dict(), parts)
    assert written in capsys.readouterr().out and "| equality | passed | 3 | 2 |" in written
    data = json.loads((tmp_path / "gpu.json").read_text())
    assert data["device"]["kind"] == "H100" and data["parts"][0]["figures"] == {"passed": 3}
