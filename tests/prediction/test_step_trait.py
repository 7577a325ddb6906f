"""Traits by hand from parts and plans, and when a prediction is interpolated."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.costs.step.profile import StepFit, StepProfile, Width, packaged_step_profile
from meshwright.prediction.step_trait import BESIDE, MORE_DEVICES, TRAITS, step_basis, step_traits
from meshwright.specs import Cluster, ModelSpec, Plan, Workload, load_model

DENSE = ModelSpec.decoder(4, 64, 4, max_sequence_length=64)
EXPERTS = load_model("mixtral-8x7b").changed(num_layers=4)
FITS = (packaged_step_profile().fit, *packaged_step_profile().left_out.values())
PARTS = {
    "matmul": 5.0, "attention": 2.0, "stream": 1.0, "gap": 0.5, "exchanges inside, host": 0.5, "waiting": 0.75,
    "step overhead": 0.25, "UNSHARD": 90.0, "REDUCE_GRAD": 90.0, "RECV_F": 90.0,
}  # fmt: skip


def plan(cluster: str = "8xH100", model: ModelSpec = DENSE, **choices: Any) -> Plan:
    return Plan.of(model, Cluster(cluster), Workload(1024, 64), dtype="bfloat16", **choices)


def test_waiting_is_a_share_of_the_stream_of_computes_and_choices_are_one() -> None:
    """Of 10 s on the stream 0.75 are waited; 270 s on other streams do not count."""
    plain = step_traits(plan(), PARTS)
    assert plain == pytest.approx({"float8": 0.0, "full_recompute": 0.0, "waiting": 0.075})
    assert step_traits(plan(float8="mxfp8"), PARTS) == {**plain, "float8": 1.0}
    assert step_traits(plan(recompute="full"), PARTS) == {**plain, "full_recompute": 1.0}
    half = step_traits(plan(recompute="full", recompute_blocks=(2,)), PARTS)
    assert half == {**plain, "full_recompute": 0.5}
    for recompute in ("selective", "selective_op"):
        assert step_traits(plan(recompute=recompute), PARTS) == plain


def test_traits_are_those_that_widths_are_fitted_on() -> None:
    assert set(step_traits(plan(), PARTS)) == set(TRAITS)
    assert {name for fit in FITS for name in fit.width.slopes} <= set(TRAITS), (
        "the packaged slopes have a trait each"
    )


def test_what_runs_beside_computes_is_not_part_of_the_step() -> None:
    without = {name: seconds for name, seconds in PARTS.items() if name not in BESIDE}
    assert len(without) < len(PARTS) and step_traits(plan(), without) == step_traits(plan(), PARTS)


def test_nothing_at_all_has_no_shares() -> None:
    assert set(step_traits(plan(), {}).values()) == {0.0}


def profile(**known: Any) -> StepProfile:
    seen = {"most_devices": 16, "float8": False, "experts": False, **known}
    return StepProfile(StepFit({}, Width(0.1)), {}, {"H100": seen})


@pytest.mark.parametrize(
    ("cluster", "model", "choices", "known", "basis"),
    [
        ("8xH100", DENSE, {}, {}, "interpolated"),
        ("8xH200", DENSE, {}, {}, "extrapolated"),
        ("8xH100", DENSE, {"float8": "rowwise"}, {}, "extrapolated"),
        ("8xH100", DENSE, {"float8": "rowwise"}, {"float8": True}, "interpolated"),
        ("8xH100", EXPERTS, {}, {}, "extrapolated"),
        ("8xH100", EXPERTS, {}, {"experts": True}, "interpolated"),
        (f"{16 * MORE_DEVICES}xH100", DENSE, {}, {}, "interpolated"),
        (f"{32 * MORE_DEVICES}xH100", DENSE, {}, {}, "extrapolated"),
    ],
)
def test_interpolated_is_what_ran_on_about_as_many_of_these_devices(
    cluster: str, model: ModelSpec, choices: dict[str, Any], known: dict[str, Any], basis: str
) -> None:
    assert step_basis(plan(cluster, model, **choices), Cluster(cluster), profile(**known)) == basis
