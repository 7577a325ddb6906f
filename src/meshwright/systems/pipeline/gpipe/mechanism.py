"""A step of GPipe as a program, its partition (consecutive layers whose estimated costs vary least over the stages), and the
speed-ups that its claims simulate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Literal

import numpy as np

from meshwright.costs.cost import Cost
from meshwright.costs.fixed_costs import FixedCosts
from meshwright.ir.core_vocabulary import F
from meshwright.ir.judge import metrics
from meshwright.ir.program import Program
from meshwright.ir.table import Duty, ValueBytes, Work
from meshwright.ir.trace import Trace
from meshwright.lowering.memory.recompute import Recompute
from meshwright.lowering.order import program_of_orders, with_effects, with_works
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.schedules import registered
from meshwright.simulator.simulate import simulate_program
from meshwright.systems.pipeline.gpipe.image_network import (
    AMOEBANET_BALANCES,
    LINK_BYTES_PER_S,
    P40,
    P100,
    RESNET_BALANCES,
    TPU_V2_CORE,
    ImageChip,
    Stages,
    amoebanet_d,
    cut,
    resnet_101,
)

Checkpoint = Literal["never", "except_last", "always"]
ONE_MICROBATCH = {2: 1.0, 4: 1.13, 8: 1.38}  # Table 2, AmoebaNet-D: over 2,1 with one microbatch
MANY = 32  # microbatches of the paper's rows that are claimed
FEW_FILTERS = 128  # of AmoebaNet-D in Table 3
FORWARD_S, BACKWARD_S = 1.0, 2.0  # of the whole model for the whole batch: the unit of all times here


@dataclass(frozen=True)
class RecomputeExceptLast:
    """Recompute every microbatch but the last: its backward follows its forward at once, so nothing would be saved."""

    name = "recompute_except_last"

    def __call__(self, program: Program) -> Program:
        """The program with R for all microbatches but the last."""
        program, (f,) = with_effects(Recompute()(program), F)
        c, t = program.columns, program.tables
        names = np.array([effect.name for effect in t.effects])[c.effect]
        last = c.microbatch == len(t.microbatches) - 1
        duties = tuple(Duty("R", "some") if duty.name == "R" else duty for duty in t.duties)
        program = program.with_tables(duties=duties).with_columns(
            effect=np.where(last & (names == "F"), f, c.effect)
        )
        rows = np.flatnonzero(~(last & (names == "R")))
        counts = np.bincount(program.list_of_row[rows], minlength=program.num_lists)
        return program.reordered(rows, np.concatenate([[0], np.cumsum(counts)]))


Pass = Callable[[Program], Program]
PASSES: Mapping[Checkpoint, tuple[Pass, ...]] = {
    "never": (),
    "except_last": (RecomputeExceptLast(),),
    "always": (Recompute(),),
}


def gpipe(
    num_partitions: int,
    num_microbatches: int,
    *,
    checkpoint: Checkpoint = "always",
    shares: Sequence[float] | None = None,
) -> Program:
    """One step of GPipe as a program, without the optimizer.

    Args:
        num_partitions, num_microbatches: the paper's K and M.
        checkpoint: which microbatches are recomputed; the paper recomputes all.
        shares: of the model's work, a stage each; equal without.
    """
    program = program_of_orders(registered()["gpipe"].orders(num_partitions, num_microbatches))
    for recompute in PASSES[checkpoint]:
        program = recompute(program)
    shares = shares or [1.0 / num_partitions] * num_partitions
    works = {
        (name, stage): Work(name, share=share / num_microbatches)
        for name in ("F", "R", "B")
        for stage, share in enumerate(shares)
    }
    return with_works(Transfers()(program), works)


def balance(costs: Sequence[float], num_partitions: int) -> tuple[int, ...]:
    """Layers of every stage: of all ways to cut the sequence the one with the least variance of the stages' costs.

    The mean is the same for all, so this is the least sum of squares; by dynamic programming.
    """
    before = [0.0, *accumulate(costs)]
    ends = range(len(before))
    best: list[tuple[float, tuple[int, ...]]] = [((before[end]) ** 2, (0, end)) for end in ends]
    for _stage in range(1, num_partitions):
        best = [
            min(
                (
                    (best[start][0] + (before[end] - before[start]) ** 2, (*best[start][1], end))
                    for start in range(end + 1)
                ),
            )
            for end in ends
        ]
    return tuple(end - start for start, end in pairwise(best[-1][1]))


def step(program: Program, hop_s: float = 0.0) -> Trace:
    """A simulated step; `hop_s` is the latency of a message that carries the whole batch."""
    num_microbatches = len(program.tables.microbatches)
    costs = FixedCosts.from_times(FORWARD_S, BACKWARD_S / 2, BACKWARD_S / 2, hop_s / num_microbatches)
    return simulate_program(program, costs, costs)


def step_s(
    num_partitions: int,
    num_microbatches: int,
    checkpoint: Checkpoint,
    shares: Sequence[float] | None = None,
) -> float:
    """Seconds of a step with free messages; `shares` of the work, a stage each, equal without."""
    program = gpipe(num_partitions, num_microbatches, checkpoint=checkpoint, shares=shares)
    return metrics.span_s(step(program))


def bubble_share(num_partitions: int, num_microbatches: int) -> float:
    """Idle share of the devices with equal stages and free messages."""
    return metrics.bubble(step(gpipe(num_partitions, num_microbatches, checkpoint="never")))


def memory_ratio(num_partitions: int, num_layers: int, num_microbatches: int) -> float:
    """Peak bytes without over with recompute; one layer of one sample keeps as much as one sample's boundary."""
    microbatch = 1.0 / num_microbatches
    kept = ValueBytes("saved", (microbatch * num_layers / num_partitions,))
    sizes = (ValueBytes("activation", (microbatch,)), ValueBytes("gradient", (microbatch,)), kept)
    programs = (gpipe(num_partitions, num_microbatches, checkpoint=c) for c in ("never", "always"))
    without, with_recompute = (metrics.peak_bytes(step(p.with_tables(value_bytes=sizes))) for p in programs)
    return without / with_recompute


