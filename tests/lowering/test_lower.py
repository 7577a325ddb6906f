"""Lowering of whole plans: every program is legal, and one list stands for all devices of its collapsed axes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshwright.costs.collective.nccl import NcclCollectives
from meshwright.ir import period_s, verify, wire
from meshwright.lowering.lower import lower
from meshwright.lowering.place import place
from meshwright.schedules import registered
from meshwright.simulator import price, simulate_program
from meshwright.specs import Cluster, PassOption, Plan, PlanError, Workload
from meshwright.stage.mesh import device_order
from tests.covering import examples
from tests.lowering.plans import (
    DENSE,
    EXPERTS,
    SEQUENCE,
    TIED,
    AskedLinks,
    NamedWork,
    lowered,
    plan,
    rows_named,
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Small plans over all ways of sharing work and state."""
    model = draw(st.sampled_from([DENSE, TIED, EXPERTS]))
    pp, cp, tp, dp = (draw(st.sampled_from(values)) for values in ([1, 2, 4], [1, 2], [1, 2], [1, 2, 4]))
    choices: dict[str, Any] = {"pp": pp, "cp": cp, "tp": tp, "dp": dp}
    choices["sharding"] = draw(st.sampled_from(["none", "zero1", "zero2", "zero3"]))
    if choices["sharding"] != "none":
        choices["sharding_degree"] = draw(st.sampled_from([0, cp * max(1, dp // 2)]))
    if model is EXPERTS:
        choices["ep"] = draw(st.sampled_from([1, cp * tp, max(1, dp // 2) * cp, dp * cp, dp * cp * tp]))
        assume(model.num_experts % choices["ep"] == 0)
    if pp > 1:
        choices["schedule"] = draw(st.sampled_from(["1f1b", "gpipe", "zb_h1", "interleaved_1f1b"]))
        choices["vocabulary"] = draw(st.sampled_from(["ends", "one_barrier", "interlaced"]))
        if choices["schedule"] == "interleaved_1f1b" and pp == 4:
            choices["layers_per_stage"] = (1, 0, 1, 0, 1, 0, 1, 0)
    choices["sequence_parallel"] = tp > 1 and draw(st.booleans())
    choices["recompute"] = draw(st.sampled_from(["none", "selective", "selective_op", "full"]))
    choices["overlap"] = draw(st.sampled_from([(), ("reduce",), ("gather",), ("reduce", "gather", "tp")]))
    return plan(model, **choices)


@settings(max_examples=examples(80))
@given(plans())
def test_one_list_stands_for_all_devices_of_an_axis(chosen: Plan) -> None:
    program = lowered(chosen)
    costs, links, order = NamedWork(), AskedLinks(), device_order(chosen)
    cluster = Cluster(f"{chosen.num_devices}xcpu")

    def period(shown: Any) -> float:
        wiring = verify(shown).wiring
        placement = place(shown, cluster, order)
        return period_s(simulate_program(wiring, costs, links, placement=placement, iterations=3))

    expected = period(program)
    assert expected > 0
    for axis in program.axes[1:]:
        if axis.size > 1:
            assert period(program.expand(axis.name)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("sharding", ["zero1", "zero3"])
def test_all_axes_expanded_at_once_take_as_long(sharding: str) -> None:
    chosen = plan(
        EXPERTS, pp=2, dp=4, tp=2, ep=4, sharding=sharding, sharding_degree=2, overlap=("reduce", "gather")
    )
    whole = program = lowered(chosen)
    for axis in program.axes[1:]:
        whole = whole.expand(axis.name)
    assert whole.num_lists == chosen.num_devices > program.num_lists
    cluster = Cluster(f"{chosen.num_devices}xcpu")
    ours, theirs = (
        period_s(simulate_program(p, NamedWork(), AskedLinks(), placement=place(p, cluster), iterations=3))
        for p in (program, whole)
    )
    assert ours == pytest.approx(theirs, rel=1e-12)


@pytest.mark.parametrize(
    "choices",
    [
        {"tp": 2, "sequence_parallel": True, "pp": 2, "sharding": "zero1"},
        {"sharding": "zero3", "sharding_degree": 4},
        {"cp": 2, "tp": 2, "sharding": "zero3", "recompute": "full"},
        {"pp": 4, "sharding": "zero1", "vocabulary": "one_barrier", "schedule": "interleaved_1f1b"},
    ],
    ids=str,
)
def test_one_list_stands_for_all_on_a_cluster_whose_links_are_shared(choices: dict[str, Any]) -> None:
    """Measured collectives between and within two nodes, demands of all copies on the links that they share."""
    cluster = Cluster("2x8xH100")
    chosen = Plan.of(
        DENSE, cluster, Workload(64, 64), dtype="bfloat16", master_dtype="float32", overlap=("reduce", "gather"),
        **{"layers_per_stage": (1, 1, 1, 1, 0, 0, 0, 0)} if choices.get("pp") == 4 else {}, **choices,
    )  # fmt: skip
    program, links, order = lowered(chosen), NcclCollectives(cluster), device_order(chosen)
    whole = program
    for axis in program.axes[1:]:
        whole = whole.expand(axis.name)
    ours, theirs = (
        period_s(simulate_program(p, NamedWork(), links, placement=place(p, cluster, order), iterations=2))
        for p in (program, whole)
    )
    assert ours == pytest.approx(theirs, rel=1e-12)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved_1f1b"])
@pytest.mark.parametrize("sharding", ["none", "zero1"])
def test_tied_tables_are_reduced_behind_all_computes_without_overlap(schedule: str, sharding: str) -> None:
    """Two stages wait for each other in it: in the middle of the backward they would wait for ever."""
    program = lowered(plan(TIED, pp=2, dp=2, schedule=schedule, sharding=sharding, overlap=()))
    verify(program)
    for device in range(2):
        names = [view.name for view in program.instructions(device)]
        assert "REDUCE_GRAD" in names[names.index("B") :]
        last = max(place for place, name in enumerate(names) if name == "B")
        assert names.index("REDUCE_GRAD") > last


def test_overlap_shortens_a_step() -> None:
    """Reductions of 4 pieces beside the backward: only the last is not hidden."""
    periods = {}
    for overlap in ((), ("reduce",)):
        chosen = plan(dp=4, overlap=overlap)
        program = lowered(chosen, (4,))
        placement = place(program, Cluster("4xcpu"))
        trace = simulate_program(program, NamedWork(), AskedLinks(), placement=placement, iterations=3)
        periods[overlap] = period_s(trace)
    assert periods["reduce",] < periods[()]


@pytest.mark.parametrize(
    "degrees", [{}, {"tp": 2}, {"cp": 2}, {"cp": 2, "tp": 2, "sequence_parallel": True}], ids=str
)
def test_every_device_sends_its_share_of_a_boundary(degrees: dict[str, Any]) -> None:
    """Narayanan et al. 2021, section 4.1: [tokens, hidden] / tp, and of a sequence's pieces each its own."""
    chosen = plan(pp=2, microbatch_size=3, **degrees)
    program, links = lowered(chosen), AskedLinks()
    price(wire(program), NamedWork(), links, place(program, Cluster(f"{chosen.num_devices}xcpu")))
    shared = degrees.get("cp", 1) * degrees.get("tp", 1)
    sent = {num_bytes for exchange, num_bytes, _ in links.asked if exchange.axes[0] == "pp"}
    assert sent == {3 * SEQUENCE * DENSE.hidden_size * 2 / shared}


def test_a_step_is_left_out_where_it_is_not_asked_for() -> None:
    chosen = plan(dp=2, sharding="zero1")
    program = lower(chosen, registered()["1f1b"], step=False)
    assert not any(rows_named(program, name) for name in ("STEP", "REDUCE_GRAD", "GATHER_PARAM"))
    assert rows_named(program, "F") and rows_named(program, "B")


def test_passes_that_lowering_does_not_know_are_refused() -> None:
    with pytest.raises(PlanError, match="the plan names passes"):
        lowered(plan(passes=(PassOption("offload"),)))
