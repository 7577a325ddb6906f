"""Pictures of what is not explained: blocks of pipelines over several nodes, and exchanges that leave the node."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np

from meshwright.evidence.tables.score import Scored
from meshwright.prediction.predicted import predict
from meshwright.reports import Chart, Series, chart_svg

from .host import SOURCE
from .term import GREY, THEME, WIDE, Block, Term, around, of_source, points, power_ticks

DEGREES = (2, 4, 8)  # of tensor parallelism, within a node
MOST_MS = 128.0  # of a block that is drawn; what is slower is counted
HELD = 0.5  # a block predicted below this share of what blocks of its degree take is held by something else
LARGE_DEGREES = (16, 32)  # over two and four nodes of eight
LEAST_MICROBATCHES = 8
MOST_LONGER_MS = 2.0  # of an exchange that is drawn


def blocks(scored: Sequence[Scored]) -> Term | None:
    """Measured blocks over predicted ones: those of pipelines over several nodes by tensor degree, and all others."""
    every = [block for block in map(Block.of, of_source(scored, SOURCE)) if block.job.plan.tp <= max(DEGREES)]
    strange = {tp: [each for each in every if is_strange(each) and each.job.plan.tp == tp] for tp in DEGREES}
    if not all(strange.values()):
        return None
    others = [each for each in every if not is_strange(each)]
    floors = {tp: _floor_ms(own) for tp, own in strange.items()}
    slope, offset = np.polyfit(list(floors), list(floors.values()), 1)
    drawn = [each for each in every if each.measured_ms <= MOST_MS]
    x_ticks, y_ticks = (power_ticks(values) for values in zip(*(_ms(each) for each in drawn), strict=True))
    low, high = x_ticks[0][0], min(x_ticks[-1][0], y_ticks[-1][0])
    chart = Chart(
        [
            points("all others", _drawn(others), GREY),
            *(points(f"tp {tp}, several nodes, pp >= 2", _drawn(own), place)
              for place, (tp, own) in enumerate(strange.items())),
            Series("", [low, high], [low, high], place=GREY, dashed=True),
        ],
        x_label="predicted ms of a block and microbatch", y_label="measured ms", x_ticks=x_ticks, y_ticks=y_ticks,
        x_range=around(x_ticks), y_range=around(y_ticks), width=WIDE, height=400,
    )  # fmt: skip
    told = ", ".join(f"{floor:.1f} ms at tp {tp}" for tp, floor in floors.items())
    rest = median(each.measured_ms / each.predicted_ms for each in others)
    num_held = sum(len(own) for own in strange.values())
    num_slow = sum(each.measured_ms > MOST_MS for each in every)
    lines = [
        f"{num_held} rows of pipelines over several nodes with two or more blocks a stage, and {len(others)} others of "
        f"{SOURCE} with tensor groups within a node (median of measured over predicted {rest:.2f}); {num_slow} blocks above "
        f"{MOST_MS:.0f} ms are not drawn. Where its work is least a block of the former takes {told}: about "
        f"{offset:.1f} + {slope:.1f} tp ms, whatever its work.",
    ]
    return Term(
        "blocks not explained", chart_svg(chart, THEME), "Blocks that take as long whatever their work", lines
    )


def is_strange(block: Block) -> bool:
    """Is it of a pipeline over several nodes, with tensor parallelism and two blocks a stage or more?"""
    plan, per_node = block.job.plan, block.job.cluster.levels[0].num_devices
    return plan.tp > 1 and plan.pp > 1 and plan.num_devices > per_node and plan.model.num_layers > plan.pp


def _floor_ms(own: Sequence[Block]) -> float:
    """What blocks take whose work is least."""
    usual = median(each.measured_ms for each in own)
    return median(each.measured_ms for each in own if each.predicted_ms < HELD * usual)


def _ms(block: Block) -> tuple[float, float]:
    return block.predicted_ms, block.measured_ms


def _drawn(own: Sequence[Block]) -> dict[str, tuple[float, float]]:
    return {
        each.scored[0].row_id: (math.log2(each.predicted_ms), math.log2(each.measured_ms))
        for each in own
        if each.measured_ms <= MOST_MS
    }


def exchanges(scored: Sequence[Scored]) -> Term | None:
    """By how much longer than predicted an exchange of tensor parallelism over nodes takes, over its bytes."""
    own = [
        block
        for block in map(Block.of, of_source(scored, SOURCE))
        if block.job.plan.tp in LARGE_DEGREES
        and block.job.plan.pp == 1
        and block.job.plan.num_microbatches >= LEAST_MICROBATCHES
    ]
    if not own:
        return None
    found: dict[int, dict[str, tuple[float, float]]] = {tp: {} for tp in LARGE_DEGREES}
    for block in own:
        plan = block.job.plan
        mebibytes = (
            plan.microbatch_size * plan.workload.sequence_length * plan.model.hidden_size * 2 / (1 << 20)
        )
        longer_ms = (block.measured_ms - block.predicted_ms) / exchanges_of_block(block)
        found[plan.tp][block.scored[0].row_id] = (math.log2(mebibytes), longer_ms)
    drawn = {
        tp: {name: at for name, at in each.items() if at[1] <= MOST_LONGER_MS} for tp, each in found.items()
    }
    ticks = power_ticks(2.0**x for each in found.values() for x, _ in each.values())
    chart = Chart(
        [points(f"tp {tp}, {tp // 8} nodes", each, place) for place, (tp, each) in enumerate(drawn.items())],
        x_label="MiB of the whole tensor", y_label="ms longer than predicted, an exchange", x_ticks=ticks,
        x_range=around(ticks), y_from_zero=True, width=WIDE,
    )  # fmt: skip
    return Term(
        "exchanges not explained", chart_svg(chart, THEME),
        "What exchanges over nodes take beyond what is predicted", [_told(found)],
    )  # fmt: skip


def _told(found: Mapping[int, Mapping[str, tuple[float, float]]]) -> str:
    by_degree = []
    for tp, each in found.items():
        longer = [ms for _, ms in each.values()]
        if longer:
            by_degree.append(
                f"{np.median(longer):.2f} ms ({min(longer):.2f} to {max(longer):.2f}) at tp {tp}"
            )
    number = sum(map(len, found.values()))
    return (
        f"{number} rows without a pipeline: each exchange takes in the median {', '.join(by_degree)} longer than "
        f"predicted; above {MOST_LONGER_MS:g} ms nothing is drawn."
    )


def exchanges_of_block(block: Block) -> float:
    """How many exchanges of tensor parallelism a block makes for a microbatch, forward and backward."""
    job = block.job
    program = predict(job.plan, job.cluster).program
    inner = [sum(each.count for each in work.inner) for work in program.tables.works]
    works = program.columns.work[slice(*program.offsets[:2])]
    count = sum(inner[work] for work in works[works >= 0].tolist())
    return count / job.plan.num_microbatches / job.plan.model.num_layers * job.plan.pp
