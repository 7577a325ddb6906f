"""A stack with a hidden truth: one, three and ten of its runs bring the next layout nearer, inside a narrower interval."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.evidence.training_sample import table_row, write_table

from meshwright import api
from meshwright.api.exchange.learning import LearnedStack, calibrate_runs
from meshwright.costs.step.profile import StepFit, packaged_step_profile
from meshwright.prediction.own_runs.own_stack import OwnStack
from meshwright.prediction.predicted import Predicted, predict
from meshwright.specs import Cluster, Plan, Workload
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.config.source import load_model
from meshwright.specs.error import SpecError, UnknownNameError

WHERE = Cluster("2x8xH100")
MODEL = load_model("llama-3.2-1b")
LAYOUTS = [
    {"tp": tp, "pp": pp, "dp": 16 // tp // pp, "microbatch_size": size}
    for tp, pp, size in (
        *((1, 1, 1), (2, 1, 2), (4, 1, 1), (2, 2, 1), (1, 2, 2), (8, 1, 2), (4, 2, 1), (1, 4, 1), (2, 4, 2), (8, 2, 1)),
        *((4, 1, 4), (2, 1, 1), (1, 1, 2), (4, 4, 1)),
    )
]  # fmt: skip
NOISE = 0.01  # of a run


def plan_of(layout: dict[str, int], where: ClusterSpec = WHERE) -> Plan:
    return Plan.of(
        MODEL, where, Workload(64, 2048), dtype="bfloat16", sharding="zero1", sequence_parallel=layout["tp"] > 1, **layout
    )  # fmt: skip


def hidden() -> StepFit:
    """A stack whose products are 12 % slower than anybody's, its messages 50 %."""
    fit = packaged_step_profile().fit
    known = fit.constants["h100"]
    slow = replace(
        known,
        matmul=1.12 * known.matmul,
        node_exchange=1.5 * known.node_exchange,
        network_exchange=1.5 * known.network_exchange,
    )
    return StepFit({**fit.constants, "h100": slow}, fit.width)


@pytest.fixture(scope="module")
def stack() -> list[tuple[Plan, float, Predicted]]:
    """Plans, what they take there, and what is predicted."""
    random, truth = np.random.default_rng(0), hidden()
    found = []
    for layout in LAYOUTS:
        plan = plan_of(layout)
        seconds = predict(plan, WHERE, fit=truth).step.value
        found.append((plan, seconds * float(np.exp(NOISE * random.normal())), predict(plan, WHERE)))
    return found


def learned(stack: list[tuple[Plan, float, Predicted]], number: int, folder: Path) -> LearnedStack:
    logs = []
    for place, (plan, seconds, _) in enumerate(stack[:number]):
        log = folder / f"run-{place}.json"
        log.write_text(json.dumps({"step_s": [seconds * factor for factor in (2.0, 0.999, 1.0, 1.001)]}))
        logs.append((plan, log))
    return calibrate_runs(logs)


def test_runs_bring_the_next_layout_nearer_and_its_interval_holds_it(
    stack: list[tuple[Plan, float, Predicted]], tmp_path: Path
) -> None:
    others = stack[10:]
    before = np.median([abs(each.step.value / seconds - 1) for _, seconds, each in others])
    assert before > 0.1
    errors, widths = [], []
    for number in (1, 3, 10):
        profile = learned(stack, number, tmp_path).profile
        profile.save(tmp_path / "my.profile.json")
        kept = OwnStack.of(tmp_path / "my.profile.json", WHERE)
        found = [(kept.of_plan(each).step, seconds) for _, seconds, each in others]
        errors.append(np.median([abs(step.value / seconds - 1) for step, seconds in found]))
        widths.append(np.median([step.high / step.low for step, _ in found]))
        assert sum(step.low <= seconds <= step.high for step, seconds in found) >= len(others) - 1
    assert errors[0] < 0.6 * before and errors[2] < 0.3 * before and errors[2] < 0.03
    assert widths[2] < widths[0] < np.median([each.step.high / each.step.low for _, _, each in others])


