"""Token parts as rows: their order, what is due of them, bytes and works of uneven ones, and what cannot be cut."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.beside import num_beside
from tests.ir.mutation import FAULTS
from tests.lowering.plans import NamedWork, plan
from tests.lowering.segment.segment_program import SEQUENCE_PARALLEL, TP, TWO_LAYERS, segment_program

from meshwright.costs.cost import Cost, Flow
from meshwright.ir.judge.symbolic import outputs
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.ir.table import Exchange, Work
from meshwright.ir.timing.replay import wire
from meshwright.lowering.lower import lower
from meshwright.schedules import registered
from meshwright.simulator.pricing import price
from meshwright.simulator.simulate import simulate_program
from meshwright.specs.error import MeshwrightError, PlanError

CUTS = [("3:1", 4), (2, 2)]
LAYOUTS: list[dict[str, Any]] = [
    TP,
    {**SEQUENCE_PARALLEL, "pp": 2, "split_backward": True},
    {"tp": 2, "recompute": "full", "dp": 2, "sharding": "zero3"},
    {"tp": 2, "recompute": "selective"},
    {"cp": 2, "pp": 2},
    {"cp": 2, "context": "ulysses"},
    {"pp": 2},
]


def in_parts(token_parts: int | str, size: int, **choices: Any) -> Program:
    """Of microbatches of so many samples."""
    batch = 4 * size * int(choices.get("dp", 1))
    return segment_program(TWO_LAYERS, batch=batch, microbatch_size=size, token_parts=token_parts, **choices)


def test_parts_take_turns_forward_rising_and_backward_falling() -> None:
    texts = [row.text for row in in_parts(2, 2, **TP).instructions(0)]
    assert texts[:4] == ["0F0", "0ALL_REDUCE0", "0F0.1", "0ALL_REDUCE0.1"]
    assert texts[4:10] == ["1F0", "2F0", "2ALL_REDUCE0", "1F0.1", "2F0.1", "2ALL_REDUCE0.1"]
    assert texts.index("2B0.1") < texts.index("2B0") < texts.index("1B0.1") < texts.index("1B0")


def test_one_part_is_the_program_of_none() -> None:
    whole = segment_program(TWO_LAYERS, batch=8, microbatch_size=2, **TP)
    assert in_parts(1, 2, **TP).digest() == whole.digest()


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_programs_of_parts_are_whole(cut: tuple[int | str, int], layout: dict[str, Any]) -> None:
    program = in_parts(*cut, **layout)
    for host in ("asynchronous", "in_order"):
        verify(program, host=host)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_uneven_parts_have_the_work_and_the_bytes_of_the_whole(layout: dict[str, Any]) -> None:
    cut, whole = in_parts("3:1", 4, **layout), in_parts(1, 4, **layout)
    for name in ("F", "B", "I", "W"):
        assert flops(cut, name) == pytest.approx(flops(whole, name), rel=1e-12), name
    sizes = sorted({work.shape[0] for work in cut.tables.works if work.name == "F"})
    assert sizes == [1, 3]
    found, wanted = moved_bytes(cut), moved_bytes(whole)
    assert found == pytest.approx(wanted, rel=1e-12)


def flops(program: Program, name: str) -> float:
    rows = [program.row(i) for i in range(program.num_rows)]
    of_relay = {"F": ("ATTEND",), "B": ("ATTEND_BACKWARD",)}.get(name, ())
    return sum(row.work.flops for row in rows if row.work is not None and row.name in (name, *of_relay))


def moved_bytes(program: Program) -> float:
    wiring = wire(program)
    prices = price(wiring, NamedWork(), ABytePerSecond(), None)
    is_exchange = program.columns.exchange >= 0
    return float(prices.seconds[prices.cost_of_row][is_exchange].sum())


class ABytePerSecond:
    """Exchanges by their bytes."""

    def exchange_cost(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> Cost:
        return Cost(num_bytes, compute_share=0.0)

    def flows(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> tuple[Flow, ...]:
        return ()


class Alike:
    """A compute takes a second, an exchange two."""

    def cost(self, work: Work, device: Any = None) -> Cost:
        return Cost(1.0)

    def exchange_cost(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> Cost:
        return Cost(2.0, compute_share=0.0)

    def flows(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> tuple[Flow, ...]:
        return ()


@pytest.mark.parametrize("host", ["asynchronous", "in_order"])
@pytest.mark.parametrize("layout", [TP, {"tp": 2, "pp": 2}], ids=str)
def test_exchanges_run_beside_computes_of_another_part_alone(layout: dict[str, Any], host: str) -> None:
    """One microbatch: nothing else is there to run beside."""
    for parts in (1, 2):
        program = segment_program(TWO_LAYERS, batch=2, microbatch_size=2, token_parts=parts, **layout)
        program = program.expand("tp")
        costs = Alike()
        trace = simulate_program(program, costs, costs, host=host)
        found = [num_beside(trace, device) for device in range(program.num_lists)]
        assert found == [0] * len(found) if parts == 1 else min(found) >= 8, found


@pytest.mark.parametrize("fault", ["drop", "retag", "restream"])
def test_a_program_of_parts_with_a_fault_is_refused(fault: str) -> None:
    program = segment_program(TWO_LAYERS, batch=4, microbatch_size=4, token_parts="3:1", **TP)
    wanted = outputs(program)
    refused = 0
    for seed in range(12):
        mutant = FAULTS[fault](Random(seed), program)
        if mutant is None:
            continue
        try:
            verify(mutant)
        except MeshwrightError:
            refused += 1
        else:
            assert outputs(mutant) == wanted, seed
    assert refused or fault == "restream"


@pytest.mark.parametrize(
    ("choices", "what"),
    [
        ({"token_parts": 2, "microbatch_size": 1}, "microbatch_size 1"),
        ({"token_parts": "3:1", "microbatch_size": 2}, "3:1"),
        ({"token_parts": 0}, "token_parts is 0"),
        ({"token_parts": "2:0"}, "2:0"),
        ({"token_parts": 1.5}, "1.5"),
    ],
)
def test_what_has_no_whole_samples_is_refused(choices: dict[str, Any], what: str) -> None:
    with pytest.raises(PlanError, match=what):
        plan(TWO_LAYERS, batch=8, **choices)


@pytest.mark.parametrize(
    "choices",
    [
        {"recompute": "full", "recompute_blocks": (1,)},
        {"vocabulary": "one_barrier", "pp": 2},
        {"recompute": "selective_op", "recompute_blocks": (1,)},
    ],
)
def test_stages_that_are_no_chains_are_not_cut(choices: dict[str, Any]) -> None:
    chosen = plan(TWO_LAYERS, batch=8, microbatch_size=2, token_parts=2, **choices)
    with pytest.raises(PlanError, match="token_parts is 2"):
        lower(chosen, registered()[chosen.schedule])
