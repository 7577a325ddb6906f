"""`execute_schedule`: a schedule run on processes of this machine, every gradient beside that of one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshwright import catalog
from meshwright.api.subjects.diagnosing import require_torch
from meshwright.api.subjects.loading import is_data_file
from meshwright.api.subjects.schedule_comparison import found_schedule
from meshwright.api.subjects.subject import DEFAULT_MICROBATCHES, DEFAULT_STAGES
from meshwright.ir.program import Program
from meshwright.ir.table import Microbatch, ParameterGroup
from meshwright.ir.trace import Trace
from meshwright.lowering.order import program_of_orders
from meshwright.schedules.order import Compute, Orders, Schedule
from meshwright.specs.error import SpecError
from meshwright.specs.model.layers import split_layers
from meshwright.specs.model.model import ModelSpec

if TYPE_CHECKING:
    from meshwright.executor.job.gather import JobResult
    from meshwright.executor.job.pool import Pool

MAX_RANKS = 16  # processes of this machine that a proof may start
SEQUENCE, VOCABULARY, HIDDEN, HEADS = 8, 32, 16, 2  # of a decoder that takes milliseconds
ITERATIONS = 2  # the second begins with the parameters that the first left
TOLERANCE = 1e-10  # of every gradient in float64, relative to its largest number (DESIGN, tolerances)


@dataclass(frozen=True, eq=False)
class Execution:
    """What a schedule gave on processes, beside one process that takes the whole batch at once.

    ``difference``: the largest of any gradient, of any iteration, relative to the largest number of that gradient.
    """

    label: str
    losses: tuple[float, ...]
    expected_losses: tuple[float, ...]
    num_gradients: int
    difference: float
    trace: Trace | None

    @property
    def is_equal(self) -> bool:
        """Are all gradients those of one process, within `TOLERANCE`?"""
        return self.difference <= TOLERANCE


def execute_schedule(
    schedule: str | Schedule,
    *,
    stages: int | None = None,
    microbatches: int | None = None,
    chunks: int | None = None,
    split: bool = False,
    recompute: bool = False,
    seed: int = 0,
    pool: Pool | None = None,
) -> Execution:
    """Train a small decoder by a schedule, one process a device, in float64, and compare every gradient with one process.

    Args:
        schedule, stages, microbatches, chunks, split, recompute: as of `subject`; a CSV file says its own counts.
        seed: of parameters and data. pool: processes to run on; None: started for this and ended afterwards.

    Raises:
        SpecError: more devices than processes may be started.
        ScheduleError, ProgramError, ExecutionError: the order is none, or the job failed.
    """
    found = found_schedule(schedule)
    p, m = stages or DEFAULT_STAGES, microbatches or DEFAULT_MICROBATCHES
    if isinstance(schedule, str) and is_data_file(schedule):  # orders say their own counts
        own = found.function(p, m)
        p, m = len(own), 1 + max((compute.microbatch for row in own for compute in row), default=0)
    v = found.num_chunks if chunks is None else chunks
    if p > MAX_RANKS:
        raise SpecError(
            f"{p} devices on this machine", allowed=f"up to {MAX_RANKS} processes", next="give fewer"
        )
    passes = ["split_backward"] * split + ["recompute"] * recompute
    orders = found.orders(p, m, v)
    done = _trained(
        _program(orders, [Microbatch(SEQUENCE, 1 / m)] * m, p * v, passes), p * v, p * v, seed, pool
    )
    alone: Orders = [[Compute("F", 0, 0), Compute("B", 0, 0)]]
    one = _trained(_program(alone, [Microbatch(m * SEQUENCE, 1.0)], 1, []), 1, p * v, seed, pool)
    pairs = list(zip(done.gradients, one.gradients, strict=True))
    difference = max(_difference(ours, theirs) for ours, theirs in pairs)
    number = len(one.gradients[0])
    return Execution(found.name, tuple(done.losses), tuple(one.losses), number, difference, done.trace)


def _program(orders: Orders, microbatches: list[Microbatch], num_stages: int, passes: list[str]) -> Program:
    """One training step: computes, transfers and the optimizer."""
    groups = tuple(ParameterGroup(f"stage{stage}", (stage,), 0, ()) for stage in range(num_stages))
    program = program_of_orders(orders, microbatches=microbatches, num_stages=num_stages, groups=groups)
    for name in [*passes, "reduce_gradients", "transfers", "optimizer_step"]:
        program = catalog.find_pass(name)(program)
    return program


def _trained(program: Program, num_stages: int, num_layers: int, seed: int, pool: Pool | None) -> JobResult:
    require_torch()
    from meshwright.executor import run_training
    from meshwright.executor.ops.optimizer_step import OptimizerConfig
    from meshwright.executor.training.training_job import RANDOM, TrainingConfig

    model = ModelSpec.decoder(
        num_layers, HIDDEN, HEADS, vocabulary_size=VOCABULARY, max_sequence_length=SEQUENCE
    )
    training = TrainingConfig(
        model, split_layers(num_layers, num_stages), SEQUENCE, OptimizerConfig("sgd", learning_rate=0.1, clip_norm=None),
        source=RANDOM, seed=seed, records_gradients=True,
    )  # fmt: skip
    return run_training(program, training, ITERATIONS, pool=pool, dtype="float64")


def _difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """Over all tensors; inf where one of them is missing on either side."""
    if set(ours) != set(theirs):
        return float("inf")
    return max(
        float((ours[name] - theirs[name]).abs().max() / theirs[name].abs().max().clamp(min=1e-30))
        for name in theirs
    )
