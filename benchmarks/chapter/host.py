"""Picture of the host: the least time of a block that is dispatched operator by operator."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from meshwright.evidence.tables.job import TrainingJob
from meshwright.evidence.tables.score import Scored
from meshwright.prediction.predicted import predict
from meshwright.reports import Chart, Series, chart_svg
from meshwright.specs.plan.software import EAGER_OPERATOR_S

from .term import GREY, MS, THEME, WIDE, Block, Term, around, medians, percent, points, power_ticks

TENSOR = (2, 4, 8)  # within a node
LEAST_MICROBATCHES = 8  # so that what happens once a step weighs little
NEAR = 0.15  # a block whose prediction is so near to its floor is held by the host
SOURCE = "nanotron_playbook"


def host_floor(scored: Sequence[Scored]) -> Term | None:
    """Blocks of the eager model with most rows without a pipeline, over the size of a microbatch."""
    blocks = [
        block for block in map(Block.of, _plain(scored)) if block.job.plan.software_class.operator_s > 0
    ]
    blocks = [block for block in blocks if block.job.plan.num_microbatches >= LEAST_MICROBATCHES]
    names = Counter(block.job.plan.model.name for block in blocks)
    if not names:
        return None
    model = names.most_common(1)[0][0]
    own = [block for block in blocks if block.job.plan.model.name == model]
    floor_ms = max(block_floor_ms(block.job) for block in own)
    sizes = power_ticks(float(block.job.plan.microbatch_size) for block in own)
    times = power_ticks([floor_ms, *(block.measured_ms for block in own)])
    floor = Series("the host's floor", around(sizes), [math.log2(floor_ms)] * 2, place=GREY, dashed=True)
    series = [each for place, tp in enumerate(TENSOR) for each in _series(own, tp, place)]
    chart = Chart(
        [*series, floor], x_label="sequences of a microbatch (lines: predicted)", y_label="ms of a block and microbatch",
        x_ticks=sizes, y_ticks=times, x_range=around(sizes), y_range=around(times), width=WIDE, height=340,
    )  # fmt: skip
    held = [block for block in own if block.predicted_ms < floor_ms * (1 + NEAR)]
    measured = [block.measured_ms for block in held]
    lines = [
        f"Points: {len(own)} measured steps of {model} ({SOURCE}) without a pipeline; lines: predicted without any row of "
        f"this source. An operator is {EAGER_OPERATOR_S * 1e6:.0f} us of the host, a block and microbatch at least "
        f"{floor_ms:.2f} ms. Of {len(held)} rows that are predicted within {percent(NEAR)} of this floor the median block "
        f"was measured at {np.median(measured):.2f} ms, {np.min(measured):.2f} to {np.max(measured):.2f} ms, whatever its "
        "tensor degree.",
    ]
    return Term(
        "host floor", chart_svg(chart, THEME), "A block's time does not fall below its host's floor", lines
    )


def _plain(scored: Sequence[Scored]) -> list[Scored]:
    """Of the source, rows without a pipeline whose tensor groups are within a node."""
    return [
        pair
        for pair in scored
        if pair[0].source == SOURCE
        and pair[1].predicted_s
        and pair[0].count("pp", 1) == 1
        and pair[0].count("tp", 1) in TENSOR
    ]


def _series(blocks: Sequence[Block], tp: int, place: int) -> list[Series]:
    own = [block for block in blocks if block.job.plan.tp == tp]
    if not own:
        return []
    sizes = [math.log2(block.job.plan.microbatch_size) for block in own]
    x, y = medians((size, math.log2(block.predicted_ms)) for size, block in zip(sizes, own, strict=True))
    measured = {
        block.scored[0].row_id: (size, math.log2(block.measured_ms))
        for size, block in zip(sizes, own, strict=True)
    }
    return [points(f"tp {tp}, measured", measured, place), Series("", x, y, place=place)]


def block_floor_ms(job: TrainingJob) -> float:
    """What the host needs for one block of a microbatch, forward and backward, by the package's prices."""
    found = predict(job.plan, job.cluster)
    plan, tables = job.plan, found.program.tables
    host_s = [found.pricing.costs.host_s(work) for work in tables.works]
    rows = slice(*found.program.offsets[:2])  # of one device of a pipeline of one stage
    works = found.program.columns.work[rows]
    total_s = sum(host_s[work] for work in works[works >= 0].tolist())
    return MS * total_s / plan.num_microbatches / plan.model.num_layers