def test_every_verb_says_the_same_step(stack: list[tuple[Plan, float, Predicted]], tmp_path: Path) -> None:
    profile = learned(stack, 3, tmp_path).profile
    plan, seconds, each = stack[11]
    corrected = OwnStack.of(profile, WHERE).of_plan(each.refined())
    made = api.subject(plan, cluster=WHERE, profile=profile)
    assert made.predicted is not None and made.predicted.step == corrected.step
    assert any(line.startswith("corrected by 3 runs of your own: everything ") for line in made.assumptions)
    log = tmp_path / "next.json"
    log.write_text(json.dumps({"step_s": [seconds] * 3}))
    beside = api.compare_log(plan, log, cluster=WHERE, profile=profile)
    assert beside.predicted.value == pytest.approx(OwnStack.of(profile, WHERE).of_plan(each).step.value)
    assert sum(corrected.parts.values()) == pytest.approx(
        corrected.factor * sum(each.refined().parts.values())
    )


def test_a_table_of_runs_needs_no_plans(tmp_path: Path) -> None:
    rows = [
        table_row(f"ours-{n}", 3.0 * 2**-n, gpus=8 * 2**n, global_batch_seqs=64, dp=8 * 2**n)
        for n in range(3)
    ]
    path = write_table(tmp_path / "ours.csv", [*rows, table_row("ours-9", 3.0, gpu="abacus")])
    found = calibrate_runs(tables=[path])
    assert [run.name for run in found.profile.runs] == ["ours-0", "ours-1", "ours-2"]
    assert "abacus" in found.left_out[0] and found.profile.device == "H100"
    assert OwnStack.of(found.profile, WHERE).posterior is not None


def test_bad_runs_are_told(stack: list[tuple[Plan, float, Predicted]], tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no run is given"):
        calibrate_runs()
    mistyped = write_table(tmp_path / "a.csv", [{**table_row("ours-1", 3.0), "zerro": 1}])
    with pytest.raises(UnknownNameError, match="zero"):
        calibrate_runs(tables=[mistyped])
    nobody = write_table(tmp_path / "b.csv", [table_row("ours-1", 3.0, gpu="abacus")])
    with pytest.raises(SpecError, match="no row can be predicted"):
        calibrate_runs(tables=[nobody])
    mixed = [table_row("ours-1", 3.0), table_row("ours-2", 3.0, gpu="A100-80GB-SXM")]
    with pytest.raises(SpecError, match=r"ours-1 is on H100, run ours-2 on A100"):
        calibrate_runs(tables=[write_table(tmp_path / "c.csv", mixed)])
    empty, other = tmp_path / "empty.log", tmp_path / "other.log"
    empty.write_text("nothing here")
    other.write_text(
        " iteration 1/ 9 | elapsed time per iteration (ms): 900.0 | global batch size: 32 |\n" * 9
    )
    plan = stack[0][0]
    with pytest.raises(SpecError, match="how long a step took"):
        calibrate_runs([(plan, empty)])
    with pytest.raises(SpecError, match="not the log of this plan: the log's global batch is 32"):
        calibrate_runs([(plan, other)])
    other.write_text('{"step_s": [1e-4, 1e-4, 1e-4]}')
    with pytest.raises(SpecError, match="of what the devices can compute"):
        calibrate_runs([(plan, other)])


def test_older_profiles_of_one_factor_are_read(stack: list[tuple[Plan, float, Predicted]]) -> None:
    old = Profile("H100", constants={"step_factor": 1.2}, source="a log")
    text = old.to_json().replace('"schema": 4', '"schema": 3')
    each = stack[0][2]
    found = OwnStack.of(Profile.from_json(text), WHERE).of_plan(each)
    assert found.step == each.step.scaled(1.2) and "of your log: a log" in found.assumptions[-1]


def test_a_profile_of_something_else_is_refused() -> None:
    assert OwnStack.of(None, WHERE).said == ""
    with pytest.raises(SpecError, match="the profile is of A100-80"):
        OwnStack.of(Profile("A100-80", constants={"step_factor": 1.1}), WHERE)
    with pytest.raises(SpecError, match="from-log"):
        OwnStack.of(Profile("H100"), WHERE)
    with pytest.raises(SpecError, match="malformed"):
        Profile.from_json(Profile("H100").to_json().replace('"runs": []', '"runs": [{"name": "x"}]'))
