"""One way to write choices that make no difference, and the error that lists all that cannot be said."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.interop.exported import ExportError, Refusal, canonical, plan_digest
from meshwright.specs import Cluster, Plan, Workload, load_model


def plan(**choices: Any) -> Plan:
    return Plan.of(
        load_model("mixtral-8x7b"), Cluster("8xH100"), Workload(8, 1024), **{"overlap": (), **choices}
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"sharding": "zero1", "sharding_degree": 8}, {"sharding": "zero1"}),
        ({"sharding": "zero2", "tp": 8}, {"tp": 8}),
        ({"sharding": "zero2", "sharding_degree": 1}, {}),
        (
            {"overlap": ("gather", "reduce"), "sharding": "zero1"},
            {"overlap": ("reduce", "gather"), "sharding": "zero1"},
        ),
        ({"overlap": ("gather", "tp")}, {}),
        ({"tp": 8, "overlap": ("reduce",)}, {"tp": 8}),
        ({"reduction_dtype": "float32"}, {}),
        ({"sharding": "zero3", "master_dtype": "float32"}, {"sharding": "zero3"}),
        ({"mesh_order": ("tp", "cp", "dp", "pp")}, {}),
        ({"device_order": tuple(range(8))}, {}),
    ],
)
def test_the_same_plan_in_other_words(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert canonical(plan(**one)) == canonical(plan(**other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"sharding": "zero2", "tp": 8, "ep": 8}, {"tp": 8, "ep": 8}),
        ({"overlap": ("reduce",)}, {}),
        ({"tp": 8, "ep": 8, "overlap": ("reduce",)}, {"tp": 8, "ep": 8}),
        ({"mesh_order": ("tp", "cp", "dp", "pp"), "tp": 2}, {"tp": 2}),
        ({"sharding": "zero1", "sharding_degree": 4}, {"sharding": "zero1"}),
        ({"sharding": "zero1", "master_dtype": "float32"}, {"sharding": "zero1"}),
        ({"device_order": (1, 0, *range(2, 8))}, {}),
    ],
)
def test_what_makes_a_difference_stays(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert canonical(plan(**one)) != canonical(plan(**other))


def test_canonical_words_are_their_own() -> None:
    found = canonical(plan(sharding="zero1", overlap=("gather", "reduce")), "fused")
    assert canonical(found) == found and found.software == "fused"


def test_the_error_has_every_refusal() -> None:
    error = ExportError("megatron", [Refusal("a = 1", "no a"), Refusal("b = 2", "no b")])
    assert "2 choices" in str(error) and "  a = 1: no a\n  b = 2: no b" in str(error)
    assert error.refusals[1].to_dict() == {"choice": "b = 2", "reason": "no b"}


def test_plans_that_differ_have_other_digests() -> None:
    assert plan_digest(plan()) == plan_digest(plan()) != plan_digest(plan(tp=2))
