"""Devices that share sequences tell each other which experts their tokens go to: rows, bytes, prices, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from tests.planned_case import MODELS, Planned
from tests.training_case import SEQUENCE

import meshwright as mw
from meshwright.evidence.sent_bytes import said_bytes
from meshwright.ir import verify
from meshwright.ir.program import Program
from meshwright.lowering.lower import lower
from meshwright.schedules import registered
from meshwright.specs.error import ExecutionError, PlanError
from meshwright.specs.plan.plan import PassOption
from meshwright.specs.training.expert_capacity import ExpertCapacity
from meshwright.stage.exchange.inner import inner_exchanges
from meshwright.stage.mesh import told_axes
from meshwright.stage.work import microbatch_shape

CHOSEN, INDEX_BYTES, LAYERS, BATCH = 2, 8, 4, 8
NAME = "share_choices"


def planned(model: str = "folded mixtral", **choices: Any) -> Planned:
    return Planned(model, choices={"passes": (NAME,), **choices})


def program(case: Planned, *, gates: bool = True) -> Program:
    plan = case.plan().changed(passes=(PassOption(NAME, {"gates": gates}),))
    return lower(plan, registered()[plan.schedule], in_segments=True)


@pytest.mark.parametrize("gates", [True, False])
def test_a_program_says_what_is_told(gates: bool) -> None:
    """Once a layer and microbatch, forward alone: of every token of the others K numbers of experts, and of K gates."""
    told = said_bytes(program(planned(cp=2, ep=2), gates=gates))["GATHER_CHOSEN"]
    assert told == LAYERS * BATCH * SEQUENCE / 2 * CHOSEN * (1 + gates) * INDEX_BYTES
    verify(program(planned(cp=2, ep=2), gates=gates))


@pytest.mark.parametrize(
    "choices",
    [
        {
            "cp": 2,
            "tp": 2,
            "etp": 1,
            "ep": 4,
            "microbatch_size": 2,
        },  # of the same stream each looks for a half
        {"cp": 2, "tp": 2, "etp": 2, "ep": 2, "sequence_parallel": True},  # each has a half of the stream
    ],
    ids=str,
)
def test_along_tp_each_tells_of_its_part(choices: dict[str, Any]) -> None:
    """Four devices with a quarter of the tokens each, of which three quarters come."""
    told = said_bytes(program(planned(**choices)))["GATHER_CHOSEN"]
    assert told == LAYERS * BATCH * SEQUENCE / 4 * 3 * CHOSEN * 2 * INDEX_BYTES


def test_along_tp_that_shares_every_expert_all_tell_the_same() -> None:
    told = said_bytes(program(planned(cp=2, tp=2)))["GATHER_CHOSEN"]
    assert told == LAYERS * BATCH * SEQUENCE / 2 * CHOSEN * 2 * INDEX_BYTES
    assert told_axes(planned(cp=2, tp=2).plan()) == ("cp",)


def test_a_composed_price_has_it_too() -> None:
    plan = planned(cp=2, ep=2, microbatch_size=2).plan()
    (layers,) = plan.stages()
    shape = microbatch_shape(plan)
    found = {
        name: [each for each in inner_exchanges(plan, layers, name, shape) if each.exchange.axes == ("cp",)]
        for name in ("F", "B")
    }
    size = 2 * SEQUENCE * CHOSEN * 2 * INDEX_BYTES
    assert [(each.bytes, each.count) for each in found["F"] if each.bytes == size] == [(size, LAYERS)]
    without = plan.changed(passes=())
    assert (
        len(inner_exchanges(without, layers, "F", shape))
        == len(inner_exchanges(plan, layers, "F", shape)) - 1
    )
    assert inner_exchanges(without, layers, "B", shape) == inner_exchanges(plan, layers, "B", shape)


def test_a_plan_without_it_is_as_it_was() -> None:
    plan = Planned("folded mixtral", choices={"cp": 2, "ep": 2}).plan()
    assert plan.shared_choices == "none" and plan.num_shared_numbers == 0
    found = lower(plan, registered()[plan.schedule], in_segments=True)
    assert "GATHER_CHOSEN" not in said_bytes(found)
    assert "dispatch" not in "".join(found.tables.stage_names)


@pytest.mark.parametrize(
    ("model", "choices", "why"),
    [
        ("folded mixtral", {"dp": 2}, r"cp\(1\)"),
        ("folded mixtral", {"tp": 2}, r"cp\(1\)"),
        ("llama", {"cp": 2}, "decoder"),
        (
            "folded mixtral",
            {"tp": 2, "ep": 2, "sequence_parallel": True, "token_parts": 2, "parts_of": "sequence"},
            "share sequences",
        ),
    ],
)
def test_where_nothing_can_be_told_it_is_refused(model: str, choices: dict[str, Any], why: str) -> None:
    with pytest.raises(PlanError, match=why) as caught:
        mw.simulate(planned(model, **choices).plan())
    assert caught.value.next


def test_a_capacity_needs_to_be_told() -> None:
    """By position numbers of experts are enough; by probability gates have to be there."""
    whole, untold = planned(cp=2, ep=2), Planned("folded mixtral", choices={"cp": 2, "ep": 2})
    whole.job(1, capacity=ExpertCapacity(1.0, "probability"))
    with pytest.raises(ExecutionError, match="tell each other nothing"):
        untold.job(1, capacity=ExpertCapacity(1.0))


def test_what_is_told_is_priced() -> None:
    """A device's memory has what all tell, and a step takes longer for it."""
    plan = planned(cp=2, ep=2).plan()
    assert MODELS["folded mixtral"].num_experts == 4
    assert mw.span_s(mw.simulate(plan)) > mw.span_s(mw.simulate(plan.changed(passes=())))
