"""Which way of sharing sequences is found: by heads, links and nodes, and what it sends."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.planner.search.search import search
from meshwright.planner.space.degrees import ContextKinds
from meshwright.planner.space.sent_way import context_line, sent_ways
from meshwright.planner.space.site import members
from meshwright.specs import Cluster, ModelSpec, Workload
from meshwright.specs.plan.plan import Plan
from meshwright.specs.sequence.context_parallel import CONTEXTS

MIXED = {"dtype": "bfloat16", "master_dtype": "float32", "reduction_dtype": "float32"}


def model(num_kv_heads: int, length: int = 65536) -> ModelSpec:
    return ModelSpec.decoder(
        4, 4096, 32, num_kv_heads=num_kv_heads, intermediate_size=14336, max_sequence_length=length,
        vocabulary_size=32000,
    )  # fmt: skip


def chosen(cluster: str, num_kv_heads: int, length: int = 65536, **fixed: Any) -> Plan:
    devices = Cluster(cluster)
    fix = {**MIXED, "cp": devices.num_devices, "tp": 1, "pp": 1, "recompute": "full", **fixed}
    return search(model(num_kv_heads, length), devices, Workload(1, length), fix=fix)[0].plan


@pytest.mark.parametrize(
    ("cluster", "num_kv_heads", "length", "fixed", "found"),
    [
        # on NVLink, with heads enough: nothing is merged, and its exchange is short
        ("8xH100", 8, 65536, {}, ("ulysses", 1)),
        # over nodes heads do not suffice: they are exchanged inside a node, keys and values travel between nodes
        ("8x8xH100", 8, 262144, {}, ("ring", 8)),
        # an eighth as many key-value heads: queries that travel would be eight times the bytes (TokenRing)
        ("8xH100", 4, 65536, {"context": ("ring", "token_ring"), "ulysses": 1}, ("ring", 1)),
    ],
    ids=["heads", "nodes", "grouped heads"],
)
def test_the_way_is_chosen_by_heads_links_and_nodes(
    cluster: str, num_kv_heads: int, length: int, fixed: dict[str, Any], found: tuple[str, int]
) -> None:
    plan = chosen(cluster, num_kv_heads, length, **fixed)
    assert (plan.context, plan.ulysses) == found


def test_neighbours_exchange_heads_inside_a_ring_where_ulysses_alone_does_not_do() -> None:
    def degrees(num_kv_heads: int, cp: int, node: int = 8) -> set[int]:
        kinds = ContextKinds(model(num_kv_heads), 65536, CONTEXTS[:3], node=node)
        return {ulysses for _, _, ulysses in kinds.of(1, cp)}

    assert degrees(8, 8) == {1}  # Ulysses alone divides them
    assert degrees(8, 16) == {1, 8}
    assert degrees(2, 8) == {1, 2}
    assert degrees(1, 8) == {1}  # nothing to divide
    assert degrees(8, 16, node=4) == {1, 4}


def test_groups_of_a_ring_are_as_far_apart_as_those_who_exchange_heads_are_many() -> None:
    plan = Plan.of(model(8), Cluster("16xH100"), Workload(1, 65536), cp=16, ulysses=4)
    assert members(plan, ("cp",)).tolist() == [0, 4, 8, 12]
    (inner,) = (name for name in ("cp4",))
    assert members(plan, (inner,)).tolist() == [0, 1, 2, 3]


def test_what_every_way_sends_is_told_as_the_closed_forms_have_it() -> None:
    """With q the bytes of a device's queries and rho a quarter: Ulysses 2 (2 + 2 rho) (P - 1) / P q; a ring 2 (P - 1) q rho,
    and back 2 (P - 1) q rho + 4 P q rho (arithmetic on the papers' formulas)."""
    plan = Plan.of(model(8), Cluster("8xH100"), Workload(1, 65536), cp=8, context="ulysses", dtype="bfloat16")
    found = {each.way.kind: each for each in sent_ways(plan, Cluster("8xH100"))}
    q, rho = 65536 // 8 * 4096 * 2, 1 / 4
    assert next(iter(found)) == "ulysses"
    assert found["ulysses"].sent_bytes == pytest.approx(2 * (2 + 2 * rho) * 7 / 8 * q)
    ring = found["ring"]
    assert ring.sent_bytes == ring.beside_bytes == pytest.approx(4 * 7 * q * rho + 4 * 8 * q * rho)
    assert ring.num_merges == 7 and found["all_gather"].num_merges == 0
    assert "ring" in context_line(plan, Cluster("8xH100"))
