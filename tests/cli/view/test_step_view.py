"""How a predicted step is shown: parts, memory and assumptions of plans on GPUs, and one line for others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import Runner

from meshwright.prediction.predicted import predict
from meshwright.specs import Cluster, ModelSpec, Plan, Workload

MODEL = ModelSpec.decoder(4, 1024, 8, intermediate_size=4096, max_sequence_length=2048, name="four")


def saved(folder: Path, cluster: str = "8xH100", **choices: Any) -> Path:
    fields = {"dtype": "bfloat16", "master_dtype": "float32", **choices}
    Plan.of(MODEL, Cluster(cluster), Workload(32, 2048), **fields).save(folder / "gpu.toml")
    return folder / "gpu.toml"


def test_a_gpu_plan_says_where_its_step_goes(run: Runner, tmp_path: Path) -> None:
    path = saved(tmp_path, pp=2, tp=2, sequence_parallel=True)
    data = run("simulate", path, "--json").data
    want = predict(Plan.load(path), Cluster("8xH100")).refined()
    assert data["step"]["value"] == pytest.approx(want.step.value, rel=1e-9)
    assert (data["step"]["low"], data["step"]["high"]) == pytest.approx((want.step.low, want.step.high))
    assert data["parts"] == pytest.approx(dict(want.parts)) and data["step"]["basis"] == want.step.basis
    assert data["memory"]["allocated"] == max(data["peak_bytes"]) and len(data["peak_bytes"]) == 2
    assert any("software" in line for line in data["assumptions"])
    shown = run("simulate", path).stdout
    for words in ("where the step goes", "matrix products", "attention", "allocated", "software", "tokens/s"):
        assert words in shown


def test_shares_of_the_table_add_up_to_the_step(tmp_path: Path) -> None:
    from meshwright.cli.view.step_view import part_rows

    estimate = predict(Plan.load(saved(tmp_path, pp=4)), Cluster("8xH100"))
    shares = [
        float(row["share"].removesuffix(" %")) for row in part_rows(estimate.parts, estimate.step.value)
    ]
    assert sum(shares) == pytest.approx(100.0, abs=0.05 * len(shares))


def test_a_plan_for_this_machine_has_one_line(run: Runner, plan_file: Path) -> None:
    shown = run("simulate", plan_file).stdout
    assert "\nstep " in shown and "where the step goes" not in shown
    data = run("simulate", plan_file, "--json").data
    assert data["step"]["low"] <= data["step"]["value"] <= data["step"]["high"] and "parts" not in data


def test_a_saved_trace_still_says_where_the_step_goes(run: Runner, tmp_path: Path) -> None:
    trace = tmp_path / "gpu.npz"
    simulated = run("simulate", saved(tmp_path), "-o", trace, "--json").data
    assert run("show", trace, "--json").data["parts"] == simulated["parts"]
    assert "where the step goes" in run("show", trace).stdout


def test_the_page_has_the_table(run: Runner, tmp_path: Path) -> None:
    page = tmp_path / "out.html"
    assert run("simulate", saved(tmp_path), "--report", page).code == 0
    assert "where the step goes" in page.read_text()


@pytest.mark.parametrize("verb", ["simulate", "compare"])
def test_a_chip_that_was_never_seen_is_refused(run: Runner, tmp_path: Path, verb: str) -> None:
    path = saved(tmp_path, "8xMI250X")
    log = tmp_path / "run.log"
    log.write_text(
        "\n".join(f"iteration {n} | elapsed time per iteration (ms): {900 + n} |" for n in range(20))
    )
    arguments = (verb, path, *((log,) if verb == "compare" else ()))
    refused = run(*arguments)
    assert refused.code == 2 and "--extrapolate" in refused.stderr.replace("\n", " ")
    asked = run(*arguments, "--extrapolate", "--json")
    assert asked.code == 0, asked.stderr
    assert (asked.data["step"] if verb == "simulate" else asked.data)["basis"] == "never seen"


def test_float8_on_a_chip_without_it_is_refused(run: Runner, tmp_path: Path) -> None:
    path = saved(tmp_path, "8xA100-80", float8="tensorwise")
    for more in ((), ("--extrapolate",)):
        ran = run("simulate", path, *more)
        assert ran.code == 2 and "float8" in ran.stderr


def test_check_shows_memory_and_its_holders(run: Runner, tmp_path: Path) -> None:
    path = saved(tmp_path, sharding="zero1")
    shown, data = run("check", path).stdout, run("check", path, "--json").data
    for words in ("allocated", "reserved", "at most", "optimizer state"):
        assert words in shown
    memory = data["memory"]
    assert memory["allocated"] < memory["reserved"] < memory["upper"]
    assert sum(memory["holders"].values()) == pytest.approx(memory["allocated"])
    near = memory["allocated"] + memory["context"]
    tight = run("check", path, "--memory", f"{int(near * 1.001)}B")
    assert tight.code == 0 and "not in the worst case" in tight.stdout
    refused = run("check", path, "--memory", f"{int(near * 0.99)}B")
    assert refused.code == 3 and "largest holders" in refused.stdout and "context" not in refused.stderr


def test_check_needs_no_permission_for_a_chip_that_was_never_seen(run: Runner, tmp_path: Path) -> None:
    assert run("check", saved(tmp_path, "8xMI250X")).code == 0


def test_two_traces_cannot_be_extrapolated(run: Runner, trace_file: Path) -> None:
    ran = run("compare", trace_file, trace_file, "--extrapolate")
    assert ran.code == 2 and "--extrapolate" in ran.stderr


def test_parts_of_one_word_add_up() -> None:
    from meshwright.cli.view.step_view import _parts_view

    seconds = {"matmul": 2.0, "SEND_F": 0.25, "RECV_F": 0.5}
    assert "messages between stages 750 ms" in str(_parts_view(seconds, 2.0)[-1])


def test_explain_says_nothing_twice(run: Runner, tmp_path: Path) -> None:
    shown = run("simulate", saved(tmp_path), "--explain").stdout
    assert shown.count("software 'fused'") == 1 and "engine" in shown
