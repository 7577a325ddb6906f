"""Synchronous pipeline training with microbatches and recomputed activations.

Paper:      GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism, Yanping Huang, Youlong Cheng,
            Ankur Bapna, Orhan Firat, Mia Xu Chen, Dehao Chen, HyoukJoong Lee, Jiquan Ngiam, Quoc V. Le, Yonghui Wu,
            Zhifeng Chen, 2019, arXiv 1811.06965
Problem:    A model that does not fit on one accelerator leaves all but one idle when its layers are spread over several.
Idea:       Cut the L layers into K stages and the batch of N samples into M microbatches; run all forwards, then all
            backwards in reverse order, and step once, so the result is that of one device. Idle are (K-1)/(M+K-1) of the
            time. A stage keeps only its inputs and runs its forward again before its backward: activations at the peak
            fall from N L/K to N + (L/K)(N/M) in units of one layer of one sample, for one more forward.
Kind:       schedule
Simulated:  one step on virtual time; forward : backward = 1 : 2, recompute = forward, a latency a hop, shares of stages
Executed:   F, R, B, SEND, RECV and STEP of a decoder on gloo processes, by the core's schedule and recompute pass
Differs:    1. Layers are cut by count, the paper minimises the variance of their estimated costs.
            2. No batch normalisation, so nothing about its statistics per microbatch.
            3. Recomputing all but the last microbatch is torchgpipe's, whose measurements most claims are about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from meshwright.costs.fixed_costs import FixedCosts
from meshwright.ir import metrics
from meshwright.ir.program import Program
from meshwright.ir.table import Duty, ValueBytes, Work
from meshwright.ir.trace import Trace
from meshwright.ir.vocabulary import NAMES
from meshwright.lowering.order import program_of_orders, with_effects, with_works
from meshwright.lowering.recompute import Recompute
from meshwright.lowering.transfer import Transfers
from meshwright.schedules import registered
from meshwright.simulator.simulate import simulate_program

Checkpoint = Literal["never", "except_last", "always"]

TORCHGPIPE = "torchgpipe (kakaobrain, 8 P40), docs/benchmarks.rst and benchmarks/"
# The project's own tolerance for a predicted step (15 %); what a claim leaves out has to fit into it.
CLAIMS = (
    {
        "claim": "idle share of the devices with K={num_partitions}, M={num_microbatches}: (K-1)/(M+K-1)",
        "kind": "identity",
        "unit": "share",
        "tolerance": 1e-9,
        "reason": "equal stages and free messages: the schedule's own arithmetic",
        "how": "bubble of the simulated step",
        "by": "bubble_share",
        "cases": (
            ({"num_partitions": 4, "num_microbatches": 8}, 0.2727272727272727),
            ({"num_partitions": 8, "num_microbatches": 32}, 0.1794871794871795),
        ),
    },
    {
        "claim": "recompute divides peak activations by (L/K) / (1 + L/(K M)), K={num_partitions}, "
        "L={num_layers}, M={num_microbatches}",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.15,
        "reason": "O(N + L/K N/M) leaves out the output and the gradient under way: 2/M of N, 12.5 % of 2 N at M=8",
        "how": "ratio of the peaks of the simulated memory ledger, fullest device, no parameters",
        "by": "memory_ratio",
        "cases": (
            ({"num_partitions": 4, "num_layers": 32, "num_microbatches": 8}, 4.0),
            ({"num_partitions": 8, "num_layers": 72, "num_microbatches": 32}, 7.024390243902439),
        ),
    },
    {
        "claim": "ResNet-101 on {num_partitions} devices, m={num_microbatches}, speed-up over one without pipeline",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.15,
        "reason": "the project's tolerance for a predicted step",
        "how": "paper_value measured by torchgpipe; ours: equal stages, free messages, all but the last recomputed",
        "by": "resnet_speed_up",
        "cases": (
            ({"num_partitions": 1, "num_microbatches": 2}, 0.853),
            ({"num_partitions": 2, "num_microbatches": 1667}, 1.414),
            ({"num_partitions": 4, "num_microbatches": 256}, 2.774),
            ({"num_partitions": 8, "num_microbatches": 150}, 4.294),
        ),
    },
    {
        "claim": "AmoebaNet-D speed-up over n,m = 2,1 at {num_partitions},{num_microbatches} (torchgpipe)",
        "kind": "fitted on 2,1 and 8,1",
        "unit": "x",
        "tolerance": 0.15,
        "reason": "the project's tolerance for a predicted step",
        "how": "paper_value measured by torchgpipe; ours: equal stages, the seconds of a hop fitted, a kernel as fast "
        "for few samples as for many",
        "by": "amoebanet_speed_up",
        "cases": (
            ({"num_partitions": 4, "num_microbatches": 1}, 1.004),
            ({"num_partitions": 2, "num_microbatches": 4}, 1.539),
            ({"num_partitions": 4, "num_microbatches": 4}, 1.666),
            ({"num_partitions": 8, "num_microbatches": 4}, 2.621),
            ({"num_partitions": 2, "num_microbatches": 32}, 1.773),
            ({"num_partitions": 4, "num_microbatches": 32}, 2.709),
            ({"num_partitions": 8, "num_microbatches": 32}, 4.953),
        ),
    },
    {
        "claim": "AmoebaNet-D speed-up over 2,1 at {num_partitions},32 from the imbalance of its stages ({source})",
        "kind": "fitted on n,1 and n,4",
        "unit": "x",
        "tolerance": 0.15,
        "reason": "the project's tolerance for a predicted step",
        "how": "the share of the heaviest stage fitted on m=4 over m=1, m=32 simulated; messages free. torchgpipe "
        "recomputes all but the last microbatch, the paper all",
        "by": "imbalance_speed_up",
        "cases": (
            ({"num_partitions": 2, "source": "torchgpipe"}, 1.773),
            ({"num_partitions": 4, "source": "torchgpipe"}, 2.709),
            ({"num_partitions": 8, "source": "torchgpipe"}, 4.953),
            ({"num_partitions": 2, "source": "paper"}, 1.21),
            ({"num_partitions": 4, "source": "paper"}, 1.84),
            ({"num_partitions": 8, "source": "paper"}, 3.48),
        ),
    },
    {
        "claim": "here, two processes: recompute divides the measured peak of activations by M s / (M a + s), "
        "M={num_microbatches}",
        "kind": "measured",
        "unit": "x",
        "tolerance": 0.15,
        "reason": "as above: the formula leaves out what one microbatch has under way beside what it saves",
        "how": "live storages of the last stage, less parameters, optimizer and gradients; paper_value is the formula "
        "with s = 41004 bytes saved and a = 512 received a token by this decoder's stage",
        "by": "studies.gpipe:memory_ratio",
        "cases": (({"num_microbatches": 8}, 7.2734),),
    },
    {
        "claim": "here, two processes: speed-up of M={num_microbatches} over M=1 is 2 M / (M + 1)",
        "kind": "measured",
        "unit": "x",
        "tolerance": 0.15,
        "reason": "the project's tolerance for a predicted step",
        "how": "median ratio of 11 interleaved pairs of jobs on gloo; messages and unequal stages are in it",
        "by": "studies.gpipe:speed_up",
        "cases": (({"num_microbatches": 8}, 1.7778),),
    },
)
# Speed-ups over n,m = 2,1 on which constants are fitted; both columns stand in torchgpipe's docs/benchmarks.rst.
MEASURED = {
    "torchgpipe": {(2, 1): 1.0, (4, 1): 1.004, (8, 1): 0.932, (2, 4): 1.539, (4, 4): 1.666, (8, 4): 2.621},
    "paper": {(2, 1): 1.0, (4, 1): 1.13, (8, 1): 1.38, (2, 4): 1.07, (4, 4): 1.26, (8, 4): 1.72},
}
FORWARD_S, BACKWARD_S = 1.0, 2.0  # of the whole model for the whole batch: the unit of all times here
NUM_BISECTIONS = (
    40  # halves the interval of a share below the rounding of the measured numbers many times over
)


@dataclass(frozen=True)
class RecomputeExceptLast:
    """Recompute every microbatch but the last: its backward follows its forward at once, so nothing would be saved."""

    name = "recompute_except_last"

    def __call__(self, program: Program) -> Program:
        """The program with R for all microbatches but the last."""
        program, (f,) = with_effects(Recompute()(program), NAMES["F"].effect)
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


def step(program: Program, hop_s: float = 0.0) -> Trace:
    """A simulated step; `hop_s` is the latency of a message that carries the whole batch."""
    num_microbatches = len(program.tables.microbatches)
    costs = FixedCosts.from_times(FORWARD_S, BACKWARD_S / 2, BACKWARD_S / 2, hop_s / num_microbatches)
    return simulate_program(program, costs, costs)


def step_s(
    num_partitions: int,
    num_microbatches: int,
    checkpoint: Checkpoint,
    hop_s: float = 0.0,
    heaviest: float = 0.0,
) -> float:
    """Seconds of a step where the last stage has the share `heaviest` of the work and the others are equal."""
    shares = None
    if heaviest and num_partitions > 1:
        shares = [(1.0 - heaviest) / (num_partitions - 1)] * (num_partitions - 1) + [heaviest]
    program = gpipe(num_partitions, num_microbatches, checkpoint=checkpoint, shares=shares)
    return metrics.span_s(step(program, hop_s))


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


def resnet_speed_up(num_partitions: int, num_microbatches: int) -> float:
    """Over one device that runs forward and backward once and recomputes nothing."""
    return (FORWARD_S + BACKWARD_S) / step_s(num_partitions, num_microbatches, "except_last")


def amoebanet_speed_up(num_partitions: int, num_microbatches: int) -> float:
    """Over 2,1, with the hop that explains 8,1 over 2,1."""
    hop_s = fitted_hop_s(MEASURED["torchgpipe"][8, 1])
    ours = step_s(num_partitions, num_microbatches, torchgpipe_checkpoint(num_microbatches), hop_s)
    return step_s(2, 1, "always", hop_s) / ours


def torchgpipe_checkpoint(num_microbatches: int) -> Checkpoint:
    """What torchgpipe's benchmarks/amoebanetd-speed sets."""
    return "always" if num_microbatches == 1 else "except_last"


