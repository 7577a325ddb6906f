"""A layer-wise plan as a program: every layer and end a piece of its stage, at the cost model's seconds.

A layer's own exchanges are inside its passes, as the profile has them; a layer that is spread over more or fewer devices than
the one before it reshards what it gets, forward and backward half of `cost.switch_s` each. Between stages are messages, and
the backward of a stage's last microbatch reduces gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from meshwright.costs.cost import Cost
from meshwright.costs.fixed_costs import FixedCosts
from meshwright.ir.judge import metrics
from meshwright.ir.program import Program
from meshwright.ir.table import Work
from meshwright.lowering.order import program_of_orders
from meshwright.lowering.transfer.transfer import Transfers
from meshwright.schedules.order import registered
from meshwright.simulator.simulate import simulate_program
from meshwright.systems.planning.galvatron import cost as costs
from meshwright.systems.planning.galvatron.cost import ProfiledJob, Strategy

FORWARD, BACKWARD, LAST_BACKWARD = "F", "B", "B with reduction"
Seconds = Mapping[str, float]


class LayerwiseProgram(NamedTuple):
    """A plan's step as a program, a list for every stage of the pipeline, and what its passes and messages cost."""

    program: Program
    costs: FixedCosts

    def span_s(self) -> float:
        """Seconds of the step on virtual time."""
        return metrics.span_s(simulate_program(self.program, self.costs, self.costs))


def layerwise_program(
    job: ProfiledJob, layers: Sequence[Strategy], cut: Sequence[int], ends: Strategy
) -> LayerwiseProgram:
    """The step of a plan by the job's schedule.

    Args:
        layers: a strategy each, first layer first.
        cut: layers of every stage.
        ends: strategy of embedding and head.
    """
    stages = list(_stages(job, layers, cut, ends))
    orders = registered()[job.schedule].orders(len(cut), job.num_microbatches)
    program = program_of_orders(orders, pieces=[len(pieces) for pieces in stages])
    pieces = [piece for stage in stages for piece in stage]
    seconds = {f"{name} {n}": each[name] for n, each in enumerate(pieces) for name in each}
    # what a message holds is the result of the last layer before the boundary
    sends = tuple(_send_s(job, layers[end - 1]) for end in accumulate(cut[:-1]))
    # what messages attain was measured between these stages, and they take nothing of the computes
    costs = FixedCosts(
        seconds, exchange=lambda message: Cost(sends[min(message.ends or (0,))], compute_share=0.0)
    )
    return LayerwiseProgram(Transfers()(_with_passes(program, len(pieces))), costs)


def _stages(
    job: ProfiledJob, layers: Sequence[Strategy], cut: Sequence[int], ends: Strategy
) -> Iterator[list[Seconds]]:
    """Pieces of every stage by name of the pass: embedding, layers, head. Of a single stage both ends are one piece."""
    end_passes, first = costs.ends_passes_s(job, ends), 0
    for stage, count in enumerate(cut):
        pieces = [_layer(job, layers, first + place, place == 0) for place in range(count)]
        end = _passes(*end_passes[stage])
        if stage == len(cut) - 1:
            pieces.append(end)
        elif stage == 0:
            pieces.insert(0, end)
        yield pieces
        first += count


def _layer(job: ProfiledJob, layers: Sequence[Strategy], number: int, is_first: bool) -> Seconds:
    """Passes of a layer; the first one of a stage takes what the message brings."""
    own = layers[number]
    switch_s = 0.0 if is_first else costs.switch_s(job, layers[number - 1], own) / 2
    forward_s, backward_s = costs.layer_passes_s(job, own, is_reducing=False)
    reducing_s = costs.layer_passes_s(job, own)[1]
    return _passes(forward_s + switch_s, backward_s + switch_s, reducing_s + switch_s)


def _passes(forward_s: float, backward_s: float, reducing_s: float | None = None) -> Seconds:
    """Seconds by pass; the ends reduce nothing, as in the cost model."""
    return {
        FORWARD: forward_s,
        BACKWARD: backward_s,
        LAST_BACKWARD: backward_s if reducing_s is None else reducing_s,
    }


def _send_s(job: ProfiledJob, layer: Strategy) -> float:
    """Seconds of one microbatch's hidden states to the next stage."""
    size = costs.samples_per_device(job, layer) * job.model.boundary_bytes
    return size / job.hardware.send_per_s[layer.pp]


def _with_passes(program: Program, num_pieces: int) -> Program:
    """The program with a work on every compute: its piece, its pass, and whether gradients are reduced in it."""
    names = (FORWARD, BACKWARD, LAST_BACKWARD)
    works = tuple(Work(f"{name} {piece}") for piece in range(num_pieces) for name in names)
    effects = np.array([effect.name for effect in program.tables.effects])[program.columns.effect]
    last = program.columns.microbatch == program.columns.microbatch.max()
    chosen = np.where(effects == FORWARD, 0, np.where(last, 2, 1))
    return program.with_tables(works=works).with_columns(work=program.columns.stage * len(names) + chosen)
