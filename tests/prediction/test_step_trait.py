"""Shares of kinds of work by hand from parts and plans, and when a prediction is interpolated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from meshwright.costs.step.profile import StepFit, StepProfile, Width, packaged_step_profile
from meshwright.prediction.step_part import is_beside
from meshwright.prediction.step_trait import MORE_DEVICES, UNCERTAIN, step_basis, step_shares
from meshwright.specs import Cluster, ModelSpec, Plan, Workload, load_model

DENSE = ModelSpec.decoder(4, 64, 4, max_sequence_length=64)
EXPERTS = load_model("mixtral-8x7b").changed(num_layers=4)
FITS = (packaged_step_profile().fit, *packaged_step_profile().left_out.values())
PARTS = {
    "matmul": 5.0, "attention": 2.0, "stream": 1.0, "gap": 0.5, "exchanges inside, host": 0.5, "waiting": 0.75,
    "step overhead": 0.25, "UNSHARD": 90.0, "REDUCE_GRAD": 90.0, "RECV_F": 90.0, "LOAD_STATE": 90.0,
    "A_NAME_OF_A_SYSTEM": 90.0,
}  # fmt: skip


def plan(cluster: str = "8xH100", model: ModelSpec = DENSE, **choices: Any) -> Plan:
    return Plan.of(model, Cluster(cluster), Workload(1024, 64), dtype="bfloat16", **choices)


def shares(parts: Mapping[str, float] = PARTS, cluster: str = "8xH100", **choices: Any) -> dict[str, float]:
    return step_shares(plan(cluster, **choices), Cluster(cluster), parts, "interpolated")


def test_shares_are_of_the_stream_of_computes() -> None:
    """Of 10 s on the stream 0.75 are waited and 0.5 are exchanges; 450 s on other streams do not count."""
    found = shares()
    assert found == pytest.approx({
        "products": 0.5, "attention": 0.2, "memory": 0.1, "host": 0.075, "messages": 0.125, "tp between nodes": 0.0,
        "float8": 0.0, "eager pipelines": 0.0, "unseen": 0.0, "run": 1.0,
    })  # fmt: skip
    assert tuple(found) == UNCERTAIN


def test_exchanges_of_tensor_parallelism_that_leaves_the_node_are_a_kind_of_their_own() -> None:
    inside, between = (shares(cluster="4x2xH100", tp=tp) for tp in (2, 4))
    assert (inside["messages"], inside["tp between nodes"]) == pytest.approx((0.125, 0.0))
    assert (between["messages"], between["tp between nodes"]) == pytest.approx((0.075, 0.05))


@pytest.mark.parametrize(
    ("cluster", "pp", "software", "share"),
    [
        ("4x2xH100", 2, "eager", 1.0),
        ("4x2xH100", 1, "eager", 0.0),
        ("8xH100", 2, "eager", 0.0),
        ("4x2xH100", 2, "fused", 0.0),
    ],
)
def test_eager_pipelines_between_nodes_are_surprises(
    cluster: str, pp: int, software: str, share: float
) -> None:
    assert shares(cluster=cluster, pp=pp, software=software)["eager pipelines"] == share


def test_products_in_float8_and_what_nobody_ran_are_on_top() -> None:
    assert shares(float8="mxfp8") == {**shares(), "float8": shares()["products"]}
    for basis in ("extrapolated", "never seen"):
        found = step_shares(plan(), Cluster("8xH100"), PARTS, basis)  # type: ignore[arg-type]
        assert found == {**shares(), "unseen": 1.0}


def test_the_packaged_spreads_are_of_these_kinds() -> None:
    assert all(set(fit.width.spreads) == set(UNCERTAIN) for fit in FITS)


def test_what_runs_beside_computes_is_not_part_of_the_step() -> None:
    without = {name: seconds for name, seconds in PARTS.items() if not is_beside(name)}
    assert len(without) < len(PARTS) and shares(without) == shares()


def test_nothing_at_all_has_no_shares() -> None:
    assert shares({}) == {**dict.fromkeys(UNCERTAIN, 0.0), "run": 1.0}


def profile(**known: Any) -> StepProfile:
    seen = {"most_devices": 16, "float8": False, "experts": False, **known}
    return StepProfile(StepFit({}, Width({})), {}, {"H100": seen})


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
