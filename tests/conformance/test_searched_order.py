"""Orders that a search finds for unequal stages, executed on gloo in float64, give what one process gives."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from meshwright.executor import run_training
from meshwright.executor.job.pool import Pool
from meshwright.executor.training.training_job import RANDOM, TrainingConfig
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Axis, Program
from meshwright.ir.table import Microbatch, ParameterGroup
from meshwright.lowering.memory.recompute import Recompute
from meshwright.lowering.order import program_of_orders
from meshwright.lowering.sharding.reduction import OptimizerStep, ReduceGradients
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.schedules import Orders, registered
from meshwright.schedules.searched.pipeline import codes_of, pipeline_of, times_of
from meshwright.schedules.searched.stage_times import StageTimes
from meshwright.schedules.searched.zero_bubble_search import search_orders
from meshwright.specs.model.layers import split_layers
from tests.covering import covered, product
from tests.training_case import MODEL, SEQUENCE, SGD, largest_difference, reference

ITERATIONS = 2
TOLERANCE = 1e-10  # DESIGN, tolerances: float64
EFFORT = 0.02  # of the search: a fraction of a second


@dataclass(frozen=True)
class Searched:
    """What is searched for: stage times of each stage on the path, and memory caps of the devices."""

    times: StageTimes
    num_microbatches: int
    caps: tuple[float, ...]
    num_chunks: int = 1

    @property
    def orders(self) -> Orders:
        """The order that is found; deterministic."""
        return search_orders(
            self.times, self.num_microbatches, self.caps, num_chunks=self.num_chunks, effort=EFFORT
        )


TWO = StageTimes((0.6, 0.9), (0.7, 0.6), (0.8, 0.4), 0.5)
FOUR = StageTimes((0.5, 1.7, 0.8, 1.1), (0.9, 1.4, 0.3, 1.2), (0.2, 1.9, 0.7, 0.4), 0.3)
CASES = {
    "p2": Searched(TWO, 5, (3, 3)),
    "p2 little memory": Searched(TWO, 5, (1, 1)),
    "p2 V": Searched(FOUR, 4, (2, 2), num_chunks=2),
    "p4": Searched(FOUR, 8, (4, 4, 4, 4)),
    "p4 unequal memory": Searched(FOUR, 8, (2, 4, 1, 3)),
    "p4 V": Searched(FOUR.folded(), 6, (3, 2, 4, 2), num_chunks=2),
}


ROWS = list(product({"name": CASES, "variant": ("plain", "recompute")}))


@pytest.mark.parametrize(("name", "variant"), covered([tuple(row.values()) for row in ROWS], ROWS, 1))
def test_one_process_finds_the_same(name: str, variant: str, gloo_pool: Pool) -> None:
    """Loss, norm, every gradient and the parameters."""
    case = CASES[name]
    program = program_of(case, variant)
    verify(program)
    layers = split_layers(MODEL.num_layers, case.times.num_stages)
    training = TrainingConfig(MODEL, layers, SEQUENCE, SGD, source=RANDOM, records_gradients=True)
    result = run_training(program, training, ITERATIONS, pool=gloo_pool, dtype="float64")
    expected = reference(MODEL, SGD, case.num_microbatches, ITERATIONS)
    assert result.losses == pytest.approx(expected.losses, rel=TOLERANCE)
    assert [it.gradient_norm for it in result.iterations] == pytest.approx(expected.norms, rel=TOLERANCE)
    for ours, theirs in zip(result.gradients, expected.gradients, strict=True):
        assert largest_difference(ours, theirs) < TOLERANCE
    assert largest_difference(result.parameters, expected.parameters) < TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_the_order_is_no_published_one(name: str) -> None:
    """Another order than every registered schedule's, within the caps: what is executed above was searched."""
    case = CASES[name]
    p, m, v = len(case.caps), case.num_microbatches, case.num_chunks
    found = times_of(case.times, case.orders, v)
    assert all(peak <= cap for peak, cap in zip(found.peaks, case.caps, strict=True))
    codes_of(pipeline_of(case.times, m, case.caps, v), case.orders)
    same = [made for made in registered().values() if made.num_chunks == v and made.splits_backward]
    assert same and all(made.orders(p, m) != case.orders for made in same)


def program_of(case: Searched, variant: str) -> Program:
    """The program of one training step in this order, one sample a microbatch."""
    m = case.num_microbatches
    program = program_of_orders(
        case.orders,
        microbatches=[Microbatch(SEQUENCE, 1 / m)] * m,
        groups=[ParameterGroup(f"stage{s}", (s,), 0, ("dp",)) for s in range(case.times.num_stages)],
        collapsed=[Axis("dp", 1, False)],
    )
    if variant == "recompute":
        program = Recompute()(program)
    return OptimizerStep()(Transfers()(ReduceGradients()(program)))
