"""torchtitan's keys for a pipeline: its schedule, and how it deals blocks to stages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwright.interop.exported import Export
from meshwright.interop.torchtitan.config import INTERLEAVED_CHUNKS, SCHEDULES
from meshwright.specs.plan.plan import Plan

NAMES = {ours: theirs for theirs, ours in SCHEDULES.items()}
INTERLEAVED = "interleaved_1f1b"


def stage_keys(export: Export) -> dict[str, Any]:
    """The keys; nothing without a pipeline, where microbatches run one after the other."""
    plan = export.plan
    if plan.pp == 1:
        export.need(
            (plan.schedule, plan.num_chunks) == ("1f1b", 1),
            f'schedule = "{plan.schedule}", {plan.num_chunks} chunks',
            "there is no schedule without a pipeline: microbatches run one after the other",
        )
        return {}
    if not _has_schedule(export):
        return {}
    dealt = next(_deals(plan), None)
    if dealt is None:
        shown = ", ".join(map(str, plan.layers_per_stage))
        reason = "it deals blocks out evenly, the remainder to the first stages, with fewer on the first and the last"
        export.refuse(f"layers_per_stage = {shown}", reason)
        return {}
    first, last, each = dealt
    found = {
        "pipeline_parallel_schedule": NAMES[plan.schedule],
        "pipeline_parallel_microbatch_size": plan.microbatch_size,
        "pipeline_parallel_first_stage_less_layers": first,
        "pipeline_parallel_last_stage_less_layers": last,
    }
    return {**found, "pipeline_parallel_layers_per_stage": each} if each else found


def _has_schedule(export: Export) -> bool:
    """Whether torchtitan runs this schedule with these chunks and microbatches."""
    plan = export.plan
    num_refused = len(export.refusals)
    export.one_of("schedule", NAMES, f"it has {', '.join(NAMES)}")
    is_interleaved = plan.schedule == INTERLEAVED
    export.need(
        is_interleaved == (plan.num_chunks > 1),
        f"num_chunks = {plan.num_chunks}",
        "only an interleaved schedule has several chunks a rank",
    )
    rounds = max(1, plan.num_microbatches // plan.pp)
    export.need(
        not is_interleaved or plan.num_microbatches % rounds == 0,
        f"{plan.num_microbatches} microbatches",
        f"its interleaved schedule runs them in {rounds} equal rounds",
    )
    return len(export.refusals) == num_refused


def _deals(plan: Plan) -> Iterator[tuple[int, int, int]]:
    """Ways to say the plan's stages: how many blocks first and last stage have less, and layers of a stage (0: unsaid)."""
    counts, most = plan.layers_per_stage, max(plan.layers_per_stage)
    for total in range(2 * most + 1):
        each = _layers_per_stage(plan, total)
        share, rest = divmod(plan.model.num_layers + total, len(counts))
        for first in range(total + 1):
            last = total - first
            dealt = [share + (stage < rest) for stage in range(len(counts))]
            dealt[0] -= first
            dealt[-1] -= last
            if each is not None and max(first, last) <= share and tuple(dealt) == counts:
                yield first, last, each


def _layers_per_stage(plan: Plan, less: int) -> int | None:
    """Layers of a stage that make this many stages; 0 where they need not be said, None where there are none."""
    if plan.num_chunks == 1 or plan.num_chunks == INTERLEAVED_CHUNKS:
        return 0
    weight = plan.model.num_layers + less
    return next((each for each in range(1, weight + 1) if -(-weight // each) == plan.num_stages), None)
