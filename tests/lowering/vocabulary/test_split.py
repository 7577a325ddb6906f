"""A split vocabulary in any order of computes: legal, whole, as many alive as published, barriers beside computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from tests.covering import covered, product

from meshwright.costs.cost import Cost
from meshwright.costs.fixed_costs import FixedCosts
from meshwright.ir.judge import metrics
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Program
from meshwright.ir.table import Exchange, Kind, ParameterGroup, ValueBytes, Work
from meshwright.ir.text import from_text, to_text
from meshwright.lowering.memory.recompute import Recompute
from meshwright.lowering.order import program_of_orders, with_works
from meshwright.lowering.sharding.reduction import OptimizerStep
from meshwright.lowering.split_backward import SplitBackward
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.lowering.vocabulary.split import DELAYS, Algorithm, SplitVocabulary
from meshwright.schedules import registered
from meshwright.simulator.simulate import simulate_program
from meshwright.specs.error import ProgramError

ALGORITHMS: tuple[Algorithm, ...] = ("one_barrier", "two_barriers")
SECONDS = {
    "F": 1.0,
    "R": 1.0,
    "B": 2.0,
    "I": 1.0,
    "W": 1.0,
    "S": 0.2,
    "T": 0.2,
    "LOOKUP": 0.01,
    "SCATTER": 0.01,
}
SCHEDULES = ("1f1b", "gpipe", "zb_h1", "interleaved_1f1b", "v_half", "v_min", "zbv", "dualpipe_v")


@dataclass(frozen=True)
class Messages(FixedCosts):
    """Exchanges of a group take `collective_s`, messages nothing."""

    collective_s: float = 0.0
    seconds: Mapping[str, float] = field(default_factory=dict)

    def exchange_cost(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> Cost:
        return Cost(self.collective_s if exchange.algorithm else 0.0, compute_share=0.0)


def computes(schedule: str, p: int, m: int) -> Program:
    found = registered()[schedule]
    groups = [ParameterGroup(f"stage {stage}", (stage,)) for stage in range(p * found.num_chunks)]
    return program_of_orders(found.orders(p, m), groups=groups)


def split(schedule: str, p: int, m: int, algorithm: Algorithm) -> Program:
    return OptimizerStep()(Transfers()(SplitVocabulary(algorithm)(computes(schedule, p, m))))


def priced(program: Program, num_devices: int) -> Program:
    stages = range(program.tables.num_stages)
    share = num_devices / len(stages)
    names = {
        (n, s): Work(n, share=share if len(n) == 1 and n not in "ST" else 1.0)
        for n in SECONDS
        for s in stages
    }
    return with_works(program, names)


COUNTS = ((2, 4), (4, 8), (3, 1), (4, 2), (4, 3), (8, 24))
ROWS = list(product({"schedule": SCHEDULES, "algorithm": ALGORITHMS, "counts": COUNTS}))


@pytest.mark.parametrize(
    ("schedule", "algorithm", "counts"), covered([tuple(row.values()) for row in ROWS], ROWS), ids=str
)
def test_any_order_stays_legal_and_every_pass_is_done_once(
    schedule: str, algorithm: Algorithm, counts: tuple[int, int]
) -> None:
    p, m = counts
    if schedule == "interleaved_1f1b" and m % p:
        m = p
    program = split(schedule, p, m, algorithm)
    verify(program)
    verify(program, "in_order")
    found = Counter((i.device, i.name, i.microbatch) for d in range(p) for i in program.instructions(d))
    for name in ("LOOKUP", "S", "T", "SCATTER", "SHARE_OUTPUT", "SUM_SOFTMAX"):
        assert all(found[device, name, k] == 1 for device in range(p) for k in range(m)), name


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1", "v_half", "interleaved_1f1b"])
def test_one_or_two_more_microbatches_are_alive(schedule: str, algorithm: Algorithm) -> None:
    p, m, costs = 8, 32, FixedCosts(SECONDS)
    before = metrics.peak_alive(
        simulate_program(priced(Transfers()(computes(schedule, p, m)), p), costs, costs)
    )
    after = metrics.peak_alive(simulate_program(priced(split(schedule, p, m, algorithm), p), costs, costs))
    assert after == [count + DELAYS[algorithm] for count in before]


@pytest.mark.parametrize("backward", [1.0, 1.3, 1.9, 2.1, 2.7])
@pytest.mark.parametrize("p", [2, 4, 8, 13])
def test_orders_of_1f1b_are_those_of_the_published_rule(p: int, backward: float) -> None:
    times = (("F", 1.0), ("B", backward * 1.0001))  # at a tie either order is as good
    program = SplitVocabulary("one_barrier", times)(computes("1f1b", p, 4 * p))
    found = []
    for device in reversed(range(p)):
        order = [i for i in program.instructions(device) if i.name in ("F", "B", "S")]
        names = "".join(i.name for i in order)
        middle = next(k for k, i in enumerate(order) if i.name == "B" and i.microbatch == p)
        found.append(("B" + names[middle + 1 : middle + 3], names[: names.index("B")].count("S")))
    assert found == published_orders(p, 1.0, backward * 1.0001)


def published_orders(p: int, forward: float, backward: float) -> list[tuple[str, int]]:
    """From the last stage upward: the order in a period and the S before the first B (vocab_parallel_schedule.py)."""
    offset, count = 0.0, 1
    orders = [("BSF", count)]
    while len(orders) < p:
        count += 1
        if offset - forward >= -backward:
            offset -= forward
            orders.append(("BSF", count))
        else:
            offset += backward - forward
            orders += [("BFS", count), ("BSF", count)]
    return orders[:p]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1"])
def test_barriers_run_beside_computes(schedule: str, algorithm: Algorithm) -> None:
    p, costs = 8, FixedCosts(SECONDS)

    def added_s(collective_s: float) -> float:
        """Seconds that 64 microbatches take more than 32: of the steady part, without filling and draining."""
        spans = [
            metrics.span_s(
                simulate_program(
                    priced(split(schedule, p, m, algorithm), p), costs, Messages(collective_s=collective_s)
                )
            )
            for m in (32, 64)
        ]
        return spans[1] - spans[0]

    busy = 32 * (1 + 2 + 0.2 + 0.2 + 0.01 + 0.01)
    assert added_s(0.0) == pytest.approx(busy, rel=1e-6)
    assert added_s(0.4) == pytest.approx(busy, rel=1e-6)
    assert added_s(3.0) > 1.02 * busy  # no schedule hides what takes as long as a period


def test_every_exchange_has_a_stream_of_its_own() -> None:
    program = split("1f1b", 2, 4, "two_barriers")
    streams = {i.name: i.stream for i in program.instructions(1) if i.kind == Kind.COLLECTIVE}
    assert len(streams) == len(set(streams.values())) == 5
    assert "compute" not in streams.values()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_text_gives_it_back(algorithm: Algorithm) -> None:
    program = split("v_half", 2, 4, algorithm)
    assert from_text(to_text(program)).digest() == program.digest()


def test_recompute_and_split_backward_stand_before_it() -> None:
    program = Transfers()(SplitVocabulary()(Recompute()(SplitBackward()(computes("1f1b", 4, 8)))))
    verify(program)
    assert {"R", "I", "W", "S", "T"} <= {effect.name for effect in program.tables.effects}


def test_bytes_are_those_of_the_activations_and_of_the_rows() -> None:
    program = computes("1f1b", 4, 8).with_tables(
        value_bytes=(ValueBytes("activation", (6.0,), per_token=True),)
    )
    for algorithm in ALGORITHMS:
        made = SplitVocabulary(algorithm, vocabulary_size=10)(program)
        found = {row.kind: row.by_index for row in made.tables.value_bytes}
        extra = 12.0 if algorithm == "one_barrier" else 0.0
        assert found["output"] == found["input_gradient"] == (6.0,)
        assert found["softmax"] == (4.0 * 3 + extra,)  # ten words on four devices: three each, in float32


def test_what_cannot_be_split_is_an_error() -> None:
    with pytest.raises(ProgramError, match="before gradients are reduced and values sent"):
        SplitVocabulary()(Transfers()(computes("1f1b", 2, 4)))
    with pytest.raises(ProgramError, match="one_barrier, two_barriers"):
        SplitVocabulary("three_barriers")(computes("1f1b", 2, 4))  # type: ignore[arg-type]