def balanced_step_s(stages: Stages, num_microbatches: int, checkpoint: Checkpoint) -> float:
    """Seconds of a step for one image of a network cut into stages; backward twice the forward."""
    forward_s = sum(stages.forward_s)
    shares = [seconds / forward_s for seconds in stages.forward_s]
    program = gpipe(len(shares), num_microbatches, checkpoint=checkpoint, shares=shares)
    hops_s = [size / LINK_BYTES_PER_S / num_microbatches for size in stages.boundary_bytes]
    costs = replace(
        FixedCosts.from_times(forward_s, forward_s, forward_s),
        # a boundary is a link of its own in each direction; a message holds its stream and no compute
        exchange=lambda message: Cost(hops_s[min(message.ends or (0,))], compute_share=0.0),
    )
    return metrics.span_s(simulate_program(program, costs, costs))


def resnet_speed_up(num_partitions: int, num_microbatches: int) -> float:
    """Over one device that runs forward and backward once and recomputes nothing."""
    layers = resnet_101()
    stages = cut(layers, RESNET_BALANCES[num_partitions], P40)
    alone_s = 3 * sum(layer.forward_s(P40) for layer in layers)
    return alone_s / balanced_step_s(stages, num_microbatches, "except_last")


def amoebanet_speed_up(num_partitions: int, num_microbatches: int) -> float:
    """Over 2,1; the benchmark recomputes all of one microbatch, and all but the last of several."""

    def seconds(n: int, m: int) -> float:
        stages = cut(amoebanet_d(), AMOEBANET_BALANCES[n, m], P40)
        return balanced_step_s(stages, m, "always" if m == 1 else "except_last")

    return seconds(2, 1) / seconds(num_partitions, num_microbatches)


def equal_flops_stages(num_partitions: int, chip: ImageChip, **network: int) -> Stages:
    """AmoebaNet-D cut by the paper's rule, with FLOPs as the estimated costs."""
    layers = amoebanet_d(**network)
    return cut(layers, balance([layer.flops for layer in layers], num_partitions), chip)


def tpu_amoebanet_speed_up(num_partitions: int) -> float:
    """At M=32 over 2,1: the paper's value at M=1, times what microbatches gain."""
    seconds = equal_flops_stages(num_partitions, TPU_V2_CORE).forward_s
    shares = [each / sum(seconds) for each in seconds]
    one_s, many_s = (step_s(num_partitions, m, "always", shares) for m in (1, MANY))
    return ONE_MICROBATCH[num_partitions] * one_s / many_s


def transformer_speed_up(num_partitions: int, num_microbatches: int) -> float:
    """Over 2,1, with equal stages."""
    return step_s(2, 1, "always") / step_s(num_partitions, num_microbatches, "always")


def gpu_speed_up(model: str, num_partitions: int) -> float:
    """At M=32 over two partitions, on P100 without NVLink."""

    def seconds(n: int) -> float:
        if model == "Transformer":
            return step_s(n, MANY, "always")
        stages = equal_flops_stages(n, P100, num_filters=FEW_FILTERS)
        return balanced_step_s(stages, MANY, "always")

    return seconds(2) / seconds(num_partitions)


def all_busy(num_partitions: int, num_microbatches: int) -> float:
    """Over one device, or several of which one works at a time: a null."""
    return float(num_partitions)


def as_many_times(model: str, num_partitions: int) -> float:
    """Over two partitions: a null."""
    return num_partitions / 2


def one_microbatch(num_partitions: int) -> float:
    """What the paper has with one microbatch: a null."""
    return ONE_MICROBATCH[num_partitions]


def one_microbatch_all_busy(num_partitions: int) -> float:
    """The same, were all devices busy: a null."""
    return num_partitions * ONE_MICROBATCH[num_partitions]
