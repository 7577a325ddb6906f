"""The program of the forwards: what stays, in which order, and that it runs without a deadlock."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright import api
from meshwright.ir.program import Program
from meshwright.ir.text import from_text, to_text
from meshwright.ir.timing.wiring import wire
from meshwright.ir.trace import Trace
from meshwright.lowering.forward_only import ForwardOnly
from meshwright.specs import Cluster, ModelSpec, Plan, Workload
from meshwright.specs.error import ProgramError

PLANS: dict[str, dict[str, Any]] = {
    "1f1b": {"pp": 4},
    "interleaved": {"pp": 2, "dp": 2, "schedule": "interleaved_1f1b"},
    "recompute": {"pp": 4, "recompute": "full"},
    "split": {"pp": 4, "schedule": "zb_h1"},
    "zero-3": {"pp": 2, "dp": 2, "sharding": "zero3"},
    "clipped": {"pp": 4},
}


def lowered(choices: dict[str, Any]) -> Program:
    model = ModelSpec.decoder(8, 32, 4, max_sequence_length=16)
    return api.lower(Plan.of(model, Cluster("4xH100"), Workload(8, 16), **choices))


def names_of(program: Program) -> list[list[str]]:
    return [
        [program.text_of(row) for row in range(program.offsets[d], program.offsets[d + 1])]
        for d in range(program.num_lists)
    ]


@pytest.mark.parametrize("choices", PLANS.values(), ids=PLANS.keys())
def test_every_forward_stays_in_its_order_and_no_backward(choices: dict[str, Any]) -> None:
    whole = lowered(choices)
    short = ForwardOnly()(whole)
    for before, after in zip(names_of(whole), names_of(short), strict=True):
        rest = iter(before)
        assert all(name in rest for name in after)  # a subsequence
        is_forward = [name for name in before if name.lstrip("0123456789")[0] == "F"]
        assert is_forward == [name for name in after if name.lstrip("0123456789")[0] == "F"]
    left = {short.tables.effects[effect].name for effect in set(short.columns.effect.tolist())}
    assert left <= {"F", "SEND_F", "RECV_F", "UNSHARD", "RESHARD"}
    assert ("UNSHARD" in left) == (choices.get("sharding") == "zero3")


@pytest.mark.parametrize("choices", PLANS.values(), ids=PLANS.keys())
def test_it_keeps_nothing_and_can_be_run_again_and_again(choices: dict[str, Any]) -> None:
    short = ForwardOnly()(lowered(choices))
    written = {p.kind for e in set(short.columns.effect.tolist()) for p in short.tables.effects[e].writes}
    assert "saved" not in written and "optimizer_state" not in written
    wire(from_text(to_text(short)))
    trace: Trace = api.simulate(short)
    assert trace.end_s.max() > 0


def test_forwards_alone_take_less(choices: dict[str, Any] = PLANS["1f1b"]) -> None:
    whole = lowered(choices)
    assert api.simulate(ForwardOnly()(whole)).end_s.max() < api.simulate(whole).end_s.max()


def test_a_program_without_forwards_has_none() -> None:
    relay = from_text("meshwright-program 1   axes pp=2   microbatches 1\n0: 0SEND_F0\n1: 1RECV_F0\n")
    with pytest.raises(ProgramError, match="no F"):
        ForwardOnly()(relay)
