"""What the claims about PTD-P are made of: steps of the paper's jobs, bubbles, messages, and what chunks and divided messages
gain."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from meshwright.costs.fixed_costs import FixedCosts
from meshwright.costs.pricing import pricing_of
from meshwright.ir.judge import metrics
from meshwright.ir.timing.matching import moved_codes
from meshwright.ir.timing.wiring import wire
from meshwright.ir.value_space import value_space
from meshwright.lowering.textbook_pipeline import textbook_pipeline
from meshwright.prediction.predicted import predict
from meshwright.prediction.step_program import period_s, step_program
from meshwright.simulator.simulate import simulate_program
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError
from meshwright.specs.plan.plan import Plan
from meshwright.systems.megatron_table import (
    SEQUENCE_LENGTH,
    TABLE_2,
    VOCABULARY_SIZE,
    iteration_flops,
    model,
    nearest,
    plan,
    plan_of,
    row,
)

# The name of this paper's rows among measured ones: constants are taken without them.
SOURCE = "megatron_sc21"
BILLION, TERA, PETA = 1e9, 1e12, 1e15
FORWARD_S, BACKWARD_S = 1.0, 2.0  # of a stage: the unit of time where costs are equal
# Figures 12 and 18: 12 stages of 8 GPUs, with two layers a chunk; examples/academic_paper_scripts/sc21 of Megatron-LM.
FIGURE_GPUS, FIGURE_CHUNKS = 96, 4
TRILLION = "1008.0B"  # the row of the abstract


def billion_parameters(size: str) -> float:
    """Of our model of a row, from its tensors, in billions to one decimal."""
    return round(model(size).num_parameters / BILLION, 1)


def bubble_over_ideal(size: str) -> float:
    """Idle over busy time of a device in the row's schedule, every chunk with the same costs and messages free."""
    this = row(size)
    program = textbook_pipeline(this.schedule, this.pp, this.num_microbatches, this.num_chunks)
    costs = FixedCosts.from_times(FORWARD_S, BACKWARD_S / 2, BACKWARD_S / 2)
    trace = simulate_program(program, costs, costs)
    return metrics.span_s(trace) / float(metrics.busy_s(trace)[0]) - 1


@cache
def step_s(size: str) -> float:
    """Predicted seconds of a step of a row, with constants fitted without this paper's rows."""
    return predict(*plan(size), left_out=SOURCE).step.value


def teraflops(size: str) -> float:
    """Predicted TF/s of each GPU of a row, by the paper's F."""
    return row_flops(size) / (row(size).num_gpus * step_s(size)) / TERA


def nearest_teraflops(size: str) -> float:
    """What the paper's nearest other row says of one: a null."""
    return nearest(size).teraflops


def petaflops(num_gpus: int) -> float:
    """Predicted PF/s of all GPUs of the trillion."""
    return num_gpus * teraflops(TRILLION) * TERA / PETA


def nearest_petaflops(num_gpus: int) -> float:
    """As many GPUs at the rate of the row nearest to the trillion: a null."""
    return num_gpus * nearest_teraflops(TRILLION) * TERA / PETA


def figure(size: str, global_batch: int, num_chunks: int) -> tuple[Plan, ClusterSpec]:
    """The model of Table 2's first row of this size on one pipeline, as figures 12 and 18 have it."""
    first = next(each for name, each in TABLE_2.items() if name.startswith(size))
    this = replace(first, num_gpus=FIGURE_GPUS, global_batch=global_batch, num_chunks=num_chunks)
    return plan_of(this, size)


def interleaving_gain(size: str, global_batch: int) -> float:
    """Predicted step without chunks over that with chunks."""
    whole, cut = (figure(size, global_batch, chunks) for chunks in (1, FIGURE_CHUNKS))
    return predict(*whole, left_out=SOURCE).step.value / predict(*cut, left_out=SOURCE).step.value


def scatter_gather_gain(size: str, global_batch: int) -> float:
    """Of dividing messages, with chunks."""
    return divided_message_speed_up(*figure(size, global_batch, FIGURE_CHUNKS), left_out=SOURCE)


def divided_message_speed_up(plan: Plan, cluster: ClusterSpec, left_out: str = "") -> float:
    """Predicted step where every tensor-parallel rank sends all of a message, over that where it sends 1 / tp of it.

    In both the receivers gather what they got within the node. `left_out`: as of `predict`.
    """
    pricing = pricing_of(plan, cluster, left_out=left_out)
    divided = step_program(plan, cluster)
    program = divided.wiring.program
    sizes = tuple(
        each._replace(by_index=tuple(plan.tp * size for size in each.by_index))
        if each.kind in ("activation", "gradient")  # what crosses a boundary between stages
        else each
        for each in program.tables.value_bytes
    )
    whole = replace(divided, wiring=wire(program.with_tables(value_bytes=sizes)))
    slow_s, fast_s = (
        period_s(made.wiring, made.priced(pricing.costs)) + pricing.step_s for made in (whole, divided)
    )
    return slow_s / fast_s


def sent_bytes(size: str) -> float:
    """Bytes of one message between stages that a device of a row sends forward."""
    return message_bytes(*plan(size))


def row_flops(size: str) -> float:
    """The paper's F of a row."""
    this = row(size)
    return iteration_flops(
        this.num_layers, this.hidden_size, VOCABULARY_SIZE, SEQUENCE_LENGTH, this.global_batch
    )


def message_bytes(plan: Plan, cluster: ClusterSpec) -> float:
    """Bytes of one message that a device sends to the next stage, in the program of the plan.

    Raises PlanError where there is one stage only.
    """
    program = step_program(plan, cluster).wiring.program
    names = [effect.name for effect in program.tables.effects]
    if "SEND_F" not in names:
        raise PlanError(f"a plan of {plan.pp} stage sends nothing", allowed="pp of 2 or more")
    forward = np.flatnonzero(program.columns.effect == names.index("SEND_F"))
    return float(value_space(program).bytes[moved_codes(program)[forward]].max())