def fitted_hop_s(speed_up: float) -> float:
    """The latency of a hop with which 8,1 is `speed_up` times as fast as 2,1; with one microbatch times are linear."""
    free = {n: step_s(n, 1, "always") for n in (2, 8)}
    slope = {n: step_s(n, 1, "always", hop_s=1.0) - free[n] for n in (2, 8)}
    return max(0.0, (free[2] - speed_up * free[8]) / (speed_up * slope[8] - slope[2]))


def imbalance_speed_up(num_partitions: int, source: str) -> float:
    """At m=32 over 2,1, with the heaviest stage's share that explains m=4 over m=1 at as many partitions."""
    n, table = num_partitions, MEASURED[source]
    checkpoint: Checkpoint = "except_last" if source == "torchgpipe" else "always"
    heaviest = fitted_share(n, table[n, 4] / table[n, 1], checkpoint)
    return table[n, 1] * step_s(n, 1, "always", 0.0, heaviest) / step_s(n, 32, checkpoint, 0.0, heaviest)


def fitted_share(num_partitions: int, speed_up: float, checkpoint: Checkpoint) -> float:
    """Share of the heaviest stage with which m=4 is `speed_up` times as fast as m=1; equal where none is that fast."""
    low, high = 1.0 / num_partitions, 1.0
    for _ in range(NUM_BISECTIONS):
        middle = (low + high) / 2
        one = step_s(num_partitions, 1, "always", 0.0, middle)
        is_faster = one / step_s(num_partitions, 4, checkpoint, 0.0, middle) > speed_up
        low, high = (middle, high) if is_faster else (low, middle)
    return low
