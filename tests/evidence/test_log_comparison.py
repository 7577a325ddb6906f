"""A predicted step beside a log: ratio, interval, what explains a difference, and the factor of a profile."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.evidence.log_comparison import (
    STEP_FACTOR,
    LogComparison,
    compare_log,
    profile_factor,
    step_profile,
)
from meshwright.interop.training_log import MeasuredRun
from meshwright.specs import Cluster, ModelSpec, Plan, Workload
from meshwright.specs.error import SpecError
from meshwright.specs.prediction import Prediction
from meshwright.specs.profile import Profile

PARTS = {"exchanges in a node": 2.0, "matmul": 6.0, "host": 0.5, "nothing": 0.0}


def compared(measured_s: float, factor: float = 1.0) -> LogComparison:
    run = MeasuredRun(np.array([measured_s - 0.1, measured_s, measured_s + 0.1]), "megatron", 1)
    return compare_log(
        Prediction.within(10.0, 0.1, "interpolated"), PARTS, run, factor=factor, software="fused"
    )


def test_ratio_and_interval() -> None:
    found = compared(10.5)
    assert found.ratio == pytest.approx(1.05) and found.is_inside
    assert not compared(11.5).is_inside and not compared(8.5).is_inside


def test_parts_are_told_largest_first_with_what_they_would_have_to_be() -> None:
    parts = compared(11.5).parts
    assert [part.name for part in parts] == ["matmul", "exchanges in a node", "host"]
    assert [part.needed for part in parts] == pytest.approx([7.5 / 6, 3.5 / 2, 4.0])


def test_a_part_that_is_too_short_cannot_explain_a_faster_run() -> None:
    found = compared(9.0)
    assert {part.name: part.needed for part in found.parts} == {
        "matmul": pytest.approx(5 / 6),
        "exchanges in a node": pytest.approx(0.5),
        "host": None,
    }
    assert "cannot explain it alone" in found.differences()[-1]


def test_a_profile_scales_prediction_interval_and_parts() -> None:
    found = compared(11.0, factor=1.1)
    assert found.predicted.value == pytest.approx(11.0) and found.ratio == pytest.approx(1.0)
    assert (found.predicted.low, found.predicted.high) == pytest.approx((9.9, 12.1))
    assert found.parts[0].seconds == pytest.approx(6.6)


def test_the_constants_of_the_parts_are_named_and_the_factor_last() -> None:
    movable = compared(12.0).movable
    assert [text.split(":")[0] for text in movable] == ["matmul", "node_exchange", "host_s", STEP_FACTOR]
    assert "1.200" in movable[-1]


def test_a_calibration_from_a_log_makes_the_next_prediction_the_measured_one(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    cluster = Cluster("8xH100")
    plan = Plan.of(ModelSpec.decoder(2, 64, 4), cluster, Workload(8, 16))
    profile = step_profile(compared(12.0), plan, "H100", "a log")
    path = tmp_path_factory.mktemp("profile") / "my.profile.json"
    profile.save(path)
    factor = profile_factor(Profile.load(path), "H100")
    assert factor == pytest.approx(1.2)
    assert compared(12.0, factor).ratio == pytest.approx(1.0)
    # Calibrating on top of a profile gives the same factor, not its square.
    again = step_profile(compared(12.0, factor), plan, "H100", "a log")
    assert again.constants[STEP_FACTOR] == pytest.approx(1.2)


def test_a_profile_of_something_else_is_refused() -> None:
    assert profile_factor(None, "H100") == 1.0
    with pytest.raises(SpecError, match="H100"):
        profile_factor(Profile("A100-80", constants={STEP_FACTOR: 1.1}), "H100")
    with pytest.raises(SpecError, match="from-log"):
        profile_factor(Profile("H100"), "H100")


def test_plain_data() -> None:
    data = compared(11.5).to_dict()
    assert data["predicted_s"] == 10.0 and data["measured"]["median_s"] == 11.5
    assert data["measured"]["num_warm_up"] == 1 and len(data["parts"]) == 3
